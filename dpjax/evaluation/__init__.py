"""Measures of how far draws are from the true posterior or the true parameters.

They are not private, so they are for synthetic or public data.
"""

from dpjax.evaluation.mmd import median_bandwidth, mmd, mmd_squared, reference_bandwidth
from dpjax.evaluation.symmetric_kl import histogram, symmetric_kl
from dpjax.evaluation.tarp import (
    coverage,
    coverage_rmse,
    noise_floor,
    rmse_with_error,
    shares,
    shares_marginal,
)

__all__ = [
    "coverage",
    "coverage_rmse",
    "histogram",
    "median_bandwidth",
    "mmd",
    "mmd_squared",
    "noise_floor",
    "reference_bandwidth",
    "rmse_with_error",
    "shares",
    "shares_marginal",
    "symmetric_kl",
]
