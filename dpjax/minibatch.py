"""Batches of records drawn without replacement from uniform words. Reads no data.

Uniform integers below n are drawn in a pool a little larger than the batch; the first
B distinct ones to arrive are a uniform subset of size B, because every rule that does
not look at the values is symmetric in them. An integer is the high half of word * n,
discarded if the low half is below 2^32 mod n, which makes it exactly uniform (Lemire
2019). One sort finds the repetitions.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["TOTAL_VARIATION", "num_words", "without_replacement"]

TOTAL_VARIATION = 2.0**-70
"""Bound on the distance of a drawn batch from a uniform subset: the chance that the
pool holds fewer than B distinct integers. It is 2e6 times less than
`dpjax.acceptance.TOTAL_VARIATION`, whose slack covers it."""


@functools.lru_cache
def num_words(batch_size: int, num_records: int) -> int:
    """Uniform uint32 words that `without_replacement` needs.

    Raises
    ------
    ValueError
        If the batch is empty or more than half of the records.

    Notes
    -----
    With i distinct integers drawn, a word yields another one with probability
    p_i = (1 - i/n)(1 - r), r the chance of a discard. The words that yield none are
    independent geometric numbers, so by Chernoff's bound there are f or more of them
    with probability at most z^-f prod_i p_i / (1 - (1 - p_i) z), for every z > 1.
    """
    if not 1 <= batch_size <= num_records // 2:
        raise ValueError(
            f"batch_size must be from 1 to half of the {num_records} records, got "
            f"{batch_size}; a kernel on all records is exact and costs little more"
        )
    discarded = (2**32 % num_records + 1) / 2**32
    fails = 1 - (1 - np.arange(batch_size) / num_records) * (1 - discarded)
    z = (1 / fails[-1]) ** np.linspace(0, 1, 101)[1:-1]
    log_bound = np.sum(np.log1p(-fails) - np.log1p(-fails * z[:, None]), axis=1)
    surplus = np.min((log_bound - math.log(TOTAL_VARIATION)) / np.log(z))
    return batch_size + math.ceil(surplus)


def without_replacement(
    words: jax.Array, batch_size: int, num_records: int
) -> jax.Array:
    """Draw a uniform subset of `batch_size` of the numbers below `num_records`.

    Parameters
    ----------
    words
        Uniform uint32, ``(num_words(batch_size, num_records),)``, secret: the
        subset amplifies privacy only while nobody knows it.
    batch_size, num_records
        Python integers, B at most n / 2.

    Returns
    -------
    uint32 ``(batch_size,)``, distinct, in an order without meaning.

    Notes
    -----
    *Formal guarantees.* The set is uniform up to `TOTAL_VARIATION`.
    """
    count = num_words(batch_size, num_records)
    if words.shape != (count,):
        raise ValueError(f"words must have shape ({count},), got {words.shape}")
    with jax.enable_x64(True):
        product = words.astype(jnp.uint64) * num_records
        low = product.astype(jnp.uint32)
        value = jnp.where(low < 2**32 % num_records, num_records, product >> 32)
        arrival = jnp.arange(count, dtype=jnp.uint64)
        ordered = lax.sort((value << 32) | arrival)
        arrival = ordered.astype(jnp.uint32)
        sorted_value = ordered >> 32
        repeated = jnp.pad(sorted_value[1:] == sorted_value[:-1], (1, 0))
        fresh = ~repeated & (sorted_value < num_records)
        fresh = jnp.zeros(count, bool).at[arrival].set(fresh, unique_indices=True)
        place = jnp.where(fresh, jnp.cumsum(fresh, dtype=jnp.int32) - 1, batch_size)
        batch = jnp.zeros(batch_size, jnp.uint32)
        return batch.at[place].set(value.astype(jnp.uint32), mode="drop")
