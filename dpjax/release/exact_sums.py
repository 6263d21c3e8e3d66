"""Exact sums of integers over records, block by block.

The sums of `log_ratios` and `vector_sums` are made here. What a record contributes is
clipped, and rounded to integers of absolute value at most `GRID`: its unit, a *cell* of
the public grid, is the clip bound over `GRID`. Groups of 256 of these integers are
added in float32, which holds every integer up to 2^24, and the sums of the groups are
added in float64. Products of two such integers are added in float64, up to 2^21 of
them, and the sums of these in int64. No addition rounds, so a sum depends neither on
the order of the records nor on how they are split into blocks, devices or processes.
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
"""Cells per clip bound of sums of vectors. A vector may come as the product of weights
and a direction, each in cells of 1 / GRID, so their product is in cells of
1 / GRID^2."""

GROUP = 2**24 // GRID
"""How many integers of at most `GRID` float32 adds without rounding."""

TILE = 32
"""The number of records in a block or sample is a multiple of this. XLA multiplies a
matrix several rows at a time, and rounds the products of rows that are left over
differently. With whole tiles no rows are left over, so what a record adds does not
depend on the rest of the sample."""

MAX_PRODUCTS = 2**53 // VECTOR_GRID
"""How many products of two integers of at most `GRID` float64 adds without rounding."""

MAX_RECOMPUTED_PIECES = 4
"""A vector of at most so many pieces is not stored: XLA may evaluate it again for each
piece. The pieces of longer vectors are stored."""

CHAIN_AXIS = "chain"
"""Name of the axis of a device mesh along which chains are spread. Records are spread
along all other axes."""


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
        ``(block, numbers, is_new) -> array``, the sum over the new records of a block.
        ``block`` is a pytree like `data` with m records, ``numbers`` their numbers in
        `data`, uint32 ``(m,)``, and ``is_new`` which of them count, bool ``(m,)``.
        Blocks may overlap, and a record is new in one block only.
    data
        Pytree of arrays with the records along the leading axis. If some are on disk
        (`dpjax.release.on_disk`), records are read in larger blocks, of which one is in
        memory at a time, and each of these is split into blocks.
    block_size
        About the most records that a block takes from each part of `data`, where a part
        is what one device holds. A block takes equally many records from every part, so
        that no record moves to another device.
    shape, dtype
        Shape and dtype of the arrays that `sums` returns.

    Returns
    -------
    The sum over all records, with this shape and dtype.
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
        # The block has the same rows of every part.
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
        # Every block has new records, so this condition always holds. XLA does not know
        # it, and stores the block that the branch reads. Without the branch, its CPU
        # compiler slices the block again wherever it is used, one number at a time.
        is_any = start + length > i * length
        return lax.cond(is_any, added, lambda total, *_: total, total, *block)

    with jax.enable_x64(True):
        zero = jnp.zeros(shape, dtype)
    return lax.fori_loop(0, num_blocks, add, zero)


def exact_sum(integers: jax.Array, axis: int = -1) -> jax.Array:
    """Sum over one axis of integers of absolute value at most GRID.

    The integers are floats, and the sum is exact, in float64.
    """
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
    """Clip vectors in norm, and round them to integer cells of ``l2_clip_norm / GRID``.

    Parameters
    ----------
    vectors
        Pieces whose concatenation is each record's vector, ``(d_1, n), (d_2, n), ...``,
        of at least float32.
    kept
        Which records count, bool ``(n,)``. The vectors of the others become zero. So do
        vectors that are not finite, or longer than 2^48 clip norms, as their square may
        overflow.
    l2_clip_norm
        The bound on the norm, in the units of the vectors.
    axis
        The axis of the components: 0, or 1 for pieces ``(n, d_1), ...``. XLA sums over
        a leading axis several times as fast as over a short last axis, and half as fast
        as over a long last axis.
    norm
        The norm to clip in; None for the Euclidean norm.

    Returns
    -------
    The pieces of the clipped vectors, in cells: floats that are integers, with the
    shapes of `vectors`.

    Raises
    ------
    ValueError
        If the vectors have more than 2^21 components.

    Notes
    -----
    *Formal guarantees.* The norm of every vector returned is at most GRID. Before it is
    truncated, a vector is shrunk to a norm of 1 - (d + 16) 2^-23 times the bound, and
    this margin covers the rounding of the norm in float32. Truncation towards zero
    makes no norm larger.
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
        # The cells that are measured must be those that are truncated, to the last bit.
        cells = lax.optimization_barrier(cells)
        square = norm(jnp.concatenate(cells, axis), axis) ** 2
    length = jnp.sqrt(jnp.maximum(jnp.where(kept, square, jnp.inf), 1.0))
    # The barrier makes XLA compute the factor once for all pieces.
    shrink = jnp.minimum(1.0, lax.optimization_barrier(largest / length))
    # A piece that XLA evaluates a second time must round as it did when its norm was
    # taken. It does if all pieces are evaluated together, which this use of the norm's
    # square enforces. If a piece were evaluated alone, XLA could contract a product and
    # a sum into one operation that it had not contracted before.
    finite = shrink > 0 if is_stored else square < jnp.inf
    shrink, finite = jnp.expand_dims(shrink, axis), jnp.expand_dims(finite, axis)
    return [jnp.trunc(jnp.where(finite, piece * shrink, 0)) for piece in cells]


