"""Sums over samples: exact, of the sensitivity they say, and in bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.posterior import Posterior
from dpjax.random.batches import Sample
from dpjax.release import exact_sums, vector_sums
from dpjax.release.exact_sums import GRID
from dpjax.release.vector_sums import sampled_gradient_sum

VALUES = [0.0, 1e-6, 0.3, -1.0, 2.5, 1e4, -1e30, np.nan, np.inf]


def flat_prior(position):
    return 0.0


def linear(position, record):
    """The record is the gradient."""
    return jnp.dot(position, record)


@jax.jit
def total(data, sample, norm):
    posterior = Posterior(flat_prior, linear, data)
    position = jnp.zeros(data.shape[1], data.dtype)
    return sampled_gradient_sum(posterior, sample, position, norm)


def whole(num_records):
    return Sample(jnp.arange(num_records), jnp.ones(num_records, bool))


numbers = st.sampled_from(VALUES) | st.floats(-8, 8, width=32)
tables = st.integers(1, 6).flatmap(
    lambda dim: st.tuples(
        st.lists(st.lists(numbers, min_size=dim, max_size=dim), min_size=2, max_size=2),
        st.sampled_from([1e-6, 0.7, 3.0]),
    )
)


@settings(max_examples=150, deadline=None)
@given(tables)
def test_sensitivity_over_neighbours(case):
    rows, norm = case
    data = jnp.asarray(rows, jnp.result_type(float))
    first, second = (np.asarray(total(row[None], whole(1), norm)) for row in data)
    for record in (first, second):
        assert np.array_equal(record, np.rint(record))
        # Integers: no tolerance. Adding a record moves the sum by no more than this.
        assert np.sum(record**2) <= GRID**2
    assert np.sum((first - second) ** 2) <= (2 * GRID) ** 2


def test_sum_over_the_sample_is_that_over_its_records():
    rng = np.random.default_rng(0)
    data = jnp.asarray(rng.normal(size=(50, 3)), jnp.result_type(float))
    indices = rng.permutation(50)[:20].astype(np.uint32)
    is_drawn = rng.random(20) < 0.6
    found = total(data, Sample(jnp.asarray(indices), jnp.asarray(is_drawn)), 1.3)
    chosen = indices[is_drawn]
    np.testing.assert_array_equal(found, total(data[chosen], whole(len(chosen)), 1.3))
    posterior = Posterior(flat_prior, linear, data[chosen])
    position = jnp.zeros(3, data.dtype)
    np.testing.assert_array_equal(
        found, vector_sums.gradient_sum(posterior, position, 1.3)
    )


@pytest.mark.parametrize("block", [1, 7, 10**6])
def test_blocks_change_nothing(monkeypatch, block):
    data = jnp.asarray(np.random.default_rng(1).normal(size=(40, 2)))
    expected = total(data, whole(40), 0.5)
    total.clear_cache()
    monkeypatch.setattr(vector_sums, "BLOCK", block)
    monkeypatch.setattr(exact_sums, "UNROLLED", 3)
    np.testing.assert_array_equal(total(data, whole(40), 0.5), expected)
    total.clear_cache()


def test_memory_does_not_hold_all_gradients():
    dim, size, chains = 200, 20_000, 4
    data = jax.ShapeDtypeStruct((size, dim), jnp.float32)

    def sums(data, positions):
        posterior = Posterior(flat_prior, linear, data)
        sample = whole(size)
        return jax.vmap(lambda p: sampled_gradient_sum(posterior, sample, p, 1.0))(
            positions
        )

    positions = jax.ShapeDtypeStruct((chains, dim), jnp.float32)
    memory = jax.jit(sums).lower(data, positions).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4 * chains * size * dim / 2


def test_any_function_of_pytrees():
    def function(position, record):
        return 2 * linear(position["a"], record[:2]) + position["b"] * record[2]

    data = jnp.array([[3.0, 0.0, 8.0]])
    posterior = Posterior(flat_prior, linear, data)
    position = {"a": jnp.zeros(2), "b": jnp.zeros(())}
    cells = sampled_gradient_sum(posterior, whole(1), position, 1.0, function)
    np.testing.assert_allclose(np.asarray(cells) / GRID, [0.6, 0, 0.8], atol=3e-5)


def test_too_many_components_raise():
    data = jax.ShapeDtypeStruct((1, 2**21 + 1), jnp.float32)
    with pytest.raises(ValueError, match=r"2\^21"):
        jax.eval_shape(
            lambda data: sampled_gradient_sum(
                Posterior(flat_prior, linear, data), whole(1), data[0], 1.0
            ),
            data,
        )
