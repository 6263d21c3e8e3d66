"""The door to the data for gradients of a Poisson sample of the records.

As in `log_ratios`, every record's gradient is clipped and rounded to a public grid,
so that sums are exact integers and their sensitivity is what it says. Only the records
in the sample are read: a gradient costs what the sample holds, not what the data hold.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.posterior import Posterior
from dpjax.random import chacha
from dpjax.random.batches import Sample
from dpjax.release.exact_sums import (
    BLOCK,
    clip_to_grid,
    exact_sum,
    sum_over_records,
    wide,
)
from dpjax.release.gradient_parts import components

__all__ = ["gradient_sum", "sampled_gradient_sum"]


def sampled_gradient_sum(
    posterior: Posterior,
    sample: Sample,
    position,
    l2_clip_norm: float,
    function: Callable | None = None,
    rng_key: jax.Array | None = None,
) -> jax.Array:
    """Sum over a sample of the records of their gradients, each clipped in norm.

    Parameters
    ----------
    sample
        Of `batches.poisson`.
    position
        Where gradients are taken, a public pytree of d numbers in all.
    l2_clip_norm
        Bound on the Euclidean norm of one record's gradient.
    function
        ``(position, record) -> scalar`` that is differentiated; by default the
        log-likelihood of one record.
    rng_key
        Does not depend on the data. If given, the function has a third argument: a key
        of the record's own.

    Raises
    ------
    ValueError
        If the position has more than 2^21 components.

    Returns
    -------
    Float64 integers ``(d,)``, in the order of the flattened position: the sum in units
    of ``l2_clip_norm / GRID``, not divided by the chance of being drawn.

    Notes
    -----
    *Formal guarantees.* Sensitivity ``sensitivity(GRID, relation)`` in these units, in
    Euclidean norm, for whichever sample: see `exact_sums.clip_to_grid`. Memory holds
    the gradients of one block of records. Nothing is released here.
    """
    gradient = jax.grad(function or posterior.loglikelihood_fn)
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(position))

    def sums(block):
        width = block.is_drawn.size
        each = [jax.tree.map(lambda leaf: leaf[block.indices], posterior.data)]
        if rng_key is not None:
            each.append(jax.vmap(jax.random.fold_in, (None, 0))(rng_key, block.indices))
        gradients = jax.vmap(functools.partial(gradient, position))(*each)
        pieces = [
            leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)).reshape(width, -1)
            for leaf in jax.tree.leaves(gradients)
        ]
        cells = clip_to_grid(pieces, block.is_drawn, l2_clip_norm, axis=1)
        totals = [exact_sum(piece, axis=0) for piece in cells]
        with jax.enable_x64(True):
            return jnp.concatenate(totals)

    block_size = max(BLOCK // max(size // 8, 1), 1)
    return sum_over_records(sums, sample, block_size, is_in_turn=True)


def gradient_sum(
    posterior: Posterior,
    position,
    l2_clip_norm: float,
    *,
    root: jax.Array | None = None,
    sampling_prob: float = 1.0,
    words: jax.Array | None = None,
) -> jax.Array:
    """Sum over records of the log-likelihood gradients, each clipped in norm.

    Parameters
    ----------
    position
        The public position, d components in all.
    l2_clip_norm
        Bound on the Euclidean norm of one record's gradient.
    root
        W, ``(d,)`` or ``(d, d)``, of `proposals.square_root`: gradients are taken with
        respect to z in theta = theta_0 + W z. None: with respect to theta.
    sampling_prob
        Chance with which each record enters the sum, independently of the others: a
        multiple of 2^-32. All gradients are evaluated whatever it is.
    words
        If it is below one, eight secret uint32 words that decide which records enter.

    Raises
    ------
    ValueError
        If the position has more than 2^21 components, or `sampling_prob` is no such
        multiple.

    Returns
    -------
    Float64 integers ``(d,)``, in the order of the flattened position: the sum in units
    of ``l2_clip_norm / GRID``, not divided by `sampling_prob`.

    Notes
    -----
    *Formal guarantees.* Sensitivity ``sensitivity(GRID, relation)`` in these units, in
    Euclidean norm, whatever the sample: see `exact_sums.clip_to_grid`. Nothing is
    released here.
    """
    flat, unravel = ravel_pytree(position)
    size = flat.size
    threshold = sampling_prob * 2**32
    if not (0 < threshold <= 2**32 and threshold == int(threshold)):
        raise ValueError(
            f"sampling_prob must be a multiple of 2^-32 in (0, 1], got {sampling_prob}"
        )

    def loglikelihood(vector, record):
        return posterior.loglikelihood_fn(unravel(vector), record)

    def gradient(record):
        """As a list of vectors that make it up, of one component or of all."""
        parts = components(loglikelihood, flat, record)
        if parts is None:
            parts = [jax.grad(loglikelihood)(flat, record)]
        else:
            parts = [part[None] for part in parts]
        return parts if root is None else _pull_back(root, parts)

    def sums(block):
        records, numbers = block
        parts = [wide(g) for g in jax.vmap(gradient, out_axes=1)(records)]
        kept = jnp.ones(numbers.size, bool)
        if sampling_prob < 1:
            kept = chacha.expand(words, numbers[0], numbers.size) < np.uint32(threshold)
        found = [exact_sum(part) for part in clip_to_grid(parts, kept, l2_clip_norm)]
        with jax.enable_x64(True):
            return jnp.concatenate(found)

    # A power of two: blocks begin where one of the cipher does, and hold whole groups.
    block_size = 2 ** max(4, (BLOCK // max(size // 8, 1)).bit_length() - 1)
    numbers = jnp.arange(posterior.num_records, dtype=jnp.uint32)
    return sum_over_records(sums, (posterior.data, numbers), block_size)


def _pull_back(root, parts):
    """W^T g for a gradient g given as the vectors that make it up."""
    if root.ndim == 1:
        starts = np.cumsum([0, *(part.size for part in parts[:-1])])
        return [root[i : i + g.size] * g for i, g in zip(starts, parts, strict=True)]
    if len(parts) == 1:
        return [jnp.matmul(root.T, parts[0], precision="highest")]
    return [sum(w * g for w, g in zip(column, parts, strict=True)) for column in root.T]
