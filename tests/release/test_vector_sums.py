"""Sums over samples: exact, of the sensitivity they say, and in bounded memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.models import logistic_regression
from dpjax.posterior import Posterior
from dpjax.random import batches
from dpjax.random.batches import Sample
from dpjax.release import exact_sums, vector_sums
from dpjax.release.exact_sums import GRID, VECTOR_GRID
from dpjax.release.gradient_parts import Outer, gradient_parts
from dpjax.release.vector_sums import vector_sum

VALUES = [0.0, 1e-6, 0.3, -1.0, 2.5, 1e4, -1e30, np.nan, np.inf]


def flat_prior(position):
    return 0.0


def posterior_of(data):
    return Posterior(flat_prior, flat_prior, data)


def itself(record):
    """What a record adds."""
    return record


def with_product(record):
    """The first number, and an outer product."""
    return record[:1], Outer(jnp.sin(record[:2, None]), record[None])


@functools.partial(jax.jit, static_argnames="contribution")
def total(data, sample, norm, contribution=itself):
    return vector_sum(posterior_of(data), contribution, norm, sample)


def whole(num_records):
    return Sample(jnp.arange(num_records), jnp.ones(num_records, bool))


def squared(cells):
    """The square of the norm, in Python's integers."""
    return sum(int(cell) ** 2 for cell in cells)


numbers = st.sampled_from(VALUES) | st.floats(-8, 8, width=32)
tables = st.integers(1, 6).flatmap(
    lambda dim: st.tuples(
        st.lists(st.lists(numbers, min_size=dim, max_size=dim), min_size=2, max_size=2),
        st.sampled_from([1e-6, 0.7, 3.0]),
    )
)


@pytest.mark.parametrize("contribution", [itself, with_product])
@settings(max_examples=100, deadline=None)
@given(case=tables)
def test_sensitivity_over_neighbours(contribution, case):
    rows, norm = case
    data = jnp.asarray(rows, jnp.result_type(float))
    first, second = (
        np.asarray(total(row[None], whole(1), norm, contribution)) for row in data
    )
    for record in (first, second):
        # Integers: no tolerance. Adding a record moves the sum by no more than this.
        assert squared(record) <= VECTOR_GRID**2
    assert squared(first - second) <= (2 * VECTOR_GRID) ** 2


def test_sum_over_the_sample_is_that_over_its_records():
    rng = np.random.default_rng(0)
    data = jnp.asarray(rng.normal(size=(50, 3)), jnp.result_type(float))
    indices = rng.permutation(50)[:20].astype(np.uint32)
    is_drawn = rng.random(20) < 0.6
    found = total(data, Sample(jnp.asarray(indices), jnp.asarray(is_drawn)), 1.3)
    chosen = indices[is_drawn]
    np.testing.assert_array_equal(found, total(data[chosen], whole(len(chosen)), 1.3))
    np.testing.assert_array_equal(
        found, vector_sum(posterior_of(data[chosen]), itself, 1.3)
    )


@pytest.mark.parametrize("contribution", [itself, with_product])
@pytest.mark.parametrize("block", [1, 7, 10**6])
def test_blocks_change_nothing(monkeypatch, block, contribution):
    data = jnp.asarray(np.random.default_rng(1).normal(size=(40, 2)))
    expected = total(data, whole(40), 0.5, contribution)
    total.clear_cache()
    monkeypatch.setattr(vector_sums, "BLOCK", block)
    found = total(data, whole(40), 0.5, contribution)
    np.testing.assert_array_equal(found, expected)
    total.clear_cache()


def test_a_block_has_no_more_products_than_are_added_exactly(monkeypatch):
    data = jnp.asarray(np.random.default_rng(1).normal(size=(200, 2)))
    expected = total(data, whole(200), 0.5, with_product)
    total.clear_cache()
    for module in (vector_sums, exact_sums):
        monkeypatch.setattr(module, "MAX_PRODUCTS", 64)
    found = total(data, whole(200), 0.5, with_product)
    np.testing.assert_array_equal(found, expected)
    total.clear_cache()


@pytest.mark.parametrize("norm", [0.5, 100.0])
def test_sums_of_products_are_those_of_the_vectors(norm):
    def vectors(record):
        number, product = with_product(record)
        return jnp.concatenate([number, (product.weights * product.direction).ravel()])

    data = jnp.asarray(np.random.default_rng(2).normal(size=(300, 4)))
    sums = [total(data, whole(300), norm, f) for f in (with_product, vectors)]
    # Either way a record loses less than two cells, the margin included.
    first, second = (np.asarray(cells) / GRID for cells in sums)
    np.testing.assert_allclose(first, second, atol=4 * 300)