def directions(vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split vectors into directions and lengths.

    Parameters
    ----------
    vectors
        ``(n, q)``, of at least float32. XLA may evaluate them once for the norm and
        again for the cells. Both must give the same bits, so nothing more than products
        may go into them.

    Returns
    -------
    Unit vectors in integer cells of 1 / GRID, ``(n, q)``, and Euclidean lengths,
    ``(n,)``. A vector that is not finite has the direction zero, and a length that is
    not finite.

    Notes
    -----
    *Formal guarantees.* The norm of every direction is at most GRID, as in
    `clip_to_grid`.
    """
    largest = _largest(vectors.shape[1])
    top = jnp.max(jnp.abs(vectors), axis=1)
    # The largest component becomes one, so no square overflows, and not all underflow.
    scaled = vectors / jnp.where(top > 0, top, 1.0)[:, None]
    square = jnp.sum(scaled**2, axis=1)
    shrink = largest / jnp.sqrt(jnp.maximum(square, 1.0))
    # If a component is NaN, so is the sum of squares, but XLA's maximum may ignore it.
    is_finite = (square < jnp.inf)[:, None]
    cells = jnp.where(is_finite, jnp.trunc(scaled * shrink[:, None]), 0)
    return cells, top * jnp.sqrt(square)


def _largest(size: int) -> float:
    """The largest norm of a vector of `size` components before truncation, in cells.

    It is below `GRID` by a margin for the rounding of the norm in float32.
    """
    if size > 2**21:
        raise ValueError(
            f"vectors of {size} components cannot be clipped exactly in float32; the "
            "most is 2^21"
        )
    return GRID * (1.0 - (size + 16) * 2.0**-23)


def exact_product(weights: jax.Array, cells: jax.Array) -> jax.Array:
    """Sum over records of outer products ``weights * cells``, flattened.

    Parameters
    ----------
    weights, cells
        Integers of absolute value at most GRID, as floats: ``(n, p, 1)`` and
        ``(n, 1, q)``, or ``(n, 1, p)`` and ``(n, q, 1)``.

    Returns
    -------
    The exact sum, int64 ``(p q,)``.

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
        # The axes are (p, 1, 1, q) or (1, p, q, 1); the product needs the inner two
        # exchanged.
        return total.swapaxes(1, 2).astype(jnp.int64).ravel()


def wide(values: jax.Array) -> jax.Array:
    """`values` in float32, or in their own type if that is wider.

    Float32 holds all integers up to 2^24, far more than there are cells of the grid.
    """
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))
