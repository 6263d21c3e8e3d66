"""Batches are uniform subsets, and the pool is almost never too small."""

import itertools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from dpjax.acceptance import FAILURE_PROB
from dpjax.random import batches, chacha

# Few and many repetitions. In the last case almost half of the words are discarded.
SIZES = [(1, 2), (5, 10), (50, 100), (40, 10_000), (300, 2**20), (7, 2**31 + 5)]


def words_for(batch_size, num_records, count, seed=0):
    width = batches.num_words(batch_size, num_records)
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**32, (count, width), np.uint32)


def draw(words, batch_size, num_records):
    @jax.jit
    @jax.vmap
    def drawn(row):
        return batches.without_replacement(row, batch_size, num_records)

    return np.sort(np.asarray(drawn(words)), axis=1)


@pytest.mark.parametrize(("batch_size", "num_records"), SIZES)
def test_first_distinct_ones_to_arrive(batch_size, num_records):
    words = words_for(batch_size, num_records, 200)
    expected = []
    for row in words.tolist():
        seen = {}
        for word in row:
            high, low = divmod(word * num_records, 2**32)
            if low >= 2**32 % num_records:
                seen.setdefault(high)
        expected.append(sorted(list(seen)[:batch_size]))
    np.testing.assert_array_equal(draw(words, batch_size, num_records), expected)


@pytest.mark.thorough
@pytest.mark.parametrize(("batch_size", "num_records"), [(3, 7), (2, 5), (1, 3)])
def test_subsets_are_uniform(batch_size, num_records):
    drawn = draw(
        words_for(batch_size, num_records, 100_000, seed=1), batch_size, num_records
    )
    code = np.sum(2**drawn, axis=1)
    subsets = itertools.combinations(range(num_records), batch_size)
    counts = [np.sum(code == sum(2**i for i in subset)) for subset in subsets]
    assert sum(counts) == len(drawn)
    # A false alarm has probability 3e-7 over the three cases.
    assert stats.chisquare(counts).pvalue > 1e-7


def shortage(num_words, batch_size, num_records):
    """P(fewer than B distinct integers among the words), step by step."""
    kept = 1 - 2**32 % num_records / 2**32
    grows = (1 - np.arange(batch_size) / num_records) * kept
    law = np.zeros(batch_size)
    law[0] = 1.0
    for _ in range(num_words):
        law = law * (1 - grows) + np.append(0.0, (law * grows)[:-1])
    return law.sum()


@pytest.mark.parametrize(
    ("batch_size", "num_records"),
    [*SIZES[1:], (1000, 100_000), (1000, 200_000), (2600, 200_000)],
)
def test_pool_is_large_enough_and_not_much_larger(batch_size, num_records):
    count = batches.num_words(batch_size, num_records)
    allowed = batches.FAILURE_PROB / 2
    assert shortage(count, batch_size, num_records) <= allowed
    less = batch_size + int(0.8 * (count - batch_size))
    assert shortage(less, batch_size, num_records) > allowed
    # The drawing of the accept bit has more slack than this.
    assert batches.FAILURE_PROB < 1e-4 * FAILURE_PROB


def test_the_same_batch_without_vmap():
    words = words_for(5, 30, 4)
    alone = [batches.without_replacement(jnp.asarray(row), 5, 30) for row in words]
    assert all(batch.dtype == jnp.uint32 for batch in alone)
    np.testing.assert_array_equal(np.sort(np.stack(alone), axis=1), draw(words, 5, 30))


@pytest.mark.parametrize("batch_size", [0, -1, 51, 100])
def test_bad_batch_sizes_raise(batch_size):
    with pytest.raises(ValueError, match="half of the 100 records"):
        batches.num_words(batch_size, 100)


def test_too_few_words_raise():
    with pytest.raises(ValueError, match="shape"):
        batches.without_replacement(jnp.zeros(5, jnp.uint32), 5, 30)


# In the first two cases every record has a coin, in the others a size is drawn.
POISSON = [(0.5, 7), (0.125, 900), (0.01, 3000), (2.0**-20, 10**6), (0.05, 20_000)]


def rounded(sampling_prob):
    return np.ceil(sampling_prob * 2**32) / 2**32


def poisson(sampling_prob, num_records, count, seed=0):
    q = float(rounded(sampling_prob))
    width = batches.num_poisson_words(q, num_records)
    words = np.random.default_rng(seed).integers(0, 2**32, (count, width), np.uint32)
    draws = jax.jit(jax.vmap(lambda row: batches.poisson(row, q, num_records)))
    return words, jax.tree.map(np.asarray, draws(words))


