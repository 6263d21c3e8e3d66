"""The number of records that a kernel computes with, such as N of a step size."""

from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_count

__all__ = ["nominal_size"]


def nominal_size(posterior: Posterior, nominal_num_records: int | None) -> int:
    """The nominal number of records; if it is None, their number.

    Raises
    ------
    ValueError
        If the nominal number is not a positive integer.

    Notes
    -----
    *Formal guarantees.* Reads no record. The result is public, as neighbouring data
    sets have the same number of records.
    """
    if nominal_num_records is None:
        return posterior.num_records
    return check_count("nominal_num_records", nominal_num_records)
