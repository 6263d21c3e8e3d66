"""Scores of any model whose observations can be drawn anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.fit.scores import NUM_REDRAWS, NUM_SEARCH_REDRAWS, redrawn_scores


def loglikelihood(position, record):
    """An exponential waiting time whose rate depends on a covariate."""
    x, wait = record
    log_rate = position["a"] + position["b"] * x
    return log_rate - wait * jnp.exp(log_rate)


def simulate(rng_key, position, record):
    rate = jnp.exp(position["a"] + position["b"] * record[0])
    return record[0], jax.random.exponential(rng_key) / rate


@pytest.mark.parametrize("num_redraws", [NUM_SEARCH_REDRAWS, NUM_REDRAWS])
def test_the_record_is_one_of_exchangeable_nodes(num_redraws):
    position = dict(a=jnp.array(0.3), b=jnp.array(-0.5))
    scores_fn = redrawn_scores(loglikelihood, simulate)

    def one(rng_key):
        first, second, third = jax.random.split(rng_key, 3)
        record = jax.random.normal(first), jnp.array(0.0)
        record = simulate(second, position, record)
        found = scores_fn(position, record, third, num_redraws)
        largest = jnp.argmax(jnp.abs(found.nodes[:, 0]))
        return found, jax.grad(loglikelihood)(position, record), largest

    many = jax.jit(jax.vmap(one))
    found, slopes, largest = many(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_array_equal(found.observed, found.nodes[:, 0])
    chance = 1 / (num_redraws + 1)
    np.testing.assert_allclose(found.weights, chance, rtol=1e-6)
    observed = jax.vmap(lambda f: f.gradients()[0])(found)
    expected = np.stack([slopes["a"], slopes["b"]], axis=1)
    np.testing.assert_allclose(observed, expected, rtol=1e-5, atol=1e-6)
    # The record's own score is the largest one as often as any other. A share of 4000
    # is beyond 6 of its standard deviations with 1e-8.
    share = np.mean(np.asarray(largest) == 0)
    assert abs(share - chance) < 6 * np.sqrt(chance * (1 - chance) / 4000)
    means = np.asarray(jnp.mean(found.nodes, axis=1), np.float64)
    assert np.all(np.abs(means.mean(0)) < 6 * means.std(0) / np.sqrt(4000))
