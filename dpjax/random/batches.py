"""Batches of records drawn from uniform words. Reads no data.

Without replacement: uniform integers below n are drawn in a pool a little larger than
the batch; the first B distinct ones to arrive are a uniform subset of size B, because
every rule that does not look at the values is symmetric in them. An integer is the high
half of word * n, discarded if the low half is below 2^32 mod n, which makes it exactly
uniform (Lemire 2019). One sort finds the repetitions.

Poisson: every record enters with chance q, independently of the others, and arrays have
a public capacity that almost no sample exceeds. A small sample is a Binomial(n, q)
number k, by inversion of its distribution function in 96 bits, and the first k records
to arrive of a batch without replacement. A large one is a coin for every record.

With replacement: every record arrives Poisson(r) times, independently of the others.
That is a Poisson number of arrivals, by inversion too, of uniform record numbers: a
number is word // w with w = 2^32 // n, and words from n w on are arrivals of nobody.
"""

import functools
import itertools
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
    "TOTAL_VARIATION",
    "Arrivals",
    "Sample",
    "arrivals",
    "capacity",
    "num_poisson_words",
    "num_words",
    "poisson",
    "without_replacement",
]

TOTAL_VARIATION = 2.0**-70
"""Bound on the distance of a drawn batch from a uniform subset: the chance that the
pool holds fewer than B distinct integers. It is 2e6 times less than
`dpjax.acceptance.TOTAL_VARIATION`, whose slack covers it."""

ARRIVAL_WORDS = counts.WORDS + 8
"""Uniform uint32 words that `arrivals` needs."""


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
    uint32 ``(batch_size,)``, distinct, in order of arrival: the first k of them are a
    uniform subset of size k.

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


class Sample(NamedTuple):
    """A Poisson sample of the records. Secret.

    indices
        Numbers of records, uint32 ``(capacity,)``.
    is_drawn
        Which of them are in the sample, ``(capacity,)``: distinct ones, in an order
        without meaning.
    """

    indices: jax.Array
    is_drawn: jax.Array


def num_poisson_words(sampling_prob: float, num_records: int) -> int:
    """Uniform uint32 words that `poisson` needs.

    Raises
    ------
    ValueError
        If `sampling_prob` is not a multiple of 2^-32 in (0, 1].
    """
    if sampling_prob == 1:
        return 0
    capacity = _counts(sampling_prob, num_records).largest
    if _is_large(capacity, num_records):
        return 8
    return counts.WORDS + num_words(capacity, num_records)


def poisson(words: jax.Array, sampling_prob: float, num_records: int) -> Sample:
    """Draw every one of the numbers below `num_records` with chance `sampling_prob`.

    Parameters
    ----------
    words
        Uniform uint32, ``(num_poisson_words(sampling_prob, num_records),)``, secret:
        the sample amplifies privacy only while nobody knows it, or its size.
    sampling_prob, num_records
        Python numbers; q is a multiple of 2^-32 in (0, 1].

    Returns
    -------
    Sample
        Of a capacity that is public: about ten standard deviations above the mean.

    Raises
    ------
    ValueError
        If `sampling_prob` is no such multiple.

    Notes
    -----
    *Formal guarantees.* The sample has its ideal law up to 2 `TOTAL_VARIATION`: one for
    the chance of numbers outside the table, of which those beyond the capacity are
    truncated, and one for that of a pool that is too small.
    """
    if sampling_prob == 1:
        return Sample(
            jnp.arange(num_records, dtype=jnp.uint32), jnp.ones(num_records, bool)
        )
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
    """Whether coins for all records take less time than a pool of this size."""
    return 8 * capacity > num_records


@functools.lru_cache
def _counts(sampling_prob: float, num_records: int) -> counts.Table:
    """The law of a Poisson sample's size, but for tails of `TOTAL_VARIATION` / 2."""
    scaled = sampling_prob * 2**32
    if not (0 < scaled < 2**32 and scaled == int(scaled)):
        raise ValueError(
            f"sampling_prob must be a multiple of 2^-32 in (0, 1], got {sampling_prob}"
        )
    mode = int((num_records + 1) * sampling_prob)
    chance = Decimal(sampling_prob)

    def above():
        odds = chance / (1 - chance)
        for k in range(mode, num_records):
            yield odds * (num_records - k) / (k + 1)

    def below():
        odds = chance / (1 - chance)
        for k in range(mode, 0, -1):
            yield k / (odds * (num_records - k + 1))

    return counts.tabulate(mode, above(), below(), TOTAL_VARIATION / 2)


class Arrivals(NamedTuple):
    """Arrivals of records, one an entry, in any order. Secret.

    indices
        Numbers of records, uint32 ``(capacity,)``; zero where nobody arrives, as a
        record far from the others in memory is slow to read.
    is_drawn
        Which entries are arrivals, ``(capacity,)``.
    coins
        Uniform uint32 ``(capacity,)``, independent of all else, to thin them with.
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
        Python numbers.

    Raises
    ------
    ValueError
        As `capacity`.

    Notes
    -----
    *Formal guarantees.* The law is the ideal one up to `TOTAL_VARIATION`, as far as
    ChaCha20 makes uniform words.
    """
    numbers, width = _arrivals(rate, num_records)
    size = numbers.largest
    bits = chacha.expand(words[counts.WORDS :], 0, 2 * size)
    indices = bits[:size] // np.uint32(width)
    is_drawn = jnp.arange(size) < counts.draw(words, numbers)
    is_drawn &= indices < num_records
    return Arrivals(jnp.where(is_drawn, indices, 0), is_drawn, bits[size:])


def capacity(rate: float, num_records: int) -> int:
    """Entries of `arrivals`, public: about ten standard deviations above the mean.

    Raises
    ------
    ValueError
        If no arrivals are expected, or more than 2^22.
    """
    return _arrivals(rate, num_records)[0].largest


@functools.lru_cache
def _arrivals(rate: float, num_records: int) -> tuple[counts.Table, int]:
    """The law of their number, but for tails of `TOTAL_VARIATION` / 2, and w."""
    width = 2**32 // num_records
    mean = rate * 2**32 / width
    if not 0 < mean <= 2**22:
        raise ValueError(
            f"a minibatch of {mean:.4g} records is expected, and at most 2^22 can be "
            "drawn: lower the clip bound, the step size or the expected batch size"
        )
    mode = int(mean)
    exact = Decimal(rate) * 2**32

    def above():
        for k in itertools.count(mode + 1):
            yield exact / (width * k)

    def below():
        for k in range(mode, 0, -1):
            yield k * width / exact

    return counts.tabulate(mode, above(), below(), TOTAL_VARIATION / 2), width
