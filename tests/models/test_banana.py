import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax.models.banana import banana, exact_sample, simulate


def test_densities_are_the_papers_up_to_constants():
    data = simulate(jax.random.key(0), 20, 4)
    posterior = banana(data, curvature=3.0, prior_precision=0.01)
    positions = np.random.default_rng(0).normal(size=(2, 4))

    def papers(theta):
        u = theta[1] + 3 * theta[0] ** 2
        mean = np.array([theta[0], u, *theta[2:]])
        sd = np.array([20**0.5, 2.5**0.5, 1, 1])
        prior = stats.norm.logpdf(mean, scale=10).sum()
        return prior, stats.norm.logpdf(np.asarray(data), mean, sd).sum(1)

    (prior, likelihood), (other_prior, other_likelihood) = map(papers, positions)
    one, other = (jnp.asarray(position) for position in positions)
    difference = posterior.logprior_fn(one) - posterior.logprior_fn(other)
    np.testing.assert_allclose(difference, prior - other_prior, rtol=1e-4)
    rows = jax.vmap(posterior.loglikelihood_fn, (None, 0))
    np.testing.assert_allclose(
        rows(one, data) - rows(other, data),
        likelihood - other_likelihood,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize(("dim", "curvature"), [(2, 0.5), (3, 0.0)])
def test_exact_sample_has_the_posterior_as_its_law(assert_exact, dim, curvature):
    constants = dict(curvature=curvature, prior_precision=0.1, tempering=0.5)
    data = simulate(jax.random.key(1), 40, dim)
    draws = exact_sample(jax.random.key(2), data, 20_000, **constants)
    assert_exact(banana(data, **constants), draws)


def test_equal_parameters_compile_once(assert_stable):
    assert_stable(banana, simulate(jax.random.key(3), 10, 2))


def test_refuses_bad_arguments():
    with pytest.raises(ValueError, match="d >= 2"):
        banana(jnp.ones((3, 1)))
    with pytest.raises(ValueError, match="prior_precision"):
        banana(jnp.ones((3, 2)), prior_precision=0.0)
