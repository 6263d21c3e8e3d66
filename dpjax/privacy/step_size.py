"""Step sizes of stochastic gradient MCMC that a budget pays for.

Step t of SGLD adds (eta_t / tau) sum_i clip(g_i) to the position, where the sum is over
a Poisson sample of rate q = tau / N, and Gaussian noise of variance 2 K eta_t / N,
where K is the temperature. Langevin dynamics needs that noise anyway. The standard
deviation of the noise, divided by what the clip norm L of one record adds, is the noise
multiplier

    sigma_t = (q / L) sqrt(2 K N / eta_t).

So epsilon depends only on q and on eta_t L^2 / (K N). Step sizes may grow in proportion
to K and to 1 / L^2 at the same epsilon. If all sigma_t are large, the steps together
are mu-GDP with mu^2 = L^2 sum_t eta_t / (2 K N), whatever q is. So the budget pays for
Langevin time, the sum of the step sizes, and not for a number of steps. Steps with a
sigma_t below 2 or so cost far more than that, and their cost depends on how they
compose.

Li et al. 2019 take K = 1/2, which samples the squared posterior: see `dpjax.sgld`.

Reference: Li, Chen, Liu and Carin 2019, Algorithm 1 and section 3.1, corrected.
"""

import math
from collections.abc import Callable

import numpy as np
from dp_accounting import NeighboringRelation

from dpjax.privacy import accountant
from dpjax.privacy.budget import BudgetError
from dpjax.privacy.events import PoissonGaussianRelease
from dpjax.privacy.gaussian.conversions import find_root, gdp_mu
from dpjax.privacy.validate import (
    check_count,
    check_delta,
    check_epsilon,
    check_real,
    check_relation,
)

__all__ = ["langevin_noise", "max_step_size", "round_down"]

MAX_ROUNDING = 0.005
"""Largest relative amount by which a noise multiplier is rounded down."""

RELATIVE_TOLERANCE = 1e-4
"""Relative error of the result of `max_step_size`."""


def langevin_noise(
    step_size,
    *,
    num_records: int,
    sampling_prob: float,
    l2_clip_norm: float,
    temperature: float = 1.0,
) -> np.ndarray:
    """Noise multipliers sigma_t of Langevin dynamics.

    Parameters
    ----------
    step_size
        eta_t, a scalar or an array ``(m,)``. A step moves the position by eta_t times
        the gradient of ``log posterior / N``.
    num_records, sampling_prob, l2_clip_norm, temperature
        N, q, L and K of the module docstring.

    Returns
    -------
    Standard deviations of the noise, divided by the clip norm of one record. The array
    has the shape of `step_size`.
    """
    variance = 2 * temperature * num_records / np.asarray(step_size, np.float64)
    return sampling_prob / l2_clip_norm * np.sqrt(variance)


def round_down(noise_multipliers) -> list[tuple[float, int]]:
    """Round each noise multiplier down to the smallest of those near it.

    The rounded multipliers cost no less, because a release with more noise is
    post-processing of one with less noise. Epsilon grows by .5 % at most, and by .25 %
    if the multipliers are spread evenly.

    Parameters
    ----------
    noise_multipliers
        Noise multipliers of all steps, ``(m,)``.

    Returns
    -------
    Pairs (noise multiplier, number of steps), some hundred at most.
    """
    ordered = np.sort(np.asarray(noise_multipliers, np.float64))
    pairs, start = [], 0
    while start < ordered.size:
        smallest = float(ordered[start])
        # Below one, the cost of a release grows much faster than its noise falls.
        width = MAX_ROUNDING * min(1.0, smallest**2)
        stop = int(np.searchsorted(ordered, smallest * (1 + width), side="right"))
        pairs.append((smallest, stop - start))
        start = stop
    return pairs


