"""The table ``[model]`` of the models of `dpjax.models`."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import bounds
from dpjax.config import data
from dpjax.config.keys import ROWS, check_keys, keys_of, named, without
from dpjax.models.banana import BANANA
from dpjax.models.circle import CIRCLE
from dpjax.models.gaussian import GAUSSIAN
from dpjax.models.logistic import logistic_regression
from dpjax.models.mixture import MIXTURE
from dpjax.posterior import Posterior

__all__ = ["KEYS", "Model", "read"]

FAMILIES = {
    "banana": BANANA,
    "correlated_gaussian": GAUSSIAN,
    "circle": CIRCLE,
    "gaussian_mixture": MIXTURE,
}
OF_VECTORS = ("banana", "correlated_gaussian")
"""Families whose records are vectors. The records of other families are numbers."""

BUILDERS = {
    **{name: family.build for name, family in FAMILIES.items()},
    "logistic_regression": logistic_regression,
}
KEYS = {name: keys_of(build, {"covariance": ROWS}) for name, build in BUILDERS.items()}
"""For each model, the keys of ``[model]`` except ``name``."""


class Model(NamedTuple):
    """A posterior whose data are not read yet.

    outline
        The posterior with made-up records of the shapes of the data.
    load
        ``() -> (posterior, names, test)``: reads the data. `names` are those of the
        parameters, or None if the leaves of a position have names of their own. `test`
        is a held-out test set of records, or None.
    fisher_information
        ``position -> (d, d)`` as in `dpjax.fisher`, or None.
    dim
        Number of parameters, d.
    bounds
        An object of `dpjax.bounds`, or None.
    initial_position_fn
        ``num_chains -> positions`` where chains start, a pytree with leaves
        ``(chains, ...)``. None if ``[run]`` gives the start.
    sample_fn
        Function that draws without an ``[algorithm]``, as `dpjax.numpyro.sample`, or
        None.
    plan_fn
        Function that plans a call of `sample_fn`, as `dpjax.numpyro.plan`, or None.
    file
        The user's own file of records. None for other data.
    stated
        Values of keys of ``[model]`` with the defaults that the model chose, such as
        priors; None if it chose none.
    """

    outline: Posterior
    load: Callable[[], tuple[Posterior, list[str] | None, Any]]
    fisher_information: Callable[[Any], jax.Array] | None
    dim: int
    bounds: Any = None
    initial_position_fn: Callable | None = None
    sample_fn: Callable | None = None
    plan_fn: Callable | None = None
    file: Path | None = None
    stated: dict[str, Any] | None = None


def read(model, source) -> Model:
    """The model that the tables ``[model]`` and ``[data]`` describe; no data are read.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    name, constants = named(model, "name", BUILDERS, "[model]")
    check_keys(constants, "[model]", KEYS[name])
    build, family = BUILDERS[name], FAMILIES.get(name)
    information = public_bounds = None
    if family is None:
        records = data.labelled(source)
        if records.has_unit_rows:
            radius = constants.get("radius", math.inf)
            public_bounds = bounds.LogisticRegression(1.0, radius)
    else:
        records = data.generated(source, family, constants, name in OF_VECTORS)
        if family is MIXTURE:
            public_bounds = bounds.GaussianMixture(**without(constants, "tempering"))
        if family.fisher_information is not None:
            information = family.fisher_information(source["num_records"], **constants)

    def load():
        arrays, names, test = records.load()
        return build(*map(jnp.asarray, arrays), **constants), names, test

    outline = build(*records.outline, **constants)
    return Model(outline, load, information, records.dim, public_bounds)
