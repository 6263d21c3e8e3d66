"""Sensitivity in exact integers, on adversarial data; mutants must fail the checks."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from jax_privacy import clipping

from dpjax.mcmc.hmc import _pull_back
from dpjax.posterior import Posterior
from dpjax.release import clip_bounds, exact_sums, log_ratios, vector_sums
from dpjax.release.exact_sums import GRID, VECTOR_GRID
from dpjax.release.gradient_parts import gradient_parts
from tests.tiers import tiered

SCALES = [1e-30, 1e-6, 0.1, 1.0, 3.7, 1e9]
SPECIAL = [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e38, 0.0, -0.0, 1e-40, 1.0, -1.0]


def flat(position):
    return 0.0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(position))


def looked_up(position, record):
    """A record states its log-likelihoods on either side of zero."""
    return jnp.where(position > 0, record[1], record[0])


def linear(position, record):
    """The record is the gradient."""
    return jnp.dot(position, record)


def adversarial(rng, shape, scale):
    """Values of all magnitudes about `scale`, saturated and special ones."""
    values = scale * rng.normal(size=shape) * 2.0 ** rng.integers(-24, 24, shape)
    values = np.where(
        rng.random(shape) < 0.3, scale * rng.choice([-8, -1, 1, 8], shape), values
    )
    values = np.where(rng.random(shape) < 0.1, rng.choice(SPECIAL, shape), values)
    with np.errstate(over="ignore"):
        return values.astype(jnp.result_type(float))


def neighbours(rng, count, size, width, scale):
    """`count` data sets, with one record replaced, and with it removed."""
    data = adversarial(rng, (count, size, width), scale)
    index = rng.integers(0, size, count)
    replaced = data.copy()
    replaced[np.arange(count), index] = adversarial(rng, (count, width), scale[:, 0])
    kept = np.arange(size)[None] != index[:, None]
    return data, replaced, data[kept].reshape(count, size - 1, width)


def log_ratio_sum(data, clip):
    posterior = Posterior(flat, looked_up, data)
    return log_ratios.log_ratio_sum(posterior, -1.0, 1.0, clip)[0]


def check_scalar(sum_fn, bound=GRID, fixed_clip=None):
    """20 000 neighbouring pairs of each relation, in whole cells, without tolerance."""
    rng = np.random.default_rng(1)
    largest = 0
    for size in (5, 9):
        scale = rng.choice(SCALES, 10_000) if fixed_clip is None else fixed_clip
        scale = np.broadcast_to(scale, 10_000)
        if fixed_clip is None:
            clips = scale.astype(jnp.result_type(float))
            sums = jax.jit(jax.vmap(sum_fn))
        else:
            clips = scale
            sums = jax.jit(jax.vmap(lambda data, _: sum_fn(data, fixed_clip)))
        parts = neighbours(rng, 10_000, size, 2, scale[:, None, None])
        cells = [np.asarray(sums(part, clips), np.float64) for part in parts]
        cells = [part / clips.astype(np.float64) * GRID for part in cells]
        full, replaced, removed = map(np.rint, cells)
        for exact, part in zip((full, replaced, removed), cells, strict=True):
            assert np.max(abs(exact - part)) < 1e-3
        assert np.max(abs(full - removed)) <= bound
        assert np.max(abs(full - replaced)) <= 2 * bound
        largest = max(largest, np.max(abs(full - replaced)))
    return largest


def gradient_sum(data, norm):
    return gradient_sum_of(linear, data, data.shape[-1], norm)


def check_vector(sum_fn, bound=VECTOR_GRID, dims=(1, 2, 7, 16, 50), norm=0.3):
    """Squared norms of integer differences, exact in Python's integers."""
    rng = np.random.default_rng(2)
    largest = 0
    for dim in dims:
        sums = jax.jit(jax.vmap(lambda data: sum_fn(data, norm)))
        parts = neighbours(rng, 4000, 5, dim, np.full((4000, 1, 1), norm))
        cells = [np.asarray(sums(part)) for part in parts]
        integers = [part.astype(np.int64) for part in cells]
        for exact, part in zip(integers, cells, strict=True):
            np.testing.assert_array_equal(exact, part)
        integers = [part.astype(object) for part in integers]
        full, replaced, removed = integers
        assert np.max(np.sum((full - removed) ** 2, -1)) <= bound**2
        change = np.max(np.sum((full - replaced) ** 2, -1))
        assert change <= (2 * bound) ** 2
        largest = max(largest, change**0.5)
    return largest


def test_log_ratio_sensitivity_with_traced_clip_bounds():
    assert check_scalar(log_ratio_sum) == 2 * GRID


