"""No record reaches what others add to a sum through what JAX does with a batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import batching

import dpjax
from dpjax.release import log_ratios
from dpjax.release.separate import _is_of_jax
from dpjax.release.vector_sums import vector_sum
from dpjax.runner.program import check_algorithm
from tests.tiers import tiered

NUM_RECORDS = 64
BARKER = functools.partial(dpjax.barker, step_size=0.5, clip_bound=0.01)
SGLD = functools.partial(
    dpjax.sgld,
    step_size=0.1,
    dim=1,
    l2_clip_norm=1.0,
    sampling_prob=0.5,
)


def logprior(position):
    return -jnp.sum(position**2) / 2


def check(algorithm_fn, loglikelihood, data):
    posterior = dpjax.Posterior(logprior, loglikelihood, data)
    check_algorithm(algorithm_fn, posterior, jnp.zeros((2, 1)))


def seeded(generator: str):
    """A mean over random numbers that follow from the number of the record."""

    def loglikelihood(position, record):
        key = jax.random.fold_in(jax.random.key(0, impl=generator), record["number"])
        noise = jax.random.normal(key, (4,))
        return -jnp.mean((record["x"] - position - 3 * noise) ** 2) / 2

    return loglikelihood


def numbered(first: int):
    numbers = np.arange(NUM_RECORDS, dtype=np.int32)
    numbers[0] = first
    return dict(x=np.zeros(NUM_RECORDS, np.float32), number=numbers)


def moved(generator: str) -> float:
    """How far the first record's number moves a sum, in clip norms."""

    def total(data):
        posterior = dpjax.Posterior(logprior, seeded(generator), data)
        score = jax.grad(posterior.loglikelihood_fn)
        found = vector_sum(posterior, functools.partial(score, jnp.zeros(1)), 1.0)
        return np.asarray(found, float) / 2**32

    return float(np.abs(total(numbered(0)) - total(numbered(1000)))[0])


@pytest.mark.parametrize("algorithm_fn", tiered([BARKER, SGLD], [SGLD]))
def test_random_numbers_that_mix_records_are_refused(algorithm_fn):
    assert moved("threefry2x32") <= 2 < moved("rbg")
    for generator in ("rbg", "unsafe_rbg"):
        with pytest.raises(ValueError, match=r"random numbers .* the key of one"):
            check(algorithm_fn, seeded(generator), numbered(0))
    check(algorithm_fn, seeded("threefry2x32"), numbered(0))


def test_random_numbers_that_are_the_same_for_all_records_are_none():
    def loglikelihood(position, record):
        noise = jax.random.normal(jax.random.key(0, impl="rbg"), (4,))
        return -jnp.mean((record["x"] - position - noise) ** 2) / 2

    check(BARKER, loglikelihood, numbered(0))


def test_random_numbers_of_a_hidden_state_are_refused():
    """How many one record takes decides which the others get, of any later sum."""

    def loglikelihood(position, record):
        def draw(carry):
            return carry[0] + 1, jax.lax.rng_uniform(-1.0, 1.0, ())

        first = jnp.int32(0), jnp.zeros(())
        _, noise = jax.lax.while_loop(lambda c: c[0] <= record["number"], draw, first)
        return -((record["x"] - position[0] - noise) ** 2) / 2

    for algorithm_fn in (BARKER, SGLD):
        with pytest.raises(ValueError, match=r"jax\.lax\.rng_uniform"):
            check(algorithm_fn, loglikelihood, numbered(0))


def test_convolutions_of_two_parts_of_a_record_are_of_float32(x64):
    """In 64 bits one that is not finite makes those of all records undefined."""

    def of_two_parts(position, record):
        found = jnp.convolve(record["x"], record["kernel"], "same")
        return -jnp.sum((found - position[0]) ** 2) / 2

    def of_a_network(position, record):
        found = jnp.convolve(record["x"], position[0] * jnp.ones(3, "float32"), "same")
        return -jnp.sum(jnp.tanh(found) ** 2) / 2

    data = dict(x=jnp.zeros((NUM_RECORDS, 5)), kernel=jnp.zeros((NUM_RECORDS, 3)))
    floats = {name: leaf.astype("float32") for name, leaf in data.items()}
    check(BARKER, of_two_parts, floats)
    check(BARKER, of_a_network, data)
    if not x64:
        return
    with pytest.raises(ValueError, match="convolves two arrays"):
        check(BARKER, of_two_parts, data)
    with pytest.raises(ValueError, match="convolves two arrays"):
        check(SGLD, of_a_network, data)


