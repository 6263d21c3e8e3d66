"""The door to the data for gradients of a Poisson sample of the records.

As in `dpjax.queries`, every record's gradient is clipped and rounded to a public grid,
so that sums are exact integers and their sensitivity is what it says. Only the records
in the sample are read: a gradient costs what the sample holds, not what the data hold.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax.exact_sums import BLOCK, clip_to_grid, exact_sum, sum_over_records
from dpjax.minibatch import Sample
from dpjax.posterior import Posterior

__all__ = ["sampled_gradient_sum"]


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
        Of `minibatch.poisson`.
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
