"""Batches of records drawn from uniform words. Nothing here reads data.

*Without replacement* (`without_replacement`). Uniform integers below n are drawn into a
pool a little larger than the batch. The first B distinct integers are a uniform subset
of size B, because they are chosen by their order of arrival and not by their values.
An integer is the high half of word * n. A word is discarded if the low half is below
2^32 mod n, which makes the integer exactly uniform (Lemire 2019). One sort finds the
repetitions.

*Poisson* (`poisson`). Every record enters with probability q, independently of the
others. Arrays have a public capacity, which a sample exceeds with negligible
probability. If q is small, the size k of the sample, a Binomial(n, q) number, is drawn
by inversion of its distribution function in 96 bits. The sample is then the first k
records of a batch without replacement. If q is large, a coin is tossed for every
record.

*With replacement* (`arrivals`). Every record arrives Poisson(r) times, independently of
the others. Equivalently, there is a Poisson number of arrivals, and each has a uniform
record number. The number of arrivals is drawn by inversion as well. The record number
of an arrival is word // w, where w = 2^32 // n. If the word is n w or more, that is not
the number of a record, and the arrival is dropped.

*Failures.* The law of a batch differs from the ideal law for two reasons: a pool may
have too few distinct integers, and the table of counts leaves out the tails. For an
accept bit it is enough that both are improbable, because `dpjax.release.accept_bit`
allows for an error of the bit's probability. A noisy sum over a sample has no such
allowance. Let R be the part of the sample that consists of other records than the one
in which neighbouring data differ. The accountant bounds what is released given the
worst R, and the law of R does not depend on the data. So the release may be said to
fail for some R of small total probability, if the sample has its ideal law given any
other R. It is said to fail if R has fewer records than the `smallest` count of the
table, or at least as many as the `largest` count. For any other R the table has the
count of the sample, whether or not the one record is in it.
"""

import functools
import math
from decimal import Decimal
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax.random import chacha, counts

__all__ = [
    "ARRIVAL_WORDS",
    "FAILURE_PROB",
    "Arrivals",
    "Sample",
    "arrivals",
    "capacity",
    "num_poisson_words",
    "num_words",
    "poisson",
    "without_replacement",
]

FAILURE_PROB = 2.0**-64
"""Bound on the probability that a batch or a Poisson sample fails (see *Failures*), and
on the total variation between the law of arrivals and the ideal law. The bound of
`dpjax.acceptance.FAILURE_PROB` includes it."""

MAX_BLOCKS = 10**5
"""The most blocks into which `num_words` divides the B factors of its bound. A batch of
at most so many records has one factor in each block."""

MAX_RECORDS = 2**31 - 1
"""The most records that can be numbered, because JAX numbers rows in int32."""

KEY_WORDS = 8
"""Number of uniform uint32 words that make a ChaCha20 key."""

ARRIVAL_WORDS = counts.WORDS + KEY_WORDS
"""Number of uniform uint32 words that `arrivals` needs."""


@functools.lru_cache
def num_words(batch_size: int, num_records: int) -> int:
    """Number of uniform uint32 words that `without_replacement` needs.

    Raises
    ------
    ValueError
        If the batch is empty or more than half of the records.

    Notes
    -----
    Once i distinct integers are drawn, a word yields another one with probability
    p_i = (1 - i/n)(1 - r), where r is the probability of a discard. The numbers of
    words that fail, for i = 0, ..., B - 1, are independent and geometric. So by
    Chernoff's bound f or more words fail with probability at most
    z^-f prod_i p_i / (1 - (1 - p_i) z), for every z > 1 for which all denominators are
    positive.
    """
    if not 1 <= batch_size <= num_records // 2:
        raise ValueError(
            f"batch_size must be from 1 to half of the {num_records} records, got "
            f"{batch_size}; a kernel on all records is exact and costs little more"
        )
    discarded = (2**32 % num_records + 1) / 2**32
    # Factors of Chernoff's bound grow with i. So the last one of a block bounds all.
    num_blocks = min(batch_size, MAX_BLOCKS)
    ends = np.linspace(0, batch_size, num_blocks + 1).round()
    fails = 1 - (1 - (ends[1:] - 1) / num_records) * (1 - discarded)
    z = (1 / fails[-1]) ** np.linspace(0, 1, 101)[1:-1]
    log_factors = np.log1p(-fails) - np.log1p(-fails * z[:, None])
    log_bound = np.sum(np.diff(ends) * log_factors, axis=1)
    surplus = np.min((log_bound - math.log(FAILURE_PROB / 2)) / np.log(z))
    return batch_size + math.ceil(surplus)


