"""Clipped sums over records of vectors, such as gradients of their log-likelihoods.

Every record's vector is clipped in norm and rounded to a public grid, so the sums are
exact integers and their sensitivity is what it says. Of a sample only the records that
are in it are read: a sum costs what the sample holds, not what the data hold.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax.posterior import Posterior
from dpjax.random.batches import Sample
from dpjax.release.exact_sums import (
    clip_to_grid,
    exact_sum,
    sum_over_records,
    wide,
)

__all__ = ["shape_of", "vector_sum"]

BLOCK = 2**17
"""Components, over about eight, that one chain evaluates together: this bounds the
memory that a sum needs."""

MAX_STORED = 2**13
"""Records of a block whose vectors, or numbers, come whole. What is computed on the way
to them then fits into a cache. Blocks of records that lie on several devices would have
to be gathered, so this is for processes with one device."""


def shape_of(posterior: Posterior, contribution_fn: Callable, rng_key=None):
    """Shapes and dtypes of what `contribution_fn` returns for one record, a pytree."""
    record = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), posterior.data
    )
    keys = [] if rng_key is None else [rng_key]
    return jax.eval_shape(contribution_fn, record, *keys)


def vector_sum(
    posterior: Posterior,
    contribution_fn: Callable,
    l2_clip_norm: float,
    sample: Sample | None = None,
    rng_key: jax.Array | None = None,
) -> jax.Array:
    """Sum over records of vectors, each clipped in Euclidean norm.

    Parameters
    ----------
    posterior
        Its data are summed over.
    contribution_fn
        ``record -> pytree`` of floats, d numbers in all: what one record adds.
    l2_clip_norm
        Bound on the Euclidean norm of all d numbers of one record.
    sample
        The records that enter, from `batches.poisson`; None takes all.
    rng_key
        A key that does not depend on the data. If given, `contribution_fn` has a second
        argument: a key of the record's own.

    Raises
    ------
    ValueError
        If there are more than 2^21 components.

    Returns
    -------
    Float64 integers ``(d,)``, in the order of the flattened pytree: the sum in units of
    ``l2_clip_norm / GRID``, not divided by the chance of being in the sample.

    Notes
    -----
    *Formal guarantees.* Sensitivity ``sensitivity(GRID, relation)`` in these units, in
    Euclidean norm, whatever the sample: see `exact_sums.clip_to_grid`. Nothing is
    released here.
    """
    leaves = jax.tree.leaves(shape_of(posterior, contribution_fn, rng_key))
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    size = sum(sizes)
    # XLA fuses components that come one by one, from `gradient_parts`, into one pass
    # over the records. A vector that comes whole is stored whole, records first.
    axis = 0 if max(sizes) == 1 else 1

    def sums(block, is_new):
        records, indices, is_drawn = block
        if sample is not None:
            records = jax.tree.map(lambda leaf: leaf[indices], posterior.data)
        arguments = [records]
        if rng_key is not None:
            arguments.append(jax.vmap(jax.random.fold_in, (None, 0))(rng_key, indices))
        vectors = [
            wide(leaf).reshape(indices.size, -1)
            for leaf in jax.tree.leaves(jax.vmap(contribution_fn)(*arguments))
        ]
        vectors = [vector.T if axis == 0 else vector for vector in vectors]
        cells = clip_to_grid(vectors, is_drawn & is_new, l2_clip_norm, axis)
        totals = [exact_sum(piece, axis=1 - axis) for piece in cells]
        with jax.enable_x64(True):
            return jnp.concatenate(totals)

    if sample is None:
        every = jnp.arange(posterior.num_records, dtype=jnp.uint32)
        rows = posterior.data, every, jnp.ones(every.size, bool)
    else:
        rows = None, *sample
    block_size = max(BLOCK // max(size // 8, 1), 1)
    if len(sizes) == 1 and jax.device_count() == 1:
        block_size = min(block_size, MAX_STORED)
    return sum_over_records(sums, rows, block_size, (size,))
