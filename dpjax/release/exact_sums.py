"""Exact sums of integers over records, block by block.

Every record contributes integers of at most `GRID`. Groups of 256 of them are added in
float32, which holds every integer up to 2^24, and groups are added in float64. Products
of two such integers are added in float64, 2^21 of them, and then in int64. No addition
rounds, so a sum depends neither on the order of the records nor on how they are split
into blocks, devices or processes.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpjax.release import on_disk
from dpjax.release.mixed_norm import MixedNorm

__all__ = [
    "CHAIN_AXIS",
    "GRID",
    "MAX_PRODUCTS",
    "TILE",
    "VECTOR_GRID",
    "clip_to_grid",
    "directions",
    "exact_product",
    "exact_sum",
    "sum_over_records",
    "wide",
]

GRID = 2**16
"""Cells of the public grid per clip bound. At n = 1e7 the rounding of all records
together moves a sum by about .03 clip bounds, random in sign."""

VECTOR_GRID = GRID**2
"""Cells per clip bound of sums of vectors: a cell of a weight times one of a direction,
where a vector comes as their product."""

GROUP = 2**24 // GRID
"""Integers of at most `GRID` that float32 adds without rounding."""

TILE = 32
"""Records of which blocks and samples hold a multiple. XLA takes several rows of a
matrix at a time and rounds the products of those that remain in another way. With whole
tiles none remain, so what a record adds does not depend on the rest of the sample."""

MAX_PRODUCTS = 2**53 // VECTOR_GRID
"""Products of two integers of at most `GRID` that float64 adds without rounding."""

MAX_RECOMPUTED_PIECES = 4
"""Pieces of a vector up to which XLA may evaluate the vector again for each of them;
more pieces are stored."""

CHAIN_AXIS = "chain"
"""Axis of a mesh along which chains are spread. Records are spread along all others."""


def sum_over_records(
    sums: Callable[[Any, jax.Array, jax.Array], jax.Array],
    data,
    block_size: int,
    shape: tuple[int, ...] = (),
    dtype="float64",
) -> jax.Array:
    """Add up the arrays that `sums` returns for blocks of records.

    Parameters
    ----------
    sums
        ``(block, numbers, is_new) -> array``; a block is a pytree like `data` with
        fewer records, and they have these numbers, uint32, in `data`. Blocks may
        overlap, and only the new records count.
    data
        Pytree of arrays with the records along the leading axis. Of those on disk
        (`dpjax.release.on_disk`), one larger block is in memory at a time.
    block_size
        About the most records of a block, of each part of `data` that a device holds. A
        block takes as many records from every part, so that none moves.
    shape, dtype
        Of the arrays.
    """
    if not on_disk.is_any(data):
        leaf = jax.tree.leaves(data)[0]
        axes = jax.typeof(leaf).sharding.mesh.shape.items()
        num_parts = math.prod(size for name, size in axes if name != CHAIN_AXIS)
        num_parts = 1 if len(leaf) % num_parts else num_parts
        if len(leaf) // num_parts <= block_size:
            numbers = jnp.arange(len(leaf), dtype=jnp.uint32)
            return sums(data, numbers, jnp.ones(len(leaf), bool))
        return _add_blocks(sums, data, block_size, num_parts, shape, dtype)

    def sums_in_memory(*block):
        def new_sums(rows, _, is_first):
            records, numbers, is_new = rows
            return sums(records, numbers, is_new & is_first)

        return sum_over_records(new_sums, block, block_size, shape, dtype)

    return _add_blocks(sums_in_memory, data, on_disk.block_size(data), 1, shape, dtype)


def _add_blocks(sums, data, block_size, num_parts, shape, dtype) -> jax.Array:
    size = len(jax.tree.leaves(data)[0]) // num_parts
    num_blocks = -(-size // block_size)
    length = -(-size // num_blocks)
    length = min(length + -length % (GROUP if length > GROUP else TILE), size)

    def add(i, total):
        start = jnp.minimum(i * length, size - length)
        rows = start + jnp.arange(length)
        # Of each part.
        numbers = (size * jnp.arange(num_parts)[:, None] + rows[None]).ravel()
        is_new = jnp.tile(rows >= i * length, num_parts)

        def taken(leaf):
            if num_parts == 1:
                return on_disk.block(leaf, start, length)
            parts = leaf.reshape(num_parts, size, *leaf.shape[1:])
            parts = lax.dynamic_slice_in_dim(parts, start, length, axis=1)
            return parts.reshape(num_parts * length, *leaf.shape[1:])

        def added(total, *block):
            found = sums(*block)
            with jax.enable_x64(True):
                return total + found

        block = jax.tree.map(taken, data), numbers.astype(jnp.uint32), is_new
        if jax.default_backend() != "cpu":
            return added(total, *block)
        # This is always true, as every block has new records, but XLA does not know it
        # and stores the block that the branch reads. Otherwise its CPU compiler slices
        # the block again wherever it is used, and one number at a time.
        is_any = start + length > i * length
        return lax.cond(is_any, added, lambda total, *_: total, total, *block)

    with jax.enable_x64(True):
        zero = jnp.zeros(shape, dtype)
    return lax.fori_loop(0, num_blocks, add, zero)


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
    vectors: list[jax.Array],
    kept: jax.Array,
    l2_clip_norm,
    axis: int = 0,
    norm: MixedNorm | None = None,
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
    norm
        A norm in place of the Euclidean one.

    Raises
    ------
    ValueError
        If the vectors have more than 2^21 components.

    Notes
    -----
    *Formal guarantees.* The norm of every vector returned is at most GRID: it shrinks
    to 1 - (d + 16) 2^-23 of the bound before it is truncated towards zero, which covers
    the rounding of its norm in float32, and makes no norm larger.
    """
    largest = _largest(sum(piece.shape[axis] for piece in vectors))
    unit = jnp.asarray(jnp.maximum(l2_clip_norm, 1e-30) / GRID, vectors[0].dtype)
    is_stored = len(vectors) > MAX_RECOMPUTED_PIECES
    if is_stored:
        # XLA must not turn the division into a product that it evaluates again.
        unit = lax.optimization_barrier(unit)
    cells = [piece / unit for piece in vectors]
    if norm is None:
        square = sum(jnp.sum(piece**2, axis=axis) for piece in cells)
    else:
        # What is measured must be what is truncated, to the last bit.
        cells = lax.optimization_barrier(cells)
        square = norm(jnp.concatenate(cells, axis), axis) ** 2
    length = jnp.sqrt(jnp.maximum(jnp.where(kept, square, jnp.inf), 1.0))
    # The barrier makes XLA compute the factor once, not again for every piece.
    shrink = jnp.minimum(1.0, lax.optimization_barrier(largest / length))
    # A piece that XLA evaluates again must round as it did for the norm. It does where
    # the evaluation needs all pieces, as this use of the norm's square makes it: alone,
    # a piece could have products and sums contracted that were not contracted before.
    finite = shrink > 0 if is_stored else square < jnp.inf
    shrink, finite = jnp.expand_dims(shrink, axis), jnp.expand_dims(finite, axis)
    return [jnp.trunc(jnp.where(finite, piece * shrink, 0)) for piece in cells]


