"""Batches are uniform subsets, and the pool is almost never too small."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import minibatch
from dpjax.acceptance import TOTAL_VARIATION

# Few and many repetitions; almost half of the words discarded in the last.
SIZES = [(1, 2), (5, 10), (50, 100), (40, 10_000), (300, 2**20), (7, 2**31 + 5)]


def words_for(batch_size, num_records, count, seed=0):
    width = minibatch.num_words(batch_size, num_records)
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**32, (count, width), np.uint32)


def draw(words, batch_size, num_records):
    @jax.jit
    @jax.vmap
    def batches(row):
        return minibatch.without_replacement(row, batch_size, num_records)

    return np.sort(np.asarray(batches(words)), axis=1)


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


@pytest.mark.parametrize(("batch_size", "num_records"), [(3, 7), (2, 5), (1, 3)])
def test_subsets_are_uniform(batch_size, num_records):
    batches = draw(
        words_for(batch_size, num_records, 100_000, seed=1), batch_size, num_records
    )
    code = np.sum(2**batches, axis=1)
    subsets = itertools.combinations(range(num_records), batch_size)
    counts = [np.sum(code == sum(2**i for i in subset)) for subset in subsets]
    assert sum(counts) == len(batches)
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
    count = minibatch.num_words(batch_size, num_records)
    assert shortage(count, batch_size, num_records) <= minibatch.TOTAL_VARIATION
    less = batch_size + int(0.8 * (count - batch_size))
    assert shortage(less, batch_size, num_records) > minibatch.TOTAL_VARIATION
    # What the drawing of the accept bit leaves over is more.
    assert minibatch.TOTAL_VARIATION < 1e-6 * TOTAL_VARIATION


def test_the_same_batch_without_vmap():
    words = words_for(5, 30, 4)
    alone = [minibatch.without_replacement(jnp.asarray(row), 5, 30) for row in words]
    assert all(batch.dtype == jnp.uint32 for batch in alone)
    np.testing.assert_array_equal(np.sort(np.stack(alone), axis=1), draw(words, 5, 30))


@pytest.mark.parametrize("batch_size", [0, -1, 51, 100])
def test_bad_batch_sizes_raise(batch_size):
    with pytest.raises(ValueError, match="half of the 100 records"):
        minibatch.num_words(batch_size, 100)


def test_too_few_words_raise():
    with pytest.raises(ValueError, match="shape"):
        minibatch.without_replacement(jnp.zeros(5, jnp.uint32), 5, 30)
