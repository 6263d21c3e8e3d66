import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax.models import mixture
from dpjax.models.mixture import (
    exact_sample,
    gaussian_mixture,
    grid_posterior,
    simulate,
)


def test_loglikelihood_is_that_of_the_mixture():
    posterior = gaussian_mixture(jnp.array([0.7]), variance=0.5)
    theta = np.array([0.2, -1.1])
    density = 0.5 * stats.norm.pdf(0.7, [0.2, -0.9], 0.5**0.5).sum()
    found = posterior(jnp.asarray(theta)) - posterior(jnp.zeros(2))
    reference = stats.norm.pdf(0.7, 0, 0.5**0.5)
    np.testing.assert_allclose(found, np.log(density / reference), rtol=1e-5)


def test_records_count_as_the_nearest_end_of_the_interval():
    theta = jnp.array([0.5, 1.5])
    inside, outside = (gaussian_mixture(jnp.array(x)) for x in ([-3.0, 3], [-9.0, 4]))
    assert inside(theta) == outside(theta)
    assert inside(theta) != gaussian_mixture(jnp.array([-3.0, 2.9]))(theta)


def test_the_prior_is_flat_on_the_box():
    logprior = gaussian_mixture(jnp.zeros(1), half_width=2.0).logprior_fn
    assert logprior(jnp.array([2.0, -2.0])) == 0
    assert logprior(jnp.array([0.0, 2.001])) == -jnp.inf


def test_simulated_moments():
    data = np.asarray(simulate(jax.random.key(0), 100_000), float)
    # Mean .5, variance 2.25; the fourth central moment of a record is below 16. Six
    # standard errors: one false alarm in 1e8.
    assert abs(data.mean() - 0.5) < 6 * 1.5 / 100_000**0.5
    assert abs(data.var() - 2.25) < 6 * 4 / 100_000**0.5


@pytest.mark.parametrize("constants", [
    {}, dict(half_width=1.5, truncation=5.0, variance=0.5),
])  # fmt: skip
def test_grid_posterior_is_the_posterior(constants):
    """Its cells are those of the exact density, record by record, by the same rule."""
    data = simulate(jax.random.key(1), 1000)
    options = dict(tempering=0.02, **constants)
    width = constants.get("half_width", 3.0)
    grid = grid_posterior(data, 20, **options)
    assert grid.sum() == pytest.approx(1, abs=1e-12)
    cells = np.array([[3, 16], [10, 10], [12, 8], [19, 0]])
    inside = (np.arange(4) + 0.5) / 4
    offsets = np.stack(np.meshgrid(inside, inside, indexing="ij"), -1).reshape(-1, 2)
    points = width * ((cells[:, None] + offsets) / 10 - 1)
    with jax.enable_x64(True):
        data = jnp.asarray(np.asarray(data), jnp.float64)
        exact = jax.vmap(jax.vmap(gaussian_mixture(data, **options)))
        log_density = np.asarray(exact(jnp.asarray(points)))
    mass = np.exp(log_density - log_density.max()).mean(axis=1)
    found = grid[tuple(cells.T)]
    np.testing.assert_allclose(found / found[1], mass / mass[1], rtol=1e-8)


@pytest.mark.thorough
def test_exact_sample_has_the_posterior_as_its_law(assert_exact):
    constants = dict(tempering=0.5)
    data = simulate(jax.random.key(0), 500)
    draws = exact_sample(jax.random.key(1), data, 20_000, **constants)
    assert draws.shape == (20_000, 2) and draws.dtype == data.dtype
    # Both modes are there.
    assert 0.05 < np.mean(np.asarray(draws)[:, 1] > 0) < 0.95
    assert_exact(gaussian_mixture(data, **constants), draws)


def test_functions_are_shared(assert_stable):
    assert_stable(gaussian_mixture, simulate(jax.random.key(0), 10))


def test_refuses_bad_arguments():
    with pytest.raises(ValueError, match="data"):
        gaussian_mixture(jnp.ones((3, 2)))
    for name in ("half_width", "truncation", "variance"):
        with pytest.raises(ValueError, match=name):
            gaussian_mixture(jnp.ones(3), **{name: 0.0})
    with pytest.raises(TypeError, match="unknown"):
        mixture.exact_sample(jax.random.key(0), jnp.ones(3), 1, unknown=1)
