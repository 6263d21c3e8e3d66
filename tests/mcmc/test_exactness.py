"""Chains started from exact posterior draws stay exact draws; mutants drift."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
from dpjax import acceptance, proposals

# No record of these posteriors changes by more: nothing is clipped.
CLIP = 30.0
NOISY = dict(clip_bound=CLIP, noise_multiplier=1.5 / (2 * CLIP))
CASES = {
    "barker": lambda p, s: dpjax.barker(p, s, clip_bound=np.inf),
    "barker, gaussian": lambda p, s: dpjax.barker(
        p, s, clip_bound=CLIP, proposal=proposals.gaussian
    ),
    "lazy barker": lambda p, s: dpjax.barker(p, s, clip_bound=CLIP, laziness=0.3),
    "metropolis": lambda p, s: dpjax.penalty(
        p, s, clip_bound=np.inf, noise_multiplier=0.0
    ),
    "penalty": lambda p, s: dpjax.penalty(p, s, **NOISY),
    "penalty, one component": lambda p, s: dpjax.penalty(
        p, s, proposal=proposals.one_component, **NOISY
    ),
    "penalty, guided walk": lambda p, s: dpjax.penalty(
        p, s, proposal=proposals.guided_walk, **NOISY
    ),
}
RUNS = [(name, "banana", 1.0) for name in CASES] + [
    ("barker", "gaussian", 1.0),
    ("penalty", "gaussian", 0.3),
    ("barker", "circle", 0.3),
    ("penalty", "circle", 1.0),
]
MANY = 13 * 3
"""Tests of a coordinate in this file at most; each has false-alarm chance 2e-8."""


def advance(target, algorithm_fn, num_steps=25):
    """All chains `num_steps` on, and the share of accepted moves."""
    draws = target.draws

    @jax.jit
    def run(posterior, draws, keys):
        algorithm = algorithm_fn(posterior, target.step_size)

        def chain(position, key):
            state = algorithm.init(position)
            first, key = jax.random.split(key)
            if state.walk != ():
                # Its stationary law is uniform over the directions.
                signs = jax.random.rademacher(first, position.shape, position.dtype)
                state = state._replace(walk=signs)
            state, info = jax.lax.scan(
                lambda state, key: algorithm.step(key, state),
                state,
                jax.random.split(key, num_steps),
            )
            return state.position, info.acceptance_rate.mean()

        return jax.vmap(chain)(draws, keys)

    keys = jax.random.split(jax.random.key(11), len(draws))
    positions, rate = run(target.posterior, draws, keys)
    return np.asarray(positions, np.float64), float(rate.mean())


def smallest_pvalue(target, positions):
    return min(stats.kstest(u, "uniform").pvalue for u in target.uniforms(positions))


@pytest.mark.parametrize(("name", "model", "tempering"), RUNS)
def test_kernels_keep_the_posterior(make_target, name, model, tempering):
    target = make_target(model, tempering=tempering)
    start = np.asarray(target.draws, np.float64)
    positions, rate = advance(target, CASES[name])
    assert 0.05 < rate < 0.9
    moved = np.any(positions != start, axis=1)
    assert np.mean(moved) > 0.8
    assert smallest_pvalue(target, positions) > 2e-8


def corrupt(monkeypatch, change):
    """Let `change` alter the log ratio before the bit is drawn."""
    draw = acceptance.draw

    def wrong(words, family, log_ratio, noise_sd=None):
        with jax.enable_x64(True):
            log_ratio = change(log_ratio, noise_sd)
        return draw(words, family, log_ratio, noise_sd)

    monkeypatch.setattr(acceptance, "draw", wrong)


MUTANTS = {
    "penalty without its correction": ("penalty", lambda l, s: l + s**2 / 2),
    "barker of twice the ratio": ("barker", lambda l, s: 2 * l),
    "barker of a rounded ratio": ("barker", lambda l, s: jnp.round(l / 2) * 2),
    "metropolis of the noiseless sign": ("metropolis", lambda l, s: -jnp.abs(l)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_detected(monkeypatch, make_target, mutant):
    name, change = MUTANTS[mutant]
    corrupt(monkeypatch, change)
    target = make_target("gaussian")
    positions, _ = advance(target, CASES[name])
    assert smallest_pvalue(target, positions) < 2e-8


def test_wrong_tempering_is_detected(make_target):
    target = make_target("gaussian", tempering=0.5)
    whole = make_target("gaussian", tempering=1.0)
    positions, _ = advance(target._replace(posterior=whole.posterior), CASES["barker"])
    assert smallest_pvalue(target, positions) < 2e-8
