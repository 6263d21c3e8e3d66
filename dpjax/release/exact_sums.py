"""Exact sums of integers over records, block by block.

A sum does not depend on the order of the records, nor on how they are split: its terms
are integers of at most `GRID`, which float32 adds exactly in groups and float64 beyond.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["BLOCK", "GRID", "clip_to_grid", "exact_sum", "sum_over_records", "wide"]

GRID = 2**16
"""Cells of the public grid per clip bound. At n = 1e7 the rounding of all records
together moves a sum by about .03 clip bounds, random in sign."""

BLOCK = 2**17
"""Numbers, one a record or one a gradient component, evaluated together by a chain:
bounds the memory that a sum needs."""

UNROLLED = 64
"""Blocks written out one after the other, which compiles to the fastest code; more
records than ``UNROLLED * BLOCK`` are looped over."""

EXACT_FLOAT32_TERMS = 2**24 // GRID
"""Integers of at most GRID that float32 adds without rounding."""

EVALUATED_AGAIN = 4
"""Pieces of a vector that are evaluated again for each of them; more are stored."""


def sum_over_records(
    sums: Callable[[Any], jax.Array], data, block_size: int, is_in_turn: bool = False
) -> jax.Array:
    """Add up the float64 vectors that `sums` returns for blocks of records.

    Blocks that are not in turn XLA evaluates all at once, with the memory of all.
    """
    size = jax.tree.leaves(data)[0].shape[0]
    stride = UNROLLED * block_size

    def stretch(start, length):
        total = None
        # The records that fill no group of `exact_sum` come last, by themselves.
        whole_groups = length - length % EXACT_FLOAT32_TERMS
        edges = {*range(0, length, block_size), whole_groups, length}
        for offset, end in itertools.pairwise(sorted(edges)):
            block = jax.tree.map(
                lambda leaf, i=offset, w=end - offset: (
                    leaf[start + i : start + i + w]
                    if isinstance(start, int)
                    else lax.dynamic_slice_in_dim(leaf, start + i, w)
                ),
                data,
            )
            if is_in_turn and total is not None:
                block = _after(total, block)
            part = sums(block)
            with jax.enable_x64(True):
                total = part if total is None else total + part
        return total

    whole, rest = divmod(size, stride)
    total = stretch(whole * stride, rest) if rest else None
    if whole:
        first = stretch(0, stride)
        with jax.enable_x64(True):
            total = first if total is None else total + first

        def add(i, total):
            part = stretch(i * stride, stride)
            with jax.enable_x64(True):
                return total + part

        total = lax.fori_loop(1, whole, add, total)
    return total


def _after(total: jax.Array, data):
    """The data, for which XLA waits until it has the total: it may not be finite."""
    with jax.enable_x64(True):
        is_finite = total[0] < jnp.inf
    return jax.tree.map(
        lambda leaf: jnp.where(is_finite, leaf, jnp.zeros_like(leaf)), data
    )


def exact_sum(integers: jax.Array, axis: int = -1) -> jax.Array:
    """Sum of integers of at most GRID over one axis, exact, in float64."""
    axis %= integers.ndim
    size = integers.shape[axis]
    grouped = size - size % EXACT_FLOAT32_TERMS
    whole, rest = jnp.split(integers, [grouped], axis)
    before, after = integers.shape[:axis], integers.shape[axis + 1 :]
    groups = whole.reshape(*before, -1, EXACT_FLOAT32_TERMS, *after)
    partial, rest = jnp.sum(groups, axis=axis + 1), jnp.sum(rest, axis=axis)
    with jax.enable_x64(True):
        return jnp.sum(partial.astype(jnp.float64), axis=axis) + rest.astype(
            jnp.float64
        )


def clip_to_grid(
    vectors: list[jax.Array], kept: jax.Array, l2_clip_norm, axis: int = 0
) -> list[jax.Array]:
    """Clip vectors in Euclidean norm, in integer cells of ``l2_clip_norm / GRID``.

    Parameters
    ----------
    vectors
        Pieces that make up each record's vector, ``(d_1, n), (d_2, n), ...``, of at
        least float32.
    kept
        Records that count, ``(n,)``; the others' vectors become zero, as do those that
        are not finite, or longer than 2^48 clip norms, whose square may overflow.
    axis
        Where the components are. They lead by default: a sum over a short last axis
        costs several times as much. Over a long one it costs half as much.

    Raises
    ------
    ValueError
        If the vectors have more than 2^21 components.

    Notes
    -----
    *Formal guarantees.* The norm of every vector returned is at most GRID: it shrinks
    to 1 - (d + 16) 2^-23 of the bound before it is truncated towards zero, which covers
    the rounding of its norm in float32.
    """
    size = sum(piece.shape[axis] for piece in vectors)
    if size > 2**21:
        raise ValueError(
            f"gradients of {size} components cannot be clipped exactly in float32; the "
            "most is 2^21"
        )
    largest = GRID * (1.0 - (size + 16) * 2.0**-23)
    unit = jnp.asarray(jnp.maximum(l2_clip_norm, 1e-30) / GRID, vectors[0].dtype)
    is_stored = len(vectors) > EVALUATED_AGAIN
    if is_stored:
        # Keeps the division, whose result XLA stores.
        unit = lax.optimization_barrier(unit)
    cells = [piece / unit for piece in vectors]
    square = sum(jnp.sum(piece**2, axis=axis) for piece in cells)
    length = jnp.sqrt(jnp.maximum(jnp.where(kept, square, jnp.inf), 1.0))
    # Computed once, not again for every piece.
    shrink = jnp.minimum(1.0, lax.optimization_barrier(largest / length))
    # What is evaluated again for a piece needs all pieces here, and so rounds as it did
    # for the norm. Alone, it could have products and sums contracted that were not.
    finite = shrink > 0 if is_stored else square < jnp.inf
    shrink, finite = jnp.expand_dims(shrink, axis), jnp.expand_dims(finite, axis)
    return [jnp.trunc(jnp.where(finite, piece * shrink, 0)) for piece in cells]


def wide(values):
    """At least float32, whose integers reach far beyond the grid."""
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))
