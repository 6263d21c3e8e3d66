"""Two processes that hold half of the records each make one run."""

import functools
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.sharding import Mesh

import dpjax
import dpjax.numpyro
from dpjax import guides

BUDGET = dpjax.Budget(20.0, 1e-5)
NUM_CHAINS = 3
STARTS = np.zeros((NUM_CHAINS, 3), np.float32)
# No group of the exact sums is that of a process.
RECORDS = np.random.default_rng(0).normal(size=(2 * 700, 3)).astype(np.float32)
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
    "fast_mh": functools.partial(
        dpjax.fast_mh, step_size=0.02, clip_bound=0.02, expected_batch_size=20.0
    ),
    "sgld": functools.partial(
        dpjax.sgld, step_size=1e-5, dim=3, l2_clip_norm=1.0, sampling_prob=0.1
    ),
    "dpvi": functools.partial(
        dpjax.dpvi,
        optimizer=optax.adam(0.05),
        guide=guides.MeanField(3),
        l2_clip_norm=3.0,
        noise_multiplier=30.0,
        sampling_prob=0.25,
    ),
}


def logprior(position):
    return -0.5 * jnp.sum(position**2)


def loglikelihood(position, record):
    return -0.5 * jnp.sum((record - position) ** 2)


def regression(x, y):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(2), 2).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("obs", dist.Normal(x @ b, 1), obs=y)


def run(kernel, records, num_steps=12, **options):
    return dpjax.run(
        kernel,
        dpjax.Posterior(logprior, loglikelihood, records),
        num_steps,
        initial_position=STARTS,
        num_chains=NUM_CHAINS,
        verbose=False,
        **options,
    ).positions


def seeded(spread):
    """Draws of every kernel, with a key, by name."""
    keys = iter(jax.random.split(jax.random.key(0), 10))
    records = spread(RECORDS)
    draws = {
        name: run(kernel, records, budget=None, unsafe_key=next(keys))
        for name, kernel in KERNELS.items()
    }
    # With a budget the randomness depends on the records and the program, too.
    draws["charged"] = run(
        KERNELS["barker"], records, budget=BUDGET, unsafe_key=next(keys)
    )
    x, y = np.ones((len(RECORDS), 2), np.float32), RECORDS[:, 0]
    x[:, 1] = RECORDS[:, 1]
    example = dict(x=x[:100] / 2, y=y[:100] / 2)
    fitted = dpjax.numpyro.sample(
        dpjax.numpyro.posterior(
            regression, dict(x=spread(x), y=spread(y)), plate="data", example=example
        ),
        budget=BUDGET,
        num_draws=20,
        num_chains=2,
        verbose=False,
        unsafe_key=next(keys),
    )
    return draws | {"numpyro": fitted.positions["b"]}


def refused(call):
    """Its error, in words."""
    with pytest.raises(ValueError) as info:
        call()
    return f"{info.typename}: {info.value}"


def spread(array):
    """Half of an array on each of two processes."""
    sharding = jax.NamedSharding(Mesh(jax.devices(), "data"), jax.P("data"))
    mine = np.split(array, 2)[jax.process_index()]
    return jax.make_array_from_process_local_data(sharding, mine)


def main(folder, process):
    """What each of the two processes does."""
    # The second process must not look for the files.
    files = Path(folder if process == 0 else "/nowhere")
    draws = seeded(spread)
    private = functools.partial(
        run, KERNELS["barker"], spread(RECORDS), budget=BUDGET, ledger=files / "ledger"
    )
    draws["private"] = private(checkpoint=files / "checkpoint.npz")
    draws["resumed"] = private(checkpoint=files / "checkpoint.npz")
    parts = np.split(RECORDS, 2)
    refusals = [
        refused(lambda: private(10**6)),
        refused(lambda: run(KERNELS["barker"], parts[process], budget=None)),
    ]
    if process == 0:
        (files / "ledger").write_text("a line")
    refusals.append(refused(private))
    np.savez(Path(folder) / f"{process}.npz", refusals=refusals, **draws)


JOIN = """
import jax
jax.config.update("jax_enable_x64", {x64})
# Before dpjax is imported, because BlackJAX computes when it is.
jax.distributed.initialize(
    "127.0.0.1:{port}",
    num_processes=2,
    process_id={i},
    heartbeat_timeout_seconds=20,
    shutdown_timeout_seconds=20,
)
from tests.runner.test_processes import {function}
{function}(*{arguments})
"""


def launched(function, *arguments):
    """Two processes that call a function of this file."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = dict(x64=jax.config.jax_enable_x64, port=port, function=function)
    return [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                JOIN.format(i=i, arguments=(*arguments, i), **options),
            ],
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]


@pytest.mark.thorough
def test_two_processes_draw_as_one(tmp_path):
    with jax.numpy_rank_promotion("allow"):
        expected = seeded(lambda array: array)
    processes = launched("main", str(tmp_path))
    for process in processes:
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
    first, second = (np.load(tmp_path / f"{i}.npz") for i in range(2))
    for name, draws in expected.items():
        np.testing.assert_array_equal(first[name], draws, name)
    for name in first.files:
        np.testing.assert_array_equal(first[name], second[name], name)
    np.testing.assert_array_equal(first["resumed"], first["private"])
    assert np.unique(first["private"]).size > 10
    spent, parted, damaged = first["refusals"]
    assert f"BudgetError: earlier runs in {tmp_path}/ledger and this run" in spent
    assert "ValueError: data of process 1 and process 0 differ" in parted
    assert f"LedgerError: {tmp_path}/ledger is not what {tmp_path}" in damaged
