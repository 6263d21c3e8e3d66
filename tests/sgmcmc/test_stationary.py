"""Variances of the chains on Gaussian targets: sgld_sep.md A1 and A5.

The components of a position are independent chains of one dimension, of curvature N.
Bounds are 5 standard errors of N times the variance, from the chain's correlation, and
so false alarms have a chance below 1e-6 a test.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import Posterior
from dpjax.sgmcmc.temperature import excess_temperature

pytestmark = pytest.mark.thorough

PUBLISHED = functools.partial(dpjax.sgld, temperature=0.5)
DIM, CHAINS = 50, 40
CLIP = 25.0
"""Far above the norms of the gradients, which are about 10."""


def target(num_records):
    data = np.random.default_rng(0).normal(size=(num_records, DIM))
    data = (data - data.mean(0)) / data.std(0)

    def loglikelihood(position, record):
        return -0.5 * jnp.sum((record - position) ** 2)

    data = jnp.asarray(data, jnp.result_type(float))
    return Posterior(lambda position: 0.0 * position[0], loglikelihood, data)


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def sample(algorithm_fn, posterior, warmup, num_steps):
    algorithm = algorithm_fn(posterior)
    state = jax.vmap(algorithm.init)(jnp.zeros((CHAINS, DIM)))

    def step(state, key):
        keys = jax.random.split(key, CHAINS)
        state, info = jax.vmap(algorithm.step)(keys, state)
        return state, (state.position, info)

    first, second = jax.random.split(jax.random.key(3))
    state, _ = jax.lax.scan(step, state, jax.random.split(first, warmup))
    state, history = jax.lax.scan(step, state, jax.random.split(second, num_steps))
    return state, history


def check(variance, expected, correlation, num_steps):
    """Whether N times a variance is what it should be."""
    steps = num_steps * (1 - correlation**2) / (1 + correlation**2)
    error = math.sqrt(2 / (DIM * CHAINS * steps))
    assert variance == pytest.approx(expected, rel=5 * error)
    assert 5 * error < 0.05


@pytest.mark.parametrize("step_size", [0.1, 0.5])
@pytest.mark.parametrize(("algorithm", "heat"), [(dpjax.sgld, 2), (PUBLISHED, 1)])
def test_sgld_has_its_temperature(algorithm, heat, step_size):
    """A1: c / (2 - eta), c = 2 correct and c = 1 as published."""
    algorithm_fn = functools.partial(
        algorithm, step_size=step_size, dim=DIM, l2_clip_norm=CLIP, sampling_prob=1.0
    )
    _, (draws, _) = sample(algorithm_fn, target(64), 100, 400)
    expected = heat / (2 - step_size)
    check(64 * jnp.mean(draws**2), expected, 1 - step_size, 400)


def test_samples_heat_sgld_as_they_should():
    """A1: (c + eta N s^2 (1 - q) / tau) / (2 - eta), with s = 1.

    The specification leaves out (1 - q), from the variance of a Poisson sample.
    """
    algorithm_fn = functools.partial(
        dpjax.sgld, step_size=0.1, dim=DIM, l2_clip_norm=CLIP, sampling_prob=1 / 32
    )
    _, (draws, infos) = sample(algorithm_fn, target(1024), 100, 250)
    heat = 0.1 * 1024 * (1 - 1 / 32) / 32
    check(1024 * jnp.mean(draws**2), (2 + heat) / 1.9, 0.9, 250)
    found, error = excess_temperature(
        jnp.moveaxis(infos.gradient, 0, 1), infos.noise_sd.T
    )
    # A step moves the next gradient by -eta times this one.
    eta = 0.1
    moved = 1 + eta + eta**2 / 2 + eta**3 / (4 - 2 * eta)
    assert found == pytest.approx((1 + heat / 2) * moved - 1, abs=10 * error)


def test_exact_gradients_do_not_heat():
    algorithm_fn = functools.partial(
        dpjax.sgld, step_size=0.01, dim=DIM, l2_clip_norm=CLIP, sampling_prob=1.0
    )
    _, (_, infos) = sample(algorithm_fn, target(64), 0, 100)
    found, error = excess_temperature(
        jnp.moveaxis(infos.gradient, 0, 1), infos.noise_sd.T
    )
    assert abs(found) < 5 * error < 0.03


STEP = 0.05
OWN = math.sqrt(2 * 0.05 * 64 / STEP) / CLIP
"""Noise multiplier of a friction of .05."""


@pytest.mark.parametrize(
    ("friction", "noise_multiplier"),
    [(0.05, 0.0), (0.9, 0.0), (0.05, 3 * OWN)],
)
def test_sghmc_has_its_temperature(friction, noise_multiplier):
    """A5, the last with friction raised to .45, where noise alone would give 9.

    Variance of the linear chain v' = (1 - a) v - eta x + z, x' = x + v'.
    """
    algorithm_fn = functools.partial(
        dpjax.sghmc,
        step_size=STEP,
        dim=DIM,
        friction=friction,
        noise_multiplier=noise_multiplier,
        l2_clip_norm=CLIP,
        sampling_prob=1.0,
    )
    _, (draws, _) = sample(algorithm_fn, target(64), 300, 600)
    friction = 0.45 if noise_multiplier else friction
    transition = np.array([[1 - friction, -STEP], [1 - friction, 1 - STEP]])
    kick = np.full((2, 2), 2 * friction * STEP)
    stationary = np.linalg.solve(
        np.eye(4) - np.kron(transition, transition), kick.ravel()
    ).reshape(2, 2)
    slowest = max(abs(np.linalg.eigvals(transition)))
    check(64 * jnp.mean(draws**2), stationary[1, 1], slowest, 600)


@pytest.mark.parametrize(
    ("friction", "noise_multiplier", "learnt"),
    [(0.05, 0.0, 0.05), (0.9, 0.0, 0.9), (0.05, 3 * OWN, 0.45)],
)
def test_sgnht_has_its_temperature(friction, noise_multiplier, learnt):
    """A5: 1.00, 1.00 and .99 where the textbook's kinetic energy gives .66 and .90."""
    algorithm_fn = functools.partial(
        dpjax.sgnht,
        step_size=STEP,
        dim=DIM,
        friction=friction,
        noise_multiplier=noise_multiplier,
        l2_clip_norm=CLIP,
        sampling_prob=1.0,
    )
    state, (draws, _) = sample(algorithm_fn, target(64), 600, 600)
    check(64 * jnp.mean(draws**2), 1.0, 0.95, 600)
    assert jnp.mean(state.optimizer_state.friction) == pytest.approx(learnt, abs=0.04)


def test_sgnht_absorbs_the_heat_of_samples():
    algorithm_fn = functools.partial(
        dpjax.sgnht,
        step_size=STEP,
        dim=DIM,
        friction=0.05,
        l2_clip_norm=CLIP,
        sampling_prob=0.125,
    )
    state, (draws, _) = sample(algorithm_fn, target(1024), 300, 250)
    check(1024 * jnp.mean(draws**2), 1.0, 0.9, 250)
    # Friction whose noise is that of the friction .05 and of the sample.
    heated = 0.05 + STEP * 0.875 * 1024 / 128 / 2
    assert jnp.mean(state.optimizer_state.friction) == pytest.approx(heated, abs=0.04)
