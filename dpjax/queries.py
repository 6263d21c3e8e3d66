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
import numpy as np
from dp_accounting import NeighboringRelation
from jax import lax
from jax.flatten_util import ravel_pytree

from dpjax import cipher
from dpjax.components import components
from dpjax.exact_sums import (
    BLOCK,
    GRID,
    clip_to_grid,
    exact_sum,
    sum_over_records,
)
from dpjax.posterior import Posterior

__all__ = [
    "GRID",
    "Lipschitz",
    "Range",
    "batch_moments",
    "gradient_sum",
    "log_ratio_sum",
    "remember",
    "sensitivity",
]


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


@dataclass(frozen=True)
class Range:
    """A public range of the log ratio of all records that there could be.

    Parameters
    ----------
    bounds_fn
        ``(position, proposed) -> (low, high)``: no record of the public domain has
        a log ratio log p(x | proposed) - log p(x | position), without tempering,
        outside; one that has is clipped. It reads no data, and exchanging the positions
        must give ``(-high, -low)``. `dpjax.bounds` has some.
    half_range
        Bound on (high - low) / 2 per unit of the proposal's distance, for what a step
        costs: a wider range is clipped to it about its centre.
    """

    bounds_fn: Callable[[Any, Any], tuple]
    half_range: float


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
    if memory is None:

        def sums(records):
            new = _evaluate(posterior, proposed, records)
            old = _evaluate(posterior, position, records)
            return exact_sum(_cells(new - old, clip_bound))

        total = sum_over_records(sums, posterior.data, BLOCK)
    else:
        new = _evaluate(posterior, proposed, posterior.data)
        total, memory = exact_sum(_cells(new - memory, clip_bound)), new
    with jax.enable_x64(True):
        return total * _unit(clip_bound), memory


def batch_moments(
    posterior: Posterior, indices: jax.Array, position, proposed, clip_bound
) -> tuple[jax.Array, jax.Array]:
    """Mean and variance over a batch of the clipped log ratios of `log_ratio_sum`.

    Parameters
    ----------
    indices
        Numbers of the records in the batch, distinct integers ``(B,)``, secret.
    position, proposed, clip_bound
        As in `log_ratio_sum`.

    Raises
    ------
    ValueError
        If the batch has more than 2^20 records.

    Returns
    -------
    The mean in nats and the variance (the mean square about the mean) in square nats,
    float64 scalars.

    Notes
    -----
    *Formal guarantees.* Replacing one record of the batch moves the mean by at most
    2 M / B and the variance by at most 4 (1 - 1/B) M^2 / B, M the clip bound, both up
    to the rounding of float64: the sums of ratios and of their squares are exact
    integers. Nothing is released here.
    """
    size = indices.shape[0]
    if size > 2**20:
        raise ValueError(
            f"a batch of {size} records has no exact sum of squares; the most is 2^20"
        )
    batch = jax.tree.map(lambda leaf: leaf[indices], posterior.data)
    new = _evaluate(posterior, proposed, batch)
    cells = _cells(new - _evaluate(posterior, position, batch), clip_bound)
    with jax.enable_x64(True):
        cells = cells.astype(jnp.float64)
        mean = jnp.sum(cells) / size
        variance = jnp.maximum(jnp.sum(cells**2) / size - mean**2, 0.0)
        unit = _unit(clip_bound)
        return mean * unit, variance * unit**2


def _unbounded(clip_bound) -> bool:
    return isinstance(clip_bound, (int, float)) and math.isinf(clip_bound)


def _cells(ratio: jax.Array, clip_bound) -> jax.Array:
    """Clipped log ratios in whole cells of the grid."""
    if _unbounded(clip_bound):
        return ratio
    ratio = _wide(ratio)
    # A bound of zero, for a move of no distance, would make 0 * inf.
    scale = GRID / jnp.maximum(clip_bound, 1e-30)
    cells = jnp.clip(ratio * scale, -GRID, GRID)
    # Not the trick of adding and subtracting a large number, which XLA undoes. Not
    # last, where XLA takes it into a slower pass, that of the sum.
    cells = lax.round(cells, lax.RoundingMethod.TO_NEAREST_EVEN)
    return jnp.where(jnp.isfinite(ratio), cells, 0.0)


def _unit(clip_bound):
    """What one cell stands for, in nats; call it under `jax.enable_x64(True)`."""
    if _unbounded(clip_bound):
        return 1.0
    return jnp.asarray(clip_bound, jnp.float64) / GRID


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
        parts = [_wide(g) for g in jax.vmap(gradient, out_axes=1)(records)]
        kept = jnp.ones(numbers.size, bool)
        if sampling_prob < 1:
            kept = cipher.expand(words, numbers[0], numbers.size) < np.uint32(threshold)
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


def _wide(values):
    """At least float32, whose integers reach far beyond the grid."""
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))
