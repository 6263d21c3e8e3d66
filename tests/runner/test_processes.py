"""Two processes that hold half of the records each make one run."""

import contextlib
import functools
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.sharding import Mesh

import dpjax
import dpjax.numpyro
from dpjax import cli, compiled
from dpjax.runner import ledger as ledgers
from dpjax.runner import loop
from dpjax.runner.spread import spread as spread_records

ROOT = Path(dpjax.__file__).parents[1]
BUDGET = dpjax.Budget(20.0, 1e-5)
NUM_CHAINS = 3
STARTS = np.zeros((NUM_CHAINS, 3), np.float32)
# No group of the exact sums is that of a process.
RECORDS = np.random.default_rng(0).normal(size=(2 * 700, 3)).astype(np.float32)
KERNELS = {
    "barker": functools.partial(dpjax.barker, step_size=0.05, clip_bound=0.05),
    "fast_mh": functools.partial(
        dpjax.fast_mh, step_size=0.02, clip_bound=0.02, expected_batch_size=20.0
    ),
    "sgld": functools.partial(
        dpjax.sgld, step_size=1e-5, dim=3, l2_clip_norm=1.0, sampling_prob=0.1
    ),
}


sample = loop.sample


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
    # With a budget the randomness depends on the records and the program, too.
    budgets = {"barker": BUDGET, "fast_mh": None, "sgld": None}
    draws = {
        name: run(KERNELS[name], records, budget=budget, unsafe_key=next(keys))
        for name, budget in budgets.items()
    }
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


def holding(held, records):
    """A run of a model that holds some of the records."""

    def loglikelihood(position, record):
        return jnp.sum(position) * record * jnp.sum(held)

    posterior = dpjax.Posterior(logprior, loglikelihood, records)
    start = dict(initial_position=STARTS, num_chains=NUM_CHAINS)
    dpjax.run(KERNELS["barker"], posterior, 12, budget=BUDGET, **start)


def parted(*arguments):
    """`loop.sample` on machines that round otherwise."""
    positions, *others = sample(*arguments)
    return positions + jax.process_index(), *others


def spread(array):
    """Half of an array on each of two processes."""
    sharding = jax.NamedSharding(Mesh(jax.devices(), "data"), jax.P("data"))
    mine = np.split(array, 2)[jax.process_index()]
    return jax.make_array_from_process_local_data(sharding, mine)


def main(folder):
    """What each of the two processes does."""
    # As in tests/conftest.py.
    compiled.QUICKLY["xla_backend_optimization_level"] = 0
    process = jax.process_index()
    # The second process must not look for the files.
    files = Path(folder if process == 0 else "/nowhere")
    draws = seeded(spread)
    private = functools.partial(
        run, KERNELS["barker"], spread(RECORDS), budget=BUDGET, ledger=files / "ledger"
    )
    draws["private"] = private(checkpoint=files / "checkpoint.npz")
    draws["resumed"] = private(checkpoint=files / "checkpoint.npz")
    parts = np.split(RECORDS, 2)
    seed = {} if process else dict(unsafe_key=jax.random.key(0))
    refusals = [
        refused(lambda: private(10**6)),
        refused(lambda: run(KERNELS["barker"], parts[process], budget=None)),
        refused(lambda: run(KERNELS["barker"], spread(RECORDS), budget=None, **seed)),
    ]
    # Records that lie in both processes, to the last digit or as one types them.
    for records in (RECORDS[:, 0], np.round(10 * RECORDS[:, 0])):
        held, all_records = records[690:710], spread(records)
        refusals.append(refused(functools.partial(holding, held, all_records)))
    # In another order, the parts of both processes hold the same records.
    other = dpjax.Posterior(logprior, loglikelihood, np.roll(RECORDS, 9 * process, 0))
    refusals.append(refused(lambda: spread_records(other)))
    with mock.patch.object(loop, "sample", parted):
        refusals.append(refused(private))
    planned = dpjax.Posterior(logprior, loglikelihood, spread(RECORDS))
    dpjax.reserve(
        [(KERNELS["barker"], 5, NUM_CHAINS)],
        planned,
        budget=BUDGET,
        ledger=files / "plan",
    )
    if process == 0:
        (files / "ledger").write_text("a line")
    refusals.append(refused(private))
    np.savez(Path(folder) / f"{process}.npz", refusals=refusals, **draws)


JOB = """
[model]
name = "banana"
curvature = 20.0
[data]
source = "generated"
num_records = 4_000
dim = 2
seed = 1
[algorithm]
name = "barker"
step_size = 0.01
clip_bound = 0.002
[privacy]
epsilon = 8.0
delta = 1e-6
[run]
num_chains = 2
num_steps = 400
start = [0.0, 3.0]
unsafe_seed = 3
"""


