import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.evaluation import median_bandwidth, mmd, mmd_squared, reference_bandwidth
from dpjax.models import thesis_model


def naive(samples, reference, bandwidth):
    def kernel(left, right):
        squares = ((left[:, None] - right[None]) ** 2).sum(-1)
        return np.exp(-squares / (2 * bandwidth**2))

    def within(points):
        gram = kernel(points, points)
        return gram[~np.eye(len(points), dtype=bool)].mean()

    return within(samples) + within(reference) - 2 * kernel(samples, reference).mean()


def make(num_draws, dim=3, shift=0.0, seed=0):
    draws = np.random.default_rng(seed).normal(size=(num_draws, dim))
    return draws.astype(np.float32).astype(float) + shift


@pytest.mark.parametrize("shift", [0.0, 0.5])
@pytest.mark.parametrize("offset", [0.0, 256.0])
def test_equals_the_naive_sum(shift, offset, x64):
    samples, reference = make(37, shift=shift) + offset, make(50, seed=1) + offset
    expected = naive(samples, reference, 1.3)
    arguments = jnp.asarray(samples), jnp.asarray(reference), 1.3
    tolerance = 1e-12 if x64 else 1e-5
    np.testing.assert_allclose(mmd_squared(*arguments), expected, atol=tolerance)
    np.testing.assert_allclose(
        mmd(*arguments), abs(expected) ** 0.5, atol=tolerance**0.5
    )


@pytest.mark.parametrize("block_size", [1, 7, 37, 1000])
def test_block_size_does_not_matter(block_size):
    samples, reference = jnp.asarray(make(37)), jnp.asarray(make(50, seed=1))
    found = mmd_squared(samples, reference, 1.0, block_size=block_size)
    np.testing.assert_allclose(found, mmd_squared(samples, reference, 1.0), atol=1e-6)


def test_no_array_is_larger_than_block_times_rows():
    samples, reference = jnp.zeros((640, 3)), jnp.zeros((512, 3))
    jaxpr = jax.make_jaxpr(lambda *args: mmd_squared(*args, 1.0, block_size=8))(
        samples, reference
    )
    sizes = [
        int(size)
        for shape in re.findall(r"f\d\d\[([\d,]+)\]", str(jaxpr))
        for size in [np.prod([int(n) for n in shape.split(",")])]
    ]
    assert max(sizes) <= 8 * 640


def test_unbiased():
    def estimate(rng_key):
        left, right = jax.random.split(rng_key)
        return mmd_squared(
            jax.random.normal(left, (10, 2)), jax.random.normal(right, (15, 2)), 1.0
        )

    estimates = jax.vmap(estimate)(jax.random.split(jax.random.key(0), 2000))
    error = jnp.std(estimates) / 2000**0.5
    assert abs(jnp.mean(estimates)) < 4 * error


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["easy-2d", "tempered-10d", "circle"])
def test_true_samples_score_as_in_the_thesis(key):
    model = thesis_model(key)
    data, reference = model.simulate(), model.reference()
    bandwidth = reference_bandwidth(reference)
    scores = [
        mmd(model.exact_sample(rng_key, data, 1000), reference, bandwidth)
        for rng_key in jax.random.split(jax.random.key(0), 10)
    ]
    assert 0.01 < np.mean(scores) < 0.03
    shifted = reference + bandwidth
    assert mmd(shifted, reference, bandwidth) > 0.3


def test_bandwidths():
    samples, reference = jnp.asarray(make(3000)), jnp.asarray(make(2000, seed=1))
    # The distance of two standard normals in 3d is sqrt(2) chi_3, median 2.175.
    thesis = median_bandwidth(jax.random.key(0), samples, reference)
    np.testing.assert_allclose(thesis, 2.175, atol=0.15)
    np.testing.assert_allclose(reference_bandwidth(reference), 2.175, atol=0.1)


def test_refuses_bad_arguments():
    with pytest.raises(ValueError, match="shapes"):
        mmd(jnp.ones((3, 2)), jnp.ones((3, 1)), 1.0)
    with pytest.raises(ValueError, match="two rows"):
        mmd(jnp.ones((1, 2)), jnp.ones((3, 2)), 1.0)
