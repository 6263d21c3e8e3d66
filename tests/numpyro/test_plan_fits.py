"""Plans of fits, which read no record. `test_sample.py` compares one with its fit."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpjax
import dpjax.numpyro
from tests.numpyro.test_small_budgets import linear

BUDGET = dpjax.Budget(1.0, 1e-6)


@pytest.fixture(autouse=True)
def broadcasting():
    with jax.numpy_rank_promotion("allow"):
        yield


EXAMPLE = dict(
    x=np.random.default_rng(0).normal(size=(200, 3)).astype("f4"),
    y=np.zeros(200, "f4"),
)


def shrunk(x, y):
    """The scale of the slopes is unknown, so its density has no mode."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    slopes = numpyro.sample("slopes", dist.Normal(jnp.zeros(3), scale).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(x @ slopes, 1), obs=y)


MADE_UP = {
    model: dpjax.numpyro.posterior(model, EXAMPLE, plate="data", example=EXAMPLE)
    for model in (linear, shrunk)
}


def target(num_records, model=linear):
    """Of shapes only: whoever reads a record of it fails."""
    shapes = dict(x=(num_records, 3), y=(num_records,))
    data = {k: jax.ShapeDtypeStruct(v, jnp.float32) for k, v in shapes.items()}
    return dataclasses.replace(MADE_UP[model], data=data)


def planned(num_records, budget=BUDGET, model=linear, **options):
    options = dict(epsilons=()) | options
    return dpjax.numpyro.plan(target(num_records, model), budget=budget, **options)


@pytest.mark.thorough
def test_more_epsilon_means_less_noise_at_the_price_of_a_fit():
    found = planned(5000, epsilons=[0.3, 4.0])
    table = found.to_dataframe()
    noise = table["noise"].to_numpy().reshape(3, 3)
    assert list(table["epsilon"].unique()) == [0.3, 1.0, 4.0]
    assert list(table["parameter"].unique()) == [f"slopes[{i}]" for i in range(3)]
    assert np.all(np.diff(noise, axis=0) < 0) and np.all(noise > 0)
    np.testing.assert_allclose(table["width"] ** 2, 1 + table["noise"] ** 2)
    (line,) = re.findall(r"^ +1 .*$", repr(found), re.M)
    assert line.endswith("<- budget") and f"{np.median(noise[1]):.2g}" in line
    # A record takes 16 bytes.
    many = planned(2_000_000, dpjax.Budget(1.0, 1e-7))
    few, many = (
        float(re.findall("memory: about (.*) MB", repr(each))[0])
        for each in (found, many)
    )
    assert few < 30 < 32 <= many < 60


@pytest.mark.thorough
def test_the_remedies_are_where_the_verdict_turns():
    """A budget that is not worth it would be, of more records or epsilon; and back."""
    said = repr(planned(500)).replace(",", "")
    assert "not worth the budget" in said
    many, epsilon = map(
        float, re.findall(r"about (\S+) records or epsilon = (\S+)", said)[0]
    )
    for factor, is_worth in ((0.8, False), (1.2, True)):
        for found in (
            planned(int(factor * many)),
            planned(500, dpjax.Budget(factor * epsilon, 1e-6)),
        ):
            assert ("not worth" not in repr(found)) == is_worth
    said = repr(planned(20_000)).replace(",", "")
    few = float(re.findall(r"as from about (\S+) records on", said)[0])
    np.testing.assert_allclose(few, many, rtol=0.15)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [linear, shrunk])
def test_what_sample_warns_of_is_told(model):
    """At the same budget as in test_small_budgets.py."""
    table = planned(500, dpjax.Budget(0.3, 1e-6), model)
    assert "wide" in repr(table)
    assert np.all(table.to_dataframe()["resolution"] < 0.5)


@pytest.mark.thorough
def test_a_budget_that_buys_no_noise_is_refused():
    found = planned(500, dpjax.Budget(1e-4, 1e-9))
    assert "refused" in repr(found) and np.all(np.isinf(found.columns["noise"]))
    assert "epsilon = " in repr(found).splitlines()[-1]


@pytest.mark.thorough
def test_a_guess_stands_in_for_the_prior():
    """Of normal records the information is the same everywhere."""
    there = planned(5000, guess={"slopes": [1.0, -1.0, 0.0]}).columns["noise"]
    np.testing.assert_allclose(there, planned(5000).columns["noise"], rtol=0.1)
    with pytest.raises(ValueError, match="must name the latents"):
        planned(5000, guess={"slope": 0.0})
    with pytest.raises(ValueError, match="outside of the support"):
        planned(5000, model=shrunk, guess={"slopes": 0.0, "scale": -1.0})


@pytest.mark.thorough
def test_a_walk_starts_from_a_fit_of_its_share_and_says_how_far_it_gets(monkeypatch):
    walk = planned(20_000, method="walk", num_draws=100)
    # Before a walk all noise is Gaussian.
    monkeypatch.setattr("dpjax.release.quietest_sum.LEAST_GAIN", 1.0)
    share = planned(20_000, dpjax.Budget(0.8, 1e-6))
    np.testing.assert_allclose(walk.columns["noise"], share.columns["noise"], rtol=0.02)
    assert "the walk: steps of" in repr(walk).splitlines()[-1]
    with pytest.raises(ValueError, match="leave out robust=True"):
        planned(20_000, method="walk", robust=True)


@pytest.mark.filterwarnings("ignore:the model captured")
def test_a_model_that_comes_to_hold_records_is_refused():
    """The plan would tell of these records, which no argument of it holds."""
    records = np.random.default_rng(0).normal(size=200)
    spread = np.arange(10.0)

    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0, 10))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("obs", dist.Normal(mean, jnp.std(spread)), obs=x)

    whole = dpjax.numpyro.posterior(model, dict(x=records), plate="data")
    spread = records
    with pytest.raises(ValueError, match="holds 'spread', which"):
        dpjax.numpyro.plan(whole, budget=BUDGET)
