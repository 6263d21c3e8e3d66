"""The table ``[algorithm]`` of Metropolis-Hastings samplers: see `dpjax.config.job`."""

import numpy as np

from dpjax import comparisons, fisher, mcmc, proposals
from dpjax.algorithm import Sampler
from dpjax.config import sgmcmc, vi
from dpjax.config.keys import ConfigError, check_keys, choice, keywords, named, without
from dpjax.config.model import Model
from dpjax.config.run import Run
from dpjax.privacy import Budget
from dpjax.release.clip_bounds import Lipschitz, Range

__all__ = ["ADAPTABLE", "read"]

PRIVATE = "barker penalty hmc minibatch_penalty minibatch_barker fast_mh".split()
COMPARISONS = ["fast_mh_published", "tuna"]
ADAPTABLE = {
    **{name: getattr(mcmc, name) for name in PRIVATE},
    **{name: getattr(comparisons, name) for name in COMPARISONS},
}
"""Samplers with accept bits, for which there may be an ``[adaptation]``."""

BY_GRADIENTS = {"dpvi": vi, **dict.fromkeys(sgmcmc.SAMPLERS, sgmcmc)}
"""The modules that read the tables of the other samplers."""

PROPOSALS = ("fixed_length", "gaussian", "one_component", "guided_walk")


def read(table, model: Model, run: Run, budget: Budget) -> tuple[Sampler, dict]:
    """The sampler and its keyword arguments; no data are read.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    names = (*ADAPTABLE, *BY_GRADIENTS)
    name, table = named(table, "name", names, "[algorithm]")
    if name in BY_GRADIENTS:
        return BY_GRADIENTS[name].read(name, table, model, run, budget)
    sampler = ADAPTABLE[name]
    required, optional = keywords(sampler.as_top_level_api)
    clips = ["clip_bound", "clip_per_distance"] if "clip_bound" in required else []
    required = ["step_size", *(key for key in required if key not in clips)]
    check_keys(table, "[algorithm]", required, ["metric", *clips, *optional])
    if clips and sum(key in table for key in clips) != 1:
        raise ConfigError("[algorithm] needs clip_bound or clip_per_distance, not both")
    options = without(table, "metric", "clip_per_distance")
    if isinstance(table.get("clip_bound"), str):
        options["clip_bound"] = _public_bound(name, table, model.bounds)
    if "clip_per_distance" in table:
        options["clip_bound"] = Lipschitz(table["clip_per_distance"])
    if "proposal" in table:
        choice(table["proposal"], PROPOSALS, "[algorithm] proposal")
        options["proposal"] = getattr(proposals, table["proposal"])
    if "inverse_mass_matrix" in table:
        matrix = np.asarray(table["inverse_mass_matrix"], float)
        if matrix.shape not in ((model.dim,), (model.dim, model.dim)):
            raise ConfigError(
                f"[algorithm] inverse_mass_matrix must be {model.dim} numbers, or as "
                f"many rows of them, got shape {matrix.shape}"
            )
        options["inverse_mass_matrix"] = matrix
    if "metric" in table:
        options |= _metric(name, table, model.fisher_information, run.start)
    return sampler, options


def _public_bound(name, table, bounds):
    """The model's own bound that ``clip_bound`` names."""
    kinds = ["lipschitz"]
    if "expected_batch_size" in table:
        kinds.append("range")
    kind = choice(table["clip_bound"], kinds, "[algorithm] clip_bound, if no number,")
    if bounds is None or "metric" in table or "inverse_mass_matrix" in table:
        raise ConfigError(
            f"[algorithm] clip_bound = {kind!r}: there is no public bound for this "
            "model and these data, or not in a metric; give a number, or "
            "clip_per_distance"
        )
    if kind == "range":
        return Range(bounds, bounds.half_range)
    return Lipschitz(bounds.lipschitz)


def _metric(name, table, fisher_information, start):
    """The keyword argument that ``metric`` stands for."""
    kind = choice(table["metric"], ("fisher", "geodesic"), "[algorithm] metric")
    if fisher_information is None:
        raise ConfigError(
            "[algorithm] metric: of this model no Fisher information is at hand (for "
            "logistic_regression it is an expectation over features, of which no "
            "public law is known); give a public inverse_mass_matrix, or tune one with "
            "[adaptation]"
        )
    if "inverse_mass_matrix" in table:
        raise ConfigError("[algorithm] takes metric or inverse_mass_matrix, not both")
    if kind == "fisher":
        matrix = fisher.inverse_fisher_information(fisher_information, start)
        return {"inverse_mass_matrix": matrix}
    choice(name, ("barker", "penalty"), "[algorithm] name with metric = 'geodesic'")
    if "proposal" in table:
        raise ConfigError("[algorithm] takes proposal or metric = 'geodesic', not both")
    return {"proposal": fisher.geodesic(fisher_information)}
