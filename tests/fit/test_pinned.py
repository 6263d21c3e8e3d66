"""Coordinates in which products of parameters are linear, where there are such."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.fit.pinned import pinned
from tests.tiers import tiered

NUM_GROUPS, SIZE = 3, 7
DRAWS = np.random.default_rng(0).normal(size=(200, SIZE))
DRAWS -= np.median(DRAWS, axis=0)
OF_PRODUCTS = np.arange(SIZE) < 5
SIZES = np.array([3, 3, 3, 1, 1, 1, 1])


def predictor(t, covariates):
    """Effects t[3] + exp(t[4]) t[:3] of groups, and a slope t[5]."""
    effect = t[3] + jnp.exp(t[4]) * t[:NUM_GROUPS]
    return effect[covariates["group"]] + t[5] * covariates["x"]


def normal(t, covariates, observations):
    mean = predictor(t, covariates)
    return -0.5 * ((observations["y"] - mean) / jnp.exp(t[6])) ** 2 - t[6]


def poisson(t, covariates, observations):
    """The link is not linear, and calls hide it."""
    rate = jax.jit(jnp.exp)(predictor(t, covariates))
    return jax.jit(lambda y, rate: y * jnp.log(rate) - rate)(observations["y"], rate)


def logistic(t, covariates, observations):
    logits = predictor(t, covariates)
    return observations["y"] * logits - jax.nn.softplus(logits)


def gamma(t, covariates, observations):
    """What normalises the density is linear in the effects, with a free slope."""
    shape, link = jnp.exp(t[6]), predictor(t, covariates)
    cost = 1 + observations["y"]
    constant = jax.scipy.special.gammaln(shape) - shape * (t[6] - link)
    return (shape - 1) * jnp.log(cost) - shape * jnp.exp(-link) * cost - constant


def scale_that_is_seen(t, covariates, observations):
    """The scale of the effects is that of the noise, so it has no fixed value."""
    return normal(t.at[6].set(t[4]), covariates, observations)


def of_either_sign(t, covariates, observations):
    """At the centre, no factor tells of the other."""
    mean = t[0] * t[1] + t[5] * covariates["x"]
    return -0.5 * (observations["y"] - mean) ** 2


def of_three(t, covariates, observations):
    """Answers of persons t[:3] to items of difficulty t[3] and discrimination t[4]."""
    ability = t[:NUM_GROUPS][covariates["group"]]
    logits = jnp.exp(t[4] * covariates["x"]) * (ability - t[3] * covariates["x"])
    return observations["y"] * logits - jax.nn.softplus(logits)


def found(loglikelihood):
    rng = np.random.default_rng(1)
    covariates = dict(group=np.arange(30) % NUM_GROUPS, x=rng.normal(size=30))
    observations = dict(y=rng.integers(0, 2, 30).astype(float))
    dtype = jnp.result_type(float)
    covariates["x"] = covariates["x"].astype(dtype)
    observations["y"] = observations["y"].astype(dtype)
    draws, units = DRAWS.astype(dtype), np.ones(SIZE)
    given = covariates, observations
    return pinned(loglikelihood, draws, units, OF_PRODUCTS, SIZES, *given)


@pytest.mark.thorough
@pytest.mark.parametrize("loglikelihood", [normal, poisson, logistic, gamma])
def test_effects_are_linear_where_their_scale_is_pinned(loglikelihood):
    one = found(loglikelihood)
    assert one.kept.tolist() == [0, 1, 2, 5, 6]
    np.testing.assert_array_equal(one.center, 0)
    for theta in DRAWS[:5].astype(jnp.result_type(float)):
        zeta = np.asarray(one.zeta(jnp.asarray(theta)))
        effect = theta[3] + np.exp(theta[4]) * theta[:3]
        np.testing.assert_allclose(zeta, [*effect, *theta[5:]], atol=1e-4, rtol=1e-4)
        there = np.asarray(one.theta(jnp.asarray(zeta)))
        np.testing.assert_array_equal(there[one.kept], zeta)
        np.testing.assert_array_equal(there[[3, 4]], 0)


@pytest.mark.parametrize(
    "loglikelihood",
    tiered([scale_that_is_seen, of_either_sign, of_three], [of_either_sign]),
)
def test_other_products_have_no_pinned_model(loglikelihood):
    assert found(loglikelihood) is None
