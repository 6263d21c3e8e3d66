"""A budget that says little is warned of before it is spent."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpjax
from dpjax.numpyro import posterior, sample
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.fisher import is_log_concave


def linear(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(jnp.zeros(3), 2).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(x @ slopes, 1), obs=y)


def shrunk(x, y):
    """The scale of the slopes is unknown, so its density has no mode."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    slopes = numpyro.sample("slopes", dist.Normal(jnp.zeros(3), scale).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(x @ slopes, 1), obs=y)


def with_scale(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(0, scale), obs=y)


def target(model):
    data = dict(x=np.ones((500, 3)), y=np.zeros(500))
    return posterior(model, data, plate="data", example=data)


@pytest.mark.parametrize("model", [linear, with_scale, shrunk])
def test_a_prior_whose_scale_is_unknown_is_not_log_concave(model):
    assert is_log_concave(model_of(target(model))) == (model is not shrunk)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "model, error, message",
    [
        (
            linear,
            UserWarning,
            "too little for 500 records and 3 parameters.*be wide",
        ),
        (
            shrunk,
            dpjax.privacy.BudgetError,
            "too little for 500 .* not log-concave",
        ),
    ],
)
def test_a_budget_that_says_little_is_told_before_it_is_spent(
    tmp_path, model, error, message
):
    """Warnings are errors here, so nothing is spent."""
    ledger, budget = tmp_path / "ledger.jsonl", dpjax.Budget(0.3, 1e-6)
    with (
        jax.numpy_rank_promotion("allow"),
        pytest.raises(error, match=f"{message}.*dpjax.numpyro.plan"),
    ):
        sample(target(model), budget=budget, ledger=ledger, verbose=False)
    assert not ledger.exists()
