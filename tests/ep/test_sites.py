"""Sites: moments of tilted densities against quadrature, and the closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from dpjax.ep import sites
from dpjax.ep.gaussians import Diagonal, Full, Moments

LIKELIHOODS = {
    "probit": (sites.probit, lambda y, u: stats.norm.cdf((2 * y - 1) * u)),
    "logistic": (sites.logistic, lambda y, u: 1 / (1 + np.exp(-(2 * y - 1) * u))),
    "linear": (sites.linear(0.6), lambda y, u: stats.norm.pdf(y, u, 0.6)),
}
MEAN = np.array([0.4, -1.0, 0.3])
COVARIANCE = np.array([[1.0, 0.3, 0.1], [0.3, 0.8, -0.2], [0.1, -0.2, 0.5]])
FEATURES = np.array([1.2, -0.5, 0.8])


def tilted(likelihood, label, centre, variance):
    """Mean and variance of the linear predictor, by quadrature."""
    sd = variance**0.5

    def moment(power):
        return integrate.quad(
            lambda u: u**power * likelihood(label, u) * stats.norm.pdf(u, centre, sd),
            centre - 12 * sd,
            centre + 12 * sd,
        )[0]

    mean = moment(1) / moment(0)
    return mean, moment(2) / moment(0) - mean**2


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_predictors_get_the_tilted_moments(name, label):
    site_fn, likelihood = LIKELIHOODS[name]
    family = Full((3,))
    moments = Moments(jnp.asarray(MEAN), jnp.asarray(COVARIANCE))
    record = jnp.asarray(FEATURES), jnp.asarray(label)
    linear, precision = site_fn(record, *moments)
    assert np.linalg.matrix_rank(precision, tol=1e-5) == 1
    found = family.moments(family.natural(moments) + family.pack(linear, precision))
    centre, variance = FEATURES @ MEAN, FEATURES @ COVARIANCE @ FEATURES
    mean, spread = tilted(likelihood, label, centre, variance)
    assert np.isclose(FEATURES @ found.mean, mean, rtol=2e-5, atol=2e-5)
    assert np.isclose(FEATURES @ found.covariance @ FEATURES, spread, rtol=2e-4)
    # Given the predictor, the law of the other directions does not change.
    gain = COVARIANCE @ FEATURES / variance
    expected = MEAN + gain * (mean - centre)
    assert np.allclose(found.mean, expected, atol=1e-4)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_independent_components_get_their_own_moments(name):
    site_fn, likelihood = LIKELIHOODS[name]
    family = Diagonal((3,))
    variances = np.diag(COVARIANCE)
    moments = Moments(jnp.asarray(MEAN), jnp.asarray(variances))
    site = site_fn((jnp.asarray(FEATURES), jnp.asarray(1.0)), *moments)
    found = family.moments(family.natural(moments) + family.pack(*site))
    centre, variance = FEATURES @ MEAN, FEATURES**2 @ variances
    mean, spread = tilted(likelihood, 1.0, centre, variance)
    gain = variances * FEATURES / variance
    assert np.allclose(found.mean, MEAN + gain * (mean - centre), atol=1e-4)
    expected = variances - gain**2 * (variance - spread)
    assert np.allclose(found.covariance, expected, rtol=1e-3)


def test_the_site_of_a_gaussian_is_its_likelihood():
    record = jnp.asarray(FEATURES), jnp.asarray(2.0)
    for mean, scale in ((MEAN, 1.0), (5 * MEAN, 0.01)):
        site = sites.linear(0.6)(
            record, jnp.asarray(mean), jnp.asarray(scale * COVARIANCE)
        )
        assert np.allclose(site[0], 2 * FEATURES / 0.36, rtol=1e-4)
        assert np.allclose(site[1], np.outer(FEATURES, FEATURES) / 0.36, rtol=1e-4)


def test_extreme_labels_stay_finite():
    record = jnp.asarray(FEATURES), jnp.asarray(1.0)
    for site_fn in (sites.probit, sites.logistic):
        for scale in (-30.0, 30.0):
            mean = jnp.asarray(scale * FEATURES)
            site = site_fn(record, mean, jnp.asarray(COVARIANCE))
            assert all(np.all(np.isfinite(part)) for part in site)
        blank = jnp.zeros(3), jnp.asarray(1.0)
        site = site_fn(blank, jnp.asarray(MEAN), jnp.asarray(COVARIANCE))
        assert all(np.array_equal(part, 0 * part) for part in site)


@pytest.mark.thorough
def test_mixtures_get_the_published_moments():
    rng = np.random.default_rng(0)
    shape, sd = (3, 2), 0.5
    root = rng.normal(size=(*shape, 2))
    mean = rng.normal(size=shape)
    covariance = root @ np.swapaxes(root, 1, 2) + 0.3 * np.eye(2)
    record = np.array([0.5, -0.2])
    family = Full(shape)
    moments = Moments(jnp.asarray(mean), jnp.asarray(covariance))
    site = sites.mixture(3, sd)(jnp.asarray(record), *moments)
    found = family.moments(family.natural(moments) + family.pack(*site))
    total = covariance + sd**2 * np.eye(2)
    share = np.array(
        [
            stats.multivariate_normal.pdf(record, m, v)
            for m, v in zip(mean, total, strict=True)
        ]
    )
    share /= share.sum()
    for j in range(3):
        gain = covariance[j] @ np.linalg.inv(total[j])
        moved = gain @ (record - mean[j])
        expected = covariance[j] - share[j] * gain @ covariance[j]
        expected += share[j] * (1 - share[j]) * np.outer(moved, moved)
        assert np.allclose(found.mean[j], mean[j] + share[j] * moved, atol=2e-5)
        assert np.allclose(found.covariance[j], expected, atol=2e-4)


def test_the_general_match_agrees_with_the_closed_forms():
    def log_evidence(record, mean, covariance):
        x, y = record
        spread = covariance * x if covariance.ndim == 1 else covariance @ x
        scale = jnp.sqrt(1 + x @ spread)
        return jax.scipy.stats.norm.logcdf((2 * y - 1) * (x @ mean) / scale)

    general = sites.from_log_evidence(log_evidence)
    record = jnp.asarray(FEATURES), jnp.asarray(0.0)
    for covariance in (COVARIANCE, np.diag(COVARIANCE)):
        arguments = record, jnp.asarray(MEAN), jnp.asarray(covariance)
        expected = sites.probit(*arguments)
        for part, other in zip(general(*arguments), expected, strict=True):
            assert np.allclose(part, other, atol=2e-5)


def test_impossible_moments_give_a_site_of_nothing():
    # log Z is so steep in the variance that the first tilted variance is negative.
    general = sites.from_log_evidence(lambda record, m, v: -v[0] + m[1])
    linear, precision = general(0.0, jnp.ones(2), jnp.array([2.0, 0.5]))
    assert linear[0] == 0 and precision[0] == 0
    assert linear[1] != 0


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf])
def test_scales_are_checked(value):
    with pytest.raises(ValueError, match="noise_sd"):
        sites.linear(value)
    with pytest.raises(ValueError, match="component_sd"):
        sites.mixture(2, value)
