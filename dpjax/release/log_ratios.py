"""Clipped sums over records of log-likelihood ratios, with exact sensitivity.

Every record's log ratio is clipped, or replaced by zero if it is not finite, and
rounded to a public grid of 2^-16 clip bounds. The sums of these integers are exact:
they do not depend on the order of the records or on how they are split
(`dpjax.release.exact_sums`). A record's own value may differ in its last digit between
devices, and between blocks of different length if the likelihood is a matrix product.

*Formal guarantees.* Replacing one record moves a sum by at most two clip bounds, adding
or removing one by at most one: see `clip_bounds.sensitivity`. The sums are secret until
an accept bit releases what they decide.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from dpjax.posterior import Posterior
from dpjax.release import on_disk, separate
from dpjax.release.clip_bounds import MAX_RECORDS
from dpjax.release.exact_sums import GRID, exact_sum, sum_over_records, wide
from dpjax.release.sealed import opened
from dpjax.release.taint import remembered, summed

__all__ = ["batch_moments", "log_ratio_sum", "loglikelihoods", "remember"]

MIN_REMEMBERED_SIZE = 16
"""The fewest numbers in a record with which remembering its log-likelihood saves time.
A smaller record is evaluated again faster than its log-likelihood is read."""

MAX_REMEMBERED = 2**20
"""The most records whose log-likelihoods are remembered. They take the memory of one
float for each record and chain."""

BLOCK = 2**20
"""The most records that are evaluated together. Every chain stores their log ratios."""

CACHED = 2**20
"""The most numbers in a block, on one CPU that has more records than `BLOCK`, so that
a block fits into the cache. A record counts for at least eight numbers, so that the log
ratios of several chains fit too."""

MAX_BATCH_SIZE = 2**20
"""The most records in a batch for which float64 adds the squares of their clipped log
ratios, in cells of the grid, exactly."""


def remember(posterior: Posterior, position) -> jax.Array | None:
    """Log-likelihoods of all records at `position`, ``(n,)``, or None. Secret.

    With them a step evaluates one position instead of two. They are None where they
    would not help: if a record has fewer than `MIN_REMEMBERED_SIZE` numbers, as it is
    then evaluated again faster than read back, and if there are more than
    `MAX_REMEMBERED` records or some are on disk, as they would fill the memory.
    """
    data = opened(posterior)
    is_large = posterior.num_records > MAX_REMEMBERED or on_disk.is_any(data)
    if _record_size(posterior) < MIN_REMEMBERED_SIZE or is_large:
        return None
    return remembered(loglikelihoods(posterior, position, data))


def _record_size(posterior) -> int:
    leaves = jax.tree.leaves(posterior.data)
    return sum(math.prod(leaf.shape[1:]) for leaf in leaves)


def _block_size(posterior) -> int:
    is_one_cpu = jax.default_backend() == "cpu" and jax.device_count() == 1
    if posterior.num_records <= BLOCK or not is_one_cpu:
        return BLOCK
    return min(BLOCK, max(CACHED // max(_record_size(posterior), 8), 1))


def loglikelihoods(posterior: Posterior, position, records) -> jax.Array:
    """Log-likelihoods at `position` of m records, ``(m,)``. Secret.

    Raises
    ------
    ValueError
        As `dpjax.release.separate.program_of`.
    """
    record = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), records
    )
    evaluate, _ = separate.program_of(
        posterior.loglikelihood_fn, "loglikelihood_fn", position, record
    )
    return jax.vmap(evaluate, (None, 0))(position, records)


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
        The two public positions that are compared.
    clip_bound
        Positive scalar in nats, Python float or traced. Infinity as a Python float
        switches clipping and rounding off, and with them all privacy.
    memory
        What `remember` returned at `position`; None to evaluate `position` anew.

    Raises
    ------
    ValueError
        If there are more than 2^30 records.

    Returns
    -------
    The untempered sum in nats, a float64 scalar, and the memory for a step from
    `proposed`: as from `remember`, or None if `memory` is None.

    Notes
    -----
    *Formal guarantees.* `clip_bounds.log_ratio_sensitivity` bounds how far neighbouring
    data move the sum; nothing is released here.
    """
    if posterior.num_records > MAX_RECORDS:
        raise ValueError(
            "the rounding of a log ratio of more than 2^30 records is not accounted "
            "for: use a kernel on minibatches"
        )
    data = opened(posterior)
    if memory is None:

        def sums(records, numbers, is_new):
            new = loglikelihoods(posterior, proposed, records)
            old = loglikelihoods(posterior, position, records)
            cells = _cells(new - old, clip_bound)
            return exact_sum(jnp.where(is_new, cells, 0.0))

        total = sum_over_records(sums, data, _block_size(posterior))
    else:
        new = loglikelihoods(posterior, proposed, data)
        total, memory = exact_sum(_cells(new - memory, clip_bound)), new
    with jax.enable_x64(True):
        return summed(total * _unit(clip_bound)), memory


def batch_moments(
    posterior: Posterior, indices: jax.Array, position, proposed, clip_bound
) -> tuple[jax.Array, jax.Array]:
    """Mean and variance over a batch of the clipped log ratios of `log_ratio_sum`.

    Parameters
    ----------
    indices
        The numbers of the records in the batch, distinct integers ``(B,)``, secret.
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
    2 M / B and the variance by at most 4 (1 - 1/B) M^2 / B, where M is the clip bound.
    Both hold up to the rounding of float64: the sums of ratios and of their squares are
    exact integers. Nothing is released here.
    """
    size = indices.shape[0]
    if size > MAX_BATCH_SIZE:
        raise ValueError(
            f"a batch of {size} records has no exact sum of squares; the most is 2^20"
        )
    batch = on_disk.rows(opened(posterior), indices)
    new = loglikelihoods(posterior, proposed, batch)
    cells = _cells(new - loglikelihoods(posterior, position, batch), clip_bound)
    with jax.enable_x64(True):
        cells = cells.astype(jnp.float64)
        mean = jnp.sum(cells) / size
        variance = jnp.maximum(jnp.sum(cells**2) / size - mean**2, 0.0)
        unit = _unit(clip_bound)
        mean, variance = summed(jnp.stack([mean * unit, variance * unit**2]))
        return mean, variance


def _unbounded(clip_bound) -> bool:
    return isinstance(clip_bound, (int, float)) and math.isinf(clip_bound)


def _cells(ratio: jax.Array, clip_bound) -> jax.Array:
    """Clipped log ratios in whole cells of the grid, as floats.

    Under an infinite bound they are the log ratios themselves, in nats.
    """
    if _unbounded(clip_bound):
        return ratio
    ratio = wide(ratio)
    # The scale must be finite. Otherwise a record whose log ratio is zero would add
    # 0 * inf, which makes the sum of all records undefined. In half precision it would
    # overflow, and the bound of a move over no distance is zero.
    if hasattr(clip_bound, "dtype"):
        clip_bound = wide(clip_bound)
    scale = GRID / jnp.maximum(clip_bound, 1e-30)
    cells = jnp.clip(ratio * scale, -GRID, GRID)
    # One can also round by adding and subtracting a large number, but XLA would undo
    # that. Rounding comes before the selection below, or XLA would move it into the
    # slower pass of the sum.
    cells = lax.round(cells, lax.RoundingMethod.TO_NEAREST_EVEN)
    return jnp.where(jnp.isfinite(ratio), cells, 0.0)


def _unit(clip_bound):
    """The size of one cell in nats, float64; call it under `jax.enable_x64(True)`."""
    if _unbounded(clip_bound):
        return 1.0
    return jnp.asarray(clip_bound, jnp.float64) / GRID
