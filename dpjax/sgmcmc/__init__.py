"""Stochastic gradient MCMC whose own Gaussian noise protects the records."""

from dpjax.sgmcmc.noisy_gradient import SGMCMCInfo, SGMCMCState
from dpjax.sgmcmc.sghmc import sghmc
from dpjax.sgmcmc.sgld import sgld
from dpjax.sgmcmc.sgnht import sgnht
from dpjax.sgmcmc.temperature import excess_temperature

__all__ = [
    "SGMCMCInfo",
    "SGMCMCState",
    "excess_temperature",
    "sghmc",
    "sgld",
    "sgnht",
]
