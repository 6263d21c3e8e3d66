"""Milliseconds per step of 20 chains, beside BlackJAX and hand-written passes.

    python -m benchmarks.speed [--memory]

Every line is timed in the same process, in turn, several times over; the minimum is
printed. ``rmh`` is BlackJAX's non-private random walk, vmapped over the chains on the
same Posterior; ``by hand`` is a jitted loop that computes the clipped sums of the
private step directly, for the current and the proposed position, and nothing else.
``--memory`` instead prints the peak memory of a Barker run at n = 2e6, d = 10.
"""

import argparse
import functools
import resource
import time

import blackjax
import jax
import jax.numpy as jnp

import dpjax
from dpjax.models import banana, logistic_regression
from dpjax.models.banana import simulate

CHAINS, STEPS = 20, 1000


def banana_case(num_records=100_000, dim=2):
    """Posterior, start, jump, clip bound and the pass written by hand."""
    data = simulate(jax.random.key(0), num_records, dim)
    posterior = banana(data)

    def by_hand(first, second, data, bound):
        x1, x2 = data[:, 0], data[:, 1]

        def loglikelihood(position):
            t1, t2 = position[:, :1], position[:, 1:2]
            u = t2 + 20.0 * t1**2
            return -0.025 * (x1[None] - t1) ** 2 - 0.2 * (x2[None] - u) ** 2

        ratio = loglikelihood(second) - loglikelihood(first)
        return jnp.sum(jnp.clip(ratio, -bound, bound), axis=1)

    start = jnp.zeros(dim).at[1].set(3.0)
    return posterior, start, 0.0112, 2.0, by_hand


def logistic_case(num_records=48_842, dim=100):
    """As `banana_case`, for rows of norm at most 1."""
    keys = jax.random.split(jax.random.key(0), 3)
    features = jax.random.normal(keys[0], (num_records, dim))
    features /= jnp.linalg.norm(features, axis=1, keepdims=True)
    truth = jax.random.normal(keys[1], (dim,))
    chance = jax.nn.sigmoid(features @ truth)
    labels = (jax.random.uniform(keys[2], (num_records,)) < chance).astype(float)
    posterior = logistic_regression(features, labels)

    def by_hand(first, second, data, bound):
        features, labels = data
        logits = jnp.concatenate([second, first]) @ features.T
        value = labels[None] * logits - jax.nn.softplus(logits)
        ratio = value[:CHAINS] - value[CHAINS:]
        return jnp.sum(jnp.clip(ratio, -bound, bound), axis=1)

    return posterior, jnp.zeros(dim), 0.05, 1.0, by_hand


def private(posterior, start, algorithm_fn):
    """A call that runs STEPS steps of 20 chains through `dpjax.run`."""
    starts = jnp.tile(start[None], (CHAINS, 1))
    return lambda: dpjax.run(
        None,
        algorithm_fn,
        posterior,
        STEPS,
        initial_position=starts,
        num_chains=CHAINS,
        budget=None,
        verbose=False,
    )


def competitors(case):
    """Name and timed call of every line of the table."""
    posterior, start, length, clip, by_hand = case()
    bound = dpjax.Lipschitz(clip)
    starts = jnp.tile(start[None], (CHAINS, 1))
    barker = functools.partial(dpjax.barker, step_size=length, clip_bound=bound)
    penalty = functools.partial(
        dpjax.penalty,
        step_size=length / start.size**0.5,
        clip_bound=bound,
        noise_multiplier=0.1 * posterior.num_records**0.5,
    )

    @jax.jit
    def rmh(posterior, key):
        normal = blackjax.mcmc.random_walk.normal(jnp.full(start.shape, length))
        algorithm = blackjax.additive_step_random_walk(posterior, normal)
        states = jax.vmap(algorithm.init)(starts)

        def one(states, key):
            keys = jax.random.split(key, CHAINS)
            states, _ = jax.vmap(algorithm.step)(keys, states)
            return states, states.position

        return jax.lax.scan(one, states, jax.random.split(key, STEPS))[1]

    @jax.jit
    def hand(data, key):
        def one(position, key):
            jump = length * jax.random.normal(key, position.shape)
            total = by_hand(position, position + jump, data, clip * length)
            return position + 1e-9 * total[:, None] * jump, total

        return jax.lax.scan(one, starts, jax.random.split(key, STEPS))[1]

    key = jax.random.key(1)
    return {
        "barker": private(posterior, start, barker),
        "penalty": private(posterior, start, penalty),
        "lazy barker 0.2": private(
            posterior, start, functools.partial(barker, laziness=0.2)
        ),
        "rmh (a)": lambda: jax.block_until_ready(rmh(posterior, key)),
        "by hand (b)": lambda: jax.block_until_ready(hand(posterior.data, key)),
    }


def table(repetitions):
    for name, case in (("banana", banana_case), ("logistic", logistic_case)):
        calls = competitors(case)
        for call in calls.values():
            call()
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(repetitions):
            for label, call in calls.items():
                start = time.perf_counter()
                call()
                best[label] = min(best[label], time.perf_counter() - start)
        posterior = case()[0]
        leaves = jax.tree.leaves(posterior.data)
        print(f"{name}: records {[leaf.shape for leaf in leaves]}, {CHAINS} chains")
        for label, seconds in best.items():
            print(
                f"  {label:<16}{1e3 * seconds / STEPS:8.3f} ms/step"
                f"{seconds / best['barker']:8.2f} of barker"
                f"{seconds / best['rmh (a)']:8.2f} of (a)"
                f"{seconds / best['by hand (b)']:8.2f} of (b)",
                flush=True,
            )


def memory():
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    posterior, start, length, clip, _ = banana_case(2_000_000, 10)
    data = posterior.data.nbytes / 2**20
    jax.block_until_ready(posterior.data)
    before = peak()
    barker = functools.partial(
        dpjax.barker, step_size=length, clip_bound=dpjax.Lipschitz(clip)
    )
    private(posterior, start, barker)()
    print(
        f"n = 2e6, d = 10, 20 chains: data {data:.0f} MB, peak before the run "
        f"{before:.0f} MB, added by the run {peak() - before:.0f} MB"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    memory() if options.memory else table(options.repetitions)


if __name__ == "__main__":
    main()