@pytest.mark.thorough
@pytest.mark.parametrize(("sampling_prob", "num_records"), POISSON)
def test_poisson_samples_are_sets_of_binomial_size(sampling_prob, num_records):
    _, (indices, is_drawn) = poisson(sampling_prob, num_records, 2000)
    assert indices.dtype == np.uint32 and indices.max() < num_records
    sizes = is_drawn.sum(axis=1)
    sets = [set(row[kept]) for row, kept in zip(indices, is_drawn, strict=True)]
    np.testing.assert_array_equal(sizes, [len(members) for members in sets])
    law = stats.binom(num_records, rounded(sampling_prob))
    edges = np.unique(law.ppf(np.linspace(0, 1, 9)[1:-1]))
    counts = np.bincount(np.searchsorted(edges, sizes), minlength=len(edges) + 1)
    expected = 2000 * np.diff(law.cdf(edges), prepend=0, append=1)
    # A false alarm has probability 5e-8 over the five cases.
    assert stats.chisquare(counts, expected).pvalue > 1e-8


@pytest.mark.thorough
@pytest.mark.parametrize(("sampling_prob", "num_records"), [(0.3, 5), (0.02, 300)])
def test_every_record_is_as_likely_and_pairs_independent(sampling_prob, num_records):
    repetitions = 40_000
    _, (indices, is_drawn) = poisson(sampling_prob, num_records, repetitions, seed=1)
    q = rounded(sampling_prob)
    row, slot = np.nonzero(is_drawn)
    member = np.zeros((repetitions, num_records), np.float32)
    member[row, indices[row, slot]] = 1
    together = (member.T @ member)[np.triu_indices(num_records)]
    single = np.eye(num_records, dtype=bool)[np.triu_indices(num_records)]
    for counts, chance in ((together[single], q), (together[~single], q**2)):
        law = stats.binom(repetitions, chance)
        pvalue = min(law.cdf(counts.min()), law.sf(counts.max() - 1))
        # A false alarm has probability 1e-8 at most, by the union bound.
        assert pvalue * 2 * counts.size > 1e-8


def least_share(table, chance):
    """The least probability of a count over its ideal `chance`, less one."""
    units = [
        (high << 64) | (middle << 32) | low
        for high, middle, low in table.thresholds.T.tolist()
    ]
    drawn = np.diff([0, *units, 2**96]).tolist()
    with mpmath.workdps(60):
        return min(
            mpmath.mpf(cell) / 2**96 / chance(count) - 1
            for count, cell in enumerate(drawn, table.smallest)
        )


@pytest.mark.parametrize(("sampling_prob", "num_records"), POISSON)
def test_sizes_have_the_binomial_law(sampling_prob, num_records):
    q = float(rounded(sampling_prob))
    table = batches._counts(q, num_records)

    def chance(k):
        odds = mpmath.mpf(q) ** k * (1 - mpmath.mpf(q)) ** (num_records - k)
        return mpmath.binomial(num_records, k) * odds

    assert least_share(table, chance) >= -batches.FAILURE_PROB / 8
    # Whatever one record does beside others of these numbers is in the table.
    others = stats.binom(num_records - 1, q)
    outside = others.sf(table.largest - 1)
    outside += others.cdf(table.smallest - 1) if table.smallest else 0.0
    assert outside <= 3 * batches.FAILURE_PROB / 8
    whole = stats.binom(num_records, q)
    assert whole.sf(0.97 * table.largest - 3) > batches.FAILURE_PROB / 100


@pytest.mark.parametrize("place", [0, 1, 100, -1])
def test_sizes_are_drawn_by_inversion(place):
    q, num_records = float(rounded(0.01)), 3000
    smallest, capacity, thresholds = batches._counts(q, num_records)
    width = batches.num_poisson_words(q, num_records)
    rest = np.random.default_rng(0).integers(0, 2**32, width - 3, np.uint32)
    place %= thresholds.shape[1]
    high, middle, low = map(int, thresholds[:, place])
    at = high << 64 | middle << 32 | low
    for number, size in (
        (0, smallest),
        (at - 1, smallest + place),
        (at, smallest + place + 1),
        (2**96 - 1, capacity),
    ):
        first = np.array([number >> 64, number >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF])
        words = jnp.asarray(np.concatenate([first.astype(np.uint32), rest]))
        indices, is_drawn = batches.poisson(words, q, num_records)
        np.testing.assert_array_equal(is_drawn, np.arange(capacity) < size)
        batch = batches.without_replacement(words[3:], capacity, num_records)
        np.testing.assert_array_equal(indices, batch)


