"""Variational inference, and posteriors that know about its noise."""

from dpjax.vi.dpvi import DPVIInfo, DPVIState, dpvi
from dpjax.vi.noise_aware import noise_aware

__all__ = ["DPVIInfo", "DPVIState", "dpvi", "noise_aware"]
