"""The kind of noise with which a sum of few numbers is released best."""

from dpjax.privacy import Budget, spend_rest
from dpjax.privacy.events import MAX_K_NORM_DIM
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.k_norm_sum import KNormSum

__all__ = ["quietest_sum"]

LEAST_GAIN = 0.05
"""Share of the noise that K-norm noise must save to be chosen. Gaussian noise may be
followed by releases that are chosen in view of it, under a filter of mu^2."""


def quietest_sum(
    l2_clip_norm: float, size: int, others, budget: Budget, diameter: float = 2.0
) -> GaussianSum | KNormSum:
    """A release of `size` numbers that spends what others leave, with least noise.

    Both the choice and the noise depend on `size` and `others`, so all of these must be
    fixed before the first output is seen.

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

    Raises
    ------
    ValueError
        If an argument is out of range, or the noise that is needed.
    BudgetError
        If the other releases leave nothing.
    """

    def of(kind: type[GaussianSum] | type[KNormSum], noise_multiplier: float):
        return kind(l2_clip_norm, noise_multiplier, diameter=diameter)

    def noise(kind: type[GaussianSum] | type[KNormSum]) -> float:
        return spend_rest(
            lambda value: of(kind, value).event(size, budget.neighboring_relation),
            others,
            epsilon=budget.epsilon,
            delta=budget.delta,
        )

    gaussian = noise(GaussianSum)
    if size <= MAX_K_NORM_DIM:
        k_norm = noise(KNormSum)
        if k_norm <= (1 - LEAST_GAIN) * gaussian:
            return of(KNormSum, k_norm)
    return of(GaussianSum, gaussian)
