"""Expected information: simulated against closed forms, and no data read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import fisher
from dpjax.models import banana, correlated_gaussian, logistic_regression
from dpjax.models.banana import FisherInformation as BananaInformation
from dpjax.models.gaussian import CORRELATED
from dpjax.models.gaussian import FisherInformation as GaussianInformation
from dpjax.posterior import Posterior
from dpjax.random import chacha

SIMULATED = 40_000
TOLERANCE = 7.5 * 2**0.5 / SIMULATED**0.5
"""An entry of the whitened information averages products of two normal scores, of
standard deviation at most sqrt(2): 7.5 of them, a chance below 1e-11 at any seed."""


def assert_equal_in_metric(found, expected):
    root = np.linalg.cholesky(np.linalg.inv(np.asarray(expected, np.float64)))
    whitened = root.T @ np.asarray(found, np.float64) @ root
    np.testing.assert_allclose(whitened, np.eye(len(whitened)), atol=TOLERANCE)


def test_simulated_banana():
    posterior = banana(jnp.zeros((50, 3)), curvature=3.0, tempering=0.5)

    def simulate(rng_key, position):
        mean = position.at[1].add(3.0 * position[0] ** 2)
        sd = jnp.array([20**0.5, 2.5**0.5, 1.0])
        return mean + sd * jax.random.normal(rng_key, (3,))

    found = fisher.fisher_information(
        posterior, simulate, prior_precision=0.001, num_simulated=SIMULATED
    )
    exact = BananaInformation(50, curvature=3.0, tempering=0.5)
    for position in jnp.array([[0.0, 3.0, 0.0], [0.7, -1.0, 2.0]]):
        expected = exact(position)
        np.testing.assert_allclose(expected, np.asarray(expected).T, rtol=1e-6)
        assert_equal_in_metric(found(position), expected)


def test_the_bananas_prior_enters_as_its_curvature():
    fisher_information = BananaInformation(0, curvature=3.0, prior_precision=0.1)
    posterior = banana(jnp.zeros((1, 3)), curvature=3.0, prior_precision=0.1)
    # On the ridge the second derivative of u has no weight.
    position = jnp.array([0.4, -3.0 * 0.4**2, 1.0])
    expected = -jax.hessian(posterior.logprior_fn)(position)
    np.testing.assert_allclose(
        fisher_information(position), expected, rtol=1e-5, atol=1e-7
    )


def test_simulated_gaussian():
    posterior = correlated_gaussian(jnp.zeros((50, 2)))
    factor = jnp.asarray(np.linalg.cholesky(CORRELATED))

    def simulate(rng_key, position):
        return position + factor @ jax.random.normal(rng_key, (2,))

    found = fisher.fisher_information(posterior, simulate, num_simulated=SIMULATED)
    position = jnp.array([1.0, 2.0])
    assert_equal_in_metric(found(position), GaussianInformation(50)(position))


def test_logistic_regression_on_a_public_design():
    posterior = logistic_regression(jnp.zeros((30, 2)), jnp.zeros(30))
    position = jnp.array([0.5, -1.0])

    def simulate(rng_key, position):
        design_key, label_key = jax.random.split(rng_key)
        features = jax.random.rademacher(design_key, (2,), float)
        chance = jax.nn.sigmoid(jnp.dot(position, features))
        return features, (jax.random.uniform(label_key) < chance).astype(float)

    found = fisher.fisher_information(
        posterior, simulate, prior_precision=1.0, num_simulated=SIMULATED
    )
    corners = np.array([[a, b] for a in (-1, 1) for b in (-1, 1)])
    chance = 1 / (1 + np.exp(-corners @ np.asarray(position)))
    weight = 30 / 4 * chance * (1 - chance)
    expected = np.eye(2) + (corners.T * weight) @ corners
    assert_equal_in_metric(found(position), expected)


def test_other_data_give_the_same_metric():
    def simulate(rng_key, position):
        return position + jax.random.normal(rng_key, (2,))

    metrics = [
        fisher.fisher_information(correlated_gaussian(data), simulate, num_simulated=10)
        for data in (jnp.zeros((5, 2)), jnp.full((5, 2), 1e3))
    ]
    position = jnp.array([1.0, 2.0])
    np.testing.assert_array_equal(*(metric(position) for metric in metrics))


@pytest.mark.parametrize(
    "wrong", [dict(num_simulated=0), dict(num_simulated=2.0), dict(prior_precision=-1)]
)
def test_refuses_bad_arguments(wrong):
    posterior = correlated_gaussian(jnp.zeros((5, 2)))
    with pytest.raises(ValueError, match=next(iter(wrong))):
        fisher.fisher_information(posterior, lambda key, position: position, **wrong)


def propose(fisher_information, position, step_size, count=400):
    proposal = fisher.geodesic(fisher_information)
    words = chacha.tape(bytes(range(32)), 0, (count, position.size + 1))
    step = jax.jit(jax.vmap(lambda w: proposal.propose(w, position, (), step_size)))
    return step(jnp.asarray(words))


def scale_information():
    """Of 20 normal records whose mean and log scale are unknown."""
    posterior = Posterior(
        lambda theta: 0.0 * theta[0],
        lambda theta, record: (
            -0.5 * ((record - theta[0]) * jnp.exp(-theta[1])) ** 2 - theta[1]
        ),
        jnp.zeros(20),
    )
    return fisher.fisher_information(
        posterior,
        lambda key, theta: theta[0] + jnp.exp(theta[1]) * jax.random.normal(key),
        num_simulated=20,
    )


def test_simulated_records_move_with_the_position():
    """Geodesic steps keep volumes only with the true slope of the metric."""
    with jax.enable_x64(True):
        metric, position, step = scale_information(), jnp.array([0.3, -0.2]), 1e-6
        slope = jax.jacfwd(metric)(position)
        for k, unit in enumerate(step * jnp.eye(2)):
            change = metric(position + unit) - metric(position - unit)
            expected = change / (2 * step)
            np.testing.assert_allclose(slope[..., k], expected, atol=1e-6)


@pytest.mark.thorough
def test_simulated_geodesics_in_32_bits():
    with jax.enable_x64(False):
        move = propose(scale_information(), jnp.zeros(2), 0.5, count=20)
    assert np.mean(np.isfinite(move.log_ratio)) > 0.8


def test_the_bananas_geodesics_are_straight_where_it_is():
    fisher_information = BananaInformation(100_000, curvature=350.0)
    start = jnp.array([0.05, 3.0 - 350 * 0.05**2, 1.0])
    move = propose(fisher_information, start, 2.0)
    assert np.all(np.isfinite(move.log_ratio))
    np.testing.assert_allclose(move.log_ratio, 0.0, atol=1e-4)
    position = np.asarray(move.position, np.float64)
    straight = position.copy()
    straight[:, 1] += 350 * position[:, 0] ** 2
    sd = (100_000 * np.array([0.05, 0.4, 1]) + 0.001) ** -0.5
    jump = (straight - [0.05, 3.0, 1.0]) / sd
    np.testing.assert_allclose(np.linalg.norm(jump, axis=1), move.distance, rtol=2e-3)
    log_length = np.log(np.asarray(move.distance) / 2.0) / fisher.LOG_LENGTH_SD
    assert stats.kstest(log_length, "norm").pvalue > 1e-7
    share = jump[:, 0] ** 2 / np.asarray(move.distance) ** 2
    assert stats.kstest(share, stats.beta(0.5, 1).cdf).pvalue > 1e-7


def test_an_integrator_that_does_not_find_back_is_given_up():
    def steep(position):
        return jnp.exp(8 * jnp.sin(5 * position[0])) * jnp.eye(2)

    start = jnp.array([0.3, 1.0])
    move = propose(steep, start, 50.0)
    lost = np.isneginf(move.log_ratio)
    assert lost.any()
    np.testing.assert_array_equal(np.asarray(move.position)[lost], [start] * lost.sum())
    assert not np.isnan(move.log_ratio).any()
