"""How far draws are from a reference sample. Non-private: for synthetic data."""

from dpjax.evaluation.mmd import (
    median_bandwidth,
    mmd,
    mmd_squared,
    reference_bandwidth,
)
from dpjax.evaluation.symmetric_kl import histogram, symmetric_kl

__all__ = [
    "histogram",
    "median_bandwidth",
    "mmd",
    "mmd_squared",
    "reference_bandwidth",
    "symmetric_kl",
]
