"""What observations read of the parameters, and whether these are products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.fit.effects import are_products, effects

COVARIATES = dict(group=jnp.int32(1), x=jnp.array(0.5))
OBSERVATIONS = dict(y=jnp.array(1.0))


def log_density(mean, log_sd, y):
    return -0.5 * ((y - mean) / jnp.exp(log_sd)) ** 2 - log_sd


def centred(t, covariates, observations):
    """Effects t[:3]; t[3] and t[4], their mean and scale, are the prior's alone."""
    mean = t[:3][covariates["group"]] + t[5] * covariates["x"]
    return log_density(mean, t[6], observations["y"])


def products(t, covariates, observations):
    made = t.at[:3].set(t[3] + jnp.exp(t[4]) * t[:3])
    return centred(made, covariates, observations)


def of_one_group(t, covariates, observations):
    """The product is made of what the record's covariates choose."""
    mean = t[3] + jnp.exp(t[4]) * t[:3][covariates["group"]]
    mean = mean + t[5] * covariates["x"]
    return log_density(mean, t[6], observations["y"])


def of_slopes(t, covariates, observations):
    """Nowhere is the product alone: the covariate comes first."""
    mean = t[3] + jnp.exp(t[4]) * (t[0] * covariates["x"])
    return log_density(mean, t[6], observations["y"])


def within_calls(t, covariates, observations):
    """Products are made in one call, and used in another, which sees the record."""

    @jax.jit
    def log_likelihood(effect, covariates, observations):
        mean = jax.nn.softplus(effect[covariates["group"]])
        return log_density(mean, t[6], observations["y"])

    effect = jax.jit(lambda t: t[3] + jnp.exp(t[4]) * t[:3])(t)
    return log_likelihood(effect, covariates, observations)


def mean_of_product(t, covariates):
    return t[3] + jnp.exp(t[4]) * t[:3][covariates["group"]]


def in_branches(t, covariates, observations):
    """Which branch is taken depends on the observation."""

    def one(t, y):
        return log_density(mean_of_product(t, covariates), t[6], y)

    def other(t, y):
        return log_density(t[5], t[6], y)

    y = observations["y"]
    return jax.lax.cond(y > 0, one, other, t, y)


def in_scan(t, covariates, observations):
    """Of three observations; the product is made anew for each."""

    def step(before, y):
        mean = mean_of_product(t, covariates) + covariates["x"] * before
        return y, log_density(mean, t[6], y)

    y = observations["y"] + jnp.arange(3.0)
    return jnp.sum(jax.lax.scan(step, jnp.zeros_like(y[0]), y)[1])


def in_state_of_scan(t, covariates, observations):
    """The mean of an observation is the state that the pass before made."""

    def step(mean, y):
        return mean_of_product(t, covariates), log_density(mean, t[6], y)

    y = observations["y"] + jnp.arange(3.0)
    return jnp.sum(jax.lax.scan(step, jnp.zeros_like(t[0]), y)[1])


def in_while(t, covariates, observations):
    """How many passes there are depends on the observation."""

    def step(state):
        left, total = state
        mean = mean_of_product(t, covariates)
        return left - 1, total + log_density(mean, t[6], observations["y"])

    start = observations["y"], jnp.zeros_like(t[0])
    return jax.lax.while_loop(lambda state: state[0] > 0, step, start)[1]


def in_checkpoint(t, covariates, observations):
    return jax.checkpoint(of_one_group)(t, covariates, observations)


def centred_in_scan(t, covariates, observations):
    """An autoregression about an effect."""

    def step(before, y):
        mean = t[:3][covariates["group"]] + jnp.tanh(t[5]) * before
        return y, log_density(mean, t[6], y)

    y = observations["y"] + jnp.arange(3.0)
    return jnp.sum(jax.lax.scan(step, jnp.zeros_like(y[0]), y)[1])


def sums(t, covariates, observations):
    """What t[0] + t[1] is made of cannot be told, but the scores are linear in it."""
    mean = t[0] + t[1] + jnp.exp(t[2]) * covariates["x"]
    return log_density(mean, t[6], observations["y"])


def saturated(t, covariates, observations):
    """A sigmoid in float32 that is one far above 17 tells nothing of t[0] there."""
    chance = jax.nn.sigmoid((200 * t[0] + 100 * covariates["x"]).astype(jnp.float32))
    return log_density(chance.astype(t.dtype), t[6], observations["y"])


POSITIONS = np.random.default_rng(0).normal(size=(4, 7))


def slopes(loglikelihood):
    """At all positions, of records in three groups."""
    rng = np.random.default_rng(1)
    group, x = np.arange(30) % 3, rng.normal(size=30)
    positions = POSITIONS.astype(jnp.result_type(float))

    def at(position, group, x):
        covariates = dict(group=group, x=x)
        slope = jax.jacrev(
            lambda t: effects(loglikelihood, t, covariates, OBSERVATIONS)
        )
        return slope(position)

    of_records = jax.vmap(at, (None, 0, 0))
    found = jax.vmap(of_records, (0, None, None))(positions, group, x)
    return np.asarray(found).reshape(4, -1, 7)


@pytest.mark.parametrize(
    ("loglikelihood", "expected"),
    [
        (centred, []),
        (products, [0, 1, 2, 3, 4]),
        (of_one_group, [0, 1, 2, 3, 4]),
        (of_slopes, [0, 4]),
        (within_calls, [0, 1, 2, 3, 4]),
        (in_branches, [0, 1, 2, 3, 4]),
        (in_scan, [0, 1, 2, 3, 4]),
        (in_state_of_scan, [0, 1, 2, 3, 4]),
        (in_while, [0, 1, 2, 3, 4]),
        (in_checkpoint, [0, 1, 2, 3, 4]),
        (centred_in_scan, []),
        (sums, []),
        (saturated, []),
    ],
)
def test_products_of_parameters_are_found(loglikelihood, expected):
    found = are_products(slopes(loglikelihood))
    assert np.flatnonzero(found).tolist() == expected


@pytest.mark.parametrize("loglikelihood", [products, of_one_group])
def test_effects_are_what_is_used_with_the_observation(loglikelihood):
    position = jnp.asarray(POSITIONS[0])
    found = effects(loglikelihood, position, COVARIATES, OBSERVATIONS)
    mean = position[3] + jnp.exp(position[4]) * position[1] + position[5] / 2
    expected = [mean, jnp.exp(position[6]), position[6]]
    np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=1e-5)