@contextlib.contextmanager
def two_of(folder, command):
    """Two processes, with what they print in files; none is left running.

    `command` makes the arguments of Python for a port and the number of a process.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_ENABLE_X64": str(jax.config.jax_enable_x64),
        # Programs that are optimised otherwise may round otherwise.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": str(
            jax.config.read("jax_disable_most_optimizations")
        ),
    }
    with contextlib.ExitStack() as stack:
        processes = []
        for i in range(2):
            output = stack.enter_context((folder / f"{i}.txt").open("w"))
            process = subprocess.Popen(
                [sys.executable, *command(port, i)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def check_ends(folder, processes):
    for i, process in enumerate(processes):
        assert process.wait(timeout=600) == 0, (folder / f"{i}.txt").read_text()


JOIN = """
import jax
# Before dpjax is imported, because BlackJAX computes when it is.
jax.distributed.initialize(
    "127.0.0.1:{}",
    num_processes=2,
    process_id={},
    heartbeat_timeout_seconds=20,
    shutdown_timeout_seconds=20,
)
from tests.runner.test_processes import main
main({!r})
"""


@pytest.mark.thorough
def test_two_processes_draw_as_one(tmp_path):
    with jax.numpy_rank_promotion("allow"):
        expected = seeded(lambda array: array)

    def command(port, i):
        return ["-c", JOIN.format(port, i, str(tmp_path))]

    with two_of(tmp_path, command) as processes:
        check_ends(tmp_path, processes)
    first, second = (np.load(tmp_path / f"{i}.npz") for i in range(2))
    for name, draws in expected.items():
        np.testing.assert_array_equal(first[name], draws, name)
    for name in first.files:
        np.testing.assert_array_equal(first[name], second[name], name)
    np.testing.assert_array_equal(first["resumed"], first["private"])
    assert np.unique(first["private"]).size > 10
    spent, split, seeds, exact, typed, ordered, apart, damaged = first["refusals"]
    assert len(ledgers.entries(tmp_path / "plan")[1]) == 1
    assert f"BudgetError: earlier runs in {tmp_path}/ledger and this run" in spent
    assert "ValueError: data of process 1 and process 0 differ" in split
    assert "ValueError: unsafe_key of process 1 and process 0 differ" in seeds
    assert "'held', which holds entries of the data" in exact
    assert "'held', which holds entries of the data" in typed
    assert "ValueError: records of process 1 and process 0 differ" in ordered
    assert "ValueError: draws of process 1 and process 0 differ" in apart
    assert f"LedgerError: {tmp_path}/ledger is not what {tmp_path}" in damaged


@pytest.mark.thorough
def test_a_killed_process_ends_the_others_and_the_run_goes_on(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    assert cli.main(["run", str(job), "--out", str(tmp_path / "one")]) == 0
    checkpoint = tmp_path / "out" / "checkpoint.npz"

    def command(port, i):
        run = f"run {job} --out {tmp_path}/out --processes 2 --process-id {i}"
        return f"-m dpjax {run} --coordinator 127.0.0.1:{port}".split()

    def age():
        return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0

    for killed in (1, 0):
        before = age()
        with two_of(tmp_path, command) as processes:
            while age() == before:
                assert [process.poll() for process in processes] == [None, None]
                time.sleep(0.05)
            processes[killed].kill()
            assert processes[1 - killed].wait(timeout=60) != 0
        output = (tmp_path / f"{1 - killed}.txt").read_text()
        causes = ["another process of the run has ended"]
        if killed == 0:  # JAX may be first to end a process whose coordinator is gone.
            causes.append("This most likely indicates that another task died")
        assert any(cause in output for cause in causes), output
    with two_of(tmp_path, command) as processes:
        check_ends(tmp_path, processes)
    assert len(ledgers.entries(tmp_path / "out" / "ledger.jsonl")[1]) == 1
    one, two = (dpjax.load(tmp_path / name).positions for name in ("one", "out"))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--processes 2", "--processes 2 --process-id None"),
        ("--process-id 0", "several processes need --processes N --process-id I"),
        ("--processes 0 --process-id 0 --coordinator a:1", "several processes need"),
        ("--processes 2 --process-id 0 --coordinator a", "--coordinator HOST:PORT"),
        ("--processes 2 --process-id 2 --coordinator a:1", "must be from 0 to 1"),
        ("--processes auto --process-id 0", "asks the cluster for --process-id"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message, capsys):
    assert cli.main(["run", "job.toml", *options.split()]) == 1
    assert message in capsys.readouterr().err
