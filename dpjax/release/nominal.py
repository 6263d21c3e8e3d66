"""The number of records that a kernel computes with: it must be public.

Substitution of a record keeps the number of records n, so n is public. Addition or
removal of a record changes n, so n is secret: a scale or a step computed from it would
tell neighbouring data sets apart. A kernel whose formulas have n then uses a nominal
number in its place, a guess that is public.
"""

from dp_accounting import NeighboringRelation

from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_count, check_relation

__all__ = ["check_nominal", "nominal_size"]


def nominal_size(posterior: Posterior, nominal_num_records: int | None) -> int:
    """The nominal number of records; if it is None, their number.

    Raises
    ------
    ValueError
        If the nominal number is not a positive integer.

    Notes
    -----
    *Formal guarantees.* Reads no record. The result is public under every relation that
    `check_nominal` lets pass.
    """
    if nominal_num_records is None:
        return posterior.num_records
    return check_count("nominal_num_records", nominal_num_records)


def check_nominal(
    nominal_num_records: int | None, neighboring_relation: NeighboringRelation
) -> None:
    """Refuse a relation that hides the number of records if there is no nominal one.

    Raises
    ------
    ValueError
        If it does.
    """
    relation = check_relation("neighboring_relation", neighboring_relation)
    is_secret = relation == NeighboringRelation.ADD_OR_REMOVE_ONE
    if is_secret and nominal_num_records is None:
        raise ValueError(
            "what this kernel releases depends on the number of records, which is "
            "secret under ADD_OR_REMOVE_ONE: pass nominal_num_records, a public guess "
            "of it such as a rounded number, or use REPLACE_ONE"
        )
