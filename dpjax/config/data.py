"""The table ``[data]`` of the models of `dpjax.models`."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax.config.keys import (
    COUNT,
    SEED,
    ConfigError,
    Key,
    Kind,
    check_keys,
    count_to,
    named,
    one_of,
    without,
)
from dpjax.datasets import adult, mnist
from dpjax.models.shared import Family

__all__ = ["ADULT", "GENERATED", "MNIST", "Records", "generated", "labelled"]

ADULT_RECORDS, ADULT_DIMS = 32_561, {"compact": 9, "all": 108}
MNIST_RECORDS = 5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949
"""Number of training images of each digit from 0 to 9."""

MNIST_DIM = 50
"""Number of features of an image."""

MAX_GENERATED = 10**9
"""The most numbers in all generated records together. They fill 8 GB."""


def _are_digits(value) -> bool:
    are_digits = isinstance(value, list) and all(type(v) is int for v in value)
    return are_digits and len(value) == 2 == len(set(value) & set(range(10)))


GENERATED = {
    "num_records": Key(COUNT, "How many records are made up."),
    "dim": Key(
        count_to(10_000),
        "Components of a record, for ``banana`` and ``correlated_gaussian``.",
    ),
    "seed": Key(SEED, "Of the pseudo-random numbers that make them up."),
}
ADULT = {"columns": Key(one_of(ADULT_DIMS), "Which columns are features.", "compact")}
MNIST = {
    "digits": Key(Kind("two different digits", _are_digits), "The two to tell apart."),
    "features": Key(
        one_of(("cosine", "published")),
        "Public cosines, or as published the principal components of the data, which "
        "no budget covers.",
        "cosine",
    ),
}


class Records(NamedTuple):
    """Records that are not read yet.

    outline
        Made-up records of the same shapes, as a tuple of arrays.
    load
        ``() -> (records, names, test)``: reads the records, a tuple of arrays. `names`
        are those of the model's parameters. `test` is a held-out test set, or None.
    dim
        Number of parameters of the model.
    has_unit_rows
        Whether every row of features has a norm of at most 1.
    """

    outline: tuple[Any, ...]
    load: Callable[[], tuple[tuple, list[str], Any]]
    dim: int
    has_unit_rows: bool = False


def generated(source, family: Family, constants: dict, is_vector: bool) -> Records:
    """Records that `family` simulates with its `constants`.

    `source` is the table. The records are vectors if `is_vector`, otherwise numbers.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys, or too many numbers to generate.
    """
    _, source = named(source, "source", ("generated",), "[data]")
    keys = GENERATED if is_vector else without(GENERATED, "dim")
    check_keys(source, "[data]", keys)
    dim = source.get("dim", 2)
    shape = [source["num_records"], dim] if is_vector else [source["num_records"]]
    if math.prod(shape) > MAX_GENERATED:
        raise ConfigError(
            f"[data] num_records may be at most {MAX_GENERATED // dim:,} with dim = "
            f"{dim}, which fills 8 GB, got {source['num_records']:,}"
        )

    def load():
        key = jax.random.key(source["seed"])
        records = family.generate(key, source["num_records"], dim=dim, **constants)
        return (records,), _numbered(dim), None

    return Records((_zeros(*shape),), load, dim)


def labelled(source) -> Records:
    """Records that are pairs of features and labels, from Adult or MNIST.

    `source` is the table.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    kinds = {"adult": _adult, "mnist": _mnist}
    kind, options = named(source, "source", tuple(kinds), "[data]")
    return kinds[kind](options)


def _adult(options):
    check_keys(options, "[data]", ADULT)
    columns = options.get("columns", ADULT["columns"].default)
    dim = ADULT_DIMS[columns]

    def load():
        splits = adult.load_adult()
        features, labels, names = adult.adult_features(splits["train"], columns)
        test = adult.adult_features(splits["test"], columns)[:2]
        return (features, labels), names, test

    outline = _zeros(ADULT_RECORDS, dim), _zeros(ADULT_RECORDS)
    return Records(outline, load, dim, has_unit_rows=True)


def _mnist(options):
    check_keys(options, "[data]", MNIST)
    kind = options.get("features", MNIST["features"].default)
    digits = options["digits"]

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
    """An array of zeros that takes no memory."""
    return np.broadcast_to(0.0, shape)
