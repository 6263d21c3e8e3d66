"""Privacy loss distributions (PLDs) of noisy releases, about all records or a sample.

Losses are discretised by connecting the dots, as in dp-accounting, and composed by
`convolution`. Every approximation is an upper bound, apart from rounding. A bound on
the rounding error of the Fourier transforms is added to delta.

A pair of distributions dominates an event if its profile is at least that of the event
on any two neighbouring data sets, at every epsilon. The pairs below are in units of the
clip norm (Poisson samples) or of the sensitivity (fixed batches). N(c) stands for
N(c, s^2), where s is the standard deviation of the noise.

- `PoissonGaussianRelease` has, under ADD_OR_REMOVE_ONE and REPLACE_SPECIAL, the pair
  (1 - q) N(0) + q N(1) against N(0), in both directions. Under REPLACE_ONE the second
  distribution is (1 - q) N(0) + q N(-1) instead.
- `FixedBatch` of a Gaussian release or penalty bit has a pair whose profile is made of
  two branches [Zhu, Dong and Wang 2022, section 5]. It is below the pair (0, 1, -1) of
  the thesis at every epsilon.

  - For eps >= 0: if the event on its batch has the profile d(eps), the profile of the
    release is at most q d(log(1 + (e^eps - 1) / q)) [Balle, Barthe and Gaboardi 2018,
    Theorem 9: sampling without replacement, substitution]. If d is Gaussian, this is
    the profile of (1 - q) N(0) + q N(1) against N(0).
  - For eps < 0: substitution is symmetric, so the first branch holds in both
    directions. A profile H and the profile H' of the other direction satisfy
    H(-eps) = 1 - e^-eps + e^-eps H'(eps). So the second branch is the profile of N(0)
    against the mixture.
- `KNormRelease`: see `k_norm`.
- `PureRelease`: see `pure`.

Gaussian releases, and penalty bits as post-processing of them, are first composed in
closed form. Composing some hundred different releases takes seconds. A decreasing step
size gives thousands; `step_size.round_down` rounds them to some hundred.
"""

import math
from functools import lru_cache

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

from dpjax.privacy.events import (
    Event,
    FixedBatch,
    GaussianRelease,
    KNormRelease,
    PoissonGaussianRelease,
    PureRelease,
)
from dpjax.privacy.gaussian import k_norm, profiles, pure
from dpjax.privacy.gaussian.convolution import Losses, connect_dots, convolve

__all__ = ["Composed", "applies", "compose"]

POINTS_A_DEVIATION = 20
"""The least number of points of the grid in one root mean square of a step's loss,
unless the next two numbers ask for fewer."""

MAX_POINTS = 200_000
"""About the most points of the grid for the losses of one step."""

MAX_COMPOSED_POINTS = 2**19
"""About the most points of the grid for the sum of all losses."""

ROUNDING = 1e-15
"""Bound on the rounding error of delta for each release that is composed."""


def applies(event: Event) -> bool:
    """Whether `compose` takes the event."""
    if isinstance(event, FixedBatch):
        return event.event.gaussian is not None
    with_loss = PoissonGaussianRelease, KNormRelease, PureRelease
    return event.gaussian is not None or isinstance(event, with_loss)


class Composed:
    """delta of composed privacy loss distributions, fast for many epsilons.

    Between the losses of the grid, delta is linear in e^epsilon.

    Parameters
    ----------
    directions
        The composed losses of one direction, or of both.
    rounding
        Bound on the rounding error, which is added to delta.
    """

    def __init__(self, directions: list[Losses], rounding: float):
        self._rounding = rounding
        self._profiles = [(losses, losses.profile()) for losses in directions]

    def delta(self, epsilon):
        """delta at an array of epsilons, the larger of both directions, at most 1."""
        epsilon = np.asarray(epsilon, np.float64)
        found = np.zeros(epsilon.shape)
        for (interval, lower, _, infinity_mass), values in self._profiles:
            place = epsilon / interval - lower
            i = np.clip(np.floor(place), 0, values.size - 2).astype(int)
            right = np.clip(place - i, 0, 1) * interval
            share = np.exp(right - interval) * np.expm1(-right) / np.expm1(-interval)
            value = values[i] + share * (values[i + 1] - values[i])
            # Left of the grid, delta is at most its chord to 1 at e^epsilon = 0.
            below = 1 - np.exp(np.minimum(place, 0.0) * interval) * (1 - values[0])
            found = np.maximum(found, np.where(place < 0, below, value) + infinity_mass)
        if not np.all(found >= 0):
            raise ArithmeticError("the accountant computed a delta that is not >= 0")
        return np.minimum(found + self._rounding, 1.0)


@lru_cache(maxsize=16)
def compose(events: tuple[tuple[Event, int], ...]) -> Composed:
    """Compose the privacy loss distributions of events for which `applies` is true.

    Parameters
    ----------
    events
        (event, count) pairs, checked.

    Returns
    -------
    An upper bound on delta. The spacing of the grid is at most a twentieth of the root
    mean square of the steps' losses, which adds less than 0.1 % to epsilon. Above 10^6
    steps, or if the losses of some steps are much larger than those of others, the grid
    is coarser and the bound looser.
    """
    others, precision = [], 0
    for event, n in events:
        if event.gaussian is None:
            others.append((event, n))
        else:
            precision += n / event.gaussian.noise_multiplier**2
    if precision:
        others.append((GaussianRelease(1 / math.sqrt(precision)), 1))
    num_steps = sum(count for _, count in others)
    interval = _interval(others)
    # Kinds with equal counts are grouped. One release of each is composed, and the
    # result is then taken to the power of that count.
    alike: dict[int, list[tuple[Event, int]]] = {}
    for (event, count), stride in zip(others, _strides(others), strict=True):
        alike.setdefault(count, []).append((event, stride))
    found = [_one_each(tuple(kinds), interval) for kinds in alike.values()]
    total = [
        convolve(list(zip(losses, alike, strict=True)), interval)
        for losses in _by_direction(found)
    ]
    return Composed(total, ROUNDING * (100 + num_steps))


