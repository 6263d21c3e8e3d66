"""Fits whose posterior is far from the centre of the prior, and of rare outcomes."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpjax
from dpjax.numpyro import plan, posterior, sample

NUM_RECORDS = 40_000
X = np.random.default_rng(0).uniform(-1, 1, NUM_RECORDS)
BUDGET = dpjax.Budget(epsilon=2.0, delta=1e-6)
EXAMPLE = dict(x=np.linspace(-1, 1, 200))


@pytest.fixture(autouse=True)
def rank_promotion():
    """NumPyro's laws promote ranks themselves."""
    with jax.numpy_rank_promotion("allow"):
        yield


def normal(wide):
    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0.0, wide))
        b = numpyro.sample("b", dist.Normal(0.0, wide))
        sigma = numpyro.sample("sigma", dist.HalfCauchy(wide))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)

    return model


def logistic(x, y):
    a = numpyro.sample("a", dist.Normal(-4.0, 3.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=a + b * x), obs=y)


def poisson(x, y):
    a = numpyro.sample("a", dist.Normal(0.0, 1000.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + x)), obs=y)


def lines():
    return 1.0 - 0.5 * X + 0.7 * np.random.default_rng(1).normal(size=NUM_RECORDS)


def adapted(model, y):
    # Priors are public numbers that the models hold.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s)the model captured")
        return posterior(model, dict(x=X, y=y), plate="data", example=EXAMPLE)


def fitted(model, y):
    return sample(
        adapted(model, y),
        budget=BUDGET,
        num_draws=200,
        verbose=False,
        unsafe_key=jax.random.key(4),
    )


def mean_and_sd(draws):
    values = [np.ravel(draws.positions[name]) for name in sorted(draws.positions)]
    return np.mean(values, axis=1), np.std(values, axis=1)


@pytest.mark.thorough
def test_a_fit_arrives_from_the_centre_of_a_vague_prior():
    """The logarithm of the scale is seven away from that of the prior's."""
    draws = fitted(normal(1000.0), lines())
    mean, sd = mean_and_sd(draws)
    # Seven sds, of which there are three: a false alarm in 1e11.
    assert np.all(np.abs(mean - [1.0, -0.5, 0.7]) < 7 * sd)
    assert np.all(sd < 0.01) and draws.known.is_near


@pytest.mark.thorough
def test_rare_outcomes_are_found():
    """Some 400 cases, which a search for the bulk of the records passes by."""
    y = np.random.default_rng(2).random(NUM_RECORDS) < 1 / (1 + np.exp(4.6 - 0.5 * X))
    mean, sd = mean_and_sd(fitted(logistic, y.astype(int)))
    assert np.all(np.abs(mean - [-4.6, 0.5]) < 7 * sd)
    assert np.all(sd < [0.25, 0.5])


@pytest.mark.thorough
def test_draws_that_did_not_arrive_say_so():
    with pytest.warns(UserWarning) as found:
        draws = fitted(normal(1e7), lines())
    assert any("far from where they lead" in str(each) for each in found)
    assert not draws.known.is_near


@pytest.mark.thorough
def test_a_prior_too_wide_for_the_model_is_refused():
    with pytest.raises(ValueError, match="the prior is too wide for the model"):
        fitted(poisson, np.ones(NUM_RECORDS, int))
    with pytest.raises(ValueError, match="the prior is too wide for the model"):
        plan(adapted(poisson, np.ones(NUM_RECORDS, int)), budget=BUDGET)
