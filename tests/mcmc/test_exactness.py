"""Chains started from exact posterior draws stay exact draws; mutants drift."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
from dpjax import fisher, proposals
from dpjax.models.banana import FisherInformation
from dpjax.release import accept_bit

pytestmark = pytest.mark.thorough

# No log ratio of a record of these posteriors is larger, so none is clipped.
CLIP = 30.0
# The metric of the banana in conftest. It is far from constant over the posterior.
METRIC = FisherInformation(100, curvature=3.0, prior_precision=0.1)


def curved(position):
    """A metric that is not the target's, nor flat, nor of constant volume."""
    slope = jnp.tanh(position[0])
    rows = [[1 + slope**2, slope], [slope, 1 + jnp.sin(position[1]) ** 2]]
    scale = 30 * jnp.exp(3 * jnp.tanh(4 * position[0]))
    return scale * jnp.stack([jnp.stack(row) for row in rows])


DENSE = np.array([[0.02, 0.015], [0.015, 0.02]])
NOISY = dict(clip_bound=CLIP, test_noise_multiplier=1.5 / (2 * CLIP))
CASES = {
    "barker": lambda p, s: dpjax.barker(p, s, clip_bound=np.inf),
    "barker, gaussian": lambda p, s: dpjax.barker(
        p, s, clip_bound=CLIP, proposal=proposals.gaussian
    ),
    "lazy barker": lambda p, s: dpjax.barker(p, s, clip_bound=CLIP, laziness=0.3),
    "metropolis": lambda p, s: dpjax.penalty(
        p, s, clip_bound=np.inf, test_noise_multiplier=0.0
    ),
    "penalty": lambda p, s: dpjax.penalty(p, s, **NOISY),
    "penalty, one component": lambda p, s: dpjax.penalty(
        p, s, proposal=proposals.one_component, **NOISY
    ),
    "penalty, guided walk": lambda p, s: dpjax.penalty(
        p, s, proposal=proposals.guided_walk, **NOISY
    ),
    "barker, geodesic": lambda p, s: dpjax.barker(
        p, 1.0, clip_bound=CLIP, proposal=fisher.geodesic(METRIC)
    ),
    "barker, other geodesic": lambda p, s: dpjax.barker(
        p, 1.0, clip_bound=CLIP, proposal=fisher.geodesic(curved)
    ),
    "barker, dense metric": lambda p, s: dpjax.barker(
        p, 1.0, clip_bound=CLIP, inverse_mass_matrix=DENSE
    ),
    "penalty, guided walk in a metric": lambda p, s: dpjax.penalty(
        p,
        1.0,
        proposal=proposals.guided_walk,
        inverse_mass_matrix=np.diag(DENSE),
        **NOISY,
    ),
}
RUNS = [(name, "banana", 1.0) for name in CASES] + [
    ("barker, dense metric", "gaussian", 1.0),
    ("barker, other geodesic", "gaussian", 1.0),
    ("penalty", "gaussian", 0.3),
    ("barker", "circle", 0.3),
]
FALSE_ALARM = 2e-8
"""Chance that one test fails by chance; this file has at most 40, so 1e-6 in all."""


def advance(target, algorithm_fn, num_steps=25):
    """Positions of all chains after `num_steps`, and the share of accepted moves."""
    draws = target.draws

    @jax.jit
    def run(posterior, draws, key):
        algorithm = algorithm_fn(posterior, target.step_size)
        first, second = jax.random.split(key)
        states = jax.vmap(algorithm.init)(draws)
        if not isinstance(states.walk, tuple):
            # The stationary law is uniform over the directions.
            walk = jax.random.rademacher(first, draws.shape, draws.dtype)
            states = states._replace(walk=walk)
        states, info = jax.lax.scan(
            lambda states, keys: jax.vmap(algorithm.step)(keys, states),
            states,
            jax.random.split(second, (num_steps, len(draws))),
        )
        return states.position, info.acceptance_rate.mean()

    positions, rate = run(target.posterior, draws, jax.random.key(11))
    return np.asarray(positions, np.float64), float(rate)


def smallest_pvalue(target, positions):
    return min(stats.kstest(u, "uniform").pvalue for u in target.uniforms(positions))


@pytest.mark.parametrize(("name", "model", "tempering"), RUNS)
def test_kernels_keep_the_posterior(make_target, name, model, tempering):
    target = make_target(model, tempering=tempering)
    start = np.asarray(target.draws, np.float64)
    positions, rate = advance(target, CASES[name])
    # If the chains did not mix, nothing would be tested.
    moved = np.any(positions != start, axis=1)
    assert np.mean(moved) > 0.3 and 0.02 < rate < 0.9
    assert smallest_pvalue(target, positions) > FALSE_ALARM


def corrupt(monkeypatch, change):
    """Let `change` alter the log ratio before the bit is drawn."""
    draw = accept_bit.draw

    def wrong(words, family, log_ratio, noise_sd=0.0):
        with jax.enable_x64(True):
            log_ratio = change(log_ratio, noise_sd)
        return draw(words, family, log_ratio, noise_sd)

    monkeypatch.setattr(accept_bit, "draw", wrong)


MUTANTS = {
    "penalty without its correction": ("penalty", lambda ratio, sd: ratio + sd**2 / 2),
    "barker of twice the ratio": ("barker", lambda ratio, sd: 2 * ratio),
    "barker of a rounded ratio": (
        "barker",
        lambda ratio, sd: jnp.round(ratio / 2) * 2,
    ),
    "metropolis of minus its size": (
        "metropolis",
        lambda ratio, sd: -jnp.abs(ratio),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_detected(monkeypatch, make_target, mutant):
    name, change = MUTANTS[mutant]
    corrupt(monkeypatch, change)
    target = make_target("gaussian")
    positions, _ = advance(target, CASES[name])
    assert smallest_pvalue(target, positions) < FALSE_ALARM


def test_a_missing_proposal_ratio_is_detected(monkeypatch, make_target):
    geodesic = fisher.geodesic

    def without_ratio(fisher_information):
        proposal = geodesic(fisher_information)
        return proposal._replace(
            propose=lambda *args: proposal.propose(*args)._replace(log_ratio=0.0)
        )

    monkeypatch.setattr(fisher, "geodesic", without_ratio)
    target = make_target("gaussian")
    positions, _ = advance(target, CASES["barker, other geodesic"])
    assert smallest_pvalue(target, positions) < FALSE_ALARM


def test_wrong_tempering_is_detected(make_target):
    target = make_target("gaussian", tempering=0.5)
    whole = make_target("gaussian", tempering=1.0)
    positions, _ = advance(target._replace(posterior=whole.posterior), CASES["barker"])
    assert smallest_pvalue(target, positions) < FALSE_ALARM
