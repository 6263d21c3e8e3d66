"""Expectation propagation and expectation maximisation with privacy."""

from dpjax.ep.dp_em import DPEMInfo, DPEMState, dp_em
from dpjax.ep.dp_sep import dp_sep
from dpjax.ep.shared_site import TiedInfo, TiedState

__all__ = ["DPEMInfo", "DPEMState", "TiedInfo", "TiedState", "dp_em", "dp_sep"]
