"""A few steps on made-up records, to see what a run takes. Reads no data."""

import dataclasses
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.compiled import shared, traced
from dpjax.posterior import Posterior
from dpjax.runner.program import initial, num_words_of, scan_steps

__all__ = ["Trial", "timed", "trial"]

NUM_STEPS = 16
"""Steps that are tried."""

MAX_BYTES = 2**28
"""The most bytes of made-up records. Time and memory of more records are scaled."""


class Trial(NamedTuple):
    """What steps take.

    seconds
        Of one step that moves all chains.
    num_bytes
        Largest memory of a program of a few such steps, with the records.
    jump
        Root mean square distance, over components, of a step that moves a chain; NaN
        if none did, or the kernel does not accept or reject.
    """

    seconds: float
    num_bytes: float
    jump: float


def trial(algorithm_fn, posterior: Posterior, positions: Any) -> Trial:
    """Try steps from `positions`, ``(chains, ...)``, with records of zeros."""
    shapes = jax.tree.map(_shape, posterior.data)
    leaves = jax.tree.leaves(shapes)
    size = sum(leaf.dtype.itemsize * leaf.size for leaf in leaves)
    scale = max(size / MAX_BYTES, 1.0)
    num_records = int(np.ceil(posterior.num_records / scale))
    records = jax.tree.map(
        lambda leaf: jnp.zeros((num_records, *leaf.shape[1:]), leaf.dtype), shapes
    )

    def algorithm_of(records):
        return algorithm_fn(dataclasses.replace(posterior, data=records))

    algorithm = algorithm_of(records)
    chains, _ = initial(algorithm.transition, jax.vmap(algorithm.init)(positions))
    shape = NUM_STEPS, len(jax.tree.leaves(positions)[0])
    num_words = num_words_of(algorithm.transition, chains)
    words = np.random.default_rng(0).integers(
        2**32, size=(*shape, num_words), dtype=np.uint32
    )
    given = records, chains, words, np.ones(shape, bool)

    def steps(records, *arguments):
        return scan_steps(algorithm_of(records).transition, *arguments)

    program = shared(traced(steps, *given), given)
    (_, history), seconds = timed(program, *given)
    num_bytes = _num_bytes(program)
    return Trial(scale * seconds / NUM_STEPS, scale * num_bytes, _jump(history))


def _shape(leaf) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))


def timed(function, *arguments) -> tuple[Any, float]:
    """What a compiled function returns, and the seconds that its second call takes."""
    jax.block_until_ready(function(*arguments))
    start = time.perf_counter()
    found = jax.block_until_ready(function(*arguments))
    return found, time.perf_counter() - start


def _num_bytes(compiled) -> float:
    found = compiled.memory_analysis()
    return (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
    )


def _jump(history) -> float:
    if history.num_accepted is None:
        return np.nan
    is_moved = jnp.diff(history.num_accepted, axis=0) > 0
    moves = [jnp.diff(leaf, axis=0) for leaf in jax.tree.leaves(history.position)]
    flat = jnp.concatenate([move[is_moved].ravel() for move in moves])
    return float(jnp.sqrt(jnp.mean(flat**2)))
