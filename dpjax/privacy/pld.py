"""Privacy loss distributions (PLDs) of Gaussian and subsampled Gaussian releases.

dp-accounting discretises, by connecting the dots, and composes. Every approximation
but rounding is an upper bound. Rounding is added to delta: FFTs make it about 1e-16 a
composition, absolutely.

The pairs that dominate, in units of the noise's clip norm (Poisson) or sensitivity:

- `PoissonGaussianRelease`: (1 - q) N(0) + q N(1) against N(0), both directions, under
  ADD_OR_REMOVE_ONE, and against (1 - q) N(0) + q N(-1) under REPLACE_ONE.
- `FixedBatch` of a Gaussian release or penalty bit: if the event on its batch has the
  profile d(eps), the release has at most q d(log(1 + (e^eps - 1) / q)) at eps >= 0
  [Balle, Barthe and Gaboardi 2018, Theorem 9: sampling without replacement,
  substitution]. With a Gaussian d this is the profile of (1 - q) N(0) + q N(1) against
  N(0). As substitution is symmetric it holds for both directions, and H(-eps) =
  1 - e^-eps + e^-eps H'(eps) turns it into the profile of N(0) against the mixture
  at eps < 0. The pair of these two branches dominates [Zhu, Dong and Wang 2022,
  section 5]. It is below the pair (0, 1, -1) of the thesis at every epsilon.

Gaussian releases, and penalty bits as what they process, are composed in closed form
first.
"""

import math
from functools import lru_cache

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import pld_pmf, privacy_loss_mechanism
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)
from scipy import signal

from dpjax.privacy.events import (
    Event,
    FixedBatch,
    GaussianRelease,
    PoissonGaussianRelease,
)

__all__ = ["Composed", "applies", "compose"]

POINTS_A_DEVIATION = 20
MAX_POINTS = 200_000
MAX_COMPOSED_POINTS = 2**19
BASE = 4096
"""Compositions at once: dp-accounting's bounds on the tails of more are loose."""
ROUNDING = 1e-15


def applies(event: Event) -> bool:
    """Whether the event has a privacy loss distribution here."""
    if isinstance(event, FixedBatch):
        return event.event.gaussian is not None
    return event.gaussian is not None or isinstance(event, PoissonGaussianRelease)


class Composed:
    """delta of composed distributions, fast for many epsilons.

    Between the losses l_i of the grid delta is linear in e^epsilon, and at them

        delta_i = e^-h delta_(i+1) + (1 - e^-h) sum_(j > i) p_j,

    h the spacing, a sum of positive terms.
    """

    def __init__(self, distribution: PrivacyLossDistribution, rounding: float):
        self._rounding = rounding
        pmfs = [distribution._pmf_remove]
        if not distribution._symmetric:
            pmfs.append(distribution._pmf_add)
        self._profiles = [_profile(pmf.to_dense_pmf()) for pmf in pmfs]

    def delta(self, epsilon):
        """delta at real epsilons, the larger of both directions, at most 1."""
        epsilon = np.asarray(epsilon, np.float64)
        found = np.zeros(epsilon.shape)
        for interval, lower, values, infinity_mass in self._profiles:
            place = epsilon / interval - lower
            i = np.clip(np.floor(place), 0, values.size - 2).astype(int)
            share = np.expm1(np.clip(place - i, 0, 1) * interval) / np.expm1(interval)
            value = values[i] + share * (values[i + 1] - values[i])
            # Left of the grid, the chord to delta = 1 at e^epsilon = 0.
            below = 1 - np.exp(np.minimum(place, 0.0) * interval) * (1 - values[0])
            found = np.maximum(found, np.where(place < 0, below, value) + infinity_mass)
        if not np.all(found >= 0):
            raise ArithmeticError("the accountant computed a delta that is not >= 0")
        return np.minimum(found + self._rounding, 1.0)


def _profile(pmf):
    """Spacing and first index of the losses, delta there but for infinity, its mass."""
    interval = pmf._discretization
    probabilities = np.maximum(pmf._probs, 0.0)[::-1]
    tail = np.concatenate([[0.0, 0.0], np.cumsum(probabilities)])[:-1]
    values = signal.lfilter([-np.expm1(-interval)], [1.0, -np.exp(-interval)], tail)
    return interval, pmf._lower_loss, values[::-1], pmf._infinity_mass


