"""Plans of kernels: what they say is what a run is charged for, and costs no data."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import privacy
from dpjax.runner.trial import trial
from tests.tiers import tiered

BUDGET = dpjax.Budget(1.0, 1e-6)
NUM_RECORDS = 3000


def target(num_records=NUM_RECORDS):
    """Of shapes only: whoever reads a record of it fails."""
    return dpjax.Posterior(
        lambda theta: -jnp.sum(theta**2) / 2,
        lambda theta, record: -jnp.sum((record - theta) ** 2) / 2,
        jax.ShapeDtypeStruct((num_records, 2), jnp.float32),
    )


BARKER = functools.partial(dpjax.barker, step_size=0.05, clip_bound=0.02, laziness=0.5)
STARTS = jnp.zeros((3, 2))


def planned(algorithm_fn=BARKER, num_steps=None, **options):
    return dpjax.plan(
        algorithm_fn,
        target(),
        num_steps,
        **{
            "initial_position": STARTS,
            "num_chains": 3,
            "budget": BUDGET,
            "epsilons": [0.5, 1.0],
            **options,
        },
    )


def cost(algorithm_fn, num_steps, num_chains=3):
    events = algorithm_fn(target()).privacy(num_steps)
    return privacy.epsilon([(event, num_chains * n) for event, n in events], 1e-6)


def test_the_budget_pays_for_the_steps_and_no_more():
    found = planned()
    table = found.to_dataframe()
    assert list(table["epsilon"]) == [0.5, 1.0] and "<- budget" in repr(found)
    for row in table.itertuples():
        for chains, steps in ((1, row.steps_of_one_chain), (3, row.steps)):
            assert cost(BARKER, steps, chains) <= row.epsilon
            assert cost(BARKER, steps + 1, chains) > row.epsilon


@pytest.mark.thorough
def test_a_run_makes_the_steps_that_are_planned():
    records = np.random.default_rng(0).normal(size=(NUM_RECORDS, 2)).astype("f4")
    result = dpjax.run(
        BARKER,
        dataclasses.replace(target(), data=jnp.asarray(records)),
        initial_position=STARTS,
        num_chains=3,
        budget=BUDGET,
        verbose=False,
        unsafe_key=jax.random.key(0),
    )
    assert result.statement.num_steps == planned().to_dataframe()["steps"].iloc[-1]


def test_a_walk_gets_as_far_as_its_proposals():
    """Steps have length .05 in two dimensions, and half of half of them move."""
    row = planned(epsilons=()).to_dataframe().iloc[0]
    distance = 0.05 / np.sqrt(2) * np.sqrt(row["steps"] / 4)
    np.testing.assert_allclose(row["reach"], distance, rtol=1e-3)


@pytest.mark.thorough
def test_steps_under_a_schedule_are_all_counted():
    """And the budget of the job is the only one that is asked for."""
    schedule = functools.partial(
        dpjax.sgld,
        step_size=dpjax.schedules.power_decay(3e-4, 1 / 3),
        l2_clip_norm=1.0,
        sampling_prob=0.5,
        dim=2,
    )
    options = dict(budget=dpjax.Budget(0.01, 1e-6), epsilons=None)
    most = planned(schedule, 20, **options)
    (row,) = most.to_dataframe().itertuples()
    assert row.steps == 20 and cost(schedule, 20) <= 0.01 and np.isnan(row.reach)
    assert "20 steps of 3 chains release" in repr(most)
    found = planned(schedule, 200, **options)
    assert "--epsilons" in repr(found)
    (row,) = found.to_dataframe().itertuples()
    assert cost(schedule, row.steps) <= 0.01 < cost(schedule, row.steps + 1)


def test_memory_counts_the_records():
    found = [trial(BARKER, target(n), STARTS) for n in (3000, 300_000)]
    more = found[1].num_bytes - found[0].num_bytes
    assert more >= 297_000 * 2 * 4 and found[1].seconds > 0


def test_what_is_no_budget_is_refused():
    options = dict(initial_position=STARTS, num_chains=3)
    with pytest.raises(TypeError, match=r"budget must be a dpjax\.Budget"):
        dpjax.plan(BARKER, target(3000), budget=0.5, **options)


def test_a_plot_shows_each_epsilon():
    axes = planned().plot().axes[0]
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 2][:2]
    assert all(list(line.get_xdata()) == [0.5, 1.0] for line in lines)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(num_chains=0), "num_chains"),
        (dict(num_steps=0), "num_steps"),
        (dict(epsilons=[-1.0]), "epsilon"),
    ],
)
def test_wrong_arguments_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        planned(**wrong)


def planned_fit(num_records=NUM_RECORDS, budget=BUDGET, posterior=None, **options):
    return dpjax.plan_sample(
        posterior or target(num_records),
        lambda key, theta: theta + jax.random.normal(key, (2,)),
        lambda key: jax.random.normal(key, (2,)),
        budget=budget,
        **options,
    )


@pytest.mark.thorough
def test_a_fit_of_whole_records_is_planned_at_a_guess():
    """Of normal records the information is the same everywhere."""

    def at(guess):
        return planned_fit(guess=guess, epsilons=[4.0]).to_dataframe()

    table = at(None)
    assert list(table["parameter"]) == 2 * ["position[0]", "position[1]"]
    noise = table["noise"].to_numpy()
    assert np.all(noise[2:] < noise[:2] / 2) and np.all(noise > 0.05)
    np.testing.assert_allclose(at(jnp.ones(2))["noise"], noise, rtol=0.1)


def test_functions_that_hold_records_are_refused():
    """The plan would tell of these records."""
    data = np.random.default_rng(0).normal(size=(NUM_RECORDS, 2)).astype(np.float32)

    def loglikelihood(theta, record):
        return -jnp.sum((record - theta) ** 2) / 2 * jnp.mean(data**2)

    holding = dataclasses.replace(target(), loglikelihood_fn=loglikelihood, data=data)
    with pytest.raises(ValueError, match="loglikelihood_fn holds 'data', which"):
        planned_fit(posterior=holding)


@pytest.mark.parametrize("epsilon", tiered([0.05, 0.06], [0.06]))
def test_the_verdict_on_a_fit_follows_from_its_noise(epsilon):
    """K-norm noise makes the second one worth it."""
    found = planned_fit(20_000, dpjax.Budget(epsilon, 1e-6), epsilons=[])
    is_worth = np.median(found.columns["noise"]) <= 1
    assert ("not worth" not in repr(found)) == is_worth
