"""Probabilistic backpropagation: moments by simulation, and a network that learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.comparisons.sep import sep
from dpjax.ep import pbp
from dpjax.ep.gaussians import Diagonal, Moments
from dpjax.models import network

FEATURES = jnp.array([0.7, -1.2, 0.4])
SIZE = network.num_parameters(3, 8)


def moments(scale):
    rng = np.random.default_rng(0)
    mean = jnp.asarray(rng.normal(size=SIZE))
    return Moments(mean, jnp.asarray(scale * rng.uniform(0.5, 1.5, size=SIZE)))


def test_positions_come_apart_and_predict():
    position = jnp.arange(float(SIZE))
    hidden, output, noise = network.layers(position, 3)
    assert hidden.shape == (8, 4) and output.shape == (9,) and noise == SIZE - 1
    active = np.maximum(hidden @ np.append(FEATURES, 1.0) / 2.0, 0)
    expected = np.append(active, 1.0) @ output / 3.0
    assert np.isclose(network.predict(position, FEATURES), expected, rtol=1e-5)


@pytest.mark.thorough
def test_moments_of_the_output_are_those_of_draws():
    mean, variance = moments(0.2)
    draws = Diagonal((SIZE,)).sample(
        jax.random.key(1), Diagonal((SIZE,)).natural(Moments(mean, variance)), 100_000
    )
    outputs = np.asarray(jax.vmap(network.predict, (0, None))(draws, FEATURES))
    centre, spread = pbp.predictive(mean, variance, FEATURES)
    # Six standard errors; the moments are exact for one hidden layer.
    assert abs(centre - outputs.mean()) < 6 * outputs.std() / 1e5**0.5
    assert np.isclose(spread, outputs.var(), rtol=0.04)


def test_certain_weights_give_a_certain_output():
    mean, _ = moments(1.0)
    centre, spread = pbp.predictive(mean, jnp.zeros(SIZE), FEATURES)
    assert np.isclose(centre, network.predict(mean, FEATURES), rtol=1e-3)
    assert np.isclose(spread, 0, atol=1e-5)


@pytest.mark.thorough
def test_sites_are_finite_and_reject_what_is_impossible():
    family = Diagonal((SIZE,))
    for scale, target in ((1e-4, 0.5), (1.0, 0.5), (1.0, 50.0)):
        q = moments(scale)
        record = FEATURES, jnp.asarray(target)
        linear, precision = pbp.network(record, *q)
        assert np.all(np.isfinite(linear)) and np.all(np.isfinite(precision))
        total = family.natural(q) + family.pack(linear, precision)
        assert np.all(family.unpack(total)[1] > 0)


def regression():
    rng = np.random.default_rng(2)
    features = rng.uniform(-2, 2, size=(400, 1))
    targets = np.sin(2 * features[:, 0]) + 0.1 * rng.normal(size=400)
    return network.bayesian_network(
        *(jnp.asarray(x, np.float32) for x in (features, targets))
    )


@pytest.mark.thorough
def test_networks_learn_a_curve_and_their_noise():
    posterior = regression()
    start = network.start(jax.random.key(0), 1, 20)
    points = jnp.linspace(-2, 2, 41)[:, None]
    key = jax.random.key(1)
    for fit in (
        pbp.pbp(key, posterior, initial_position=start, num_epochs=20),
        sep(key, posterior, pbp.network, family=Diagonal(start.shape),
            initial_position=start, num_epochs=40, batch_size=4, init_scale=0.1),
    ):  # fmt: skip
        centre, _ = jax.vmap(pbp.predictive, (None, None, 0))(*fit, points)
        error = np.sqrt(np.mean((centre - np.sin(2 * points[:, 0])) ** 2))
        assert error < 0.15
        assert np.exp(fit.mean[-1]) < 0.25


def test_bad_arguments_are_refused():
    posterior = regression()
    with pytest.raises(ValueError, match="num_epochs"):
        pbp.pbp(jax.random.key(0), posterior, initial_position=jnp.zeros(5),
                num_epochs=0)  # fmt: skip
    with pytest.raises(ValueError, match="shape"):
        network.bayesian_network(jnp.zeros((3, 2)), jnp.zeros(4))