def test_coins_are_the_cipher_of_the_words():
    q = float(rounded(0.3))
    words, (indices, is_drawn) = poisson(q, 200, 5)
    for key, row, kept in zip(words, indices, is_drawn, strict=True):
        heads = np.asarray(chacha.expand(jnp.asarray(key), 0, 200)) < q * 2**32
        np.testing.assert_array_equal(row[kept], np.nonzero(heads)[0])


def test_all_records():
    assert batches.num_poisson_words(1.0, 5) == 0
    indices, is_drawn = batches.poisson(jnp.zeros(0, jnp.uint32), 1.0, 5)
    np.testing.assert_array_equal(indices, np.arange(5))
    assert is_drawn.all()


@pytest.mark.parametrize("sampling_prob", [0.0, -0.5, 1.5, 0.1, float("nan")])
def test_bad_sampling_probs_raise(sampling_prob):
    with pytest.raises(ValueError, match="multiple of 2"):
        batches.num_poisson_words(sampling_prob, 1000)


# In the last case but one, a quarter of the words are the number of no record.
ARRIVALS = [(0.4, 3), (1e-3, 50_000), (1e-9, 3 * 2**30 // 2 + 7), (1e-4, 10**7)]


def arrive(rate, num_records, count, seed=0):
    words = np.random.default_rng(seed).integers(
        0, 2**32, (count, batches.ARRIVAL_WORDS), np.uint32
    )
    draws = jax.jit(jax.vmap(lambda row: batches.arrivals(row, rate, num_records)))
    return words, jax.tree.map(np.asarray, draws(words))


@pytest.mark.parametrize(("rate", "num_records"), ARRIVALS)
def test_arrivals_have_the_poisson_law(rate, num_records):
    numbers, width = batches._arrivals(rate, num_records)
    # Numbers below n are drawn with chance w / 2^32 each.
    assert width * num_records <= 2**32 < (width + 1) * num_records
    with mpmath.workdps(60):
        mean = mpmath.mpf(rate) * 2**32 / width
        share = least_share(
            numbers, lambda k: mpmath.exp(-mean) * mean**k / mpmath.factorial(k)
        )
    assert share >= -batches.FAILURE_PROB / 8
    law = stats.poisson(float(mean))
    outside = law.sf(numbers.largest) + law.cdf(numbers.smallest - 1)
    assert outside <= batches.FAILURE_PROB / 2
    assert numbers.largest == batches.capacity(rate, num_records)
    assert law.sf(0.9 * numbers.largest - 2) > batches.FAILURE_PROB / 100


@pytest.mark.parametrize(("rate", "num_records"), ARRIVALS)
def test_as_many_arrive_as_the_rate_says(rate, num_records):
    repetitions = 2000
    _, (indices, is_drawn, _) = arrive(rate, num_records, repetitions)
    assert indices.dtype == np.uint32 and indices.max() < num_records
    law = stats.poisson(rate * num_records * repetitions)
    # A false alarm has probability 2e-7 over the four cases.
    assert min(law.cdf(is_drawn.sum()), law.sf(is_drawn.sum() - 1)) > 1e-8
    if num_records > 1000:
        numbers = (indices[is_drawn] + 0.5) / num_records
        assert stats.kstest(numbers, "uniform").pvalue > 1e-8


def test_records_arrive_independently():
    repetitions = 40_000
    _, (indices, is_drawn, _) = arrive(1.0, 3, repetitions, seed=1)
    counts = np.stack([((indices == i) & is_drawn).sum(1) for i in range(3)], axis=1)
    found = np.bincount(np.minimum(counts, 2) @ [1, 3, 9], minlength=27)
    single = np.append(stats.poisson.pmf(range(2), 1.0), stats.poisson.sf(1, 1.0))
    chance = np.einsum("i,j,k->ijk", single, single, single).ravel()
    # A false alarm has probability 1e-8.
    assert stats.chisquare(found, repetitions * chance).pvalue > 1e-8


def test_arrivals_are_the_cipher_of_the_words():
    rate, num_records = 0.02, 1000
    words, (indices, is_drawn, coins) = arrive(rate, num_records, 5)
    capacity = batches.capacity(rate, num_records)
    for row, *found in zip(words, indices, is_drawn, coins, strict=True):
        bits = np.asarray(chacha.expand(jnp.asarray(row[3:]), 0, 2 * capacity))
        numbers = bits[:capacity] // (2**32 // num_records)
        np.testing.assert_array_equal(found[0], np.where(found[1], numbers, 0))
        assert not np.any(found[1] & (numbers >= num_records))
        np.testing.assert_array_equal(found[2], bits[capacity:])


@pytest.mark.parametrize("rate", [0.0, -1.0, 5e3, float("inf"), float("nan")])
def test_bad_rates_raise(rate):
    with pytest.raises(ValueError, match="at most 2"):
        batches.capacity(rate, 1000)
