"""Gradients taken apart equal JAX's own, or are left to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from dpjax.models import banana
from dpjax.models.network import bayesian_network, start
from dpjax.release.gradient_parts import (
    MAX_PARTS,
    Outer,
    gradient_parts,
    mean_gradient_parts,
    whole,
)
from tests.tiers import tiered

RECORD = jnp.array([0.3, -1.2, 2.0])


def entries(x, record):
    return x[0] * record[0] - jnp.sin(x[1] * x[2]) * record[1] + x[0] ** 2 + x[2]


def slices(x, record):
    return jnp.sum(x[1:] ** 2 * record[:2]) - x[0] * record[2] + x[1]


def unpacked(x, record):
    a, b, c = x
    return jnp.exp(a * b) * record[0] + jnp.where(c > 0, c, 0.0) * b


def ignores_some(x, record):
    return x[1] ** 3 * record[0]


def of_a_dictionary(x, record):
    _, unravel = ravel_pytree({"a": jnp.zeros(2), "b": jnp.zeros(())})
    tree = unravel(x)
    return tree["a"][0] ** 2 * record[0] + tree["a"][1] * tree["b"] * record[1]


@pytest.mark.parametrize(
    "function", [entries, slices, unpacked, ignores_some, of_a_dictionary]
)
def test_equals_the_gradient(function):
    position = jnp.array([0.7, -0.4, 1.1])
    found = gradient_parts(function, position, RECORD)
    assert all(part.shape == (1,) for part in found)
    expected = jax.grad(function)(position, RECORD)
    np.testing.assert_allclose(jnp.concatenate(found), expected, rtol=1e-6)


def test_works_inside_transformations_and_over_closures():
    def total(scale, position, records):
        def function(x, record):
            return scale * entries(x, record)

        apart = jax.vmap(
            lambda r: jnp.concatenate(gradient_parts(function, position, r))
        )
        whole = jax.vmap(lambda r: jax.grad(function)(position, r))
        return apart(records), whole(records)

    positions = jnp.array([[0.7, -0.4, 1.1], [0.1, 0.2, 0.3]])
    records = jnp.stack([RECORD, 2 * RECORD])
    over = jax.jit(jax.vmap(total, (0, 0, None)))
    apart, whole = over(jnp.array([1.0, -2.0]), positions, records)
    np.testing.assert_allclose(apart, whole, rtol=1e-6)


def test_records_are_pytrees():
    def function(x, record):
        return x[0] * record["y"] - x[1] ** 2 * record["z"][1]

    record = {"y": jnp.array(2.0), "z": jnp.array([1.0, 3.0])}
    found = gradient_parts(function, jnp.array([1.0, -1.0]), record)
    np.testing.assert_allclose(jnp.concatenate(found), [2.0, 6.0])


def test_a_number_added_to_every_component_is_left_whole():
    @jax.custom_vjp
    def shifted(x):
        return jnp.sum(x)

    shifted.defvjp(lambda x: (shifted(x), x), lambda x, g: (1.0 + g * x,))
    found = gradient_parts(
        lambda x, record: shifted(x) * record[0], jnp.ones(3), RECORD
    )
    assert len(found) == 1


def regression(x, record):
    """Intercept, coefficients and the logarithm of a standard deviation."""
    residual = record[0] - x["intercept"] - x["slopes"] @ record[1:]
    return -0.5 * residual**2 * jnp.exp(-2 * x["log_sd"]) - x["log_sd"]


def unrolled(x, record):
    return jnp.tanh(jnp.sum(x["slopes"] * record[1:]))


def of_one_row(x, record):
    return jnp.sum(jnp.sin(record[None, 1:] @ x["slopes"] + x["intercept"]))


def layers(x, record):
    hidden = jnp.tanh(record @ x["first"])
    return jnp.sum(jnp.cos(x["second"] @ hidden))


def first_layer(x, record):
    return jnp.sum(jnp.tanh(x["second"] @ record[:2]))


def scaled(x, record):
    return jnp.sum(jnp.tanh(x["second"] @ (0.5 * jnp.append(record[:1], 1.0) / 3)))


def both(x, record):
    of_all = jnp.sum(jnp.sin(record @ x["first"]))
    return of_all + jnp.sum(jnp.cos(x["second"] @ record[1:]))


def used_twice(x, record):
    of_some = jnp.sum(jnp.sin(x["second"] @ record[:2]))
    return of_some + jnp.sum(jnp.cos(x["second"] @ record[1:]))


def tied(x, record):
    return jnp.sum(jnp.sin(x["second"].T @ jnp.tanh(x["second"] @ record[:2])))


def repeated(x, record):
    def layer(hidden, _):
        return jnp.tanh(x["second"] @ hidden), None

    return jnp.sum(jax.lax.scan(layer, record[:2], None, length=3)[0])


def overlapping(x, record):
    of_some = jnp.sum(jnp.sin(record[:2] @ x["first"][:2]))
    return of_some + jnp.sum(jnp.cos(record[1:] @ x["first"][1:]))


def read_elsewhere(x, record):
    return jnp.sin(x["slopes"] @ record[1:]) + x["slopes"][0] ** 2 * record[0]


def times_a_parameter(x, record):
    return jnp.sin(x["slopes"] @ (x["intercept"] * record[1:]))


def of_squares(x, record):
    return jnp.sin(x["slopes"] @ record[1:] ** 2)


def of_quotients(x, record):
    return jnp.sin(x["slopes"] @ (1.0 / record[1:]))


LINEAR = {
    "intercept": jnp.array(0.3),
    "log_sd": jnp.array(0.1),
    "slopes": jnp.array([0.5, -2.0]),
}
LAYERS = {"first": jnp.eye(3, 2) + 0.2, "second": jnp.array([[0.3, 1.0], [-0.5, 0.1]])}


@pytest.mark.parametrize(
    ("function", "position", "shapes"),
    [
        (regression, LINEAR, [((1, 1), (1, 2))]),
        (unrolled, LINEAR, [((1, 1), (1, 2))]),
        (of_one_row, LINEAR, [((1, 1), (1, 2))]),
        (layers, LAYERS, [((1, 2), (3, 1))]),
        (first_layer, LAYERS, [((2, 1), (1, 2))]),
        (scaled, LAYERS, [((2, 1), (1, 2))]),
        (both, LAYERS, [((1, 2), (3, 1)), ((2, 1), (1, 2))]),
        # The gradient is the sum of several products, whose norm is none of theirs.
        (used_twice, LAYERS, []),
        (tied, LAYERS, []),
        (repeated, LAYERS, []),
        (overlapping, LAYERS, []),
        (read_elsewhere, LINEAR, []),
        # What is computed, XLA could compute twice and differently.
        (of_squares, LINEAR, []),
        (of_quotients, LINEAR, []),
        (times_a_parameter, LINEAR, []),
    ],
)
def test_products_with_the_record_are_found(function, position, shapes):
    parts = gradient_parts(function, position, RECORD)
    found = [part for part in parts if isinstance(part, Outer)]
    assert [(p.weights.shape, p.direction.shape) for p in found] == shapes
    expected, _ = ravel_pytree(jax.grad(function)(position, RECORD))
    np.testing.assert_allclose(
        jnp.concatenate([whole(part) for part in parts]), expected, rtol=1e-6
    )


def test_products_with_the_inputs_of_a_network_are_found():
    posterior = bayesian_network(RECORD[None], jnp.ones(1))
    position = start(jax.random.key(0), 3, 2)
    parts = gradient_parts(
        posterior.loglikelihood_fn,
        position,
        jax.tree.map(lambda x: x[0], posterior.data),
    )
    (product,) = (part for part in parts if isinstance(part, Outer))
    assert product.weights.size == 2 and product.direction.size == 4


def test_large_positions_are_left_whole():
    many = banana(jnp.ones((1, MAX_PARTS + 1))).loglikelihood_fn
    assert (
        len(gradient_parts(many, jnp.ones(MAX_PARTS + 1), jnp.ones(MAX_PARTS + 1))) == 1
    )
    some = banana(jnp.ones((1, MAX_PARTS))).loglikelihood_fn
    parts = gradient_parts(some, jnp.ones(MAX_PARTS), jnp.ones(MAX_PARTS))
    assert len(parts) == MAX_PARTS


def of_a_network(x, record):
    return bayesian_network(RECORD[None, 1:], RECORD[:1]).loglikelihood_fn(
        x, (record[1:], record[0])
    )


def of_a_line(x, record):
    return jnp.sin(x @ record)


@pytest.mark.parametrize("number", tiered([1, 3], [3]))
@pytest.mark.parametrize(
    "function, dim, num_products",
    [(of_a_network, 22, lambda k: k), (of_a_line, 3, lambda k: 1), (entries, 3, None)],
)
def test_products_of_several_positions(function, dim, num_products, number):
    """Those of a line are one, and those of a network one for each position."""
    positions = jax.random.normal(jax.random.key(0), (number, dim))

    def mean(positions):
        return jnp.mean(jax.vmap(function, (0, None))(positions, RECORD))

    parts = mean_gradient_parts(function, positions, RECORD)
    found = jnp.concatenate([whole(part) for part in parts])
    expected = jax.grad(mean)(positions).ravel()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    products = sum(isinstance(part, Outer) for part in parts)
    assert products == (num_products(number) if num_products else 0)
