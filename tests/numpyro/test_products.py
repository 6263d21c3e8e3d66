"""Which models with products of latents are fitted in their effects."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam

import dpjax
from dpjax.numpyro.adapter import model_of, posterior
from dpjax.numpyro.fits import PinnedFit
from dpjax.numpyro.seen import pinned_model

NUM_GROUPS = 5
BUDGET = dpjax.Budget(1, 1e-6)


def poisson(group, x, y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    law = dist.Normal(mean * jnp.ones(5), scale).to_event(1)
    effect = numpyro.sample("effect", law)
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        rate = jnp.exp(effect[group] + slope * x)
        numpyro.sample("obs", dist.Poisson(rate), obs=y)


def of_either_sign(group, x, y):
    factor = numpyro.sample("factor", dist.Normal(0, 1))
    loading = numpyro.sample("loading", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("obs", dist.Normal(factor * loading * x, 1), obs=y)


def target(model, kind=np.int32):
    rng = np.random.default_rng(0)
    y = rng.poisson(2, 500).astype(kind)
    group, x = np.arange(500) % NUM_GROUPS, rng.random(500)
    example = dict(group=np.arange(50) % NUM_GROUPS, x=rng.random(50))
    data = dict(group=group, x=x, y=y)
    return posterior(model, data, plate="data", example=example)


def not_centred():
    model = reparam(poisson, config={"effect": LocScaleReparam(0)})
    return target(model)


@pytest.mark.thorough
def test_effects_that_are_not_centred_have_a_pinned_model():
    found = pinned_model(model_of(not_centred()))
    # In the order of the latents' names, mean and scale come after the effects.
    assert found is not None
    assert found.kept.tolist() == [*range(NUM_GROUPS), NUM_GROUPS + 2]
    effects = [f"effect_decentered[{i}]" for i in range(NUM_GROUPS)]
    assert PinnedFit.of(not_centred(), found).names == [*effects, "slope"]


@pytest.mark.thorough
def test_a_plan_is_of_the_effects():
    """At the same guess, it foretells of them what it does where they are latents."""
    guess = dict(mean=0.3, scale=0.6, slope=-0.2)
    z = np.linspace(-1, 1, NUM_GROUPS)
    effect = guess["mean"] + guess["scale"] * z
    options: dict = dict(budget=BUDGET, epsilons=[])
    with jax.numpy_rank_promotion("allow"):
        centred = dpjax.numpyro.plan(
            target(poisson), guess=dict(guess, effect=effect), **options
        )
        found = dpjax.numpyro.plan(
            not_centred(), guess=dict(guess, effect_decentered=z), **options
        )
    noise = centred.to_dataframe().set_index("parameter")["noise"]
    names = [*(f"effect[{i}]" for i in range(NUM_GROUPS)), "slope"]
    assert found.columns["parameter"] == [
        name.replace("effect", "effect_decentered") for name in names
    ]
    # Their priors differ, which counts for little at this budget.
    np.testing.assert_allclose(found.columns["noise"], noise[names], rtol=0.3)
    assert "rows are of effects" in found.text


@pytest.mark.thorough
def test_a_centred_model_is_fitted_as_it_is():
    assert pinned_model(model_of(target(poisson))) is None


@pytest.mark.thorough
def test_products_without_a_pinned_model_are_refused():
    refused = target(of_either_sign, float)
    with pytest.raises(ValueError, match="products of the latents 'factor', 'loading'"):
        dpjax.numpyro.sample(refused, budget=BUDGET)
