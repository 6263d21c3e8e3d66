"""The only door to the data: clipped sums over records, with exact sensitivity.

Every record's contribution is clipped, a non-finite one is replaced by zero, and the
result is rounded to a public grid of 2^-16 clip bounds. The sums of these integers
are exact: they do not depend on the order of the records or on how they are split. (A
record's own value may differ in the last digit between devices, or between blocks of
different length if the likelihood is a matrix product.)

Formal guarantees: replacing one record moves a sum by at most two clip bounds, adding
or removing one by at most one (`sensitivity`); in absolute value for log ratios, in
Euclidean norm for gradients. The sums are secret until noise or an accept bit
releases them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax import lax

from dpjax.posterior import Posterior

__all__ = [
    "GRID",
    "Lipschitz",
    "gradient_sum",
    "log_ratio_sum",
    "remember",
    "sensitivity",
]

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


@dataclass(frozen=True)
class Lipschitz:
    """A clip bound on the log ratio that grows with the distance moved.

    Parameters
    ----------
    constant
        Bound per unit of Euclidean distance between the two positions. If every
        log-likelihood has this Lipschitz constant, no record is ever clipped.
    """

    constant: float


def sensitivity(clip_bound: float, neighboring_relation: NeighboringRelation) -> float:
    """How far neighbouring data can move a sum clipped at `clip_bound`."""
    if math.isnan(clip_bound) or clip_bound <= 0:
        raise ValueError(f"the clip bound must be positive, got {clip_bound}")
    replaces = neighboring_relation == NeighboringRelation.REPLACE_ONE
    return 2.0 * clip_bound if replaces else float(clip_bound)


def remember(posterior: Posterior, position) -> jax.Array | None:
    """Log-likelihoods of all records at `position`, ``(n,)``, where they pay.

    Secret. With them a step evaluates one position instead of two. They pay for
    records of 16 numbers or more; smaller ones are faster evaluated again than read
    back. None past 2^20 records, so that memory stays bounded.
    """
    leaves = jax.tree.leaves(posterior.data)
    record_size = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    if record_size < 16 or posterior.num_records > 2**20:
        return None
    return _evaluate(posterior, position, posterior.data)


def _evaluate(posterior, position, records):
    return jax.vmap(posterior.loglikelihood_fn, (None, 0))(position, records)


def log_ratio_sum(
    posterior: Posterior,
    position,
    proposed,
    clip_bound,
    memory: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Sum over records of the clipped log p(x | proposed) - log p(x | position).

    Parameters
    ----------
    position, proposed
        The public positions compared.
    clip_bound
        Positive scalar in nats, Python float or traced; infinity switches clipping
        and rounding, and with them all privacy, off.
    memory
        What `remember` returned at `position`.

    Returns
    -------
    The untempered sum in nats, a float64 scalar, and what to remember at `proposed`.

    Notes
    -----
    *Formal guarantees.* Sensitivity ``sensitivity(clip_bound, relation)``; nothing is
    released here.
    """
    unbounded = isinstance(clip_bound, (int, float)) and math.isinf(clip_bound)

    def integers(ratio):
        if unbounded:
            return ratio
        ratio = _wide(ratio)
        # A bound of zero, for a move of no distance, would make 0 * inf.
        scale = GRID / jnp.maximum(clip_bound, 1e-30)
        cells = jnp.clip(ratio * scale, -GRID, GRID)
        # Not the trick of adding and subtracting a large number, which XLA undoes.
        return lax.round(
            jnp.where(jnp.isfinite(ratio), cells, 0.0),
            lax.RoundingMethod.TO_NEAREST_EVEN,
        )

    if memory is None:

        def contributions(records):
            new = _evaluate(posterior, proposed, records)
            return integers(new - _evaluate(posterior, position, records))

        total = _sum_over_records(contributions, posterior.data, BLOCK)
    else:
        new = _evaluate(posterior, proposed, posterior.data)
        total, memory = _exact_sum(integers(new - memory)), new
    with jax.enable_x64(True):
        unit = 1.0 if unbounded else jnp.asarray(clip_bound, jnp.float64) / GRID
        return total * unit, memory


