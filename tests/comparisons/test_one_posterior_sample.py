"""One posterior sample: its privacy on a grid, its law, and the hybrid sampler."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import dpjax
from dpjax import Posterior, privacy
from dpjax.comparisons.one_posterior_sample import (
    hybrid,
    one_posterior_sample,
    tempered,
)

pytestmark = pytest.mark.thorough

ADD = privacy.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = privacy.NeighboringRelation.REPLACE_ONE
GRID = np.linspace(-8, 8, 2001)


def logprior(position):
    return -0.5 * position**2 / 4


def loglikelihood(position, record):
    return -0.5 * (record - position) ** 2


@pytest.fixture
def blackjax_keys():
    """BlackJAX's NUTS selects between keys, which the check of JAX takes for reuse."""
    with jax.debug_key_reuse(False):
        yield


def make_posterior(data):
    data = jnp.asarray(data, jnp.result_type(float))
    return Posterior(logprior, loglikelihood, data)


def log_density(data, epsilon, bounds, relation):
    target = tempered(make_posterior(data), epsilon, bounds, relation)
    grid = jnp.asarray(GRID, jnp.result_type(float))
    found = np.asarray(jax.vmap(target)(grid), np.float64)
    return found - special.logsumexp(found)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize(
    ("bounds", "relation"), [((-3.0, 0.0), REPLACE), ((-3.0, 1.0), ADD)]
)
def test_neighbours_have_close_densities(epsilon, bounds, relation):
    """Within epsilon everywhere, and not far below it for the worst records.

    NaN, too, is a record.
    """
    others = [0.3, -1.0, 0.7]
    worst = 0.0
    for first in (7.0, -8.0, 0.0, np.nan):
        for second in (-7.0, 8.0, np.nan):
            if relation is REPLACE:
                pair = [[*others, first], [*others, second]]
            else:
                pair = [others, [*others, first]]
            one, two = (log_density(d, epsilon, bounds, relation) for d in pair)
            worst = max(worst, np.max(abs(one - two)))
    assert 0.3 * epsilon < worst <= epsilon * (1 + 1e-4)


def test_a_wide_budget_leaves_the_tempering():
    posterior = make_posterior(np.zeros(3))
    assert tempered(posterior, 100.0, (-3.0, 0.0)).tempering == 1.0
    assert tempered(posterior, 0.6, (-3.0, 0.0)).tempering == pytest.approx(0.1)


@pytest.mark.thorough
def test_draws_are_new_each_time_and_near_the_posterior(blackjax_keys):
    """Within 6 of its standard deviations, which are .31."""
    posterior = make_posterior(np.zeros(200))
    draws = [
        one_posterior_sample(
            posterior,
            1.0,
            loglikelihood_range=(-10.0, 0.0),
            initial_position=0.0,
            num_warmup=100,
            num_steps=20,
            unsafe_key=key,
        )
        for key in (jax.random.key(0), None)
    ]
    sd = (1 / 4 + 200 / 20) ** -0.5
    assert draws[0] != draws[1]
    assert np.max(np.abs(draws)) < 6 * sd


@pytest.mark.thorough
def test_hybrid_runs_add_up(blackjax_keys):
    data = np.random.default_rng(0).normal(1.0, size=200)
    posterior = make_posterior(data)
    algorithm_fn = functools.partial(
        dpjax.sgld, step_size=0.01, dim=1, l2_clip_norm=1.0, sampling_prob=0.25
    )

    def go(**changes):
        options = dict(
            initial_position=0.0,
            num_chains=2,
            budget=dpjax.Budget(4.0, 1e-5),
            first_epsilon=1.0,
            loglikelihood_range=(-8.0, 0.0),
            num_warmup=100,
            warmup_fraction=0.0,
            verbose=False,
        )
        return hybrid(
            algorithm_fn,
            posterior,
            None,
            **options | changes,
            unsafe_key=jax.random.key(0),
        )

    run = go()
    statement = run.statement
    assert 0.9 * 4 < statement.epsilon <= 4.0
    events = [
        (e, 2 * n) for e, n in algorithm_fn(posterior).privacy(statement.num_steps)
    ]
    spent = privacy.epsilon(events, 1e-5)
    assert statement.epsilon == pytest.approx(1.0 + spent)
    assert statement.events.startswith("1 x posterior sample, epsilon = 1 ")
    assert np.ptp(run.positions[:, 0]) < 0.2 < abs(run.positions[:, 0]).min()
    for change, words in (
        (dict(first_epsilon=4.0), "first_epsilon"),
        (dict(ledger="ledger.json"), "no ledger"),
        (dict(loglikelihood_range=(0.0, -1.0)), "loglikelihood_range"),
    ):
        with pytest.raises(ValueError, match=words):
            go(**change)
    with pytest.raises(ValueError, match="epsilon must be"):
        tempered(posterior, 0.0, (-1.0, 0.0))
