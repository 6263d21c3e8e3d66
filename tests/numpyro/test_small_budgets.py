"""A budget that says little is warned of before it is spent."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpjax
from dpjax.numpyro import posterior, sample


def linear(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(jnp.zeros(3), 2).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(x @ slopes, 1), obs=y)


def target():
    data = dict(x=np.ones((500, 3)), y=np.zeros(500))
    return posterior(linear, data, plate="data", example=data)


@pytest.mark.thorough
def test_a_budget_that_says_little_is_told_before_it_is_spent(tmp_path):
    """Warnings are errors here, so nothing is spent."""
    ledger, budget = tmp_path / "ledger.jsonl", dpjax.Budget(0.3, 1e-6)
    message = "too little for 500 records and 3 parameters.*be wide.*dpjax.numpyro.plan"
    with jax.numpy_rank_promotion("allow"), pytest.raises(UserWarning, match=message):
        sample(target(), budget=budget, ledger=ledger, verbose=False)
    assert not ledger.exists()
