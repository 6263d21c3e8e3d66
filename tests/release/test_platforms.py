"""On a GPU: sums of integers, noise and draws of records are those of a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.models import logistic_regression
from dpjax.random import batches, chacha
from dpjax.release import exact_sums, gaussian
from dpjax.release.k_norm_sum import KNormSum

KEY = bytes(range(32))
N = 100_003

pytestmark = pytest.mark.skipif(
    jax.default_backend() == "cpu", reason="there is no GPU to compare with the CPU"
)


def on_both(function, *arguments):
    """What the compiled function returns on the CPU, and on the default device."""
    program = jax.jit(function)
    devices = jax.local_devices(backend="cpu")[0], jax.local_devices()[0]
    return [
        jax.tree.map(np.asarray, program(*jax.device_put(arguments, device)))
        for device in devices
    ]


def integers(*shape):
    rng = np.random.default_rng(0)
    found = rng.integers(-exact_sums.GRID, exact_sums.GRID, shape, endpoint=True)
    return found.astype(np.float32)


def test_sums_of_integers_are_equal():
    values = integers(N, 5)

    def in_blocks(values):
        def sums(block, _, is_new):
            return exact_sums.exact_sum(jnp.where(is_new[:, None], block, 0), axis=0)

        return exact_sums.sum_over_records(sums, values, 1000, (5,))

    expected = values.astype(np.int64).sum(axis=0)
    whole = on_both(lambda values: exact_sums.exact_sum(values, axis=0), values)
    for found in (*whole, *on_both(in_blocks, values)):
        np.testing.assert_array_equal(found, expected)


def test_products_of_integers_are_equal():
    weights, cells = integers(N, 3, 1), integers(N, 1, 40)
    expected = weights[:, :, 0].T.astype(np.int64) @ cells[:, 0].astype(np.int64)
    for found in on_both(exact_sums.exact_product, weights, cells):
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)


@pytest.mark.parametrize("noise_multiplier", [0.7, 30.0])
def test_noise_is_equal(noise_multiplier):
    size = 30_000

    def noise(words):
        with jax.enable_x64(True):
            zeros = jnp.zeros(size, jnp.int64)
        return gaussian.add_noise(words, zeros, 1.0, noise_multiplier)

    words = chacha.tape(KEY, 0, (gaussian.WORDS_PER_COORDINATE * size,))
    cpu, gpu = on_both(noise, words)
    assert np.unique(cpu).size > 100
    np.testing.assert_array_equal(gpu, cpu)


def test_k_norm_noise_is_equal():
    size = 8
    release = KNormSum(1.0, 0.7)
    data = np.zeros(4, np.float32)
    posterior = dpjax.Posterior(jnp.sum, lambda at, record: record, data)

    def noise(words):
        return release(words, posterior, lambda record: record + jnp.zeros(size))

    words = chacha.tape(KEY, 1, (release.num_words(size, 4),))
    cpu, gpu = on_both(noise, words)
    np.testing.assert_array_equal(gpu, cpu)


@pytest.mark.parametrize("sampling_prob", [2.0**-8, 0.5])
def test_samples_of_records_are_equal(sampling_prob):
    words = chacha.tape(KEY, 2, (batches.num_poisson_words(sampling_prob, N),))
    cpu, gpu = on_both(lambda words: batches.poisson(words, sampling_prob, N), words)
    assert cpu.is_drawn.sum() > 100
    np.testing.assert_array_equal(gpu.is_drawn, cpu.is_drawn)
    np.testing.assert_array_equal(gpu.indices, cpu.indices)


def test_log_likelihoods_have_the_digits_of_float32():
    """A matrix product in TF32 has three digits; a log ratio needs more."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1000, 50)).astype(np.float32)
    posterior = logistic_regression(features, features[:, 0] > 0)
    positions = rng.normal(size=(20, 50)).astype(np.float32)

    def loglikelihoods(positions, posterior):
        by_record = jax.vmap(posterior.loglikelihood_fn, (None, 0))
        return jax.vmap(by_record, (0, None))(positions, posterior.data)

    cpu, gpu = on_both(loglikelihoods, positions, posterior)
    np.testing.assert_allclose(gpu, cpu, rtol=1e-5, atol=1e-5)
