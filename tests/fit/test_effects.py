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
        slope = jax.jacfwd(
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
