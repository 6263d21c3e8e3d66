"""Expectation propagation and expectation maximisation under privacy."""

from dpjax.ep.dp_em import DPEMInfo, DPEMState, Mixture, dp_em
from dpjax.ep.dp_sep import averaging, dp_sep
from dpjax.ep.gaussians import Diagonal, Full, Moments
from dpjax.ep.shared_site import SharedSiteInfo, SharedSiteState

__all__ = [
    "DPEMInfo",
    "DPEMState",
    "Diagonal",
    "Full",
    "Mixture",
    "Moments",
    "SharedSiteInfo",
    "SharedSiteState",
    "averaging",
    "dp_em",
    "dp_sep",
]
