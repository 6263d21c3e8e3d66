"""Stochastic gradient MCMC, private by the noise that its dynamics have anyway."""

from dpjax.sgmcmc.noisy_gradient import SGMCMCInfo, SGMCMCState
from dpjax.sgmcmc.sghmc import sghmc
from dpjax.sgmcmc.sgld import sgld
from dpjax.sgmcmc.sgnht import sgnht

__all__ = ["SGMCMCInfo", "SGMCMCState", "sghmc", "sgld", "sgnht"]