def without_replacement(
    words: jax.Array, batch_size: int, num_records: int
) -> jax.Array:
    """Draw a uniform subset of `batch_size` of the numbers below `num_records`.

    Parameters
    ----------
    words
        Uniform uint32, ``(num_words(batch_size, num_records),)``. They are secret,
        because the subset amplifies privacy only while nobody knows it.
    batch_size, num_records
        Python integers B and n, with B at most n / 2.

    Returns
    -------
    Distinct uint32 ``(batch_size,)``, in order of arrival. The first k of them are a
    uniform subset of size k.

    Raises
    ------
    ValueError
        If `words` has another shape, or as `num_words`.

    Notes
    -----
    *Formal guarantees.* The set is uniform, except if the pool has too few distinct
    integers. That has at most half of the probability `FAILURE_PROB`.
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


class Sample(NamedTuple):
    """A Poisson sample of the records. Both fields are secret.

    indices
        Numbers of records, uint32 ``(capacity,)``.
    is_drawn
        Which entries of `indices` are in the sample, bool ``(capacity,)``. The entries
        in the sample are distinct, and their order has no meaning.
    """

    indices: jax.Array
    is_drawn: jax.Array


def num_poisson_words(sampling_prob: float, num_records: int) -> int:
    """Number of uniform uint32 words that `poisson` needs.

    Raises
    ------
    ValueError
        If `sampling_prob` is not a multiple of 2^-32 in (0, 1], or there are 2^31
        records or more.
    """
    if sampling_prob == 1:
        return 0
    _check_numbered(num_records)
    capacity = _counts(sampling_prob, num_records).largest
    if _is_large(capacity, num_records):
        return KEY_WORDS
    return counts.WORDS + num_words(capacity, num_records)


def poisson(words: jax.Array, sampling_prob: float, num_records: int) -> Sample:
    """Draw each number below `num_records` with probability `sampling_prob`.

    Parameters
    ----------
    words
        Uniform uint32, ``(num_poisson_words(sampling_prob, num_records),)``. They are
        secret, because the sample amplifies privacy only while nobody knows it or its
        size.
    sampling_prob, num_records
        Python numbers q and n; q is a multiple of 2^-32 in (0, 1].

    Returns
    -------
    Sample
        Its capacity is public, some ten standard deviations above the mean size.

    Raises
    ------
    ValueError
        If `sampling_prob` is not such a multiple.

    Notes
    -----
    *Formal guarantees.* The sample has its ideal law, except with probability
    `FAILURE_PROB`. Half of that is for sizes outside the table of counts, and half for
    a pool with too few distinct integers.
    """
    if sampling_prob == 1:
        every = jnp.arange(num_records, dtype=jnp.uint32)
        return Sample(every, jnp.ones(num_records, bool))
    sizes = _counts(sampling_prob, num_records)
    capacity = sizes.largest
    slots = jnp.arange(capacity)
    if _is_large(capacity, num_records):
        coins = chacha.expand(words, 0, num_records)
        heads = coins < np.uint32(sampling_prob * 2**32)
        indices = jnp.nonzero(heads, size=capacity, fill_value=0)[0]
        return Sample(indices.astype(jnp.uint32), slots < jnp.sum(heads))
    count = counts.draw(words, sizes)
    indices = without_replacement(words[counts.WORDS :], capacity, num_records)
    return Sample(indices, slots < count)


def _is_large(capacity: int, num_records: int) -> bool:
    """Whether tossing a coin for every record is faster than drawing a pool."""
    return 8 * capacity > num_records


@functools.lru_cache
def _counts(sampling_prob: float, num_records: int) -> counts.Table:
    """The law of the size of a Poisson sample, without its tails."""
    scaled = sampling_prob * 2**32
    if not (0 < scaled < 2**32 and scaled == int(scaled)):
        raise ValueError(
            f"sampling_prob must be a multiple of 2^-32 in (0, 1], got {sampling_prob}"
        )
    mode = int((num_records + 1) * sampling_prob)
    chance = Decimal(sampling_prob)

    def ratio(k):
        return chance / (1 - chance) * (num_records - k + 1) / k

    return counts.tabulate(mode, ratio, FAILURE_PROB / 4, spare=1)


class Arrivals(NamedTuple):
    """Arrivals of records, one in an entry, in any order. All fields are secret.

    indices
        Numbers of the records that arrive, uint32 ``(capacity,)``. An entry without an
        arrival is zero. With other numbers there, reading the records would take
        longer.
    is_drawn
        Which entries are arrivals, bool ``(capacity,)``.
    coins
        Uniform uint32 ``(capacity,)``, independent of all else. The caller uses them to
        thin the arrivals.
    """

    indices: jax.Array
    is_drawn: jax.Array
    coins: jax.Array


def arrivals(words: jax.Array, rate: float, num_records: int) -> Arrivals:
    """Let each of the numbers below `num_records` arrive Poisson(`rate`) times.

    Parameters
    ----------
    words
        Uniform uint32, ``(ARRIVAL_WORDS,)``, secret.
    rate, num_records
        Python numbers r and n.

    Raises
    ------
    ValueError
        As for `capacity`.

    Notes
    -----
    *Formal guarantees.* The total variation between the law of the arrivals and the
    ideal law is at most `FAILURE_PROB`, if the words of ChaCha20 are uniform.
    """
    if words.shape != (ARRIVAL_WORDS,):
        raise ValueError(f"arrivals take {ARRIVAL_WORDS} words, got {words.shape}")
    numbers, width = _arrivals(rate, num_records)
    size = numbers.largest
    bits = chacha.expand(words[counts.WORDS :], 0, 2 * size)
    indices = bits[:size] // np.uint32(width)
    is_drawn = jnp.arange(size) < counts.draw(words, numbers)
    is_drawn &= indices < num_records
    return Arrivals(jnp.where(is_drawn, indices, 0), is_drawn, bits[size:])


def capacity(rate: float, num_records: int) -> int:
    """Number of entries of `arrivals`, about ten standard deviations above the mean.

    It is public.

    Raises
    ------
    ValueError
        If no arrivals are expected, or more than 2^22, or there are 2^31 records
        or more.
    """
    return _arrivals(rate, num_records)[0].largest


def _check_numbered(num_records: int) -> None:
    if num_records > MAX_RECORDS:
        raise ValueError("samples are drawn of fewer than 2^31 records")


@functools.lru_cache
def _arrivals(rate: float, num_records: int) -> tuple[counts.Table, int]:
    """The law of the number of arrivals, without its tails, and w.

    These are the arrivals before some are dropped (see the module docstring).
    """
    _check_numbered(num_records)
    if num_records < 2:
        raise ValueError("a minibatch of one record is the record: use another kernel")
    width = 2**32 // num_records
    mean = rate * 2**32 / width
    if not 0 < mean <= 2**22:
        raise ValueError(
            f"a minibatch of {mean:.4g} records is expected, and at most 2^22 can be "
            "drawn: lower the clip bound, the step size or the expected batch size"
        )
    exact = Decimal(rate) * 2**32
    table = counts.tabulate(
        int(mean), lambda k: exact / (width * k), FAILURE_PROB / 2, spare=0
    )
    return table, width
