"""Regression data that several tests of this folder share."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from dpjax.ep import sites
from dpjax.models.logistic import logistic_regression
from dpjax.models.probit import probit_regression
from dpjax.posterior import Posterior

COEFFICIENTS = np.array([1.0, -0.8])
NOISE_SD = 0.7
PRIOR_MEAN, PRIOR_PRECISION = np.array([0.5, 0.0]), np.array([[2.0, 0.3], [0.3, 1.0]])


def gaussian_logprior(position):
    centred = position - jnp.asarray(PRIOR_MEAN, position.dtype)
    precision = jnp.asarray(PRIOR_PRECISION, position.dtype)
    return -0.5 * jnp.dot(centred, jnp.matmul(precision, centred, precision="highest"))


def flat(position, record):
    """A stand-in: expectation propagation uses the match and no log-likelihood."""
    return 0.0 * jnp.sum(position)


def features_and_noise(num_records=300):
    rng = np.random.default_rng(3)
    features = rng.normal(loc=[0.0, 0.5], size=(num_records, 2))
    return features, rng.normal(size=num_records), rng.uniform(size=num_records)


@pytest.fixture(scope="session")
def linear_regression():
    """A conjugate posterior, the match of its likelihood, mean and covariance."""
    features, noise, _ = features_and_noise()
    targets = features @ COEFFICIENTS + NOISE_SD * noise
    precision = PRIOR_PRECISION + features.T @ features / NOISE_SD**2
    linear = PRIOR_PRECISION @ PRIOR_MEAN + features.T @ targets / NOISE_SD**2
    data = jnp.asarray(features), jnp.asarray(targets)
    posterior = Posterior(gaussian_logprior, flat, data)
    moments = np.linalg.solve(precision, linear), np.linalg.inv(precision)
    return posterior, sites.linear(NOISE_SD), *moments


@pytest.fixture(scope="session")
def classification():
    """Posteriors of probit and of logistic regression."""
    features, _, uniforms = features_and_noise()
    predictor = features @ COEFFICIENTS
    probit = (uniforms < norm.cdf(predictor)).astype(float)
    logistic = (uniforms < 1 / (1 + np.exp(-predictor))).astype(float)
    features = jnp.asarray(features)
    return {
        "probit": probit_regression(features, jnp.asarray(probit)),
        "logistic": logistic_regression(features, jnp.asarray(logistic)),
    }