@pytest.mark.parametrize("clip", [1e-30, 0.7, 1e6])
def test_log_ratio_sensitivity(clip):
    assert check_scalar(log_ratio_sum, fixed_clip=clip) == 2 * GRID


@pytest.mark.parametrize("norm", tiered([1e-30, 0.3, 1e6], [0.3]))
def test_gradient_sensitivity(norm):
    # Attained up to the shrinkage that pays for rounding.
    assert check_vector(gradient_sum, norm=norm) > 1.99 * VECTOR_GRID


def clipped_after_the_sum(data, clip):
    ratio = data[:, 1] - data[:, 0]
    total = jnp.sum(jnp.where(jnp.isfinite(ratio), ratio, 0))
    return jnp.rint(jnp.clip(total / clip, -len(data), len(data)) * GRID) * clip / GRID


def non_finite_kept(data, clip):
    return jnp.sum(jnp.clip(jnp.rint((data[:, 1] - data[:, 0]) / clip * GRID),
                            -GRID, GRID)) * clip / GRID  # fmt: skip


def not_rounded(data, clip):
    ratio = data[:, 1] - data[:, 0]
    return jnp.sum(jnp.clip(jnp.where(jnp.isfinite(ratio), ratio, 0), -clip, clip))


@pytest.mark.parametrize(
    "mutant", [clipped_after_the_sum, non_finite_kept, not_rounded]
)
def test_scalar_mutants_are_caught(mutant):
    with pytest.raises(AssertionError):
        check_scalar(mutant, fixed_clip=0.7)


def clipped_by_component(data, norm):
    cells = jnp.where(jnp.all(jnp.isfinite(data), -1, keepdims=True), data, 0)
    return GRID * jnp.sum(jnp.trunc(jnp.clip(cells * (GRID / norm), -GRID, GRID)), 0)


def rounded_up(data, norm):
    """Clipped in norm without a margin, then rounded away from zero."""
    data = jnp.where(jnp.all(jnp.isfinite(data), -1, keepdims=True), data, 0)
    data = jnp.clip(data.astype(float), -1e15, 1e15) / norm
    length = jnp.linalg.norm(data, axis=-1, keepdims=True)
    cells = data / jnp.maximum(length, 1) * GRID
    return GRID * jnp.sum(jnp.sign(cells) * jnp.ceil(abs(cells)), 0)


@pytest.mark.parametrize("mutant", [clipped_by_component, rounded_up])
def test_vector_mutants_are_caught(mutant):
    with pytest.raises(AssertionError):
        check_vector(mutant)


def test_half_the_sensitivity_is_caught():
    with pytest.raises(AssertionError):
        check_scalar(log_ratio_sum, bound=GRID / 2, fixed_clip=0.7)
    with pytest.raises(AssertionError):
        check_vector(gradient_sum, bound=VECTOR_GRID / 2)


def dyadic(rng, shape):
    """Numbers that float32 multiplies and adds without rounding."""
    return jnp.asarray(rng.integers(-32, 32, shape) / 32.0, jnp.result_type(float))


def squared(position, record):
    return -jnp.sum((record - position) ** 2)


def both_sums(data, clip=0.9):
    @jax.jit
    def sums(data):
        posterior = Posterior(flat, squared, data)
        here = jnp.full(data.shape[1], 0.25, data.dtype)
        ratio, _ = log_ratios.log_ratio_sum(posterior, here, here + 0.5, clip)
        gradient_fn = functools.partial(jax.grad(squared), here)
        return ratio, vector_sums.vector_sum(posterior, gradient_fn, clip)

    ratio, gradient = sums(data)
    return float(ratio), np.asarray(gradient)


@pytest.mark.parametrize(
    ("block", "size"), [(32, 5), (32, 96), (32, 290), (32, 300), (256, 1300)]
)
def test_blocks_do_not_change_the_sums(monkeypatch, block, size):
    # One block, and blocks in a loop that do and do not overlap, with and without whole
    # groups of terms.
    data = dyadic(np.random.default_rng(3), (size, 3))
    whole = both_sums(data)
    for module in (log_ratios, vector_sums):
        monkeypatch.setattr(module, "BLOCK", block)
    loops = str(jax.make_jaxpr(lambda d: gradient_sum(d, 1.0))(data))
    assert ("scan" in loops or "while" in loops) == (size > block)
    blocked = both_sums(data)
    assert whole[0] == blocked[0]
    np.testing.assert_array_equal(whole[1], blocked[1])


def test_many_records_are_summed_in_blocks_that_fit_a_cache(monkeypatch):
    data = dyadic(np.random.default_rng(3), (300, 3))
    whole, _ = both_sums(data)
    monkeypatch.setattr(log_ratios, "BLOCK", 299)
    monkeypatch.setattr(log_ratios, "CACHED", 8 * 32)
    with mock.patch.object(
        log_ratios, "sum_over_records", wraps=exact_sums.sum_over_records
    ) as spy:
        assert whole == both_sums(data)[0]
    size = 32 if jax.default_backend() == "cpu" else 299
    assert [call.args[2] for call in spy.call_args_list] == [size]