@lru_cache(maxsize=16)
def _one_each(kinds: tuple[tuple[Event, int], ...], interval: float) -> list[Losses]:
    """Losses of one release of every kind together, in one direction or in both.

    `kinds` are (event, stride) pairs. The stride is the spacing of the grid of that
    kind, in units of `interval`.
    """
    singles = [_single(event, interval * stride) for event, stride in kinds]
    if len(singles) == 1:
        return singles[0]
    return [
        convolve([(losses, 1) for losses in direction], interval)
        for direction in _by_direction(singles)
    ]


def _by_direction(found: list[list[Losses]]) -> list[list[Losses]]:
    """For each direction, the losses of all kinds; `found` has a list for each kind.

    A kind with one list of losses has the same losses in both directions.
    """
    last = max(len(losses) for losses in found)
    return [[losses[min(k, len(losses) - 1)] for losses in found] for k in range(last)]


def _interval(events) -> float:
    """Spacing of the grid of the sum's losses, nats.

    It is a power of 2, so that similar events have the same spacing.
    """
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


def _strides(events) -> list[int]:
    """For each kind, the spacing of its grid in units of the sum's spacing.

    All are powers of 2. A grid of spacing h adds at most h^2 / 4 to the variance of a
    loss. So the spacings h_i of kinds with counts n_i may be chosen freely if the sum
    of n_i h_i^2 stays the same. Given that sum, all grids together have the fewest
    points if h_i is proportional to (width_i / n_i)^(1/3).
    """
    ideal = [(_losses(event)[1] / n) ** (1 / 3) for event, n in events]
    counts = [n for _, n in events]
    added = sum(n * h**2 for n, h in zip(counts, ideal, strict=True))
    scale = math.sqrt(sum(counts) / added)
    return [2 ** max(0, math.floor(math.log2(scale * h))) for h in ideal]


@lru_cache(maxsize=512)
def _losses(event) -> tuple[float, float]:
    """Root mean square of an event's privacy loss, and the width of its range, nats."""
    if isinstance(event, GaussianRelease):
        mu = 1 / event.noise_multiplier
        return math.hypot(mu, mu**2 / 2), 21 * mu
    if isinstance(event, KNormRelease):
        return math.sqrt(k_norm.mean_square(event)), 2 * event.rate
    if isinstance(event, PureRelease):
        return event.largest_loss, 2 * event.largest_loss
    noise, q, pairs = _sampled(event)
    z = np.linspace(-10.5, 10.5, 2001)
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum()
    square, ends = 0.0, []
    for centre, chance in ((0.0, 1 - q), (1.0, q)):
        losses = profiles.loss(pairs[0][1], noise, q, centre + noise * z)
        square += chance * np.sum(weight * losses**2)
        ends += [losses[0], losses[-1]]
    return math.sqrt(square), max(ends) - min(ends)


@lru_cache(maxsize=64)
def _single(event, interval: float) -> list[Losses]:
    """Distributions of the losses of one release, one for each direction."""
    if isinstance(event, GaussianRelease):
        distribution = from_gaussian_mechanism(
            event.noise_multiplier, value_discretization_interval=interval
        )
        pmf = distribution._pmf_remove.to_dense_pmf()
        lower, infinity_mass = pmf._lower_loss, pmf._infinity_mass
        return [Losses(interval, lower, np.maximum(pmf._probs, 0.0), infinity_mass)]
    if isinstance(event, KNormRelease):
        return [k_norm.losses(event, interval)]
    if isinstance(event, PureRelease):
        return [pure.losses(event, interval)]
    found = []
    noise, q, pairs = _sampled(event)
    for backward, forward in pairs:
        # H(-eps) = 1 - e^-eps + e^-eps H'(eps), where H is a profile and H' that of the
        # other direction. `connect_dots` adds the first part, so that the last term
        # keeps its digits.
        most = profiles.largest_loss(backward, noise, q)
        lower = -math.ceil(most / interval)
        upper = math.ceil(profiles.largest_loss(forward, noise, q) / interval)
        below = np.arange(lower, 0) * interval
        excess = np.exp(below) * profiles.delta(backward, noise, q, -below)
        above = profiles.delta(forward, noise, q, np.arange(0, upper + 1) * interval)
        deltas = np.append(excess, above)
        found.append(connect_dots(deltas, interval, lower, at_zero=1.0))
    return found


def _sampled(event) -> tuple[float, float, list[tuple[str, str]]]:
    """Describe a release about a sample by pairs of `profiles`.

    Returns
    -------
    noise, sampling_prob
        s and q.
    pairs
        For each direction, the names of two pairs. The first has the profile H' that
        gives the profile at negative epsilons (see the module docstring). The second
        has the profile at positive epsilons.
    """
    if isinstance(event, FixedBatch):
        assert event.event.gaussian is not None, "applies() refuses other batches"
        noise = event.event.gaussian.noise_multiplier
        share = event.batch_size / event.num_records
        return noise, share, [("remove", "remove")]
    if event.neighboring_relation is NeighboringRelation.REPLACE_ONE:
        pairs = [("replace", "replace")]
    else:
        pairs = [("add", "remove"), ("remove", "add")]
    return event.noise_multiplier, event.sampling_prob, pairs
