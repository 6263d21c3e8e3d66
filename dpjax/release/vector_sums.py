"""Clipped sums over records of vectors, such as gradients of their log-likelihoods.

Every record's vector is clipped in norm and rounded to a public grid
(`dpjax.release.exact_sums`). So the sums are exact integers, and their sensitivity
holds as it is stated, without rounding errors. A sum over a sample reads the records of
the sample only, so its cost grows with the sample and not with the data. The sums are
secret until `gaussian_sum` or `k_norm_sum` adds noise.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax.posterior import Posterior
from dpjax.random.batches import Sample
from dpjax.release import on_disk, separate
from dpjax.release.clip_bounds import MAX_RECORDS
from dpjax.release.exact_sums import (
    GRID,
    MAX_PRODUCTS,
    MAX_RECOMPUTED_PIECES,
    TILE,
    clip_to_grid,
    directions,
    exact_product,
    exact_sum,
    sum_over_records,
    wide,
)
from dpjax.release.gradient_parts import Outer, whole
from dpjax.release.mixed_norm import MixedNorm
from dpjax.release.sealed import opened
from dpjax.release.taint import summed

__all__ = ["shape_of", "vector_sum"]

BLOCK, GPU_BLOCK = 2**17, 2**20
"""The size of a block, on a CPU and on a GPU: one chain evaluates about eight times as
many components together, which are those of all records of a block. This bounds the
memory that a sum needs. A GPU takes as long to begin a block as to work on thousands of
records, so its blocks are larger."""

STORED = 2**16
"""The most numbers of a block that one chain stores, where XLA stores the vectors
instead of fusing their evaluation with the sum. The intermediate results of the sum
then fit into the cache of a CPU. A record counts for at least eight numbers. The
directions of outer products count for a quarter of their numbers if the chains share
them. The bound applies to processes with one device only: if the records are spread
over several, such blocks would have to be gathered."""

MIN_RECORDS = 64
"""The fewest records to which `STORED` may reduce a block: with fewer, the loop over
blocks would itself take too large a share of the time."""


def shape_of(posterior: Posterior, contribution_fn: Callable, rng_key=None):
    """Shapes and dtypes of what one record adds to a sum.

    They are a pytree like the result of `contribution_fn`, in which `Outer` parts are
    vectors. The arguments are those of `vector_sum`. No record is read.
    """

    def vectors(*arguments):
        return jax.tree.map(whole, contribution_fn(*arguments), is_leaf=_is_outer)

    return _program_of(posterior, vectors, rng_key)[1]


def _program_of(posterior, contribution_fn, rng_key):
    """`separate.program_of` for what one record adds to a sum."""

    def one(leaf):
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape[1:], dtype)

    record = jax.tree.map(one, posterior.data)
    keys = [] if rng_key is None else [rng_key]
    return separate.program_of(
        contribution_fn, "what a record adds to a sum", record, *keys
    )


def _is_outer(part) -> bool:
    return isinstance(part, Outer)


def _leaves(parts) -> list:
    return jax.tree.leaves(parts, is_leaf=_is_outer)


def vector_sum(
    posterior: Posterior,
    contribution_fn: Callable,
    l2_clip_norm: float,
    sample: Sample | None = None,
    rng_key: jax.Array | None = None,
    norm: MixedNorm | None = None,
) -> jax.Array:
    """Sum over records of vectors, each clipped in Euclidean norm.

    Parameters
    ----------
    posterior
        Its records are summed over.
    contribution_fn
        ``record -> pytree`` of floats and `Outer` products, d numbers in all: what one
        record adds to the sum.
    l2_clip_norm
        Bound on the Euclidean norm of all d numbers of one record.
    sample
        The records that enter the sum, from `batches.poisson`; None takes all.
    rng_key
        A key that does not depend on the data. If it is given, `contribution_fn` takes
        a second argument: a key derived from this one and the number of the record.
    norm
        The norm to clip in; None for the Euclidean norm. It must be None if
        `contribution_fn` returns products.

    Raises
    ------
    ValueError
        If there are more than 2^21 components, or 2^30 records to be read, or
        `contribution_fn` has a rule of its own for batches.

    Returns
    -------
    Integers, int64 ``(d,)``, in the order of the flattened pytree: the sum in units of
    ``l2_clip_norm / VECTOR_GRID``, not divided by the chance of being in the sample.

    Notes
    -----
    *Formal guarantees.* The sensitivity is ``sensitivity(VECTOR_GRID, relation)`` in
    these units, in the norm, whatever the sample is: the other records add the same
    whether or not a record is in the sample (`exact_sums.TILE`). An outer product is
    clipped by its weights times the length of its direction, which have its norm. So
    all the numbers of a record that are clipped have at most the norm GRID in cells
    (`exact_sums.clip_to_grid`). Each is then multiplied by GRID, or by a direction of
    at most that norm. Nothing is released here.
    """
    num_rows = posterior.num_records if sample is None else sample.indices.size
    if num_rows > MAX_RECORDS:
        raise ValueError("sums over more than 2^30 records are not exact: sample them")
    data = opened(posterior)
    contribution_fn, shapes = _program_of(posterior, contribution_fn, rng_key)
    # The size of each part; of a product, the sizes of its weights and its direction.
    sizes = [[leaf.size for leaf in jax.tree.leaves(part)] for part in _leaves(shapes)]
    # If `gradient_parts` returns a few components one by one, XLA fuses them into one
    # pass over the records. A vector that comes whole is stored, with records first.
    is_fused = 1 < len(sizes) <= MAX_RECOMPUTED_PIECES and sizes == [[1]] * len(sizes)
    axis = 0 if all(first == 1 for first, *_ in sizes) else 1
    assert norm is None or all(len(each) == 1 for each in sizes)

    def sums(records, indices, is_new):
        if sample is not None:
            indices, is_drawn = records
            records = on_disk.rows(data, indices)
            is_new &= is_drawn
        arguments = [records]
        if rng_key is not None:
            arguments.append(jax.vmap(jax.random.fold_in, (None, 0))(rng_key, indices))
        parts = _leaves(jax.vmap(contribution_fn)(*arguments))
        vectors, units = zip(*(_clipped(part) for part in parts), strict=True)
        vectors = [vector.T if axis == 0 else vector for vector in vectors]
        cells = clip_to_grid(vectors, is_new, l2_clip_norm, axis, norm)
        totals = []
        for piece, part, unit in zip(cells, parts, units, strict=True):
            if unit is None:
                total = exact_sum(piece, axis=1 - axis)
                with jax.enable_x64(True):
                    totals.append(total.astype(jnp.int64) * GRID)
            else:
                weights = piece.T if axis == 0 else piece
                weights = weights.reshape(part.weights.shape)
                totals.append(exact_product(weights, unit))
        with jax.enable_x64(True):
            return jnp.concatenate(totals)

    rows = data if sample is None else _in_whole_tiles(sample)
    is_cpu = jax.default_backend() == "cpu"
    block = BLOCK if is_cpu else GPU_BLOCK
    block_size = max(block // max(sum(map(sum, sizes)) // 8, 1), 1)
    # Half of what `exact_product` can add, as blocks are rounded up to whole groups.
    block_size = min(block_size, MAX_PRODUCTS // (2 * jax.device_count()))
    if is_cpu and jax.device_count() == 1 and not is_fused:
        # Directions count in full if every chain has its own, those of its own sample.
        share = 1 if sample else 4
        own = sum(first + sum(rest) // share for first, *rest in sizes)
        block_size = min(block_size, max(STORED // max(own, 8), MIN_RECORDS))
    size = sum(map(math.prod, sizes))
    return summed(sum_over_records(sums, rows, block_size, (size,), jnp.int64))


def _in_whole_tiles(sample: Sample) -> Sample:
    """The sample with entries appended that are not drawn, to a multiple of `TILE`."""
    missing = -sample.indices.size % TILE
    return Sample(*(jnp.pad(entries, (0, missing)) for entries in sample))


def _clipped(part) -> tuple[jax.Array, jax.Array | None]:
    """The numbers of a part that are clipped, for n records, and its directions.

    For a vector they are the vector, ``(n, p)``, and there are no directions. For an
    `Outer` they are its weights times the lengths of its directions, ``(n, p)``.
    """
    if not _is_outer(part):
        return wide(part).reshape(len(part), -1), None
    shape = part.direction.shape
    unit, length = directions(wide(part.direction).reshape(shape[0], -1))
    weights = wide(part.weights).reshape(shape[0], -1) * length[:, None]
    return weights, unit.reshape(shape)
