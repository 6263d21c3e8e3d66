import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax.models.gaussian import (
    CORRELATED,
    correlated_gaussian,
    exact_sample,
    simulate,
)

COVARIANCE = np.array([[2.0, 0.5, 0.3], [0.5, 1.0, -0.2], [0.3, -0.2, 0.7]])


def test_loglikelihood_is_the_normals_up_to_a_constant():
    data = simulate(jax.random.key(0), 20, covariance=COVARIANCE)
    posterior = correlated_gaussian(data, covariance=COVARIANCE)
    mean = np.array([0.3, -1.0, 2.0])
    expected = stats.multivariate_normal(mean, COVARIANCE).logpdf(np.asarray(data))
    found = jax.vmap(posterior.loglikelihood_fn, (None, 0))(jnp.asarray(mean), data)
    constant = stats.multivariate_normal(mean, COVARIANCE).logpdf(mean)
    np.testing.assert_allclose(found + constant, expected, rtol=1e-4, atol=1e-4)


def test_simulate_has_the_covariance():
    data = np.asarray(simulate(jax.random.key(1), 20_000))
    np.testing.assert_allclose(np.cov(data.T), CORRELATED, atol=0.04)
    np.testing.assert_allclose(data.mean(0), [0, 3], atol=0.04)


@pytest.mark.parametrize("covariance", [np.array(CORRELATED), COVARIANCE])
def test_exact_sample_has_the_posterior_as_its_law(assert_exact, covariance):
    constants = dict(covariance=covariance, prior_sd=2.0, tempering=0.5)
    data = simulate(jax.random.key(2), 10, covariance=covariance)
    draws = exact_sample(jax.random.key(3), data, 20_000, **constants)
    assert_exact(correlated_gaussian(data, **constants), draws)


def test_equal_parameters_compile_once(assert_stable):
    assert_stable(correlated_gaussian, simulate(jax.random.key(4), 10))


def test_refuses_bad_arguments():
    with pytest.raises(ValueError, match="shape"):
        correlated_gaussian(jnp.ones((3, 3)))
    with pytest.raises(ValueError, match="positive definite"):
        correlated_gaussian(jnp.ones((3, 2)), covariance=-np.eye(2))
    with pytest.raises(ValueError, match="prior_sd"):
        correlated_gaussian(jnp.ones((3, 2)), prior_sd=-1.0)
