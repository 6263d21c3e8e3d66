"""Milliseconds per step, beside the roofline of the machine and passes by hand.

    python -m benchmarks.speed [--only NAME ...] [--chains C ...] [--longer K]
                               [--json FILE]
    python -m benchmarks.speed --memory

The *roofline* of a step is the time that its passes over the data take at least: that
of their arithmetic or that of their bytes, at the rate of a copy, whichever is longer.
Arithmetic is floating-point operations at the rate of a large matrix product, and
transcendental functions at the rate of exp on numbers in a cache. A CPU makes both in
the same units, so their times add. XLA counts these in passes written by hand, and the
rates are measured first.

Every kernel is timed next to the step of `benchmarks.by_hand` that makes the same
passes, and ``rmh``, BlackJAX's non-private random walk vmapped over the chains on the
same Posterior. (On logistic regression the step by hand evaluates both positions, where
the others remember the current one: about twice their data work.) The lines of a table
take turns in one process, several times over, with calls of one and of three lengths. A
step takes half of what the longer call takes more, in the minimum; the rest of a call
is its fixed cost: checks, the trace of its program and its charge. The first call also
compiles. ``peak`` is the memory of the process so far. ``--memory`` instead prints the
peak memory of a Barker run at n = 2e6, d = 10.
"""

import argparse
import functools
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from benchmarks import by_hand, timing
from dpjax.models import banana, logistic_regression, network
from dpjax.models.banana import FisherInformation, simulate


class Table(NamedTuple):
    """Lines that are timed in turn.

    posterior, start
        What is sampled, and from where.
    num_steps, repetitions
        Length of a timed call, and the number of calls.
    hand
        Step of `by_hand`.
    passes
        ``[(pass, count)]``: what a step does at least, ``(positions, data) -> sums``.
    kernels
        ``{name: posterior -> Algorithm}``.
    rmh
        Step size of BlackJAX's random walk, None for no such line.
    """

    posterior: dpjax.Posterior
    start: jax.Array
    num_steps: int
    repetitions: int
    hand: Callable
    passes: list
    kernels: dict
    rmh: float | None = None


def banana_data(num_records, dim):
    posterior = banana(simulate(jax.random.key(0), num_records, dim))
    return posterior, jnp.zeros(dim).at[1].set(3.0)


def logistic_data(num_records, dim):
    """Rows of norm at most 1."""
    keys = jax.random.split(jax.random.key(0), 3)
    features = jax.random.normal(keys[0], (num_records, dim))
    features /= jnp.linalg.norm(features, axis=1, keepdims=True)
    truth = jax.random.normal(keys[1], (dim,))
    chance = jax.nn.sigmoid(features @ truth)
    labels = (jax.random.uniform(keys[2], (num_records,)) < chance).astype(float)
    return logistic_regression(features, labels), jnp.zeros(dim)


def random_walks(
    posterior, start, ratios, passes, length, constant, num_steps, repetitions=5
):
    """Kernels that take one sum of log ratios, and BlackJAX's random walk."""
    bound = dpjax.Lipschitz(constant)
    barker = functools.partial(dpjax.barker, step_size=length, clip_bound=bound)
    return Table(
        posterior,
        start,
        num_steps,
        repetitions,
        hand=by_hand.random_walk(ratios, length, constant * length),
        passes=[(passes, 1)],
        kernels={
            "barker": barker,
            "penalty": functools.partial(
                dpjax.penalty,
                step_size=length / start.size**0.5,
                clip_bound=bound,
                test_noise_multiplier=0.1 * posterior.num_records**0.5,
            ),
            "lazy barker 0.2": functools.partial(barker, laziness=0.2),
        },
        rmh=length,
    )


def banana_walks():
    posterior, start = banana_data(100_000, 2)
    table = random_walks(
        posterior, start, by_hand.banana_ratios, ratio_sum, 0.0112, 2.0, 1000
    )
    fisher_information = FisherInformation(posterior.num_records)
    # One posterior standard deviation, and a bound of four in a record's ratio.
    walk = functools.partial(
        dpjax.barker, step_size=1.0, clip_bound=4 / posterior.num_records**0.5
    )
    table.kernels["barker geodesic"] = functools.partial(
        walk, proposal=dpjax.fisher.geodesic(fisher_information)
    )
    table.kernels["barker metric"] = functools.partial(
        walk, inverse_mass_matrix=jnp.linalg.inv(fisher_information(start))
    )
    return table


def ratio_sum(positions, data):
    """Log ratios of two positions, summed."""
    ratios = by_hand.banana_ratios(positions, 0.9 * positions, data)
    return jnp.sum(jnp.clip(ratios, -1, 1), axis=1)