def gradient_sum(posterior: Posterior, position, l2_clip_norm: float):
    """Sum over records of the log-likelihood gradients, each clipped in norm.

    Parameters
    ----------
    position
        The public position.
    l2_clip_norm
        Bound on the Euclidean norm of one record's gradient, over all leaves.

    Raises
    ------
    ValueError
        If the position has more than 2^21 components.

    Returns
    -------
    A pytree like `position` of float64 integers: the sum in units of
    ``l2_clip_norm / GRID``.

    Notes
    -----
    *Formal guarantees.* Sensitivity ``sensitivity(GRID, relation)`` in these units, in
    Euclidean norm. A record's gradient shrinks to 1 - (d + 16) 2^-23 of the bound
    before it is truncated towards zero, which covers the rounding of its norm in
    float32. Nothing is released here.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(position))
    if size > 2**21:
        raise ValueError(
            f"gradients of {size} components cannot be clipped exactly in float32; the "
            "most is 2^21"
        )
    largest = GRID * (1.0 - (size + 16) * 2.0**-23)

    def contribution(record):
        gradient = jax.grad(posterior.loglikelihood_fn)(position, record)
        finite = jnp.all(
            jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradient)])
        )
        scale = GRID / jnp.maximum(l2_clip_norm, 1e-30)
        cells = jax.tree.map(
            lambda g: jnp.clip(_wide(jnp.where(finite, g, 0)) * scale, -1e30, 1e30),
            gradient,
        )
        # Scaled by the largest entry, the squares cannot overflow.
        peak = jnp.max(jnp.stack([jnp.max(jnp.abs(g)) for g in jax.tree.leaves(cells)]))
        peak = jnp.maximum(peak, 1.0)
        norm = peak * jnp.sqrt(
            sum(jnp.sum((g / peak) ** 2) for g in jax.tree.leaves(cells))
        )
        shrink = jnp.minimum(1.0, largest / jnp.maximum(norm, 1.0))
        return jax.tree.map(lambda g: jnp.trunc(g * shrink), cells)

    block = max(BLOCK // size, 1)
    return _sum_over_records(jax.vmap(contribution), posterior.data, block)


def _wide(values):
    """At least float32, whose integers reach far beyond the grid."""
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def _sum_over_records(
    contributions: Callable[[Any], Any], data, block_size: int
) -> Any:
    """Add up the integers that `contributions` returns for blocks of records."""
    size = jax.tree.leaves(data)[0].shape[0]
    stride = UNROLLED * block_size

    def stretch(start, length):
        total = None
        for offset in range(0, length, block_size):
            width = min(block_size, length - offset)
            block = jax.tree.map(
                lambda leaf, i=offset, w=width: (
                    leaf[start + i : start + i + w]
                    if isinstance(start, int)
                    else lax.dynamic_slice_in_dim(leaf, start + i, w)
                ),
                data,
            )
            part = jax.tree.map(_exact_sum, contributions(block))
            with jax.enable_x64(True):
                total = part if total is None else jax.tree.map(jnp.add, total, part)
        return total

    whole, rest = divmod(size, stride)
    total = stretch(whole * stride, rest) if rest else None
    if whole:
        first = stretch(0, stride)
        with jax.enable_x64(True):
            total = first if total is None else jax.tree.map(jnp.add, total, first)

        def add(i, total):
            part = stretch(i * stride, stride)
            with jax.enable_x64(True):
                return jax.tree.map(jnp.add, total, part)

        total = lax.fori_loop(1, whole, add, total)
    return total


def _exact_sum(integers: jax.Array) -> jax.Array:
    """Sum of integers of at most GRID over the leading axis, exact, in float64."""
    size = integers.shape[0]
    grouped = size - size % EXACT_FLOAT32_TERMS
    partial = jnp.sum(
        integers[:grouped].reshape(-1, EXACT_FLOAT32_TERMS, *integers.shape[1:]), axis=1
    )
    rest = jnp.sum(integers[grouped:], axis=0)
    with jax.enable_x64(True):
        return jnp.sum(partial.astype(jnp.float64), axis=0) + rest.astype(jnp.float64)
