"""What intervals of private chains cover, over 64 data sets of 20 chains, in one call.

    python -m benchmarks.coverage [--records N] [--steps N] [--repetitions N]

The truths are drawn from the prior N(0, 2^2) in two dimensions, the records from
N(truth, 1), and 90 % intervals of `dpjax.barker` should cover nine truths of ten. A
clip bound that clips most records flattens the posterior, and intervals cover more.
Printed are the coverage, with its standard error over data sets, and the epsilon of one
run, for several clip bounds. With `--repetitions` the same runs are timed in turns, as
one call of `dpjax.batch` and as a loop of `dpjax.run`, after each has compiled its
programs.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks import timing

NUM_DATA_SETS, NUM_CHAINS, PRIOR_SD = 64, 20, 2.0
BUDGET = dpjax.Budget(500.0, 1e-6)
CLIP_BOUNDS = 0.01, 0.03, 0.1
NUM_LOOPED = 8
"""Data sets of the loop that is timed."""


def logprior(theta):
    return -0.5 * jnp.sum((theta / PRIOR_SD) ** 2)


def loglikelihood(theta, record):
    return -0.5 * jnp.sum((record - theta) ** 2)


def experiment(num_records):
    """The settings, the posteriors, the truths and where chains start."""
    rng = np.random.default_rng(0)
    truths = rng.normal(0, PRIOR_SD, (NUM_DATA_SETS, 2))
    data = truths[:, None] + rng.normal(size=(NUM_DATA_SETS, num_records, 2))
    posteriors = [dpjax.Posterior(logprior, loglikelihood, each) for each in data]
    settings = {
        bound: (
            functools.partial(
                dpjax.barker, step_size=2 / num_records**0.5, clip_bound=bound
            ),
            BUDGET,
        )
        for bound in CLIP_BOUNDS
    }
    return settings, posteriors, truths, rng.normal(0, PRIOR_SD, (NUM_CHAINS, 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repetitions", type=int, default=0)
    options = parser.parse_args()
    settings, posteriors, truths, starts = experiment(options.records)
    common = dict(
        initial_position=starts, num_chains=NUM_CHAINS, verbose=False, unsafe_key=None
    )
    found = dpjax.batch(settings, posteriors, options.steps, **common)
    table = found.table(truths)
    for bound, rows in table.groupby("setting"):
        per_set = rows["is_covered"].groupby("data_set").mean()
        print(
            f"clip bound {bound:<5} epsilon of a run "
            f"{rows['epsilon_of_run'].iloc[0]:6.4g}, 90 % intervals cover "
            f"{per_set.mean():.3f} (se {per_set.std() / len(per_set) ** 0.5:.3f})"
        )
    if not options.repetitions:
        return

    def loop():
        for posterior in posteriors[:NUM_LOOPED]:
            for algorithm_fn, budget in settings.values():
                dpjax.run(
                    algorithm_fn, posterior, options.steps, budget=budget, **common
                )

    times = timing.in_turns(
        {
            "batch": lambda: dpjax.batch(settings, posteriors, options.steps, **common),
            "loop": loop,
        },
        options.repetitions,
    )
    batched, looped = times["batch"], times["loop"] * NUM_DATA_SETS / NUM_LOOPED
    print(
        f"{options.records} records: one call {np.median(batched):.1f} s, a loop "
        f"{np.median(looped):.1f} s (from {NUM_LOOPED} data sets), "
        f"ratio {np.median(looped / batched):.1f} on {jax.default_backend()}"
    )


if __name__ == "__main__":
    main()
