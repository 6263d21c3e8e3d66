"""Budgets up to epsilon 100 are accounted for, for every kernel."""

import functools
import math

import jax.numpy as jnp
import optax
import pytest

import dpjax
from dpjax import privacy
from dpjax.ep import Full, dp_em, dp_sep, sites
from dpjax.posterior import Posterior
from dpjax.privacy import accountant
from dpjax.privacy.gaussian import conversions
from dpjax.random import batches
from dpjax.vi.guides import MeanField
from tests.tiers import tiered

NUM_RECORDS = 10_000
DELTA = 1e-6
EPSILONS = 4.0, 12.0, 20.0, 50.0, 100.0
POSTERIOR = Posterior(
    lambda position: -jnp.sum(position**2) / 2,
    lambda position, record: jnp.vdot(position, record),
    jnp.zeros((NUM_RECORDS, 2)),
)
MOVES = dict(step_size=0.1, clip_bound=0.05)
SUMS = dict(l2_clip_norm=1.0, sampling_prob=0.05)
CHAINS = dict(step_size=0.05, dim=2, **SUMS)
PATHS = dict(
    **MOVES,
    num_integration_steps=4,
    l2_clip_norm=1.0,
    inverse_mass_matrix=jnp.ones(2),
    noise_multiplier=20.0,
)
KERNELS = {
    "barker": functools.partial(dpjax.barker, **MOVES),
    "lazy barker": functools.partial(dpjax.barker, laziness=0.2, **MOVES),
    "penalty": functools.partial(dpjax.penalty, test_noise_multiplier=10.0, **MOVES),
    "growing penalty": functools.partial(
        dpjax.penalty,
        step_size=0.1,
        clip_bound=dpjax.Lipschitz(0.5),
        test_noise_multiplier=10.0,
    ),
    "hmc": functools.partial(dpjax.hmc, **PATHS),
    "sampled hmc": functools.partial(
        dpjax.hmc, sampling_prob=0.05, test_noise_multiplier=10.0, **PATHS
    ),
    "fast_mh": functools.partial(dpjax.fast_mh, expected_batch_size=600.0, **MOVES),
    "minibatch_barker": functools.partial(
        dpjax.minibatch_barker, step_size=0.1, batch_size=100
    ),
    "minibatch_penalty": functools.partial(
        dpjax.minibatch_penalty,
        step_size=0.1,
        clip_bound=0.002,
        test_noise_multiplier=1.0,
        batch_size=100,
    ),
    "sgld": functools.partial(dpjax.sgld, **CHAINS),
    "sghmc": functools.partial(dpjax.sghmc, friction=0.1, **CHAINS),
    "sgnht": functools.partial(dpjax.sgnht, friction=0.1, **CHAINS),
    "dpvi": functools.partial(
        dpjax.dpvi,
        optimizer=optax.sgd(0.1),
        guide=MeanField(2),
        noise_multiplier=2.0,
        **SUMS,
    ),
    "dp_sep": functools.partial(
        dp_sep,
        match=sites.linear(1.0),
        family=Full((2,)),
        noise_multiplier=2.0,
        **SUMS,
    ),
    "dp_em": functools.partial(
        dp_em,
        family=Full((2, 2)),
        component_sd=1.0,
        record_norm=1.0,
        noise_multiplier=5.0,
    ),
}


@pytest.mark.parametrize(
    "name", tiered(KERNELS, ["fast_mh", "minibatch_barker", "dp_em"])
)
def test_budgets_up_to_epsilon_one_hundred_are_used(name):
    algorithm = KERNELS[name](POSTERIOR)
    counts = [
        privacy.max_steps(algorithm.privacy, epsilon=epsilon, delta=DELTA)
        for epsilon in EPSILONS
    ]
    assert counts[0] > 0
    for epsilon, count, fewer in zip(EPSILONS, counts, [0, *counts], strict=False):
        # Where epsilon is large it grows in proportion to the steps, or faster.
        assert count > 1.5 * fewer
        events = algorithm.privacy(count)
        assert 0 < accountant.numerical_error(events).failure_prob < DELTA / 2
        assert 0.8 * epsilon < privacy.epsilon(events, DELTA) <= epsilon


BITS_AND_COORDINATES = {
    "hmc": (1, 10),
    "sampled hmc": (1, 10),
    "sgld": (0, 2),
    "sghmc": (0, 2),
    "sgnht": (0, 2),
    "dpvi": (0, 2),
    "dp_sep": (0, 5),
    "dp_em": (0, 12),
}
"""What a step releases; one bit where a kernel is not listed."""


@pytest.mark.parametrize("name", tiered(KERNELS, ["barker", "sgld"]))
def test_every_step_is_charged_for_its_rounding(name):
    algorithm = KERNELS[name](POSTERIOR)
    num_bits, num_coordinates = BITS_AND_COORDINATES.get(name, (1, 0))
    for num_steps in (1, 1000):
        found = accountant.numerical_error(algorithm.privacy(num_steps))
        failure = 4e-15 * num_bits + 2.5e-25 * num_coordinates
        if "sampling_prob" in KERNELS[name].keywords:
            failure += batches.FAILURE_PROB * (5 if num_bits else 1)
        assert found.failure_prob == pytest.approx(num_steps * failure, rel=1e-9)
        relative = num_steps * 1.2e-13 * num_coordinates
        assert found.relative_error == pytest.approx(relative, rel=1e-9)


def test_one_release_may_spend_all_of_a_large_budget():
    """The papers' 50 and twice that, in a single release with little noise."""
    for epsilon in (50.0, 100.0):
        multiplier = privacy.calibrate(
            lambda value: dp_em(
                POSTERIOR,
                family=Full((2, 2)),
                component_sd=1.0,
                record_norm=1.0,
                noise_multiplier=value,
            ).privacy(1),
            num_steps=1,
            epsilon=epsilon,
            delta=DELTA,
            bracket=(0.01, 10.0),
        )
        assert 0.05 < multiplier < 1.0


@pytest.mark.parametrize("true", [300.0, 500.0])
def test_an_epsilon_is_found_up_to_the_largest_of_a_budget(true):
    least = conversions.invert_delta(lambda epsilon: float(epsilon < true), 0.5)
    assert true <= least <= true * (1 + 1e-12)


def test_an_epsilon_beyond_that_is_infinite():
    assert conversions.invert_delta(lambda epsilon: 1.0, 0.5) == math.inf
