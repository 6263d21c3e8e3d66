"""The budget of a run: epsilon, delta and the neighbouring relation."""

from dataclasses import dataclass

from dp_accounting import NeighboringRelation

from dpjax.privacy.validate import check_delta, check_epsilon, check_kept_size

__all__ = ["Budget", "BudgetError", "NeighboringRelation", "check_budget"]


class BudgetError(ValueError):
    """A run does not fit its privacy budget."""


@dataclass(frozen=True)
class Budget:
    """The (epsilon, delta)-differential privacy of everything that a run releases.

    Parameters
    ----------
    epsilon
        Nats, in [1e-9, 500].
    delta
        Probability, in [1e-100, 1).
    neighboring_relation
        Relation that makes two data sets neighbours, or its name. Under ``REPLACE_ONE``
        they differ in one record. Under ``REPLACE_SPECIAL``, also known as zeroing out,
        one of them has a blank in the place of a record. A blank adds zero to every
        sum. The number of records, blanks included, is public.

    Raises
    ------
    ValueError
        If any of the three is out of range or of the wrong type, or records are added
        or removed: see `dpjax.privacy.validate.check_kept_size`.
    TypeError
        From a class that is derived from this one.
    """

    epsilon: float
    delta: float
    neighboring_relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE

    def __init_subclass__(cls):
        raise TypeError("no class may be derived from dpjax.Budget")

    def __post_init__(self):
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))
        relation = check_kept_size("neighboring_relation", self.neighboring_relation)
        object.__setattr__(self, "neighboring_relation", relation)


def check_budget(budget) -> None:
    """Raise `TypeError` if `budget` is not a `Budget`."""
    if not isinstance(budget, Budget):
        raise TypeError(
            "budget must be a dpjax.Budget, such as dpjax.Budget(epsilon=1, "
            f"delta=1e-6), got {type(budget).__name__}"
        )
