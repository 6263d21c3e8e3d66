"""The table ``[algorithm]``: for Metropolis-Hastings samplers, and a way to others.

`read` hands the tables of other samplers to `dpjax.config.sgmcmc` and
`dpjax.config.vi`.
"""

import numpy as np

from dpjax import comparisons, fisher, mcmc, proposals
from dpjax.algorithm import Sampler
from dpjax.config import sgmcmc, vi
from dpjax.config.keys import (
    NUMBER,
    NUMBERS,
    ROWS,
    TEXT,
    ConfigError,
    Key,
    check_keys,
    choice,
    either,
    keys_of,
    named,
    one_of,
    without,
)
from dpjax.config.model import Model
from dpjax.config.run import Run
from dpjax.privacy import Budget
from dpjax.release.clip_bounds import Lipschitz, Range

__all__ = ["ADAPTABLE", "keys", "read"]

PRIVATE = "barker penalty hmc minibatch_penalty minibatch_barker fast_mh".split()
COMPARISONS = ["fast_mh_published", "tuna"]
ADAPTABLE = {
    **{name: getattr(mcmc, name) for name in PRIVATE},
    **{name: getattr(comparisons, name) for name in COMPARISONS},
}
"""Samplers with accept bits, for which there may be an ``[adaptation]``."""

BY_GRADIENTS = {"dpvi": vi, **dict.fromkeys(sgmcmc.SAMPLERS, sgmcmc)}
"""The other algorithms, with the modules that read their tables."""

PROPOSALS = ("fixed_length", "gaussian", "one_component", "guided_walk")

KINDS = {
    "step_size": NUMBER,
    "clip_bound": either(NUMBER, TEXT),
    "proposal": one_of(PROPOSALS),
    "inverse_mass_matrix": either(NUMBERS, ROWS),
}

CLIP_PER_DISTANCE = Key(
    NUMBER,
    "In place of ``clip_bound``: nats by unit of the distance moved.",
    default=None,
)
METRIC = Key(
    one_of(("fisher", "geodesic")),
    "In place of ``inverse_mass_matrix``: the Fisher information that the model "
    "expects of ``num_records`` records. With ``fisher``, its inverse at ``start`` is "
    "the metric; with ``geodesic``, ``barker`` and ``penalty`` walk along its "
    "geodesics (`dpjax.fisher.geodesic`). Not for ``logistic_regression`` and "
    "``gaussian_mixture``.",
    default=None,
)


def keys(name: str) -> dict[str, Key]:
    """The keys of ``[algorithm]`` for the sampler `name`, except ``name`` itself."""
    function = ADAPTABLE[name].as_top_level_api
    found = keys_of(function, KINDS)
    if "proposal" in found:
        default = found["proposal"].default
        (text,) = (each for each in PROPOSALS if getattr(proposals, each) is default)
        found["proposal"] = found["proposal"]._replace(default=text)
    if "clip_bound" in found:
        found["clip_bound"] = found["clip_bound"]._replace(
            meaning="Bound on one record's log ratio: a number of nats, or for "
            "``gaussian_mixture`` and ``logistic_regression`` the public bound of "
            "`dpjax.bounds` that is called ``lipschitz``, or ``range`` for an "
            "algorithm with an ``expected_batch_size``.",
            default=None,
        )
        found["clip_per_distance"] = CLIP_PER_DISTANCE
    return found | {"metric": METRIC}


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
    known = keys(name)
    check_keys(table, "[algorithm]", known)
    clips = known.keys() & {"clip_bound", "clip_per_distance"}
    if clips and len(clips & table.keys()) != 1:
        raise ConfigError("[algorithm] needs clip_bound or clip_per_distance, not both")
    options = without(table, "metric", "clip_per_distance")
    if isinstance(table.get("clip_bound"), str):
        options["clip_bound"] = _public_bound(table, model.bounds)
    if "clip_per_distance" in table:
        options["clip_bound"] = Lipschitz(table["clip_per_distance"])
    if "proposal" in table:
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


def _public_bound(table, bounds):
    """The bound of `dpjax.bounds` that the text in ``clip_bound`` names."""
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
    if fisher_information is None:
        raise ConfigError(
            "[algorithm] metric: of this model no Fisher information is at hand (for "
            "logistic_regression it is an expectation over features, of which no "
            "public law is known); give a public inverse_mass_matrix, or tune one with "
            "[adaptation]"
        )
    if "inverse_mass_matrix" in table:
        raise ConfigError("[algorithm] takes metric or inverse_mass_matrix, not both")
    if table["metric"] == "fisher":
        matrix = fisher.inverse_fisher_information(fisher_information, start)
        return {"inverse_mass_matrix": matrix}
    choice(name, ("barker", "penalty"), "[algorithm] name with metric = 'geodesic'")
    if "proposal" in table:
        raise ConfigError("[algorithm] takes proposal or metric = 'geodesic', not both")
    return {"proposal": fisher.geodesic(fisher_information)}
