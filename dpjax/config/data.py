"""The table ``[data]`` of the models of `dpjax.models`: see `dpjax.config.job`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax.config.keys import ConfigError, check_keys, choice, named
from dpjax.datasets import adult, mnist
from dpjax.models.shared import Family
from dpjax.privacy.validate import check_count

__all__ = ["Records", "generated", "labelled"]

ADULT_RECORDS, ADULT_DIMS = 32_561, {"compact": 9, "all": 108}
MNIST_RECORDS = 5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949
"""Training images of the digits 0 to 9."""

MNIST_DIM = 50
"""Features of an image."""


class Records(NamedTuple):
    """Records that are not read yet.

    outline
        Made-up records of the same shapes, as a tuple of arrays.
    load
        Reads the records; returns them as such a tuple, the names of the model's
        parameters, and a held-out test set or None.
    dim
        Number of parameters.
    has_unit_rows
        Whether no row of features has a norm above 1.
    """

    outline: tuple[Any, ...]
    load: Callable[[], tuple[tuple, list[str], Any]]
    dim: int
    has_unit_rows: bool = False


def generated(source, family: Family, constants: dict, is_vector: bool) -> Records:
    """Records that `family` simulates with its `constants`: vectors, or numbers."""
    sizes = ["num_records", "dim"] if is_vector else ["num_records"]
    _, source = named(source, "source", ("generated",), "[data]")
    check_keys(source, "[data]", ["seed", *sizes])
    shape = [check_count(f"[data] {size}", source[size]) for size in sizes]
    dim = source.get("dim", 2)

    def load():
        key = jax.random.key(source["seed"])
        records = family.generate(key, source["num_records"], dim=dim, **constants)
        return (records,), _numbered(dim), None

    return Records((_zeros(*shape),), load, dim)


def labelled(source) -> Records:
    """Pairs of features and labels, from Adult or MNIST."""
    kinds = {"adult": _adult, "mnist": _mnist}
    kind, options = named(source, "source", tuple(kinds), "[data]")
    return kinds[kind](options)


def _adult(options):
    check_keys(options, "[data]", optional=["columns"])
    columns = options.get("columns", "compact")
    dim = ADULT_DIMS[choice(columns, tuple(ADULT_DIMS), "[data] columns")]

    def load():
        splits = adult.load_adult()
        features, labels, names = adult.adult_features(splits["train"], columns)
        test = adult.adult_features(splits["test"], columns)[:2]
        return (features, labels), names, test

    outline = _zeros(ADULT_RECORDS, dim), _zeros(ADULT_RECORDS)
    return Records(outline, load, dim, has_unit_rows=True)


def _mnist(options):
    check_keys(options, "[data]", ["digits"], ["features"])
    kind = options.get("features", "cosine")
    choice(kind, ("cosine", "published"), "[data] features")
    digits = options["digits"]
    if len(digits) != 2 or len(set(digits) & set(range(10))) != 2:
        raise ConfigError(f"[data] digits must be two digits, got {digits}")

    def load():
        splits = mnist.load_mnist(digits)
        train = splits["train"][0]

        def encode(images, digit_of):
            if kind == "cosine":
                features = mnist.cosine_features(images, MNIST_DIM)
            else:
                features = mnist.published_features(train, images, MNIST_DIM)
            return features, (digit_of == digits[1]).astype(np.float32)

        names = _numbered(MNIST_DIM)
        return encode(*splits["train"]), names, encode(*splits["test"])

    num_records = sum(MNIST_RECORDS[digit] for digit in digits)
    outline = _zeros(num_records, MNIST_DIM), _zeros(num_records)
    return Records(outline, load, MNIST_DIM, has_unit_rows=kind == "cosine")


def _numbered(dim):
    return [f"theta[{i}]" for i in range(dim)]


def _zeros(*shape):
    """Zeros that take no memory."""
    return np.broadcast_to(0.0, shape)
