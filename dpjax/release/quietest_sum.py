"""The kind of noise with which a sum of few numbers is released best."""

from collections.abc import Callable
from typing import Any

from dpjax.privacy import Budget, spend_rest
from dpjax.privacy.events import MAX_K_NORM_DIM
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.k_norm_sum import KNormSum
from dpjax.release.mixed_norm import MixedNorm
from dpjax.release.noisy_sum import NoisySum

__all__ = ["is_quieter", "mixed_norm_sum", "quietest_sum", "relative_noise"]

LEAST_GAIN = 0.05
"""Share of the noise that K-norm noise must save to be chosen. A smaller gain is
not worth it: runs that are chosen in view of a Gaussian release can be charged by mu^2
(`dpjax.privacy.filter`), which comes to less."""


def quietest_sum(l2_clip_norm: float, size: int, others, budget: Budget) -> NoisySum:
    """A release of `size` numbers that spends what others leave, with least noise.

    Both the choice and the noise depend on `size` and `others`, so all of these must be
    fixed before the first output is seen.

    Parameters
    ----------
    l2_clip_norm
        As in `NoisySum`.
    size
        The numbers that a record adds.
    others
        List of (event, count) of the other releases of the plan, before or after.
    budget
        The budget of all releases together.

    Raises
    ------
    ValueError
        If an argument is out of range, or the noise that is needed.
    BudgetError
        If the other releases leave nothing.
    """

    def of(kind: type[NoisySum]) -> NoisySum:
        return _spending(lambda value: kind(l2_clip_norm, value), size, others, budget)

    gaussian = of(GaussianSum)
    if size <= MAX_K_NORM_DIM:
        k_norm = of(KNormSum)
        if is_quieter(k_norm, gaussian):
            return k_norm
    return gaussian


def mixed_norm_sum(norm: MixedNorm, others, budget: Budget) -> KNormSum:
    """A release with K-norm noise of a mixed norm that spends what others leave.

    Its clip norm is one; the other parameters and errors are those of `quietest_sum`.
    """
    return _spending(
        lambda value: KNormSum(1.0, value, norm=norm), norm.size, others, budget
    )


def is_quieter(one: NoisySum, other: NoisySum) -> bool:
    """Whether the first release has less noise, by `LEAST_GAIN` and more."""
    return relative_noise(one) <= (1 - LEAST_GAIN) * relative_noise(other)


def relative_noise(release: NoisySum) -> float:
    """Sd of the noise over the clip norm, if records were clipped in Euclidean norm.

    A mixed norm has to be clipped later, as records are longer in it.
    """
    assert release.noise_multiplier is not None
    ratio = release.norm.ratio if release.norm else 1.0
    return release.noise_multiplier * ratio


def _spending(of: Callable[[float], Any], size: int, others, budget: Budget):
    """The release, given its noise multiplier, that spends what others leave."""
    return of(
        spend_rest(
            lambda value: of(value).event(size, budget.neighboring_relation),
            others,
            epsilon=budget.epsilon,
            delta=budget.delta,
        )
    )
