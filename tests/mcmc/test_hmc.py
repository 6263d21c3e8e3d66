"""DP HMC: the posterior stays whatever the noise, and the events are what is done."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import stats

import dpjax
from dpjax import acceptance, noise, privacy, proposals, queries
from dpjax.mcmc import hmc
from dpjax.models import thesis_model
from dpjax.posterior import Posterior

FALSE_ALARM = 1e-8
"""Of one test of exactness; the few dozen p-values of this file stay below 1e-6."""
# No record of these posteriors has a larger ratio: none is clipped.
OFF = dict(
    num_integration_steps=3,
    l2_clip_norm=np.inf,
    gradient_noise_multiplier=0.0,
    clip_bound=np.inf,
)
NOISY = dict(
    num_integration_steps=3,
    l2_clip_norm=3.0,
    gradient_noise_multiplier=2.0,
    clip_bound=30.0,
)
CORRELATED = np.array([[1.0, 0.8], [0.8, 1.0]]) / 100
CASES = {
    "off": ("gaussian", 0.06, OFF),
    "off, dense metric": ("gaussian", 0.6, OFF | dict(inverse_mass_matrix=CORRELATED)),
    "off, metropolis": (
        "gaussian",
        0.07,
        OFF | dict(noise_multiplier=0.0, jitter=0.5),
    ),
    "off, diagonal metric": (
        "gaussian",
        0.5,
        OFF | dict(inverse_mass_matrix=np.array([0.004, 0.009])),
    ),
    "off, banana": ("banana", 0.04, OFF),
    "noisy, banana": ("banana", 0.03, NOISY),
    "noisy": ("gaussian", 0.06, NOISY),
    "noisy, dense metric": (
        "gaussian",
        0.5,
        NOISY
        | dict(
            inverse_mass_matrix=CORRELATED,
            l2_clip_norm=0.15,
            sampling_prob=0.3,
            jitter=0.3,
        ),
    ),
    "noisy, penalty": (
        "gaussian",
        0.05,
        NOISY | dict(noise_multiplier=1.2 / 60, sampling_prob=0.5),
    ),
    "noisy, Lipschitz penalty": (
        "gaussian",
        0.05,
        NOISY | dict(noise_multiplier=0.05, clip_bound=dpjax.Lipschitz(60.0)),
    ),
}


def advance(target, step_size, settings, num_steps=12):
    @jax.jit
    def run(posterior, draws):
        algorithm = dpjax.hmc(posterior, step_size, **settings)
        states, info = jax.lax.scan(
            lambda states, keys: jax.vmap(algorithm.step)(keys, states),
            jax.vmap(algorithm.init)(draws),
            jax.random.split(jax.random.key(11), (num_steps, len(draws))),
        )
        return states.position, info.acceptance_rate.mean()

    positions, rate = run(target.posterior, target.draws)
    return np.asarray(positions, np.float64), float(rate)


def smallest_pvalue(target, positions):
    return min(stats.kstest(u, "uniform").pvalue for u in target.uniforms(positions))


@pytest.mark.parametrize("case", CASES)
def test_keeps_the_posterior(make_target, case):
    model, step_size, settings = CASES[case]
    target = make_target(model)
    positions, rate = advance(target, step_size, settings)
    start = np.asarray(target.draws, np.float64)
    moved = np.any(positions != start, axis=1)
    assert np.mean(moved) > 0.8 and 0.1 < rate < 0.95
    assert smallest_pvalue(target, positions) > FALSE_ALARM
