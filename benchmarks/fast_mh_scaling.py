"""What a step costs as the data grow: minibatches of Poisson size beside all records.

    python -m benchmarks.fast_mh_scaling [--sizes N ...] [--out FILE.csv]

20 chains on logistic regression with two coefficients and generated records of norm 1.
``tempered``: the likelihood has the power 1000 / n, so that the posterior is the same
for all n, and so are steps and minibatches. ``whole``: no power. Minibatches make steps
of 45 / n then, far below the posterior's standard deviation of sqrt(8 / n): a minibatch
of lambda records decides steps of up to about sqrt(lambda / n) standard deviations.

A line says how long a step of all chains takes, how many records a chain reads in it
and how many the program makes room for, how often it accepts, what that comes to a
second in accepted moves and in their squared length in posterior variances, and the
epsilon at delta = 1e-8 of one chain of 10,000 steps.
"""

import argparse
import csv
import functools
import os
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax import minibatch, privacy
from dpjax.bounds import LogisticRegression
from dpjax.models import logistic_regression

CHAINS = 20
EXPECTED_BATCH_SIZE = 250.0
TRUTH = (0.5, -0.5)
VARIANCE = 8.0
"""Of a coefficient given one record, about: 1 / (E x^2 p (1 - p))."""
BOUND = LogisticRegression(feature_norm=1.0, radius=2.0)
COLUMNS = (
    "n", "posterior", "kernel", "ms_per_step", "records", "room", "acceptance_rate",
    "moves_per_s", "variances_per_s", "epsilon",
)  # fmt: skip


def simulate(num_records: int):
    """Records on the unit circle, in float32 and NumPy: there may be many."""
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * rng.random(num_records, np.float32)
    features = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    chance = 1 / (1 + np.exp(-features @ np.float32(TRUTH)))
    labels = (rng.random(num_records, np.float32) < chance).astype(np.float32)
    return jnp.asarray(features), jnp.asarray(labels)


def kernels(num_records, tempering):
    """``{name: (algorithm_fn, step_size, number of steps timed)}``."""
    variance = VARIANCE / (num_records * tempering)
    short = 45 / (num_records * tempering)
    minibatches = dict(
        clip_bound=dpjax.Range(BOUND, BOUND.half_range),
        expected_batch_size=EXPECTED_BATCH_SIZE,
        proposal=dpjax.proposals.fixed_length,
    )
    whole = dict(clip_bound=dpjax.Lipschitz(BOUND.lipschitz))
    passes = max(4, 10**7 // num_records)
    return {
        "fast_mh": (dpjax.fast_mh, short, minibatches, 2000),
        "tuna": (dpjax.tuna, short, minibatches, 2000),
        "barker, same steps": (dpjax.barker, short, whole, passes),
        "barker": (dpjax.barker, variance**0.5, whole, passes),
    }


def drawn(num_records, bound):
    """Records that a step of half range `bound` reads on average, and room for them."""
    rate = EXPECTED_BATCH_SIZE / num_records + bound
    return rate * num_records, minibatch.capacity(rate, num_records)


def run(algorithm_fn, posterior, num_steps):
    return dpjax.run(
        None,
        algorithm_fn,
        posterior,
        num_steps,
        initial_position=jnp.tile(jnp.asarray(TRUTH)[None], (CHAINS, 1)),
        num_chains=CHAINS,
        budget=None,
        warmup_fraction=0.0,
        verbose=False,
    )


def lines(num_records: int, repetitions: int):
    """Measure all kernels at this size, in turn, and keep the fastest time of each."""
    features, labels = simulate(num_records)
    found, calls = [], []
    for name, tempering in (("tempered", 1000 / num_records), ("whole", 1.0)):
        posterior = logistic_regression(
            features, labels, radius=BOUND.radius, tempering=tempering
        )
        for kernel, (sampler, step_size, settings, num_steps) in kernels(
            num_records, tempering
        ).items():
            algorithm_fn = functools.partial(sampler, step_size=step_size, **settings)
            call = functools.partial(run, algorithm_fn, posterior, num_steps)
            rate = float(np.mean(call().acceptance_rate))
            [(event, _)] = algorithm_fn(posterior).privacy(1)
            records = (num_records, num_records)
            if isinstance(event, privacy.PoissonAcceptBit):
                records = drawn(num_records, event.bound)
            moved = step_size**2 * num_records * tempering / VARIANCE
            epsilon = privacy.epsilon([(event, 10_000)], 1e-8)
            calls.append((call, num_steps))
            found.append((name, kernel, *records, rate, moved, epsilon))
    best = [np.inf] * len(calls)
    for _ in range(repetitions):
        for i, (call, num_steps) in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], (time.perf_counter() - start) / num_steps)
    for seconds, line in zip(best, found, strict=True):
        name, kernel, records, room, rate, moved, epsilon = line
        moves = CHAINS * rate / seconds
        yield (
            num_records, name, kernel, f"{1e3 * seconds:.4g}", f"{records:.0f}", room,
            f"{rate:.3f}", f"{moves:.4g}", f"{moved * moves:.4g}", f"{epsilon:.3g}",
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = [10**5, 10**6, 10**7]
    parser.add_argument("--sizes", nargs="+", type=int, default=sizes)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a file to write the lines to")
    options = parser.parse_args()
    print(f"{CHAINS} chains; load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    table = [COLUMNS]
    print(*COLUMNS, sep=",")
    for num_records in options.sizes:
        for line in lines(num_records, options.repetitions):
            print(*line, sep=",", flush=True)
            table.append(line)
    if options.out is not None:
        with options.out.open("w", newline="") as file:
            csv.writer(file).writerows(table)


if __name__ == "__main__":
    main()
