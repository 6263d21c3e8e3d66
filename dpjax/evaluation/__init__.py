"""How far draws are from a reference sample. Non-private: for synthetic data."""

from dpjax.evaluation.mmd import (
    median_bandwidth,
    mmd,
    mmd_squared,
    reference_bandwidth,
)

__all__ = ["median_bandwidth", "mmd", "mmd_squared", "reference_bandwidth"]