@lru_cache(maxsize=16)
def compose(events: tuple[tuple[Event, int], ...]) -> Composed:
    """Compose the distributions of events that `applies` takes.

    Parameters
    ----------
    events
        (event, count) pairs, checked.

    Returns
    -------
    Pessimistic distributions on a grid of at most a twentieth of the root mean square
    of the steps' losses, which costs epsilon less than 0.1 %. The grid is coarser, and
    the bound looser, above 10^6 steps or where losses of very different size meet.
    """
    others = [(event, n) for event, n in events if event.gaussian is None]
    precision = sum(
        n / event.gaussian.noise_multiplier**2
        for event, n in events
        if event.gaussian is not None
    )
    if precision:
        others.append((GaussianRelease(1 / math.sqrt(precision)), 1))
    interval = _interval(others)
    total = None
    for event, left in others:
        power = _single(event, interval)
        while left:
            left, digit = divmod(left, BASE)
            if digit:
                part = power.self_compose(digit) if digit > 1 else power
                total = part if total is None else total.compose(part)
            if left:
                power = power.self_compose(BASE)
    num_steps = sum(count for _, count in others)
    return Composed(total, ROUNDING * (100 + num_steps))


def _interval(events) -> float:
    """Grid of the losses, a power of 2, so that nearby plans share distributions."""
    losses = [_losses(event) for event, _ in events]
    variance = sum(n * sd**2 for (sd, _), (_, n) in zip(losses, events, strict=True))
    steps = sum(n for _, n in events)
    span = variance + 16 * math.sqrt(variance)
    interval = max(
        math.sqrt(variance / steps) / POINTS_A_DEVIATION,
        max(width for _, width in losses) / MAX_POINTS,
        span / MAX_COMPOSED_POINTS,
    )
    return 2.0 ** math.floor(math.log2(interval))


@lru_cache(maxsize=256)
def _losses(event) -> tuple[float, float]:
    """Root mean square of the privacy loss, and the width of its range, nats."""
    if isinstance(event, GaussianRelease):
        mu = 1 / event.noise_multiplier
        return math.hypot(mu, mu**2 / 2), 21 * mu
    noise, q = _noise(event), _sampling_prob(event)
    z = np.linspace(-10.5, 10.5, 2001)
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum()
    square, ends = 0.0, []
    for centre, chance in ((0.0, 1 - q), (1.0, q)):
        x = centre + noise * z
        loss = np.logaddexp(math.log1p(-q), math.log(q) + (x - 0.5) / noise**2)
        if _is_replacement(event):
            loss -= np.logaddexp(math.log1p(-q), math.log(q) - (x + 0.5) / noise**2)
        square += chance * np.sum(weight * loss**2)
        ends += [loss[0], loss[-1]]
    return math.sqrt(square), max(ends) - min(ends)


@lru_cache(maxsize=64)
def _single(event, interval: float) -> PrivacyLossDistribution:
    if isinstance(event, GaussianRelease):
        return from_gaussian_mechanism(
            event.noise_multiplier, value_discretization_interval=interval
        )
    if isinstance(event, PoissonGaussianRelease):
        return from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sampling_prob,
            value_discretization_interval=interval,
            neighboring_relation=event.neighboring_relation,
        )
    add, remove = (
        privacy_loss_mechanism.GaussianPrivacyLoss(
            _noise(event), sampling_prob=_sampling_prob(event), adjacency_type=adjacency
        )
        for adjacency in (
            privacy_loss_mechanism.AdjacencyType.ADD,
            privacy_loss_mechanism.AdjacencyType.REMOVE,
        )
    )
    lower = math.floor(add.connect_dots_bounds().epsilon_lower / interval)
    upper = math.ceil(remove.connect_dots_bounds().epsilon_upper / interval)
    deltas = np.concatenate(
        [
            add.get_delta_for_epsilon(np.arange(lower, 0) * interval),
            remove.get_delta_for_epsilon(np.arange(0, upper + 1) * interval),
        ]
    )
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, lower, upper, deltas
    )
    return PrivacyLossDistribution(pmf)


def _noise(event) -> float:
    if isinstance(event, FixedBatch):
        return event.event.gaussian.noise_multiplier
    return event.noise_multiplier


def _sampling_prob(event) -> float:
    if isinstance(event, FixedBatch):
        return event.batch_size / event.num_records
    return event.sampling_prob


def _is_replacement(event) -> bool:
    return (
        isinstance(event, PoissonGaussianRelease)
        and event.neighboring_relation is NeighboringRelation.REPLACE_ONE
    )
