"""The only door to the data: clipped sums over records, with exact sensitivity.

Every record's contribution is clipped, a non-finite one is replaced by zero, and the
result is rounded to a public grid of 2^-20 clip bounds. The sums of these integers
are exact: they do not depend on the order of the records, on how they are split into
blocks, or on the device.

Formal guarantees: replacing one record moves a sum by at most two clip bounds, adding
or removing one by at most one (`sensitivity`); in absolute value for log ratios, in
Euclidean norm for gradients. The sums are secret until noise or an accept bit
releases them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax import lax

from dpjax.posterior import Posterior

__all__ = [
    "GRID",
    "Lipschitz",
    "Memory",
    "gradient_sum",
    "log_ratio_sum",
    "remember",
    "sensitivity",
]

GRID = 2**20
"""Cells of the public grid per clip bound."""

BLOCK = 2**16
"""Records evaluated together: bounds the memory that a sum needs."""

UNROLLED = 64
"""Blocks written out one after the other, which compiles to the fastest code; more
records than ``UNROLLED * BLOCK`` are looped over."""

EXACT_FLOAT32_TERMS = 16
"""Integers of at most 2^20 that float32 adds without rounding."""


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


class Memory(NamedTuple):
    """Secret: log-likelihoods of every record, so that a step evaluates one position.

    ``current`` and ``proposed`` are ``(n,)``; `accepted` says which of the two belongs
    to the chain's position now.
    """

    current: jax.Array
    proposed: jax.Array
    accepted: jax.Array


def remember(posterior: Posterior, position) -> Memory | None:
    """Evaluate all records at `position`, where remembering them pays.

    It does for records of 16 numbers or more; smaller ones are faster evaluated again
    than read back. None past 2^20 records, so that memory stays bounded.
    """
    leaves = jax.tree.leaves(posterior.data)
    record_size = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    if record_size < 16 or posterior.num_records > 2**20:
        return None
    current = jax.vmap(posterior.loglikelihood_fn, (None, 0))(position, posterior.data)
    return Memory(current, current, jnp.zeros((), bool))


def log_ratio_sum(
    posterior: Posterior, position, proposed, clip_bound, memory: Memory | None = None
) -> tuple[jax.Array, Memory | None]:
    """Sum over records of the clipped log p(x | proposed) - log p(x | position).

    Parameters
    ----------
    position, proposed
        The public positions compared.
    clip_bound
        Positive scalar in nats, Python float or traced; infinity switches clipping
        and rounding, and with them all privacy, off.
    memory
        What `remember` returned at `position`, or a later step's update of it.

    Returns
    -------
    The untempered sum in nats, a float64 scalar, and the memory with the proposal's
    log-likelihoods, whose `accepted` the caller sets.

    Notes
    -----
    *Formal guarantees.* Sensitivity ``sensitivity(clip_bound, relation)``; nothing is
    released here.
    """
    unbounded = isinstance(clip_bound, (int, float)) and math.isinf(clip_bound)

    def integers(ratio):
        if unbounded:
            return ratio
        cells = jnp.clip(ratio * (GRID / clip_bound), -GRID, GRID)
        # A vanishing clip bound turns 0 * inf into nan.
        valid = jnp.isfinite(ratio) & jnp.isfinite(cells)
        return lax.round(
            jnp.where(valid, cells, 0.0), lax.RoundingMethod.TO_NEAREST_EVEN
        )

    def evaluate(position, records):
        return jax.vmap(posterior.loglikelihood_fn, (None, 0))(position, records)

    if memory is None:

        def contributions(records):
            ratio = evaluate(proposed, records) - evaluate(position, records)
            return integers(ratio)

        total = _sum_over_records(contributions, posterior.data)
    else:
        current = jnp.where(memory.accepted, memory.proposed, memory.current)
        new = evaluate(proposed, posterior.data)
        total = _exact_sum(integers(new - current))
        memory = Memory(current, new, jnp.zeros((), bool))
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
    largest = GRID * (1.0 - (size + 16) * 2.0**-23)

    def contribution(record):
        gradient = jax.grad(posterior.loglikelihood_fn)(position, record)
        finite = jnp.all(
            jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradient)])
        )
        cells = jax.tree.map(
            lambda g: jnp.where(finite, g * (GRID / l2_clip_norm), 0.0), gradient
        )
        # Scaled by the largest entry, the squares cannot overflow.
        peak = jnp.max(
            jnp.stack([jnp.max(jnp.abs(g)) for g in jax.tree.leaves(cells)])
        )
        peak = jnp.clip(peak, 1.0, jnp.finfo(peak.dtype).max)
        norm = peak * jnp.sqrt(
            sum(jnp.sum((g / peak) ** 2) for g in jax.tree.leaves(cells))
        )
        shrink = jnp.minimum(1.0, largest / jnp.maximum(norm, 1.0))
        return jax.tree.map(
            lambda g: jnp.trunc(jnp.clip(g, -peak, peak) * shrink), cells
        )

    return _sum_over_records(jax.vmap(contribution), posterior.data)


def _sum_over_records(contributions: Callable[[Any], Any], data):
    """Add up the integers that `contributions` returns for blocks of records."""
    size = jax.tree.leaves(data)[0].shape[0]
    stride = UNROLLED * BLOCK

    def stretch(start, length):
        total = None
        for offset in range(0, length, BLOCK):
            width = min(BLOCK, length - offset)
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
                total = (
                    part if total is None else jax.tree.map(jnp.add, total, part)
                )
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
    """Sum of integers of at most 2^20 over the leading axis, exact, in float64."""
    size = integers.shape[0]
    grouped = size - size % EXACT_FLOAT32_TERMS
    groups = integers[:grouped].reshape(
        EXACT_FLOAT32_TERMS, grouped // EXACT_FLOAT32_TERMS, *integers.shape[1:]
    )
    partial = jnp.sum(groups, axis=0)
    with jax.enable_x64(True):
        return jnp.sum(partial.astype(jnp.float64), axis=0) + jnp.sum(
            integers[grouped:].astype(jnp.float64), axis=0
        )
