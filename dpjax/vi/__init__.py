"""Variational inference under privacy, and posteriors that account for its noise."""

from dpjax.vi.convergence import num_warmup, p_values
from dpjax.vi.dpvi import DPVIInfo, DPVIState, dpvi
from dpjax.vi.guides import FullRank, Guide, LowRank, MeanField
from dpjax.vi.noise_aware import NoiseAware, Optima, noise_aware
from dpjax.vi.optimizers import noise_scaled_sgd

__all__ = [
    "DPVIInfo",
    "DPVIState",
    "FullRank",
    "Guide",
    "LowRank",
    "MeanField",
    "NoiseAware",
    "Optima",
    "dpvi",
    "noise_aware",
    "noise_scaled_sgd",
    "num_warmup",
    "p_values",
]