def vector_walks(num_records, dim, **lengths):
    """A log-likelihood that adds up the entries of a record, as one would write it."""
    posterior = dpjax.Posterior(
        lambda position: -0.5 * jnp.sum(position**2),
        lambda position, record: -0.5 * jnp.sum((record - position) ** 2),
        jax.random.normal(jax.random.key(0), (num_records, dim)),
    )

    def passes(positions, data):
        ratios = by_hand.vector_ratios(positions, 0.9 * positions, data)
        return jnp.sum(jnp.clip(ratios, -1, 1), axis=1)

    return random_walks(
        posterior,
        jnp.zeros(dim),
        by_hand.vector_ratios,
        passes,
        length=0.01,
        constant=5.0,
        **lengths,
    )


def logistic_walks(num_records, dim, **lengths):
    def one_position(positions, data):
        value = by_hand.logistic_loglikelihood(positions, data)
        return jnp.sum(jnp.clip(value, -1, 1), axis=1), value

    return random_walks(
        *logistic_data(num_records, dim),
        by_hand.logistic_ratios,
        one_position,
        length=0.05,
        constant=1.0,
        **lengths,
    )


def gradients(
    posterior, start, gradient_sum, num_steps, l2_clip_norm=0.5, step_size=1e-5
):
    """Sums of gradients over all records."""
    hand = by_hand.langevin(gradient_sum, step_size, l2_clip_norm)
    passes = [(functools.partial(gradient_sum, l2_clip_norm=l2_clip_norm), 1)]
    common = dict(l2_clip_norm=l2_clip_norm, sampling_prob=1.0)
    kernels = {
        "sgld": functools.partial(
            dpjax.sgld, step_size=step_size, dim=start.size, **common
        ),
        "dpvi": functools.partial(
            dpjax.dpvi,
            optimizer=optax.adam(1e-3),
            guide=dpjax.guides.MeanField(start.size),
            noise_multiplier=100.0,
            **common,
        ),
    }
    return Table(posterior, start, num_steps, 5, hand, passes, kernels)


def logistic_gradients(num_records, dim, num_steps):
    return gradients(
        *logistic_data(num_records, dim), by_hand.logistic_gradient_sum, num_steps
    )


def network_gradients(num_records, num_features, num_hidden, num_steps):
    """A network of one hidden layer, on as many numbers as an image of MNIST has."""
    keys = jax.random.split(jax.random.key(0), 3)
    features = jax.random.uniform(keys[0], (num_records, num_features))
    targets = jax.random.normal(keys[1], (num_records,))
    start = network.start(keys[2], num_features, num_hidden)
    posterior = network.bayesian_network(features, targets)
    return gradients(posterior, start, by_hand.network_gradient_sum, num_steps)


def few_and_many(num_records, num_steps):
    """Logistic regression with 50 coefficients: where a GPU begins to be faster."""
    walks = logistic_walks(num_records, 50, num_steps=num_steps, repetitions=2)
    sums = logistic_gradients(num_records, 50, num_steps)
    kernels = {
        "barker": walks.kernels["barker"],
        "sgld": sums.kernels["sgld"],
    }
    return walks._replace(kernels=kernels, rmh=None)


def minibatch(batch_size=1000):
    """Kernels that read a batch."""
    posterior, start = banana_data(100_000, 2)
    hand = by_hand.batched_walk(
        by_hand.banana_ratios, 0.001, 0.001, batch_size, posterior.num_records
    )
    kernels = {
        "minibatch_penalty": functools.partial(
            dpjax.minibatch_penalty,
            step_size=0.001,
            clip_bound=dpjax.Lipschitz(1.0),
            test_noise_multiplier=0.7**0.5,
            batch_size=batch_size,
        ),
        "minibatch_barker": functools.partial(
            dpjax.minibatch_barker, step_size=0.001, batch_size=batch_size
        ),
    }

    def one_batch(positions, data):
        return ratio_sum(positions, data[:batch_size])

    return Table(posterior, start, 500, 7, hand, [(one_batch, 1)], kernels)


