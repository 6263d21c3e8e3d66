"""What records read of the parameters, and whether it is made of products of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.fit.effects import are_products, effects

RECORD = dict(group=jnp.int32(1), x=jnp.array(0.5), y=jnp.array(1.0))


def log_density(mean, log_sd, y):
    return -0.5 * ((y - mean) / jnp.exp(log_sd)) ** 2 - log_sd


def centred(t, record):
    """Effects t[:3]; t[3] and t[4], their mean and scale, are the prior's alone."""
    return log_density(t[:3][record["group"]] + t[5] * record["x"], t[6], record["y"])


def products(t, record):
    return centred(t.at[:3].set(t[3] + jnp.exp(t[4]) * t[:3]), record)


def within_calls(t, record):
    """The products are made where no record is, and used in calls that see one."""

    @jax.jit
    def mean(effect, record):
        return jax.nn.softplus(effect[record["group"]])

    effect = jax.jit(lambda t: t[3] + jnp.exp(t[4]) * t[:3])(t)
    return log_density(mean(effect, record), t[6], record["y"])


def sums(t, record):
    """What t[0] + t[1] is made of cannot be told, but the scores are linear in it."""
    return log_density(t[0] + t[1] + jnp.exp(t[2]) * record["x"], t[6], record["y"])


POSITIONS = np.random.default_rng(0).normal(size=(4, 7))


@pytest.mark.parametrize(
    ("loglikelihood", "expected"),
    [(centred, []), (products, [0, 1, 2, 3, 4]), (within_calls, range(5)), (sums, [])],
)
def test_products_of_parameters_are_found(loglikelihood, expected):
    positions = POSITIONS.astype(jnp.result_type(float))
    found = are_products(lambda t: effects(loglikelihood, t, RECORD), positions)
    assert np.flatnonzero(found).tolist() == list(expected)


def test_effects_are_what_is_used_with_the_record():
    position = jnp.asarray(POSITIONS[0])
    found = set(np.round(np.asarray(effects(products, position, RECORD)), 4).tolist())
    made = position[3] + jnp.exp(position[4]) * position[:3]
    for value in (*made, position[5], jnp.exp(position[6])):
        assert any(abs(value - each) < 1e-3 for each in found)
