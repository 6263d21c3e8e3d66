"""Races on the models of Raisa (2021): DP penalty against Barker and lazy Barker.

    python -m benchmarks.thesis --model easy-2d --epsilon 1 2 4 6

As in the thesis, every chain is a private analysis of its own: the budget is what one
chain may spend, and the chains are repetitions of the experiment. Penalty runs with the
thesis's hyperparameters and accounting; Barker's jump has the length of the penalty
method's typical one, and three quarters of its clip bound per unit of distance (chosen
on a data set generated with another seed). Runs stop at 20000 passes over the data,
spending less than the budget, and at most 4000 states a chain are scored.
"""

import argparse
import functools
import time

import jax
import numpy as np

import dpjax
from dpjax import privacy
from dpjax.evaluation import median_bandwidth, mmd, reference_bandwidth
from dpjax.models import THESIS_MODELS, thesis_model

PENALTY = {
    "easy-2d": (0.1, 0.008, 2.0),
    "easy-10d": (0.1, 0.0015, 2.0),
    "tempered-2d": (0.2, 0.035, 5.0),
    "tempered-10d": (0.18, 0.02, 3.0),
    "gauss-30d": (0.06, 0.00084, 3.0),
    "hard-2d": (0.2, 0.0015, 5.5),
    "hard-gauss-2d": (0.07, 0.00015, 50.0),
    "circle": (4.0, 0.2, 0.002),
}
"""tau, sd of the proposal, clip bound per unit of distance (thesis, table 5.2)."""

PUBLISHED = {
    "easy-2d": (0.367, 0.342, 0.153, 0.122),
    "tempered-2d": (0.494, 0.405, 0.316, 0.271),
    "easy-10d": (0.663, 0.489, 0.334, 0.270),
    "tempered-10d": (0.475, 0.433, 0.326, 0.296),
    "gauss-30d": (0.735, 0.658, 0.518, 0.394),
    "hard-2d": (0.606, 0.577, 0.533, 0.526),
    "hard-gauss-2d": (0.728, 0.671, 0.664, 0.720),
}
"""The thesis's median MMD of DP penalty at epsilon 1, 2, 4, 6 (figures 6.3, 6.4)."""

LAZINESS = 0.2
BARKER_CLIP = 0.75
MOST_PASSES, MOST_DRAWS = 20_000, 4_000


def algorithms(model):
    """Name, accounting method and algorithm of every competitor."""
    tau, proposal_sd, clip = PENALTY[model.key]
    bound = dpjax.Lipschitz(BARKER_CLIP * clip)
    length = proposal_sd * model.dim**0.5
    return {
        "penalty": functools.partial(
            dpjax.penalty,
            step_size=proposal_sd,
            clip_bound=dpjax.Lipschitz(clip),
            noise_multiplier=tau * model.num_records**0.5,
        ),
        "barker": functools.partial(dpjax.barker, step_size=length, clip_bound=bound),
        f"lazy barker {LAZINESS}": functools.partial(
            dpjax.barker, step_size=length, clip_bound=bound, laziness=LAZINESS
        ),
    }


def race(model, epsilons, num_chains, seed):
    """Print one row per budget and algorithm."""
    posterior = model.posterior()
    reference = model.reference()
    starts = model.starts(reference, num_chains)
    fixed = reference_bandwidth(reference)
    print(
        f"{model.name}: n = {model.num_records}, d = {model.dim}, delta = "
        f"{model.delta:.2g} (replace one), {num_chains} chains, each with its own "
        "budget"
    )
    print(
        f"{'eps':>4} {'algorithm':<16}{'steps':>8}{'passes':>8}{'accept':>8}"
        f"{'MMD':>8}{'quartiles':>16}{'MMD thesis':>12}{'seconds':>9}"
    )
    for epsilon in epsilons:
        for name, algorithm_fn in algorithms(model).items():
            step = algorithm_fn(posterior).privacy(1)
            steps = privacy.max_steps(step, epsilon=epsilon, delta=model.delta)
            laziness = algorithm_fn.keywords.get("laziness", 1.0)
            steps = min(steps, int(MOST_PASSES / laziness))
            if steps < 2:
                print(f"{epsilon:4g} {name:<16}{steps:8d}   too few steps to sample")
                continue
            start = time.perf_counter()
            result = dpjax.run(
                jax.random.key(seed),
                algorithm_fn,
                posterior,
                steps,
                initial_position=starts,
                num_chains=num_chains,
                budget=None,
                thinning=max(steps // (2 * MOST_DRAWS), 1),
                verbose=False,
            )
            seconds = time.perf_counter() - start
            scores = [float(mmd(chain, reference, fixed)) for chain in result.positions]
            keys = jax.random.split(jax.random.key(seed + 1), num_chains)
            thesis = [
                float(mmd(chain, reference, median_bandwidth(key, chain, reference)))
                for key, chain in zip(keys, result.positions, strict=True)
            ]
            low, median, high = np.quantile(scores, (0.25, 0.5, 0.75))
            passes = steps * laziness
            print(
                f"{epsilon:4g} {name:<16}{steps:8d}{passes:8.0f}"
                f"{result.acceptance_rate.mean():8.3f}{median:8.3f}"
                f"{f'{low:.3f}-{high:.3f}':>16}{np.median(thesis):12.3f}{seconds:9.1f}",
                flush=True,
            )
        if model.key in PUBLISHED and epsilon in (1, 2, 4, 6):
            published = PUBLISHED[model.key][(1, 2, 4, 6).index(epsilon)]
            print(f"{epsilon:4g} {'penalty, thesis':<16}{'':40}{published:24.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(THESIS_MODELS), default="easy-2d")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1, 2, 4, 6])
    parser.add_argument("--chains", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    race(thesis_model(options.model), options.epsilon, options.chains, options.seed)


if __name__ == "__main__":
    main()