def hamiltonian(num_records, dim, step_size, l2_clip_norm, block_size, **lengths):
    """Ten leapfrog steps: eleven sums of gradients and one of log ratios."""
    posterior, start = banana_data(num_records, dim)
    path = dict(
        step_size=step_size,
        num_integration_steps=10,
        l2_clip_norm=l2_clip_norm,
        clip_bound=0.02,
    )
    gradient_sum = by_hand.banana_gradient_sum(block_size)
    hand = by_hand.hamiltonian(gradient_sum, by_hand.banana_ratios, **path)
    noise = dict(noise_multiplier=200.0, test_noise_multiplier=30.0)
    kernels = {"hmc": functools.partial(dpjax.hmc, **path, **noise)}
    whole = functools.partial(
        by_hand.banana_gradient_sum(num_records), l2_clip_norm=l2_clip_norm
    )
    passes = [(whole, 11), (ratio_sum, 1)]
    return Table(posterior, start, hand=hand, passes=passes, kernels=kernels, **lengths)


FEW_AND_MANY = {100: 2000, 1000: 1000, 10_000: 200, 100_000: 40}
"""Records, and steps of a timed call."""

TABLES = {
    "banana": banana_walks,
    "vectors": functools.partial(
        vector_walks, 100_000, 10, num_steps=60, repetitions=2
    ),
    "logistic": functools.partial(logistic_walks, 48_842, 100, num_steps=200),
    # A run of 20 steps or fewer makes one step at a time, and remembers nothing.
    "logistic-1e6": functools.partial(
        logistic_walks, 1_000_000, 50, num_steps=60, repetitions=2
    ),
    "gradients": functools.partial(logistic_gradients, 48_842, 100, 50),
    "network": functools.partial(network_gradients, 1000, 784, 50, 10),
    "minibatch": minibatch,
    "hmc-2d": functools.partial(
        hamiltonian, 100_000, 2, 5e-4, 1.0, 100_000, num_steps=20, repetitions=5
    ),
    "hmc-10d": functools.partial(
        hamiltonian, 200_000, 10, 1.5e-4, 3.0, 2000, num_steps=2, repetitions=4
    ),
    **{
        f"records-{num_records}": functools.partial(
            few_and_many, num_records, num_steps
        )
        for num_records, num_steps in FEW_AND_MANY.items()
    },
}


class Machine(NamedTuple):
    """What the machine does in a second, in float32.

    flops
        Floating-point operations of a matrix product.
    transcendentals
        Values of exp of numbers that are in a cache.
    bytes
        Read and written by a copy.
    """

    flops: float
    transcendentals: float
    bytes: float

    @classmethod
    def measured(cls):
        square, large = jnp.ones((2048, 2048)), jnp.ones(2**26)
        # A GPU takes longer to begin than to compute what a CPU's cache holds.
        cached = jnp.ones(2**18 if jax.default_backend() == "cpu" else 2**23)

        def repeated(function):
            return jax.jit(
                lambda x: jax.lax.fori_loop(0, 8, lambda _, x: function(x), x)
            )

        product = repeated(lambda x: jnp.matmul(x, square, precision="highest"))
        exp = repeated(jnp.exp)
        copy = repeated(lambda x: x + 1)
        calls = {
            "product": lambda: product(square),
            "exp": lambda: exp(cached),
            "copy": lambda: copy(large),
        }
        best = {key: t.min() / 8 for key, t in timing.in_turns(calls, 10).items()}
        return cls(
            2 * 2048**3 / best["product"],
            cached.size / best["exp"],
            2 * large.nbytes / best["copy"],
        )

    def roofline(self, table, num_chains: int) -> float:
        """Seconds that the passes of a step take at least."""
        shape = (num_chains, *table.start.shape)
        positions = jax.ShapeDtypeStruct(shape, table.start.dtype)
        total = np.zeros(3)
        for function, count in table.passes:
            lowered = jax.jit(function).lower(positions, table.posterior.data)
            costs = lowered.compile().cost_analysis()
            names = "flops", "transcendentals", "bytes accessed"
            total += count * np.array([costs.get(name, 0.0) for name in names])
        multiplications, transcendentals, transfers = total / np.array(self)
        return float(max(multiplications + transcendentals, transfers))


def private(posterior, starts, algorithm_fn, num_steps):
    """Run the kernel on all chains."""
    dpjax.run(
        algorithm_fn,
        posterior,
        num_steps,
        initial_position=starts,
        num_chains=len(starts),
        budget=None,
        verbose=False,
    )


def compiled(step, start, num_steps, data):
    """A call that scans ``step(state, rng_key, data)`` from `start`."""

    @jax.jit
    def scan(data, key):
        def one(state, key):
            state = step(state, key, data)
            return state, state

        return jax.lax.scan(one, start, jax.random.split(key, num_steps))[1]

    return lambda: jax.block_until_ready(scan(data, jax.random.key(1)))