def directions(vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Unit vectors in cells of 1 / GRID, ``(n, q)``, and lengths ``(n,)``.

    A vector that is not finite has the direction zero and no finite length.

    Parameters
    ----------
    vectors
        ``(n, q)``, of at least float32. XLA may evaluate them for the norm and again
        for the cells, so they must not be computed from more than products.

    Notes
    -----
    *Formal guarantees.* The norm of every direction is at most GRID, as in
    `clip_to_grid`.
    """
    largest = _largest(vectors.shape[1])
    top = jnp.max(jnp.abs(vectors), axis=1)
    # The largest component is one, so that no square overflows, and not all vanish.
    scaled = vectors / jnp.where(top > 0, top, 1.0)[:, None]
    square = jnp.sum(scaled**2, axis=1)
    shrink = largest / jnp.sqrt(jnp.maximum(square, 1.0))
    # The sum is undefined if a component is, while XLA's maximum may pass over it.
    is_finite = (square < jnp.inf)[:, None]
    cells = jnp.where(is_finite, jnp.trunc(scaled * shrink[:, None]), 0)
    return cells, top * jnp.sqrt(square)


def _largest(size: int) -> float:
    """The norm to which vectors shrink before they are truncated, in cells."""
    if size > 2**21:
        raise ValueError(
            f"vectors of {size} components cannot be clipped exactly in float32; the "
            "most is 2^21"
        )
    return GRID * (1.0 - (size + 16) * 2.0**-23)


def exact_product(weights: jax.Array, cells: jax.Array) -> jax.Array:
    """Sum over records of flattened products ``weights * cells``, int64.

    Parameters
    ----------
    weights, cells
        Integers of at most GRID, ``(n, p, 1)`` and ``(n, 1, q)``, or ``(n, 1, p)`` and
        ``(n, q, 1)``.

    Raises
    ------
    ValueError
        If there are more than `MAX_PRODUCTS` records.
    """
    if len(weights) > MAX_PRODUCTS:
        raise ValueError(f"float64 cannot add {len(weights)} products exactly")
    with jax.enable_x64(True):
        total = lax.dot_general(
            weights.astype(jnp.float64),
            cells.astype(jnp.float64),
            (((0,), (0,)), ((), ())),
            precision="highest",
        )
        # Of the axes (p, 1, 1, q) or (1, p, q, 1) the inner two change places.
        return total.swapaxes(1, 2).astype(jnp.int64).ravel()


def wide(values: jax.Array) -> jax.Array:
    """At least float32, whose exact integers reach far beyond the grid."""
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))
