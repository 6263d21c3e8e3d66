"""Guides: their draws and entropies are those of the normals they say they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

from dpjax.vi.guides import FullRank, LowRank, MeanField

GUIDES = {
    "mean field": MeanField(4),
    "low rank": LowRank(4, rank=2),
    "full rank": FullRank(4),
    "one component": FullRank(1),
}


@pytest.fixture(params=GUIDES)
def guide(request):
    return GUIDES[request.param]


def parameters_of(guide, seed=0):
    """Random parameters of the structure that `init` gives."""
    start = guide.init(jnp.zeros(guide.dim))
    flat, unravel = ravel_pytree(start)
    values = np.random.default_rng(seed).normal(size=flat.shape)
    return unravel(jnp.asarray(values, flat.dtype))


def moments(guide, parameters):
    """Mean and covariance, from the linear map of `transform`."""
    zero = jnp.zeros(guide.num_normals)
    root = jax.jacobian(guide.transform, 1)(parameters, zero)
    root = np.asarray(root, np.float64)
    return np.asarray(guide.transform(parameters, zero)), root @ root.T


@pytest.mark.thorough
def test_entropy_is_that_of_the_normal(guide):
    parameters = parameters_of(guide)
    law = stats.multivariate_normal(*moments(guide, parameters))
    tolerance = 1e-9 if jnp.zeros(()).dtype == jnp.float64 else 1e-3
    np.testing.assert_allclose(
        guide.entropy(parameters), law.entropy(), rtol=tolerance, atol=tolerance
    )


def test_draws_have_these_moments(guide):
    parameters = parameters_of(guide)
    mean, covariance = moments(guide, parameters)
    draws = np.asarray(guide.sample(jax.random.key(0), parameters, 20_000), np.float64)
    scaled = np.linalg.solve(np.linalg.cholesky(covariance), (draws - mean).T)
    # The smallest of 20 p-values is below 1e-8 with probability 2e-7.
    for row in scaled:
        assert stats.kstest(row, "norm").pvalue > 1e-8
    products = (scaled @ scaled.T)[np.triu_indices(guide.dim, 1)] / 20_000**0.5
    # Scaled sums of products of independent normals are about N(0, 1).
    assert np.all(abs(products) < 7)


def test_location_is_a_pytree_like_the_position():
    position = {"a": jnp.ones((2, 2)), "b": jnp.zeros(3)}
    for guide in (MeanField(7), LowRank(7, rank=1), FullRank(7)):
        parameters = guide.init(position)
        assert ravel_pytree(parameters)[0].size == guide.num_parameters
        draws = guide.sample(jax.random.key(0), parameters, 5)
        assert jax.tree.map(jnp.shape, draws) == {"a": (5, 2, 2), "b": (5, 3)}
        middle = guide.transform(parameters, jnp.zeros(guide.num_normals))
        jax.tree.map(np.testing.assert_array_equal, middle, position)


def test_starts_with_the_initial_scale(guide):
    narrow = type(guide)(**{**vars(guide), "init_scale": 0.02})
    _, covariance = moments(narrow, narrow.init(jnp.ones(guide.dim)))
    np.testing.assert_allclose(covariance, 0.02**2 * np.eye(guide.dim), rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MeanField(0), "dim must be"),
        (lambda: MeanField(2.0), "dim must be"),
        (lambda: FullRank(2, init_scale=0.0), "init_scale must be"),
        (lambda: MeanField(2, init_scale=float("nan")), "init_scale must be"),
        (lambda: LowRank(2, rank=0), "rank must be"),
        (lambda: MeanField(3).init(jnp.zeros(2)), "2 components, the guide 3"),
    ],
)
def test_bad_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()
