"""Exact sums of integers over records, block by block.

Every record contributes integers of at most `GRID`. Groups of 256 of them are added in
float32, which holds every integer up to 2^24, and groups are added in float64. No
addition rounds, so a sum depends neither on the order of the records nor on how they
are split into blocks, devices or processes.
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
"""Numbers, one a record or one a gradient component, that one chain evaluates together:
this bounds the memory that a sum needs."""

MAX_UNROLLED_BLOCKS = 64
"""Blocks that are written out one after the other, which compiles to the fastest code.
More records than that many blocks hold are looped over."""

GROUP = 2**24 // GRID
"""Integers of at most `GRID` that float32 adds without rounding."""

MAX_RECOMPUTED_PIECES = 4
"""Pieces of a vector up to which XLA may evaluate the vector again for each of them;
more pieces are stored."""


def sum_over_records(
    sums: Callable[[Any], jax.Array], data, block_size: int, is_in_turn: bool = False
) -> jax.Array:
    """Add up the float64 vectors that `sums` returns for blocks of records.

    Parameters
    ----------
    sums
        ``block -> vector``; a block is a pytree like `data` with fewer records.
    data
        Pytree of arrays with the records along the leading axis.
    block_size
        Records of a block.
    is_in_turn
        Whether a block waits for the sum of those before it. By default XLA may
        evaluate all unrolled blocks at once, so peak memory is the sum of theirs.
    """

    def records(start, length):
        return jax.tree.map(
            lambda leaf: (
                leaf[start : start + length]
                if isinstance(start, int)
                else lax.dynamic_slice_in_dim(leaf, start, length)
            ),
            data,
        )

    def stretch(start, length):
        """The sum of the records from `start`, in unrolled blocks."""
        (_, end), *others = _blocks(length, block_size)
        total = sums(records(start, end))
        for offset, end in others:
            block = records(start + offset, end - offset)
            total = _plus(total, sums(_after(total, block) if is_in_turn else block))
        return total

    size = jax.tree.leaves(data)[0].shape[0]
    stride = MAX_UNROLLED_BLOCKS * block_size
    num_strides, rest = divmod(size, stride)
    if not num_strides:
        return stretch(0, rest)
    total = stretch(0, stride)
    if rest:
        total = _plus(total, stretch(num_strides * stride, rest))

    def add(i, total):
        return _plus(total, stretch(i * stride, stride))

    return lax.fori_loop(1, num_strides, add, total)


def _blocks(length: int, block_size: int):
    """Where blocks begin and end.

    The records beyond the last whole group of `exact_sum` are a block of their own.
    """
    edges = sorted({*range(0, length, block_size), length - length % GROUP, length})
    return itertools.pairwise(edges)


def _plus(first, second):
    """The sum of float64 arrays."""
    with jax.enable_x64(True):
        return first + second


def _after(total: jax.Array, data):
    """`data`, which XLA cannot read before `total` is there.

    XLA does not know that a total is finite, so it cannot drop the comparison.
    """
    with jax.enable_x64(True):
        is_finite = total[0] < jnp.inf
    return jax.tree.map(
        lambda leaf: jnp.where(is_finite, leaf, jnp.zeros_like(leaf)), data
    )


def exact_sum(integers: jax.Array, axis: int = -1) -> jax.Array:
    """Sum of integers of at most GRID over one axis, exact, in float64."""
    axis %= integers.ndim
    size = integers.shape[axis]
    grouped, rest = jnp.split(integers, [size - size % GROUP], axis)
    before, after = integers.shape[:axis], integers.shape[axis + 1 :]
    groups = grouped.reshape(*before, -1, GROUP, *after)
    sums, rest = jnp.sum(groups, axis=axis + 1), jnp.sum(rest, axis=axis)
    with jax.enable_x64(True):
        total = jnp.sum(sums.astype(jnp.float64), axis=axis)
        return total + rest.astype(jnp.float64)


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
        Records that count, ``(n,)``. The others' vectors become zero, as do those that
        are not finite, or longer than 2^48 clip norms, whose square may overflow.
    l2_clip_norm
        The bound on the norm, in the units of the vectors.
    axis
        The axis of the components: 0, or 1 for pieces ``(n, d_1), ...``. XLA sums over
        a leading axis several times as fast as over a short last one, and half as fast
        as over a long last one.

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
            f"vectors of {size} components cannot be clipped exactly in float32; the "
            "most is 2^21"
        )
    largest = GRID * (1.0 - (size + 16) * 2.0**-23)
    unit = jnp.asarray(jnp.maximum(l2_clip_norm, 1e-30) / GRID, vectors[0].dtype)
    is_stored = len(vectors) > MAX_RECOMPUTED_PIECES
    if is_stored:
        # XLA must not turn the division into a product that it evaluates again.
        unit = lax.optimization_barrier(unit)
    cells = [piece / unit for piece in vectors]
    square = sum(jnp.sum(piece**2, axis=axis) for piece in cells)
    length = jnp.sqrt(jnp.maximum(jnp.where(kept, square, jnp.inf), 1.0))
    # The barrier makes XLA compute the factor once, not again for every piece.
    shrink = jnp.minimum(1.0, lax.optimization_barrier(largest / length))
    # A piece that XLA evaluates again must round as it did for the norm. It does where
    # the evaluation needs all pieces, as this use of the norm's square makes it: alone,
    # a piece could have products and sums contracted that were not contracted before.
    finite = shrink > 0 if is_stored else square < jnp.inf
    shrink, finite = jnp.expand_dims(shrink, axis), jnp.expand_dims(finite, axis)
    return [jnp.trunc(jnp.where(finite, piece * shrink, 0)) for piece in cells]


def wide(values: jax.Array) -> jax.Array:
    """At least float32, whose exact integers reach far beyond the grid."""
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))
