"""The budget of a run: epsilon, delta and the neighbouring relation."""

from dataclasses import dataclass

from dp_accounting import NeighboringRelation

from dpjax.privacy.validate import check_delta, check_epsilon, check_relation

__all__ = ["Budget", "BudgetError", "NeighboringRelation"]


class BudgetError(ValueError):
    """A run does not fit its privacy budget."""


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta)-differential privacy of everything a run releases.

    Parameters
    ----------
    epsilon
        Nats, in [1e-9, 500].
    delta
        In (0, 1).
    neighboring_relation
        Relation that makes two data sets neighbours, or its name. Sensitivities
        depend on it.

    Raises
    ------
    ValueError
        If any of the three is out of range or of the wrong type.
    """

    epsilon: float
    delta: float
    neighboring_relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE

    def __post_init__(self):
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))
        relation = check_relation("neighboring_relation", self.neighboring_relation)
        object.__setattr__(self, "neighboring_relation", relation)
