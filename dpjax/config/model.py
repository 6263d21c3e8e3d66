"""The tables ``[model]`` and ``[data]`` of a configuration: see `dpjax.config`."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import bounds
from dpjax.config.keys import ConfigError, choice, keywords, only
from dpjax.datasets import adult, mnist
from dpjax.models.banana import FisherInformation as BananaInformation
from dpjax.models.banana import banana
from dpjax.models.banana import simulate as simulate_banana
from dpjax.models.circle import FisherInformation as CircleInformation
from dpjax.models.circle import circle
from dpjax.models.circle import simulate as simulate_circle
from dpjax.models.gaussian import FisherInformation as GaussianInformation
from dpjax.models.gaussian import correlated_gaussian
from dpjax.models.gaussian import simulate as simulate_gaussian
from dpjax.models.logistic import logistic_regression
from dpjax.models.mixture import gaussian_mixture
from dpjax.models.mixture import simulate as simulate_mixture
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
    "gaussian_mixture": (gaussian_mixture, simulate_mixture, None),
}
OF_NUMBERS = ("circle", "gaussian_mixture")
ADULT_RECORDS, ADULT_DIMS = 32_561, {"compact": 9, "all": 108}
MNIST_RECORDS = 5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949
MNIST_DIM = 50


class Model(NamedTuple):
    """A posterior whose data are not read yet.

    outline
        The posterior with made-up records.
    load
        Reads the data; returns the posterior, the parameters' names, and a held-out
        test set of records or None.
    fisher_information
        ``position -> (d, d)`` as in `dpjax.fisher`, or None.
    dim
        d.
    bounds
        One of `dpjax.bounds`, or None.
    initial_position_fn
        ``num_chains -> position`` where chains start, or None to be told.
    sample_fn
        What draws without an ``[algorithm]``, as `dpjax.numpyro.sample`, or None.
    """

    outline: Posterior
    load: Callable
    fisher_information: Callable | None
    dim: int
    bounds: Any = None
    initial_position_fn: Callable | None = None
    sample_fn: Callable | None = None


def read(model, source) -> Model:
    """The model that the two tables describe; no data are read."""
    name = choice(
        model.get("name"), (*GENERATED, "logistic_regression"), "[model] name"
    )
    options = {key: value for key, value in model.items() if key != "name"}
    build = logistic_regression if name == "logistic_regression" else GENERATED[name][0]
    only(model, ["name"], ["name", *keywords(build)], "[model]")
    if build is logistic_regression:
        only(source, ["source"], list(source), "[data]")
        read_source = {"adult": _adult, "mnist": _mnist}
        choice(source["source"], tuple(read_source), "[data] source")
        fixed = functools.partial(build, **options)
        return read_source[source["source"]](fixed, source)
    return _generated(name, options, source)


def _generated(name, options, source):
    build, simulate, information = GENERATED[name]
    sizes = ["num_records"] if name in OF_NUMBERS else ["num_records", "dim"]
    only(source, ["source", "seed", *sizes], ["source", "seed", *sizes], "[data]")
    choice(source["source"], ("generated",), "[data] source")
    shape = [source[size] for size in sizes]
    if not all(isinstance(size, int) and size > 0 for size in shape):
        raise ConfigError("[data] num_records and dim must be positive integers")
    dim = source.get("dim", 2)

    def generate():
        records = simulate(jax.random.key(source["seed"]), *shape)
        return build(records, **options), [f"theta[{i}]" for i in range(dim)], None

    public = None
    if build is gaussian_mixture:
        constants = {key: options[key] for key in options if key != "tempering"}
        public = bounds.GaussianMixture(**constants)
    fisher_information = None
    if information is not None:
        fisher_information = information(source["num_records"], **options)
    outline = build(_zeros(*shape), **options)
    return Model(outline, generate, fisher_information, dim, public)


def _adult(build, source):
    only(source, ["source"], ["source", "columns"], "[data]")
    columns = source.get("columns", "compact")
    dim = ADULT_DIMS[choice(columns, tuple(ADULT_DIMS), "[data] columns")]

    def load():
        splits = adult.load_adult()
        features, labels, names = adult.adult_features(splits["train"], columns)
        test = adult.adult_features(splits["test"], columns)[:2]
        return build(jnp.asarray(features), jnp.asarray(labels)), names, test

    return _logistic(build, load, ADULT_RECORDS, dim, unit_rows=True)


def _mnist(build, source):
    only(source, ["source", "digits"], ["source", "digits", "features"], "[data]")
    kind = source.get("features", "cosine")
    choice(kind, ("cosine", "published"), "[data] features")
    digits = source["digits"]
    if len(digits) != 2 or len(set(digits) & set(range(10))) != 2:
        raise ConfigError(f"[data] digits must be two digits, got {digits}")

    def encode(images, fitted_to):
        if kind == "cosine":
            return mnist.cosine_features(images, MNIST_DIM)
        return mnist.published_features(fitted_to, images, MNIST_DIM)

    def load():
        splits = mnist.load_mnist(digits)
        train = splits["train"][0]
        (features, labels), test = (
            (encode(images, train), (of == digits[1]).astype(np.float32))
            for images, of in (splits["train"], splits["test"])
        )
        names = [f"theta[{i}]" for i in range(MNIST_DIM)]
        return build(jnp.asarray(features), jnp.asarray(labels)), names, test

    count = sum(MNIST_RECORDS[digit] for digit in digits)
    return _logistic(build, load, count, MNIST_DIM, unit_rows=kind == "cosine")


def _logistic(build, load, num_records, dim, unit_rows):
    """Logistic regression; `unit_rows`: no row of features has a norm above 1."""
    public = None
    if unit_rows:
        radius = build.keywords.get("radius", math.inf)
        public = bounds.LogisticRegression(1.0, radius)
    outline = build(_zeros(num_records, dim), _zeros(num_records))
    return Model(outline, load, None, dim, public)


def _zeros(*shape):
    """Zeros that take no memory."""
    return np.broadcast_to(0.0, shape)
