"""Posterior samples under differential privacy, in JAX."""

import typing as _typing
from importlib import import_module as _import_module
from importlib.metadata import version as _version

from dpjax import acceptance, adaptation, fisher, privacy, proposals
from dpjax.algorithm import Algorithm
from dpjax.comparisons import baselines
from dpjax.comparisons.dp_sep_published import dp_sep_published
from dpjax.comparisons.fast_mh_published import fast_mh_published
from dpjax.comparisons.sep import sep
from dpjax.comparisons.tuna import tuna
from dpjax.ep.dp_em import dp_em
from dpjax.ep.dp_sep import dp_sep
from dpjax.mcmc.barker import barker
from dpjax.mcmc.fast_mh import fast_mh
from dpjax.mcmc.hmc import hmc
from dpjax.mcmc.minibatch_barker import minibatch_barker
from dpjax.mcmc.minibatch_penalty import minibatch_penalty
from dpjax.mcmc.penalty import penalty
from dpjax.posterior import Posterior
from dpjax.privacy import Budget
from dpjax.release.clip_bounds import Lipschitz, Range
from dpjax.report import compare
from dpjax.runner.batch import batch
from dpjax.runner.plan import plan
from dpjax.runner.plan_fit import plan_sample
from dpjax.runner.reserve import reserve
from dpjax.runner.results import load
from dpjax.runner.run import run
from dpjax.runner.sample import sample
from dpjax.sgmcmc import schedules
from dpjax.sgmcmc.sghmc import sghmc
from dpjax.sgmcmc.sgld import sgld
from dpjax.sgmcmc.sgnht import sgnht
from dpjax.vi import guides
from dpjax.vi.dpvi import dpvi
from dpjax.vi.noise_aware import noise_aware

__all__ = [
    "Algorithm",
    "Budget",
    "Lipschitz",
    "Posterior",
    "Range",
    "acceptance",
    "adaptation",
    "barker",
    "baselines",
    "batch",
    "compare",
    "dp_em",
    "dp_sep",
    "dp_sep_published",
    "dpvi",
    "fast_mh",
    "fast_mh_published",
    "fisher",
    "glm",
    "guides",
    "hmc",
    "load",
    "minibatch_barker",
    "minibatch_penalty",
    "noise_aware",
    "numpyro",
    "penalty",
    "plan",
    "plan_sample",
    "privacy",
    "proposals",
    "reserve",
    "run",
    "sample",
    "schedules",
    "sep",
    "sghmc",
    "sgld",
    "sgnht",
    "tuna",
]

__version__ = _version("dpjax")

if _typing.TYPE_CHECKING:
    from dpjax import numpyro
    from dpjax.numpyro.glm import glm


def __getattr__(name: str):
    # NumPyro is not imported by those who do not need it.
    if name in ("glm", "numpyro"):
        package = _import_module("dpjax.numpyro")
        return package if name == "numpyro" else package.glm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