def test_order_does_not_change_the_sums():
    rng = np.random.default_rng(4)
    data = jnp.asarray(rng.normal(size=(1001, 3)), jnp.result_type(float))
    sums, permuted = both_sums(data), both_sums(data[rng.permutation(1001)])
    assert sums[0] == permuted[0]
    np.testing.assert_array_equal(sums[1], permuted[1])


def test_memory_gives_the_same_sums():
    rng = np.random.default_rng(5)
    posterior = Posterior(flat, squared, dyadic(rng, (101, 16)))
    positions = dyadic(rng, (4, 16))
    memory, here = log_ratios.remember(posterior, positions[0]), positions[0]
    assert memory.shape == (101,)
    for proposed, accepted in zip(positions[1:], (True, False, True), strict=True):
        total, new = log_ratios.log_ratio_sum(posterior, here, proposed, 0.9, memory)
        direct, nothing = log_ratios.log_ratio_sum(posterior, here, proposed, 0.9)
        assert total == direct and nothing is None
        np.testing.assert_array_equal(new, log_ratios.remember(posterior, proposed))
        if accepted:
            here, memory = proposed, new


def test_memory_only_where_it_pays():
    def remembered(*shape):
        data = jax.ShapeDtypeStruct(shape, jnp.result_type(float))
        return jax.eval_shape(
            lambda d: log_ratios.remember(Posterior(flat, squared, d), d[0]), data
        )

    assert remembered(3, 15) is None
    assert remembered(3, 16).shape == (3,)
    assert remembered(2**20 + 1, 16) is None


@pytest.mark.filterwarnings("ignore:optax.global_norm:DeprecationWarning")
@pytest.mark.parametrize("dim", [1, 5, 40])
def test_agrees_with_jax_privacy(dim):
    rng = np.random.default_rng(6)
    data = jnp.asarray(rng.normal(size=(64, dim)), jnp.result_type(float))
    position, norm = data[0] * 0.1, 1.3
    theirs = clipping.clipped_grad(squared, l2_clip_norm=norm, keep_batch_dim=False)
    gradient_fn = functools.partial(jax.grad(squared), position)
    ours = vector_sums.vector_sum(Posterior(flat, squared, data), gradient_fn, norm)
    # A record loses one cell to truncation and (d + 16) / 8 to the margin.
    tolerance = 64 * (1 + (dim + 16) / 8) * norm / GRID + 1e-5
    ours = np.asarray(ours) * (norm / VECTOR_GRID)
    np.testing.assert_allclose(ours, theirs(position, data), atol=tolerance)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_contributions_are_zero(bad):
    data = np.ones((6, 2), jnp.result_type(float))
    data[0, 0], data[1, 1] = bad, bad
    data[2:, 0], data[2:, 1] = 0.25, 0.5
    assert float(log_ratio_sum(jnp.asarray(data), 1.0)) == 4 * 0.25
    found, expected = (
        np.asarray(gradient_sum(jnp.asarray(some), 1.0)) for some in (data, data[2:])
    )
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(expected / VECTOR_GRID, [1.0, 2.0], rtol=1e-3)


@pytest.mark.parametrize("size", [1e30, 1.5e32, 3e38])
def test_gradients_that_overflow_are_clipped(size):
    # In units of cells, float32 cannot hold them, or not their reciprocals.
    rows = jnp.array([[[size, 0.5, 0.0]], [[size, 1e3, -size]]], jnp.float32)
    found = np.asarray(jax.jit(jax.vmap(lambda d: gradient_sum(d, 1e-1)))(rows))
    assert np.all(np.isfinite(found))
    assert np.all(np.linalg.norm(found, axis=1) <= VECTOR_GRID)


