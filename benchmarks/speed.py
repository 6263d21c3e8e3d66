"""Milliseconds per step of 20 chains, beside passes over the data written by hand.

    python -m benchmarks.speed [--only NAME ...] [--repetitions N] [--memory]

Every kernel is timed next to the step of `benchmarks.by_hand` that makes the same
passes, and ``rmh``, BlackJAX's non-private random walk vmapped over the chains on the
same Posterior. (On logistic regression the step by hand evaluates both positions, where
the others remember the current one: about twice their data work.) The lines of a table
take turns in one process, several times over, with calls of one and of three lengths. A
step takes half of what the longer call takes more, in the minimum; the rest of a call
is its fixed cost: checks, the trace of its program and its charge. ``--memory``
instead prints the peak memory of a Barker run at n = 2e6, d = 10.
"""

import argparse
import functools
import os
import resource
from collections.abc import Callable
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp

import dpjax
from benchmarks import by_hand, timing
from dpjax.models import banana, logistic_regression
from dpjax.models.banana import FisherInformation, simulate

CHAINS = 20


class Table(NamedTuple):
    """Lines that are timed in turn.

    posterior, start
        What is sampled, and from where.
    num_steps, repetitions
        Length of a timed call, and the number of calls.
    hand
        Step of `by_hand`.
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


def random_walks(posterior, start, ratios, length, constant, num_steps):
    """Kernels that take one sum of log ratios, and BlackJAX's random walk."""
    bound = dpjax.Lipschitz(constant)
    barker = functools.partial(dpjax.barker, step_size=length, clip_bound=bound)
    return Table(
        posterior,
        start,
        num_steps,
        repetitions=5,
        hand=by_hand.random_walk(ratios, length, constant * length),
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
    table = random_walks(posterior, start, by_hand.banana_ratios, 0.0112, 2.0, 1000)
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


def logistic_walks():
    posterior, start = logistic_data(48_842, 100)
    return random_walks(posterior, start, by_hand.logistic_ratios, 0.05, 1.0, 200)


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
    return Table(posterior, start, 500, 7, hand, kernels)


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
    return Table(posterior, start, hand=hand, kernels=kernels, **lengths)


TABLES = {
    "banana": banana_walks,
    "logistic": logistic_walks,
    "minibatch": minibatch,
    "hmc-2d": functools.partial(
        hamiltonian, 100_000, 2, 5e-4, 1.0, 100_000, num_steps=20, repetitions=5
    ),
    "hmc-10d": functools.partial(
        hamiltonian, 200_000, 10, 1.5e-4, 3.0, 2000, num_steps=2, repetitions=4
    ),
}


def private(posterior, start, algorithm_fn, num_steps):
    """Run the kernel on all chains."""
    dpjax.run(
        algorithm_fn,
        posterior,
        num_steps,
        initial_position=jnp.tile(start[None], (CHAINS, 1)),
        num_chains=CHAINS,
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


def lines(table, num_steps):
    """Name and timed call of every line of the table."""
    posterior, start = table.posterior, table.start
    starts = jnp.tile(start[None], (CHAINS, 1))
    calls = {"by hand": compiled(table.hand, starts, num_steps, posterior.data)}
    for name, algorithm_fn in table.kernels.items():
        calls[name] = functools.partial(
            private, posterior, start, algorithm_fn, num_steps
        )
    if table.rmh is not None:
        normal = blackjax.mcmc.random_walk.normal(jnp.full(start.shape, table.rmh))

        def step(states, key, posterior):
            algorithm = blackjax.additive_step_random_walk(posterior, normal)
            keys = jax.random.split(key, CHAINS)
            return jax.vmap(algorithm.step)(keys, states)[0]

        algorithm = blackjax.additive_step_random_walk(posterior, normal)
        states = jax.vmap(algorithm.init)(starts)
        calls["rmh"] = compiled(step, states, num_steps, posterior)
    return calls


def show(name, repetitions):
    table = TABLES[name]()
    lengths = table.num_steps, 3 * table.num_steps
    calls = {
        (label, length): call
        for length in lengths
        for label, call in lines(table, length).items()
    }
    times = timing.in_turns(calls, repetitions or table.repetitions)
    best = {key: seconds.min() for key, seconds in times.items()}
    shapes = [leaf.shape for leaf in jax.tree.leaves(table.posterior.data)]
    load = os.getloadavg()[0]
    print(f"{name}: records {shapes}, {CHAINS} chains; load average {load:.1f}")
    of_a_step = {
        label: (best[label, lengths[1]] - best[label, lengths[0]]) / (2 * lengths[0])
        for label, _ in calls
    }
    for label, seconds in of_a_step.items():
        fixed = best[label, lengths[0]] - lengths[0] * seconds
        print(
            f"  {label:<18}{1e3 * seconds:9.3f} ms/step"
            f"{seconds / of_a_step['by hand']:8.2f} of by hand{fixed:8.2f} s a call",
            flush=True,
        )


def memory():
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    posterior, start = banana_data(2_000_000, 10)
    jax.block_until_ready(posterior.data)
    size, before = posterior.data.nbytes / 2**20, peak()
    barker = functools.partial(
        dpjax.barker, step_size=0.0112, clip_bound=dpjax.Lipschitz(2.0)
    )
    private(posterior, start, barker, 1000)
    print(
        f"n = 2e6, d = 10, 20 chains: data {size:.0f} MB, peak "
        f"before the run {before:.0f} MB, added by the run {peak() - before:.0f} MB"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--repetitions", type=int, help="timed calls of every line")
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if options.memory:
        return memory()
    for name in options.only:
        show(name, options.repetitions)


if __name__ == "__main__":
    main()
