"""Attacks on accept bits that `test_audit.py` does not know, and on a run.

The adversary counts them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import privacy, proposals
from dpjax.random import batches
from dpjax.release import clip_bounds
from tests.attacks import (
    DELTA,
    FAR,
    TRIALS,
    Attack,
    bound_of,
    check,
    claimed,
    data_sets,
    flat,
    found,
)

pytestmark = pytest.mark.thorough


def elsewhere(position, record):
    """A log ratio wherever a proposal goes."""
    return jnp.where(position[0] == 0, 0.0, record)


def penalised(position):
    """Makes up for half the noise's variance, its sd being twice the distance."""
    return 2 * jnp.sum(jax.lax.stop_gradient(position) ** 2)


def lift(position):
    """Makes up for half a variance of 36."""
    return jnp.where(position[0] == 0, 0.0, 18.0)


def bits(kernel, told, prior=flat, others=(0.0,), num_steps=4, share=0.3, **settings):
    """Attack on how many steps accept."""
    return Attack(
        functools.partial(kernel, step_size=1.0, **settings),
        *data_sets(*others, loglikelihood=elsewhere, prior=prior),
        lambda state, info: info.is_accepted,
        told,
        num_steps=num_steps,
        thresholds=np.arange(1, num_steps + 1),
        share=share,
    )


def barker_on_batches():
    return bits(
        dpjax.minibatch_barker,
        {},
        others=(0.0,) * 63,
        num_steps=100,
        batch_size=16,
    )


LENGTH = dict(clip_bound=dpjax.Lipschitz(1.0), test_noise_multiplier=1.0)
LENGTH_TOLD = dict(clip_bound=dpjax.Lipschitz(1 / 3), test_noise_multiplier=3.0)
# Gradients too small to matter.
SMALL = dict(num_integration_steps=1, l2_clip_norm=1e-6, noise_multiplier=200.0)

ATTACKS = {
    "bit of hmc": bits(dpjax.hmc, dict(clip_bound=1 / 3), clip_bound=1.0, **SMALL),
    "penalty bit of hmc": bits(dpjax.hmc, LENGTH_TOLD, penalised, **LENGTH, **SMALL),
    "penalty, one component": bits(
        dpjax.penalty,
        LENGTH_TOLD,
        penalised,
        proposal=proposals.one_component,
        **LENGTH,
    ),
    "penalty, guided walk": bits(
        dpjax.penalty,
        LENGTH_TOLD,
        penalised,
        proposal=proposals.guided_walk,
        **LENGTH,
    ),
    "minibatch_penalty": bits(
        dpjax.minibatch_penalty,
        dict(clip_bound=1 / 3, test_noise_multiplier=4.5),
        lift,
        clip_bound=1.0,
        test_noise_multiplier=1.5,
        batch_size=1,
    ),
    "minibatch_barker": barker_on_batches(),
}


def larger_clip_bound(monkeypatch):
    constant = clip_bounds.Constant
    monkeypatch.setattr(clip_bounds, "Constant", lambda bound: constant(3 * bound))


def always_the_same_batch(monkeypatch):
    monkeypatch.setattr(
        batches, "without_replacement", lambda words, size, _: jnp.arange(size)
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_claims_survive(name):
    check(ATTACKS[name])


@pytest.mark.parametrize("mutate", [larger_clip_bound, always_the_same_batch])
def test_claims_of_wrong_batch_kernels_fall(mutate, monkeypatch):
    claim = claimed(barker_on_batches())
    mutate(monkeypatch)
    # A kernel of its own, which is compiled anew.
    attack = barker_on_batches()
    assert found(attack) > 1.2 * claim


def first_component(position, record):
    return position[0] * record[0]


def test_a_lazy_run():
    """Steps that a run draws ahead, and log-likelihoods that it remembers."""
    upwards = proposals.Proposal(
        init=lambda position: (),
        num_words=lambda dimension: 0,
        propose=lambda words, position, walk, step_size: proposals.Move(
            position + 1, 1.0, walk, walk
        ),
        longest=lambda step_size: 1.0,
    )
    kernel = functools.partial(
        dpjax.barker, step_size=1.0, clip_bound=1.0, laziness=0.5, proposal=upwards
    )
    counts, num_steps = [], 8
    for key, first in zip(
        jax.random.split(jax.random.key(7)), (-FAR, FAR), strict=True
    ):
        wide = jnp.zeros((2, 16), jnp.float32).at[0, 0].set(first)
        posterior = dpjax.Posterior(flat, first_component, wide)
        draws = dpjax.run(
            kernel,
            posterior,
            num_steps,
            initial_position=jnp.zeros((TRIALS, 1)),
            num_chains=TRIALS,
            budget=None,
            warmup_fraction=0.0,
            verbose=False,
            unsafe_key=key,
        )
        counts.append(draws.positions[:, -1, 0].astype(int))
    claims = [
        privacy.epsilon(
            functools.partial(kernel, **told)(posterior).privacy(num_steps), DELTA
        )
        for told in ({}, dict(clip_bound=1 / 3))
    ]
    bound = bound_of(counts)
    assert max(0.45 * claims[0], claims[1]) < bound <= claims[0]