def lines(table, num_steps, num_chains):
    """Name and timed call of every line of the table."""
    posterior, start = table.posterior, table.start
    starts = jnp.tile(start[None], (num_chains, 1))
    calls = {"by hand": compiled(table.hand, starts, num_steps, posterior.data)}
    for name, algorithm_fn in table.kernels.items():
        calls[name] = functools.partial(
            private, posterior, starts, algorithm_fn, num_steps
        )
    if table.rmh is not None:
        normal = blackjax.mcmc.random_walk.normal(jnp.full(start.shape, table.rmh))

        def step(states, key, posterior):
            algorithm = blackjax.additive_step_random_walk(posterior, normal)
            keys = jax.random.split(key, num_chains)
            return jax.vmap(algorithm.step)(keys, states)[0]

        algorithm = blackjax.additive_step_random_walk(posterior, normal)
        states = jax.vmap(algorithm.init)(starts)
        calls["rmh"] = compiled(step, states, num_steps, posterior)
    return calls


def measure(name, machine, num_chains, repetitions, longer) -> list[dict]:
    """The lines of a table, printed and as rows."""
    table = TABLES[name]()
    table = table._replace(num_steps=longer * table.num_steps)
    lengths = table.num_steps, 3 * table.num_steps
    calls = {
        (label, length): call
        for length in lengths
        for label, call in lines(table, length, num_chains).items()
    }
    first = {key: seconds(call) for key, call in calls.items()}
    times = timing.in_turns(calls, repetitions or table.repetitions)
    best = {key: found.min() for key, found in times.items()}
    least = machine.roofline(table, num_chains)
    shapes = [leaf.shape for leaf in jax.tree.leaves(table.posterior.data)]
    print(
        f"{name}: records {shapes}, {num_chains} chains; "
        f"roofline {1e3 * least:.3f} ms; load average {os.getloadavg()[0]:.1f}"
    )
    rows, hand = [], None
    for label in dict.fromkeys(label for label, _ in calls):
        short, long = (best[label, length] for length in lengths)
        of_a_step = (long - short) / (2 * lengths[0])
        hand = hand or of_a_step
        row = dict(
            table=name,
            line=label,
            chains=num_chains,
            milliseconds=1e3 * of_a_step,
            of_roofline=of_a_step / least,
            of_by_hand=of_a_step / hand,
            call_seconds=short - lengths[0] * of_a_step,
            compile_seconds=first[label, lengths[0]] - short,
            peak_megabytes=peak(),
        )
        rows.append(row)
        print(
            "  {line:<18}{milliseconds:9.3f} ms/step{of_roofline:8.2f} of roofline"
            "{of_by_hand:8.2f} of by hand{call_seconds:8.2f} s a call"
            "{compile_seconds:8.2f} to compile".format(**row),
            flush=True,
        )
    return rows


def seconds(call) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def peak() -> float:
    """Most memory of the process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory():
    posterior, start = banana_data(2_000_000, 10)
    jax.block_until_ready(posterior.data)
    size, before = posterior.data.nbytes / 2**20, peak()
    barker = functools.partial(
        dpjax.barker, step_size=0.0112, clip_bound=dpjax.Lipschitz(2.0)
    )
    private(posterior, jnp.tile(start[None], (20, 1)), barker, 1000)
    print(
        f"n = 2e6, d = 10, 20 chains: data {size:.0f} MB, peak "
        f"before the run {before:.0f} MB, added by the run {peak() - before:.0f} MB"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--chains", nargs="+", type=int, default=[20])
    parser.add_argument("--repetitions", type=int, help="timed calls of every line")
    parser.add_argument(
        "--longer", type=int, default=1, help="times as many steps, on a fast device"
    )
    parser.add_argument("--json", type=pathlib.Path, help="where to write the rows")
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if options.memory:
        return memory()
    # Compile times are those of a first run.
    jax.config.update("jax_enable_compilation_cache", False)
    program = [sys.executable, "-c", "import dpjax"]
    imported = min(seconds(lambda: subprocess.run(program, check=True)) for _ in "123")
    machine = Machine.measured()
    print(
        f"{machine.flops / 1e9:.0f} GFLOP/s, {machine.bytes / 1e9:.1f} GB/s, "
        f"{machine.transcendentals / 1e9:.2f}e9 exp/s; import {imported:.1f} s"
    )
    rows = [
        row
        for name in options.only
        for num_chains in options.chains
        for row in measure(
            name, machine, num_chains, options.repetitions, options.longer
        )
    ]
    if options.json:
        found = dict(machine=machine._asdict(), import_seconds=imported, rows=rows)
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
