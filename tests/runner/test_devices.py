"""Records spread over devices: the same draws, and little to send between them."""

import functools
import itertools
import os
import subprocess
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import dpjax
from benchmarks.scale import EXCHANGE, exchanged
from dpjax import compiled
from dpjax.models import logistic_regression
from dpjax.release import log_ratios, vector_sums

BUDGET = dpjax.Budget(100.0, 1e-5)
STARTS = np.zeros((4, 3), np.float32)
KERNELS = {
    "barker": functools.partial(dpjax.barker, step_size=0.05, clip_bound=0.05),
    "hmc": functools.partial(
        dpjax.hmc,
        step_size=0.01,
        num_integration_steps=2,
        noise_multiplier=18.0,
        clip_bound=0.1,
        l2_clip_norm=1.0,
    ),
    "sgld": functools.partial(
        dpjax.sgld, step_size=1e-5, dim=3, l2_clip_norm=1.0, sampling_prob=0.1
    ),
}


def logprior(position):
    return -0.5 * jnp.sum(position**2)


def loglikelihood(position, record):
    return -0.5 * jnp.sum((record - position) ** 2)


def target(data):
    return dpjax.Posterior(logprior, loglikelihood, data)


def regression(data):
    """Its gradients are summed by matrix products."""
    return logistic_regression(data, data[:, 0] > 0)


def draws(kernel, data, budget=None, target=target):
    run = dpjax.run(
        kernel,
        target(data),
        30,
        initial_position=STARTS,
        num_chains=len(STARTS),
        budget=budget,
        verbose=False,
        unsafe_key=jax.random.key(0),
    )
    return run.positions


def compare():
    """With eight devices."""
    assert len(jax.devices()) == 8
    spread = jax.NamedSharding(Mesh(jax.devices(), "data"), jax.P("data"))
    rng = np.random.default_rng(0)
    # No group of the exact sums, and no block, is that of a device.
    data = rng.normal(size=(8 * 2500, 3)).astype(np.float32)
    apart = jax.device_put(data, spread)
    for kernel in KERNELS.values():
        np.testing.assert_array_equal(draws(kernel, data), draws(kernel, apart))
    for kernel in (KERNELS["hmc"], functools.partial(KERNELS["sgld"], sampling_prob=1)):
        together, split = (draws(kernel, d, target=regression) for d in (data, apart))
        np.testing.assert_array_equal(together, split)
    # A copy of numbers that one could type is found where it lies on two devices.
    numbers = rng.integers(0, 50, len(data)).astype(np.float32)
    copy = numbers[2490:2510]

    def held(position, record):
        return jnp.sum(position) * record * jnp.sum(copy)

    kept = dpjax.Posterior(logprior, held, jax.device_put(numbers, spread))
    with pytest.raises(ValueError, match="'copy', which holds entries of the data"):
        dpjax.run(
            KERNELS["barker"],
            kept,
            3,
            initial_position=STARTS,
            num_chains=len(STARTS),
            budget=BUDGET,
        )
    # With a budget the randomness depends on the program, whose text names no device.
    one, other = (
        draws(KERNELS["barker"], records, BUDGET) for records in (data, apart)
    )
    np.testing.assert_array_equal(one, other)
    axes = dict(axis_types=(AxisType.Explicit,))
    explicit = jax.NamedSharding(Mesh(jax.devices(), "data", **axes), jax.P("data"))
    explicitly = draws(KERNELS["barker"], jax.device_put(data, explicit), BUDGET)
    np.testing.assert_array_equal(one, explicitly)
    # What is exchanged are sums in float64, for one block of records or for many.
    whole = functools.partial(KERNELS["sgld"], sampling_prob=1.0)
    kernels = (KERNELS["barker"], 1), (KERNELS["hmc"], 1 + 3), (whole, 3)
    small = functools.partial(mock.patch.object, attribute="BLOCK", new=1000)
    with small(log_ratios), small(vector_sums):
        for kernel, size in kernels:
            np.testing.assert_array_equal(draws(kernel, data), draws(kernel, apart))
            for model, num_groups in itertools.product((target, regression), (3, 36)):
                some = np.tile(data, (4, 1))[: 8 * 256 * num_groups]
                target_of_some = model(jax.device_put(some, spread))
                sent = exchanged(kernel, target_of_some, STARTS)
                assert sum(sent) == 8 * size * len(STARTS), sent


def compare_chains():
    """With eight devices."""
    data = np.random.default_rng(0).normal(size=(4 * 256 * 4, 3)).astype(np.float32)
    devices = np.array(jax.devices())

    def spread(num_parts):
        mesh = Mesh(devices.reshape(num_parts, -1), ("data", "chain"))
        return jax.device_put(data, jax.NamedSharding(mesh, jax.P("data")))

    # Rounding of what is public depends on how many chains a device moves.
    for kernel in KERNELS.values():
        together, split = draws(kernel, data), draws(kernel, spread(4))
        np.testing.assert_allclose(split, together, rtol=0, atol=1e-6)
    # A device that holds all records samples them for its chain alone.
    texts = []

    def shared(*arguments, shared=compiled.shared):
        texts.append(shared(*arguments).as_text())
        return shared(*arguments)

    starts = np.zeros((8, 3), np.float32)
    run = functools.partial(
        dpjax.run, KERNELS["sgld"], num_steps=30, budget=None, verbose=False
    )
    with mock.patch.object(compiled, "shared", shared):
        run(posterior=target(spread(1)), initial_position=starts, num_chains=8)
    # What a chunk returns: the states, how often they moved, and two histories.
    (text,) = (text for text in texts if "jit_loop" in text)
    assert len(EXCHANGE.findall(text)) == 4
    with pytest.raises(ValueError, match="2 devices, which do not divide 3 chains"):
        run(posterior=target(spread(4)), initial_position=starts[:3], num_chains=3)


@pytest.mark.thorough
@pytest.mark.parametrize("comparison", [compare, compare_chains])
def test_draws_are_the_same_on_eight_devices(comparison):
    environment = {
        **os.environ,
        "PYTHONPATH": os.getcwd(),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    name = comparison.__name__
    code = f"from tests.runner import test_devices; test_devices.{name}()"
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