def max_step_size(
    num_steps: int,
    *,
    num_records: int,
    sampling_prob: float,
    l2_clip_norm: float,
    epsilon: float,
    delta: float,
    schedule: Callable | None = None,
    temperature: float = 1.0,
    neighboring_relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
) -> float:
    """Largest step size of SGLD whose own noise keeps a budget.

    Parameters
    ----------
    num_steps
        T, the number of steps.
    num_records, sampling_prob, l2_clip_norm
        N, q and L of the module docstring. If `sgld` has `nominal_num_records`, that is
        N.
    epsilon, delta
        The budget.
    schedule
        ``counts -> factors``, which takes the counts 0, 1, ..., T - 1 as a NumPy array.
        The step after `count` steps has the size eta times its factor, such as
        ``(counts + 1.0) ** (-1 / 3)``. None stands for a fixed step size.
    temperature
        K. The published algorithm has 1/2.
    neighboring_relation
        Relation that makes two data sets neighbours.

    Returns
    -------
    eta. Its relative error is 1e-4, and it never exceeds the budget. Only loose budgets
    allow an eta above about 1, which is too large for sampling: see `dpjax.sgld`.

    Raises
    ------
    ValueError
        If an argument is out of range.
    BudgetError
        If no step size fits.
    """
    num_steps = check_count("num_steps", num_steps)
    relation = check_relation("neighboring_relation", neighboring_relation)
    num_records = check_count("num_records", num_records)
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    sampling_prob = check_real("sampling_prob", sampling_prob, low=1e-12, high=1.0)
    l2_clip_norm = check_real("l2_clip_norm", l2_clip_norm, low=1e-12, high=1e12)
    temperature = check_real("temperature", temperature, low=1e-12, high=1e12)
    counts = np.arange(num_steps)
    factors = np.ones(num_steps) if schedule is None else np.asarray(schedule(counts))
    if factors.shape != (num_steps,) or not np.all((factors > 0) & (factors < np.inf)):
        raise ValueError(
            "schedule must map the counts 0, 1, ..., num_steps - 1 to as many positive "
            "factors"
        )
    noise_of_one = langevin_noise(
        factors,
        num_records=num_records,
        sampling_prob=sampling_prob,
        l2_clip_norm=l2_clip_norm,
        temperature=temperature,
    )

    def excess(log_step_size: float) -> float:
        """Logarithm of the ratio of the delta spent to the delta allowed."""
        noises = noise_of_one * math.exp(-log_step_size / 2)
        events = [
            (PoissonGaussianRelease(noise, sampling_prob, relation), count)
            for noise, count in round_down(noises)
        ]
        return math.log(max(accountant.delta(events, epsilon), 1e-300) / delta)

    # The search starts from the step size that the central limit of the composition
    # [Bu, Dong, Long and Su 2020] allows.
    distance = 2 if relation is NeighboringRelation.REPLACE_ONE else 1
    log_mu = math.log(gdp_mu(epsilon, delta) / (distance * sampling_prob))

    def excess_in_the_limit(log_step_size: float) -> float:
        precision = np.minimum(math.exp(log_step_size) / noise_of_one**2, 500.0)
        return math.log(np.sum(np.expm1(precision))) - 2 * log_mu

    centre = 2 * log_mu - math.log(np.sum(noise_of_one**-2.0))
    low = high = guess = find_root(excess_in_the_limit, centre - 50, centre + 1)
    stride = 0.1
    if excess(guess) > 0:
        while excess(low) > 0:
            low, high, stride = low - stride, low, 2 * stride
            if stride > 100:
                raise BudgetError(
                    f"epsilon = {epsilon} at delta = {delta} does not pay for "
                    f"{num_steps} steps of any size: take fewer steps"
                )
    else:
        while excess(high) <= 0:
            low, high, stride = high, high + stride, 2 * stride
    found = find_root(excess, low, high, xtol=RELATIVE_TOLERANCE / 2)
    while excess(found) > 0:
        found -= RELATIVE_TOLERANCE / 2
    return math.exp(found)
