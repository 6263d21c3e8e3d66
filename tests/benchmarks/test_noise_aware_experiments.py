"""The regression's density, and calibration curves of known errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from benchmarks.noise_aware import adult, linear_regression

pytestmark = pytest.mark.thorough


def test_density_is_that_of_the_simulation():
    rng = np.random.default_rng(0)
    found, expected = [], []
    for row in rng.normal(size=(4, 12)):
        weights, variance = 0.3 * row[1:], np.log1p(np.exp(row[0] - 3))
        position = {
            "weights": jnp.asarray(weights),
            "variance": jnp.asarray(row[0] - 3),
        }
        x, y = rng.normal(size=11), rng.normal()
        record = jnp.asarray(x), jnp.asarray(y)
        found.append(
            linear_regression.logprior(position)
            + linear_regression.loglikelihood(position, record)
        )
        value = stats.invgamma.logpdf(variance, 20, scale=0.5)
        # d softplus(z) / d z = 1 - e^-softplus(z).
        value += np.log(-np.expm1(-variance))
        value += np.sum(stats.norm.logpdf(weights, 0, 2 * variance**0.5))
        value += stats.norm.logpdf(y, x @ weights, variance**0.5)
        expected.append(value)
    difference = np.subtract(found, expected)
    np.testing.assert_allclose(difference, difference[0], rtol=1e-4)


def test_truths_are_those_of_the_data():
    truth, x, y = linear_regression.simulate(np.random.default_rng(1), 3, 20_000)
    assert x.shape == (3, 20_000, 11) and np.all(x[..., -1] == 1)
    residual = y - np.einsum("dnj,dj->dn", x, truth[:, 1:])
    variance = np.log1p(np.exp(truth[:, 0]))
    # Six standard errors of a variance, 2e-9.
    assert np.all(abs(residual.var(axis=1) / variance - 1) < 6 * (2 / 20_000) ** 0.5)


def test_calibration_is_the_distance_of_the_curve():
    rng = np.random.default_rng(2)
    chance = rng.random(400_000)
    labels = rng.random(chance.size) < chance
    # A tenth of the records has a rate with an error of .002 at most.
    assert adult.calibration(chance, labels)[0] < 6 * 0.003
    shifted = adult.calibration(0.8 * chance + 0.1, labels)[0]
    expected = np.sqrt(np.mean((0.1 - 0.2 * adult.RATES) ** 2))
    assert abs(shifted - expected) < 6 * 0.003
    theta = rng.normal(size=(250, 2))
    features = np.array([[1.0, 2.0], [0.0, -1.0]])
    expected = np.mean(1 / (1 + np.exp(-features @ theta.T)), axis=1)
    np.testing.assert_allclose(adult.predict(features, theta), expected, rtol=1e-5)
