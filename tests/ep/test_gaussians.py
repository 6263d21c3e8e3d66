"""Natural parameters: to moments and back, their norm, the floor, and priors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.ep.gaussians import Diagonal, Full, Moments
from tests.tiers import tiered


def gaussian(shape):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(*shape, shape[-1]))
    covariance = root @ np.swapaxes(root, -1, -2) + np.eye(shape[-1])
    return Moments(jnp.asarray(rng.normal(size=shape)), jnp.asarray(covariance))


CASES = [
    (Full((3,)), gaussian((3,))),
    (Full((2, 3)), gaussian((2, 3))),
    (Diagonal((2, 3)), Moments(jnp.full((2, 3), 2.0), jnp.full((2, 3), 0.25))),
]


@pytest.mark.parametrize(("family", "moments"), CASES)
def test_moments_come_back(family, moments):
    natural = family.natural(moments)
    assert natural.shape == (family.size,)
    found = family.moments(natural)
    for value, expected in zip(found, moments, strict=True):
        assert np.allclose(value, expected, rtol=1e-4)
    linear, precision = family.unpack(natural)
    assert np.allclose(family.pack(linear, precision), natural, rtol=1e-6)


def test_adding_natural_parameters_multiplies_densities():
    family, moments = CASES[0]
    other = Moments(jnp.ones(3), 2 * jnp.eye(3))
    product = family.moments(family.natural(moments) + family.natural(other))

    def log_density(x, mean, covariance):
        return -0.5 * (x - mean) @ np.linalg.solve(covariance, x - mean)

    points = np.random.default_rng(1).normal(size=(4, 3))
    gaps = [
        log_density(x, *product) - log_density(x, *moments) - log_density(x, *other)
        for x in points
    ]
    assert np.ptp(gaps) < 1e-4


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_the_norm_is_that_of_both_parts(shape):
    family, moments = Full(shape), gaussian(shape)
    natural = family.natural(moments)
    linear, precision = family.unpack(natural)
    expected = np.sum(linear**2) + np.sum(precision**2)
    assert np.isclose(np.sum(natural**2), expected, rtol=1e-5)
    # The norm of a site of a generalised linear model has a closed form.
    x = moments.mean.reshape(-1, 3)[0]
    site = Full((3,)).pack(0.7 * x, -0.3 * jnp.outer(x, x))
    square = np.sum(x**2)
    assert np.isclose(np.sum(site**2), 0.7**2 * square + 0.3**2 * square**2)


def test_the_floor_raises_only_small_eigenvalues():
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    values = np.array([-1.0, 0.2, 3.0])
    precision = jnp.asarray((rotation * values) @ rotation.T)
    family = Full((3,))
    floored = family.floor(family.pack(jnp.ones(3), precision), 0.5)
    linear, found = family.unpack(floored)
    assert np.array_equal(linear, np.ones(3))
    expected = (rotation * np.maximum(values, 0.5)) @ rotation.T
    assert np.allclose(found, expected, atol=1e-5)
    diagonal = Diagonal((3,))
    floored = diagonal.floor(jnp.array([1.0, 1.0, 1.0, -1.0, 0.2, 3.0]), 0.5)
    assert np.array_equal(floored, np.float32([1, 1, 1, 0.5, 0.5, 3]))


def test_improper_gaussians_have_no_moments():
    for family in (Full((2,)), Diagonal((2,))):
        linear, precision = family.unpack(jnp.ones(family.size))
        bad = family.pack(linear, -precision)
        assert not np.any(np.isfinite(family.moments(bad).mean))


def test_the_prior_is_read_off_its_log_density():
    mean = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
    moments = Moments(jnp.asarray(mean), gaussian((2, 3)).covariance)
    family = Full((2, 3))
    natural = np.asarray(family.natural(moments))
    precision = np.linalg.inv(moments.covariance)

    def logprior(w):
        gap = w - jnp.asarray(mean, w.dtype)
        matrix = jnp.asarray(precision, w.dtype)
        return 3.0 - 0.5 * jnp.einsum("ji,jik,jk", gap, matrix, gap)

    assert np.allclose(family.prior(logprior), natural, rtol=1e-4, atol=1e-5)
    # The prior is also read inside `jit`, where a run builds its kernel.
    found = jax.jit(lambda: jnp.asarray(family.prior(logprior)))()
    assert np.allclose(found, natural, rtol=1e-4, atol=1e-5)


OTHER_PRIORS = [
    (Full((2,)), lambda w: -jnp.sum(jnp.abs(w) ** 3)),
    (Full((2,)), lambda w: -jnp.sum(jnp.logaddexp(w, -w))),
    (Full((2,)), lambda w: jnp.sum(w**2)),
    (Full((2,)), lambda w: -0.5 * w[0] ** 2),
    # Correlations that the family does not have.
    (Diagonal((2,)), lambda w: -jnp.sum(w**2) - w[0] * w[1]),
    (Full((2, 2)), lambda w: -jnp.sum(w**2) - w[0, 0] * w[1, 0]),
]


@pytest.mark.parametrize(
    ("family", "logprior"), tiered(OTHER_PRIORS, OTHER_PRIORS[1::3])
)
def test_other_priors_are_refused(family, logprior):
    with pytest.raises(ValueError, match="proper Gaussian density"):
        family.prior(logprior)


@pytest.mark.parametrize("shape", [(), 3, (0,), (2.0,), [2]])
def test_shapes_are_checked(shape):
    with pytest.raises(ValueError, match="positive integers"):
        Full(shape)


@pytest.mark.parametrize(("family", "moments"), CASES)
def test_draws_have_the_moments(family, moments):
    num_samples = 20_000
    draws = family.sample(jax.random.key(0), family.natural(moments), num_samples)
    assert draws.shape == (num_samples, *family.shape)
    flat = np.asarray(draws, np.float64).reshape(num_samples, -1)
    if isinstance(family, Full):
        covariance = np.zeros((flat.shape[1],) * 2)
        d = family.shape[-1]
        for j, block in enumerate(np.reshape(moments.covariance, (-1, d, d))):
            covariance[j * d : (j + 1) * d, j * d : (j + 1) * d] = block
    else:
        covariance = np.diag(np.ravel(moments.covariance))
    # Means and covariances of whitened draws are within 6 sd, 1e-8 for every entry.
    root = np.linalg.cholesky(covariance)
    white = np.linalg.solve(root, (flat - np.ravel(moments.mean)).T)
    assert np.all(np.abs(white.mean(axis=1)) < 6 / num_samples**0.5)
    gap = white @ white.T / num_samples - np.eye(len(root))
    assert np.all(np.abs(gap) < 6 * (2 / num_samples) ** 0.5)