def test_no_record_reaches_the_gradients_of_another_by_a_convolution():
    """In float32: of a network of two layers of filters."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(9, 6, 6, 2)).astype(np.float32)
    filters = [
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((3, 3, 2, 4), (3, 3, 4, 3))
    ]

    def loss(filters, image):
        layer = functools.partial(
            jax.lax.conv_general_dilated,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return jnp.sum(layer(jnp.tanh(layer(image[None], filters[0])), filters[1]) ** 2)

    gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))
    expected = gradients(filters, images)
    for value in (np.nan, np.inf, 3e38, 1e-40):
        images[4, 2, 3, 1] = value
        for found, other in zip(gradients(filters, images), expected, strict=True):
            same = np.all(np.asarray(found == other), axis=(1, 2, 3, 4))
            assert same.sum() >= 8 and np.all(np.delete(same, 4))


def test_gradients_of_grouped_convolutions_are_refused():
    """XLA may multiply a number that is not finite by zeros for all records."""

    def of_groups(position, record):
        layer = functools.partial(
            jax.lax.conv_general_dilated,
            window_strides=(1,),
            padding="SAME",
            feature_group_count=2,
        )
        filters = (position[0] * jnp.ones((4, 1, 3))).astype("float32")
        return -jnp.sum(jnp.tanh(layer(record[None], filters)) ** 2)

    data = jnp.zeros((NUM_RECORDS, 2, 5), "float32")
    check(BARKER, of_groups, data)
    with pytest.raises(ValueError, match="a convolution in batch groups"):
        check(SGLD, of_groups, data)
    algorithm = SGLD(dpjax.Posterior(logprior, of_groups, data))
    with pytest.raises(ValueError, match="a convolution in batch groups"):
        algorithm.step(jax.random.key(0), algorithm.init(jnp.zeros(1)))


@custom_vmap
def centred(x):
    return x


@centred.def_vmap
def _(axis_size, in_batched, x):
    return x - jnp.mean(x, axis=0, keepdims=True), True


# Before this file makes others.
OF_JAX = list(batching.fancy_primitive_batchers)


def largest(values, axes):
    return jnp.full_like(values[0], jnp.max(values[0])), 0


def primitive(rule):
    """A primitive of no library, with this rule for batches."""
    found = Primitive("largest")
    found.def_abstract_eval(lambda x: x)
    batching.primitive_batchers[found] = rule
    return found


class Rule:
    def __call__(self, values, axes):
        return largest(values, axes)


RULES = {
    "function": largest,
    "partial": functools.partial(largest),
    "object": Rule(),
    "method": Rule().__call__,
}


@jax.custom_vjp
def with_a_gradient(position, record):
    return -jnp.sum((record - position) ** 2) / 2


with_a_gradient.defvjp(
    lambda position, record: (
        with_a_gradient(position, record),
        (centred(record) - position, record),
    ),
    lambda kept, out: (out * kept[0], 0 * kept[1]),
)


@pytest.mark.parametrize(
    ("algorithm_fn", "loglikelihood"),
    [
        (BARKER, lambda position, record: -jnp.sum((centred(record) - position) ** 2)),
        (SGLD, with_a_gradient),
    ],
    ids=["of the likelihood", "of its derivative"],
)
def test_rules_for_batches_are_refused(algorithm_fn, loglikelihood):
    data = np.zeros((NUM_RECORDS, 1), np.float32)
    with pytest.raises(ValueError, match="a rule of its own for batches"):
        check(algorithm_fn, loglikelihood, data)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rules_of_other_libraries_are_refused(rule):
    mixing = primitive(rule)

    def loglikelihood(position, record):
        return -jnp.sum(mixing.bind(record) * position)

    data = np.zeros((NUM_RECORDS, 1), np.float32)
    with pytest.raises(ValueError, match=r"a rule of its own for batches.*'largest'"):
        check(BARKER, loglikelihood, data)


def test_rules_of_jax_are_not_refused():
    assert OF_JAX and all(map(_is_of_jax, OF_JAX))


def test_functions_of_numpy_are_not_refused():
    def loglikelihood(position, record):
        grid = jnp.linspace(-1, 1, 5)
        place = jnp.searchsorted(grid, record) + jnp.nonzero(record, size=1)[0]
        mantissa, exponent = jnp.frexp(record)
        return -jnp.sum((jnp.ldexp(mantissa, exponent) - place - position) ** 2) / 2

    data = np.arange(NUM_RECORDS, dtype=np.float32)[:, None] / NUM_RECORDS
    check(BARKER, loglikelihood, data)


def test_the_program_that_is_searched_is_evaluated():
    """A function that would do otherwise on a batch is not called on one."""

    def square(position, record):
        if "Batch" in type(record).__name__:
            record = centred(record)
        return jnp.sum((record - position) ** 2)

    data = np.arange(NUM_RECORDS, dtype=np.float32)[:, None] / NUM_RECORDS
    position, squares = jnp.zeros(1), data[:, 0] ** 2
    assert np.any(jax.vmap(square, (None, 0))(position, data) != squares)
    posterior = dpjax.Posterior(logprior, square, data)
    found = log_ratios.loglikelihoods(posterior, position, data)
    np.testing.assert_array_equal(found, squares)
    found = vector_sum(posterior, functools.partial(square, position), 1.0)
    assert found[0] == np.sum(np.trunc(squares * 2**16)) * 2**16
