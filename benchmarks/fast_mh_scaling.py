"""What a step costs as the data grow: minibatches of Poisson size beside all records.

    python -m benchmarks.fast_mh_scaling [--sizes N ...] [--kernels NAME ...]

20 chains on logistic regression with two coefficients and generated records of norm 1.
A record is one row of one array, so that a step waits for memory once a record, and not
once for its features and once for its label.

``tempered``: the likelihood has the power 1000 / n, so that the posterior is the same
for all n, and so are steps and minibatches. ``whole``: no power. Minibatches make steps
of 45 / n then, far below the posterior's standard deviation of sqrt(8 / n): a minibatch
of lambda records decides steps of up to about sqrt(lambda / n) standard deviations.

A line says how long a step of all chains takes (the median of runs that take turns, and
the fastest), how many records a chain reads in it and how many the program makes room
for, how often it accepts, what that comes to a second in accepted moves and in their
squared length in posterior variances, and the epsilon at delta = 1e-8 of one chain of
10,000 steps.
"""

import argparse
import functools
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks.thesis import report
from dpjax import privacy
from dpjax.bounds import LogisticRegression
from dpjax.random import batches

CHAINS = 20
EXPECTED_BATCH_SIZE = 250.0
TRUTH = (0.5, -0.5)
VARIANCE = 8.0
"""Of a coefficient given one record, about: 1 / (E x^2 p (1 - p))."""
BOUND = LogisticRegression(feature_norm=1.0, radius=2.0)


def simulate(num_records: int):
    """Features on the unit circle with the sign of the label, float32 ``(n, 2)``."""
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * rng.random(num_records, np.float32)
    features = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    chance = 1 / (1 + np.exp(-features @ np.float32(TRUTH)))
    features[rng.random(num_records, np.float32) >= chance] *= -1
    return jnp.asarray(features)


def loglikelihood(position, record):
    return jax.nn.log_sigmoid(record @ position)


def logprior(position):
    """Flat on the disc on which the bound holds."""
    return jnp.where(jnp.sum(position**2) <= BOUND.radius**2, 0.0, -jnp.inf)


def kernels(num_records, tempering):
    """``{name: (algorithm_fn, step_size, settings, steps timed, evaluations)}``.

    A run evaluates all records once a step and once a part, of which it has at most 20.
    """
    variance = VARIANCE / (num_records * tempering)
    short = 45 / (num_records * tempering)
    minibatches = dict(
        clip_bound=dpjax.Range(BOUND, BOUND.half_range),
        expected_batch_size=EXPECTED_BATCH_SIZE,
        proposal=dpjax.proposals.fixed_length,
    )
    whole = dict(clip_bound=dpjax.Lipschitz(BOUND.lipschitz))
    passes = max(2, 2 * 10**6 // num_records)
    evaluations = passes + min(passes, 20)
    return {
        "fast_mh": (dpjax.fast_mh, short, minibatches, 2000, 2000),
        "tuna": (dpjax.tuna, short, minibatches, 2000, 2000),
        "barker, same steps": (dpjax.barker, short, whole, passes, evaluations),
        "barker": (dpjax.barker, variance**0.5, whole, passes, evaluations),
    }


def drawn(num_records, bound):
    """Records that a step of half range `bound` reads on average, and room for them."""
    rate = EXPECTED_BATCH_SIZE / num_records + bound
    return rate * num_records, batches.capacity(rate, num_records)


def run(algorithm_fn, posterior, num_steps):
    return dpjax.run(
        algorithm_fn,
        posterior,
        num_steps,
        initial_position=jnp.tile(jnp.asarray(TRUTH)[None], (CHAINS, 1)),
        num_chains=CHAINS,
        budget=None,
        warmup_fraction=0.0,
        verbose=False,
    )


def cells(num_records: int, names):
    """``(call, evaluations, line)`` of the kernels at this size."""
    data = simulate(num_records)
    for name, tempering in (("tempered", 1000 / num_records), ("whole", 1.0)):
        posterior = dpjax.Posterior(logprior, loglikelihood, data, tempering)
        for kernel, row in kernels(num_records, tempering).items():
            if kernel not in names:
                continue
            sampler, step_size, settings, num_steps, evaluations = row
            algorithm_fn = functools.partial(sampler, step_size=step_size, **settings)
            call = functools.partial(run, algorithm_fn, posterior, num_steps)
            call()
            [(event, _)] = algorithm_fn(posterior).privacy(1)
            records, room = num_records, num_records
            if isinstance(event, privacy.PoissonAcceptBit):
                records, room = drawn(num_records, event.bound)
            line = dict(
                n=num_records,
                posterior=name,
                kernel=kernel,
                records=round(records),
                room=room,
                variances=step_size**2 * num_records * tempering / VARIANCE,
                epsilon=privacy.epsilon([(event, 10_000)], 1e-8),
            )
            yield call, evaluations, line


def measure(sizes, names, repetitions: int):
    """Lines of all sizes; calls take turns, and a time is the median of a kernel's."""
    found = [cell for num_records in sizes for cell in cells(num_records, names)]
    seconds, rates = np.empty((2, repetitions, len(found)))
    for i in range(repetitions):
        for j, (call, evaluations, _) in enumerate(found):
            start = time.perf_counter()
            rates[i, j] = np.mean(call().acceptance_rate)
            seconds[i, j] = (time.perf_counter() - start) / evaluations
    for (_, _, line), times, rate in zip(found, seconds.T, rates.T, strict=True):
        moves = CHAINS * rate.mean() / np.median(times)
        line["acceptance"] = rate.mean()
        line["ms_per_step"] = 1e3 * np.median(times)
        line["fastest_ms"] = 1e3 * times.min()
        line["moves_per_s"] = moves
        line["variances_per_s"] = line.pop("variances") * moves
        yield line


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = [10**5, 10**6, 10**7]
    parser.add_argument("--sizes", nargs="+", type=int, default=sizes)
    names = list(kernels(1, 1.0))
    parser.add_argument("--kernels", nargs="+", choices=names, default=names)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a file to write the lines to")
    options = parser.parse_args()
    print(f"{CHAINS} chains; load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    lines = list(measure(options.sizes, options.kernels, options.repetitions))
    print(report.markdown(lines))
    if options.out is not None:
        report.append(options.out, lines)


if __name__ == "__main__":
    main()
