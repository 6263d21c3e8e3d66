"""The tables ``[model]`` and ``[data]`` of a configuration: see `dpjax.config`."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import data
from dpjax.config_keys import ConfigError, choice, keywords, only
from dpjax.models.banana import Information as BananaInformation
from dpjax.models.banana import banana
from dpjax.models.banana import simulate as simulate_banana
from dpjax.models.circle import Information as CircleInformation
from dpjax.models.circle import circle
from dpjax.models.circle import simulate as simulate_circle
from dpjax.models.gaussian import Information as GaussianInformation
from dpjax.models.gaussian import correlated_gaussian
from dpjax.models.gaussian import simulate as simulate_gaussian
from dpjax.models.logistic import logistic_regression
from dpjax.posterior import Posterior

__all__ = ["Model", "read"]

GENERATED = {
    "banana": (banana, simulate_banana, BananaInformation),
    "correlated_gaussian": (
        correlated_gaussian,
        simulate_gaussian,
        GaussianInformation,
    ),
    "circle": (circle, simulate_circle, CircleInformation),
}
ADULT_RECORDS, ADULT_DIMS = 32_561, {"compact": 9, "all": 108}


class Model(NamedTuple):
    """A posterior whose data are not read yet.

    outline
        The posterior with made-up records.
    load
        Reads the data; returns the posterior, the parameters' names, and a held-out
        test set of records or None.
    information_fn
        ``position -> (d, d)`` as in `dpjax.fisher`, or None.
    dim
        d.
    """

    outline: Posterior
    load: Callable
    information_fn: Callable | None
    dim: int


def read(model, source) -> Model:
    """The model that the two tables describe; no data are read."""
    name = choice(
        model.get("name"), (*GENERATED, "logistic_regression"), "[model] name"
    )
    options = {key: value for key, value in model.items() if key != "name"}
    if name == "logistic_regression":
        build = logistic_regression
        only(model, ["name"], ["name", *keywords(build)], "[model]")
        only(source, ["source"], ["source", "columns"], "[data]")
        choice(source["source"], ("adult",), "[data] source")
        columns = source.get("columns", "compact")
        dim = ADULT_DIMS[choice(columns, tuple(ADULT_DIMS), "[data] columns")]

        def load_adult():
            splits = data.load_adult()
            features, labels, names = data.adult_features(splits["train"], columns)
            test = data.adult_features(splits["test"], columns)[:2]
            posterior = build(jnp.asarray(features), jnp.asarray(labels), **options)
            return posterior, names, test

        outline = build(_zeros(ADULT_RECORDS, dim), _zeros(ADULT_RECORDS), **options)
        return Model(outline, load_adult, None, dim)

    build, simulate, information = GENERATED[name]
    only(model, ["name"], ["name", *keywords(build)], "[model]")
    keys = ["source", "num_records", "seed", *(["dim"] if name != "circle" else [])]
    only(source, keys, keys, "[data]")
    choice(source["source"], ("generated",), "[data] source")
    shape = [source["num_records"], *([source["dim"]] if name != "circle" else [])]
    if not all(isinstance(size, int) and size > 0 for size in shape):
        raise ConfigError("[data] num_records and dim must be positive integers")
    dim = source.get("dim", 2)

    def generate():
        records = simulate(jax.random.key(source["seed"]), *shape)
        return build(records, **options), [f"theta[{i}]" for i in range(dim)], None

    information_fn = information(source["num_records"], **options)
    return Model(build(_zeros(*shape), **options), generate, information_fn, dim)


def _zeros(*shape):
    """Zeros that take no memory."""
    return np.broadcast_to(0.0, shape)
