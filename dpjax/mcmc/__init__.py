"""Metropolis-Hastings kernels that release one accept bit a step, and DP HMC."""

from dpjax.mcmc.barker import barker
from dpjax.mcmc.fast_mh import fast_mh
from dpjax.mcmc.hmc import hmc
from dpjax.mcmc.metropolis_hastings import MHInfo, MHState
from dpjax.mcmc.minibatch_barker import minibatch_barker
from dpjax.mcmc.minibatch_penalty import minibatch_penalty
from dpjax.mcmc.penalty import penalty

__all__ = [
    "MHInfo",
    "MHState",
    "barker",
    "fast_mh",
    "hmc",
    "minibatch_barker",
    "minibatch_penalty",
    "penalty",
]