def test_gradients_that_underflow_to_nan_are_zero():
    # GRID / norm is infinite, and a component is zero: 0 * inf.
    norm = 1e-36 if jnp.result_type(float) == jnp.float32 else 1e-304
    data = jnp.array([[0.0, 1.0], [1.0, 1.0]])
    found = np.asarray(gradient_sum(data, jnp.asarray(norm, data.dtype)))
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize("dim", [2, exact_sums.MAX_RECOMPUTED_PIECES + 1])
def test_products_contracted_into_sums_do_not_break_the_bound(dim):
    """A difference of equal numbers, if the product in it is rounded.

    Compilers round products and sums together or apart, by what else uses a product.
    Were a component's difference unrounded and the norm's rounded, to zero, it would
    not be clipped.
    """

    def cancelling(position, record):
        first, second, difference = jnp.split(record, 3)
        product = first * second
        parts = [position[j] * (product[j] - difference[j]) for j in range(dim)]
        shared = [1e-20 * position[j - 1] * product[j] for j in range(dim)]
        return sum(parts) + sum(shared)

    rng = np.random.default_rng(10)
    factors = 1 + rng.integers(0, 2**12, (2, 100, 300, dim)) * 2.0**-12
    factors = factors.astype(np.float32)
    data = np.concatenate([*factors, factors[0] * factors[1]], axis=-1)
    sums = jax.jit(jax.vmap(lambda d: gradient_sum_of(cancelling, d, dim, 1e-10)))
    norms = np.linalg.norm(np.asarray(sums(data)), axis=1)
    assert np.max(norms) <= 300 * VECTOR_GRID


def gradient_sum_of(loglikelihood, data, dim, norm):
    position = jnp.zeros(dim, data.dtype)
    return vector_sums.vector_sum(
        Posterior(flat, loglikelihood, data),
        functools.partial(gradient_parts, loglikelihood, position),
        norm,
    )


def test_infinite_clip_bound_gives_the_plain_sum():
    data = dyadic(np.random.default_rng(7), (50, 2)) * 1024
    assert float(log_ratio_sum(data, np.inf)) == float(jnp.sum(data[:, 1] - data[:, 0]))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_floats_keep_the_sensitivity(dtype):
    def narrow(position, record):
        return looked_up(position, record).astype(dtype)

    def sum_fn(data, clip):
        posterior = Posterior(flat, narrow, data)
        return log_ratios.log_ratio_sum(posterior, -1.0, 1.0, clip)[0]

    rng = np.random.default_rng(8)
    data = rng.uniform(-1, 1, (4000, 33, 2)).astype(jnp.result_type(float))
    replaced = data.copy()
    replaced[:, 0] = [-4, 4]
    data[:, 0] = [4, -4]
    sums = jax.jit(jax.vmap(lambda d: sum_fn(d, 0.7)))
    change = abs(np.asarray(sums(data)) - np.asarray(sums(replaced)))
    assert np.max(np.rint(change / 0.7 * GRID)) == 2 * GRID


def test_bounds_in_half_precision_lose_no_record():
    """One log ratio is zero, and the cells of such a bound overflow in it."""
    data = jnp.asarray([[0.0, 0.0], [0.0, 0.5], [1.0, 1.0005]])
    half = jnp.asarray(0.001, jnp.float16)
    expected = float(log_ratio_sum(data, float(half)))
    assert expected > 0.001
    for bound in (half, np.asarray(half)[()]):
        assert float(log_ratio_sum(data, bound)) == pytest.approx(expected, rel=1e-4)


def test_sensitivity():
    assert clip_bounds.sensitivity(0.3, Relation.REPLACE_ONE) == 0.6
    assert clip_bounds.sensitivity(0.3, Relation.REPLACE_SPECIAL) == 0.3
    for bad in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="clip bound"):
            clip_bounds.sensitivity(bad, Relation.REPLACE_ONE)


def by_entries(position, record):
    """Its gradient is taken apart, that of `linear`, a dot product, is not."""
    return sum(position[j] * record[j] for j in range(3))


@pytest.mark.parametrize("loglikelihood", [linear, by_entries])
@pytest.mark.parametrize("root", [[2.0, 0.5, 1.0], np.tril(np.full((3, 3), 0.7))])
def test_gradients_in_the_coordinates_of_a_metric(loglikelihood, root):
    data = jnp.array([[0.1, -0.2, 0.3], [0.2, 0.1, 0.0]])
    root = jnp.asarray(root)
    position = jnp.array([1.0, 2.0, 3.0])

    def whitened(z, record):
        matrix = jnp.diag(root) if root.ndim == 1 else root
        return loglikelihood(position + matrix @ z, record)

    expected = jax.vmap(jax.grad(whitened), (None, 0))(jnp.zeros(3), data).sum(0)
    posterior = Posterior(flat, loglikelihood, data)

    def contribution(record):
        parts = gradient_parts(loglikelihood, position, record)
        return _pull_back(root, parts)

    found = np.asarray(vector_sums.vector_sum(posterior, contribution, 2.0))
    # Truncation to the grid takes at most a cell from each of the two records.
    np.testing.assert_allclose(found * 2 / VECTOR_GRID, expected, atol=3 * 2 / GRID)
    # Clipped in these coordinates.
    tight = np.asarray(vector_sums.vector_sum(posterior, contribution, 1e-3))
    assert np.linalg.norm(tight) > VECTOR_GRID
    assert np.linalg.norm(tight) <= 2 * VECTOR_GRID