def test_a_sum_of_products_stores_no_gradients():
    dim, size, chains = 100, 50_000, 8

    def sums(posterior, positions):
        def one(position):
            gradient_fn = functools.partial(
                gradient_parts, posterior.loglikelihood_fn, position
            )
            return vector_sum(posterior, gradient_fn, 1.0)

        return jax.vmap(one)(positions)

    posterior = logistic_regression(jnp.ones((size, dim)), jnp.ones(size))
    positions = jnp.zeros((chains, dim))
    memory = jax.jit(sums).lower(posterior, positions).compile().memory_analysis()
    # Less than the data, which do not depend on the chain.
    assert memory.temp_size_in_bytes < posterior.data[0].nbytes


def test_many_blocks_are_traced_like_two():
    def num_calls(num_records):
        calls = []

        def contribution(record):
            calls.append(record)
            return record

        data = jax.ShapeDtypeStruct((num_records, 3), jnp.float32)
        jax.eval_shape(
            lambda data: vector_sum(posterior_of(data), contribution, 1.0), data
        )
        return len(calls)

    block = vector_sums.STORED // 3
    assert num_calls(block) == num_calls(2 * block) == num_calls(50 * block + 1)


def test_memory_does_not_hold_all_gradients():
    dim, size, chains = 200, 100_000, 4
    data = jax.ShapeDtypeStruct((size, dim), jnp.float32)

    def sums(data, positions):
        posterior, sample = posterior_of(data), whole(size)
        return jax.vmap(
            lambda p: vector_sum(posterior, lambda record: record * p, 1.0, sample)
        )(positions)

    positions = jax.ShapeDtypeStruct((chains, dim), jnp.float32)
    memory = jax.jit(sums).lower(data, positions).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4 * chains * size * dim / 2


def test_pytrees_share_one_norm():
    def contribution(record):
        return {"a": 2 * record[:2], "b": record[2]}

    posterior = posterior_of(jnp.array([[3.0, 0.0, 8.0]]))
    cells = vector_sum(posterior, contribution, 1.0)
    np.testing.assert_allclose(
        np.asarray(cells) / VECTOR_GRID, [0.6, 0, 0.8], atol=3e-5
    )


@pytest.mark.parametrize("with_sample", [True, False])
def test_every_record_has_a_key_of_its_own(with_sample):
    def contribution(record, key):
        return record * jax.random.bits(key, (), jnp.uint16).astype(float)

    key, posterior = jax.random.key(7), posterior_of(jnp.eye(30, 20))
    sample = whole(30) if with_sample else None
    cells = vector_sum(posterior, contribution, float(GRID), sample, rng_key=key)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(20))
    expected = jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint16))(keys)
    # Truncation, after a shrinkage of 36 units of 2^-23.
    tolerance = 1 + 36 * GRID / 2**23
    np.testing.assert_allclose(np.asarray(cells) / GRID, expected, atol=tolerance)


def test_too_many_components_raise():
    data = jax.ShapeDtypeStruct((1, 2**21 + 1), jnp.float32)
    with pytest.raises(ValueError, match=r"2\^21"):
        jax.eval_shape(lambda data: vector_sum(posterior_of(data), itself, 1.0), data)


@pytest.mark.parametrize(
    ("sampling_prob", "num_records", "dim"), [(0.99, 100, 40), (0.5, 2000, 1000)]
)
def test_what_a_record_adds_does_not_depend_on_its_place(
    sampling_prob, num_records, dim
):
    """One record more in a sample moves others, and must not change what they add.

    All that is left of the products is their rounding. It is clipped, so a record that
    is rounded in another way moves the sum by up to two clip norms.
    """
    rng = np.random.default_rng(0)
    rows = 100 * rng.normal(size=(num_records, dim)).astype(np.float32)
    theta = rng.normal(size=dim).astype(np.float32)
    prob = float(np.ceil(sampling_prob * 2**32) / 2**32)
    num_words = batches.num_poisson_words(prob, num_records)
    words = jnp.asarray(rng.integers(0, 2**32, num_words, np.uint32))
    indices, is_drawn = batches.poisson(words, prob, num_records)

    @jax.jit
    def moved(data, theta, indices):
        def contribution(record):
            row, product = record
            return (row @ theta - product) * row

        sample = Sample(indices, is_drawn)
        return vector_sum(posterior_of(data), contribution, 1e-3, sample)

    drawn = np.asarray(indices)[np.asarray(is_drawn)]
    rest = np.asarray(indices)[len(drawn) :]
    sums = [
        np.asarray(moved((rows, rows @ theta), theta, np.append(order, rest)))
        for order in (drawn, np.roll(drawn, 1), rng.permutation(drawn), drawn[::-1])
    ]
    assert np.any(sums[0] != 0)
    for other in sums[1:]:
        np.testing.assert_array_equal(other, sums[0])
