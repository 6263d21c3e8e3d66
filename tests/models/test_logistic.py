import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from dpjax.models import logistic_regression

RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.normal(size=(50, 3)), RNG.integers(0, 2, 50)


def test_density_is_bernoulli_times_normal():
    posterior = logistic_regression(
        jnp.asarray(FEATURES), jnp.asarray(LABELS), prior_sd=2.0
    )
    coefficients = np.array([0.4, -1.0, 0.2])
    mean = special.expit(FEATURES @ coefficients)
    expected = stats.bernoulli.logpmf(LABELS, mean).sum()
    expected += stats.norm.logpdf(coefficients, scale=2).sum()
    expected -= 3 * stats.norm.logpdf(0, scale=2)
    np.testing.assert_allclose(
        posterior(jnp.asarray(coefficients)), expected, rtol=1e-5
    )


@pytest.mark.parametrize(("logit", "label", "expected"), [
    (1e4, 1, 0.0), (1e4, 0, -1e4), (-1e4, 0, 0.0), (-1e4, 1, -1e4),
])  # fmt: skip
def test_extreme_logits_are_finite(logit, label, expected):
    posterior = logistic_regression(jnp.array([[logit]]), jnp.array([label]))
    record = jax.tree.map(lambda leaf: leaf[0], posterior.data)
    value, slope = jax.value_and_grad(posterior.loglikelihood_fn)(jnp.ones(1), record)
    np.testing.assert_allclose(value, expected, atol=1e-6)
    assert np.all(np.isfinite(slope))


@pytest.mark.parametrize("logit", [-30.0, -1.0, 0.0, 1.0, 30.0])
def test_derivatives_are_those_of_the_bernoulli_law(logit):
    posterior = logistic_regression(jnp.ones((1, 1)), jnp.ones(1))
    record = jax.tree.map(lambda leaf: leaf[0], posterior.data)
    slope_fn = jax.grad(lambda at: posterior.loglikelihood_fn(at[None], record))
    mean, other = special.expit(logit), special.expit(-logit)
    np.testing.assert_allclose(slope_fn(logit), other, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(jax.grad(slope_fn)(logit), -mean * other, rtol=1e-5)


def test_lipschitz_in_the_coefficients():
    posterior = logistic_regression(jnp.asarray(FEATURES), jnp.asarray(LABELS))
    one, other = jnp.asarray(10 * RNG.normal(size=(2, 3)))
    rows = jax.vmap(posterior.loglikelihood_fn, (None, 0))
    change = abs(rows(one, posterior.data) - rows(other, posterior.data))
    bound = np.linalg.norm(FEATURES, axis=1) * np.linalg.norm(one - other)
    np.testing.assert_array_less(change, bound * (1 + 1e-5))


def test_functions_are_shared():
    features, labels = jnp.asarray(FEATURES), jnp.asarray(LABELS)
    one, other = (logistic_regression(features, labels) for _ in range(2))
    assert jax.tree.structure(one) == jax.tree.structure(other)


def test_refuses_bad_arguments():
    with pytest.raises(ValueError, match="features"):
        logistic_regression(jnp.ones((3, 2)), jnp.ones(2))
    with pytest.raises(ValueError, match="prior_sd"):
        logistic_regression(jnp.ones((3, 2)), jnp.ones(3), prior_sd=0.0)
    with pytest.raises(ValueError, match="radius"):
        logistic_regression(jnp.ones((3, 2)), jnp.ones(3), radius=0.0)


def test_the_prior_ends_at_the_radius():
    features, labels = jnp.asarray(FEATURES), jnp.asarray(LABELS)
    logprior = logistic_regression(features, labels, radius=5.0).logprior_fn
    assert logprior(jnp.array([3.0, 4.0, 0.0])) == -12.5
    assert logprior(jnp.array([3.0, 4.1, 0.0])) == -jnp.inf
