"""The kind of noise with which a sum of few numbers is released best."""

from collections.abc import Callable

from dpjax.privacy import Budget, spend_rest
from dpjax.privacy.events import MAX_K_NORM_DIM
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.k_norm_sum import KNormSum
from dpjax.release.mixed_norm import MixedNorm

__all__ = ["quietest_sum", "relative_noise"]

LEAST_GAIN = 0.05
"""Share of the noise that K-norm noise must save to be chosen. Gaussian noise may be
followed by releases that are chosen in view of it, under a filter of mu^2."""


def quietest_sum(
    l2_clip_norm: float,
    size: int,
    others,
    budget: Budget,
    diameter: float = 2.0,
    norm: MixedNorm | None = None,
) -> GaussianSum | KNormSum:
    """A release of `size` numbers that spends what others leave, with least noise.

    The choice and the noise depend on `size`, `others` and `norm`, so all of these must
    be fixed before the first output is seen.

    Parameters
    ----------
    l2_clip_norm, diameter
        As in `GaussianSum`.
    size
        The numbers that a record adds.
    others
        List of (event, count) of the other releases of the plan, before or after.
    budget
        The budget of all releases together.
    norm
        A norm that may be better than the Euclidean one, for K-norm noise.

    Raises
    ------
    ValueError
        If an argument is out of range, or the noise that is needed.
    BudgetError
        If the other releases leave nothing.
    """

    def spending(of: Callable[[float], GaussianSum | KNormSum]):
        noise_multiplier = spend_rest(
            lambda value: of(value).event(size, budget.neighboring_relation),
            others,
            epsilon=budget.epsilon,
            delta=budget.delta,
        )
        return of(noise_multiplier)

    def k_norm(noise_multiplier):
        return KNormSum(l2_clip_norm, noise_multiplier, diameter)

    def mixed_norm(noise_multiplier):
        return KNormSum(l2_clip_norm, noise_multiplier, diameter, norm)

    gaussian = spending(
        lambda value: GaussianSum(l2_clip_norm, value, diameter=diameter)
    )
    if size > MAX_K_NORM_DIM:
        return gaussian
    kinds = [k_norm, mixed_norm] if norm else [k_norm]
    quietest = min(map(spending, kinds), key=relative_noise)
    if relative_noise(quietest) <= (1 - LEAST_GAIN) * relative_noise(gaussian):
        return quietest
    return gaussian


def relative_noise(release: GaussianSum | KNormSum) -> float:
    """Sd of the noise over the Euclidean norm of what is about as long as the bound."""
    assert release.noise_multiplier is not None
    norm = release.norm if isinstance(release, KNormSum) else None
    return release.noise_multiplier * (norm.ratio if norm else 1.0)
