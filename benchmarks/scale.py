"""What a step takes on more records and devices: measured here, and extrapolated.

    python -m benchmarks.scale

Kernels on logistic regression with ten coefficients and 20 chains, in float32. Measured
are the time of a step at three numbers of records, the memory that XLA plans for, the
bytes that eight virtual devices exchange in a step according to the compiled program,
and how fast records are hashed. `Estimate` extrapolates from these. How many records a
kernel takes is found by tracing it on shapes. Results are written to
benchmarks/scale.json, which docs/scale.md shows.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import dpjax
from dpjax import privacy
from dpjax.bounds import LogisticRegression
from dpjax.models import logistic_regression
from dpjax.runner import program

__all__ = ["KERNELS", "Estimate", "epsilon", "estimate", "exchanged", "largest"]

DIM, NUM_CHAINS = 10, 20
SIZES = 2**12, 2**17, 2**20
PLANNED = 2**24
"""Records for which XLA plans memory; nothing is computed on them."""
NUM_DEVICES = 8
HOP, BANDWIDTH = 1e-5, 1e10
"""Assumptions: seconds that a message takes between two devices, and bytes a second."""
BOUND = LogisticRegression(feature_norm=1.0, radius=2.0)
DELTA = 1e-10
"""1 / n for the largest n of the page."""
EXCHANGE = re.compile(
    r"= (.*?) (?:all-reduce|all-gather|all-to-all|reduce-scatter|collective-\w+)\("
)
"""What an operation of a compiled program returns if it exchanges arrays."""
ARRAY = re.compile(r"[a-z]+(\d*)\[([\d,]*)\]")
RESULTS = Path(__file__).with_suffix(".json")


def kernels(num_records: int) -> dict:
    """By name: one that reads all log-likelihoods, all gradients, and few records."""
    return {
        "barker": functools.partial(
            dpjax.barker,
            step_size=num_records**-0.5,
            clip_bound=dpjax.Lipschitz(BOUND.lipschitz),
        ),
        "sgld": functools.partial(
            dpjax.sgld,
            step_size=1 / num_records,
            dim=DIM,
            l2_clip_norm=1.0,
            sampling_prob=1.0,
        ),
        "fast_mh": functools.partial(
            dpjax.fast_mh,
            step_size=45 / num_records,
            clip_bound=dpjax.Range(BOUND, BOUND.half_range),
            expected_batch_size=250.0,
            proposal=dpjax.proposals.fixed_length,
        ),
    }


KERNELS = tuple(kernels(1))


class Estimate(NamedTuple):
    """Of one step of all chains.

    seconds
        On every device.
    num_bytes
        Of memory on every device.
    exchanged
        Bytes that every device sends to others.
    """

    seconds: float
    num_bytes: float
    exchanged: float


def estimate(measured: dict, num_records: float, num_devices: int) -> Estimate:
    """From what was measured of a kernel; a device is the machine that measured.

    The time is that of the records of a device: between those that were measured on a
    line, above them in proportion to the largest, and below them no less than there. Of
    kernels that do not read all records it is the longest that was measured. A sum of
    all devices takes two messages along each level of a tree, one after another.
    """
    share = num_records / num_devices
    taken = max(measured["seconds"])
    if measured["reads_all_records"]:
        taken = float(np.interp(share, SIZES, measured["seconds"]))
        taken *= max(share / SIZES[-1], 1.0)
    sent = measured["exchanged"] if num_devices > 1 else []
    levels = 2 * math.ceil(math.log2(num_devices))
    return Estimate(
        taken + levels * sum(HOP + size / BANDWIDTH for size in sent),
        measured["bytes_per_record"] * share + measured["temporary_bytes"],
        sum(sent),
    )


def epsilon(num_records: int, num_steps: int, delta: float = DELTA) -> float:
    """What all chains of ``barker`` spend, in steps of ``num_records ** -0.5``."""
    algorithm = kernels(num_records)["barker"](shapes(num_records))
    events = [(e, NUM_CHAINS * n) for e, n in algorithm.privacy(num_steps)]
    return privacy.epsilon(events, delta)


def shapes(num_records: int) -> dpjax.Posterior:
    """A posterior without numbers."""
    kinds = (num_records, DIM), (num_records,)
    outline = target(np.zeros((2, DIM), np.float32), np.zeros(2, np.float32))
    data = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in kinds)
    return dataclasses.replace(outline, data=data)


def target(features, labels) -> dpjax.Posterior:
    return logistic_regression(features, labels, radius=BOUND.radius)


def simulated(num_records: int) -> dpjax.Posterior:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(num_records, DIM)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return target(jnp.asarray(features), jnp.asarray(features[:, 0] > 0))


def compiled(algorithm_fn, posterior, starts, num_steps: int = 1):
    """The loop of a run, compiled, and its arguments but for the posterior."""

    @jax.jit
    def advance(posterior, chains, words):
        active = jnp.ones(words.shape[:2], bool)
        transition = algorithm_fn(posterior).transition
        return program.scan_steps(transition, chains, words, active)

    algorithm = algorithm_fn(posterior)
    chains, _ = program.initial(algorithm.transition, jax.vmap(algorithm.init)(starts))
    size = num_steps, len(starts), program.num_words_of(algorithm.transition, chains)
    words = np.random.default_rng(0).integers(2**32, size=size, dtype=np.uint32)
    return advance.lower(posterior, chains, words).compile(), (chains, words)


def exchanged(algorithm_fn, posterior, starts) -> list[int]:
    """Bytes in each exchange between the devices, of one step of all chains."""
    step, _ = compiled(algorithm_fn, posterior, starts)
    return [
        sum(_num_bytes(*array) for array in ARRAY.findall(arrays))
        for arrays in EXCHANGE.findall(step.as_text())
    ]


def _num_bytes(bits: str, shape: str) -> int:
    """Of an array that a program calls ``f32[20,10]``; booleans have no bits there."""
    return int(bits or 8) // 8 * math.prod(int(n) for n in shape.split(",") if n)


def largest(name: str) -> int:
    """The power of two below which a kernel takes any number of records."""

    def is_refused(exponent):
        posterior = shapes(2**exponent - 1)
        algorithm_fn = kernels(posterior.num_records)[name]

        def step(data, position, key):
            algorithm = algorithm_fn(dataclasses.replace(posterior, data=data))
            return algorithm.step(key, algorithm.init(position))

        try:
            jax.eval_shape(step, posterior.data, jnp.zeros(DIM), jax.random.key(0))
        except ValueError:
            return True
        return False

    return 2 ** next(e for e in range(20, 64) if is_refused(e + 1))


def seconds(name: str, num_records: int) -> float:
    """Half of what three steps take more than one, each in its fastest call."""
    posterior, starts = simulated(num_records), jnp.zeros((NUM_CHAINS, DIM))
    calls = []
    for num_steps in (1, 3):
        loop, arguments = compiled(
            kernels(num_records)[name], posterior, starts, num_steps
        )
        calls.append(functools.partial(loop, posterior, *arguments))
    times = []
    begin = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < 5:
        pair = []
        for call in calls:
            start = time.perf_counter()
            jax.block_until_ready(call())
            pair.append(time.perf_counter() - start)
        times.append(pair)
    one, three = np.min(times, axis=0)
    return (three - one) / 2


def measure(name: str) -> dict:
    step, _ = compiled(
        kernels(PLANNED)[name], shapes(PLANNED), jnp.zeros((NUM_CHAINS, DIM))
    )
    plan = step.memory_analysis()
    assert plan is not None
    return dict(
        seconds=[seconds(name, size) for size in SIZES],
        bytes_per_record=4 * (DIM + 1),
        temporary_bytes=plan.temp_size_in_bytes,
        largest=largest(name),
        reads_all_records=name != "fast_mh",
    )


def measure_exchanged() -> dict:
    """In a process with several devices: bytes at all `SIZES`, by kernel."""
    mesh = Mesh(jax.devices(), "data")
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    found = {}
    for name in KERNELS:
        by_size = [
            exchanged(
                kernels(size)[name],
                jax.device_put(simulated(size), sharding),
                jnp.zeros((NUM_CHAINS, DIM)),
            )
            for size in SIZES
        ]
        found[name] = by_size
    return found


def main():
    code = (
        "import json; from benchmarks import scale; "
        "print(json.dumps(scale.measure_exchanged()))"
    )
    flags = f"--xla_force_host_platform_device_count={NUM_DEVICES}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    )
    sent = json.loads(found.stdout)
    rows = {}
    for name in KERNELS:
        first, *others = sent[name]
        assert all(sizes == first for sizes in others)
        rows[name] = measure(name) | dict(exchanged=first)
        print(name, json.dumps(rows[name]), flush=True)
    content, times = bytes(2**26), []
    for _ in range(5):
        start = time.perf_counter()
        hashlib.sha256(content).digest()
        times.append(time.perf_counter() - start)
    rate = len(content) / min(times)
    print(f"SHA-256 {rate / 1e9:.2f} GB/s")
    kept = dict(
        kernels=rows, hash_rate=rate, cores=os.cpu_count(), load=os.getloadavg()[0]
    )
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
