"""NumPyro models sampled privately with nothing tuned, beside NUTS and the truth.

    python -m benchmarks.numpyro_models [--only NAME ...] [--epsilon E] [--data-sets N]

`dpjax.numpyro.sample` on the examples of configs/numpyro. A line holds, on the first
data set, the largest distance of a posterior mean from that of NUTS in standard
deviations of NUTS, the share of parameters where it is below one, and the least and
largest ratio of standard deviations; how often the 90 % intervals of all parameters
cover the truth over data sets drawn anew (not for Adult, of which there is one); and
the share of the records that a step from the posterior mean clips, not private.
"""

import argparse
import dataclasses
import importlib.util
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax import baselines, config
from dpjax.numpyro import clip_per_step, fisher_metric, initial_position, sample

CONFIGS = Path(__file__).parents[1] / "configs/numpyro"
GROUPS = 1.0 + 0.7 * np.random.default_rng(1).normal(size=20)
TRUTH = {
    "adult": {},
    "hierarchical": {"slope": -0.5, "sigma": 1.5, "intercept": GROUPS},
    "poisson": {"intercept": 0.5, "slopes": np.array([0.6, -0.4, 0.2])},
}
"""Parameters that the generators fix; group effects and their law are drawn once."""


def records(name):
    """The function of the example that makes its records."""
    spec = importlib.util.spec_from_file_location(name, CONFIGS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.records


def reference(posterior):
    """Draws of NUTS by site, and their mean in unconstrained space."""
    unconstrained = dataclasses.replace(posterior, constrain_fn=None)
    start = initial_position(posterior, 2)
    draws = baselines.nuts(
        jax.random.key(0), unconstrained, 500, initial_position=start, num_warmup=500
    ).positions
    centre = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=(0, 1)), draws)
    return by_component(posterior.constrain(draws)), centre


def by_component(positions):
    """``{site: (draws, size)}``."""
    return {
        name: np.asarray(values).reshape(values.shape[0] * values.shape[1], -1)
        for name, values in positions.items()
    }


def non_private_clipped(posterior, positions) -> float:
    """Share of the records that a step from `positions`, unconstrained, clips."""
    metric = fisher_metric(posterior, positions)
    bound = clip_per_step(posterior, positions, metric)
    flat, unravel = ravel_pytree(positions)
    rng, shares = np.random.default_rng(0), []
    for _ in range(20):
        direction = rng.normal(size=flat.size)
        direction = np.linalg.cholesky(metric) @ direction / np.linalg.norm(direction)
        step = unravel(flat + 0.1 * jnp.asarray(direction, flat.dtype))
        each = jax.vmap(posterior.loglikelihood_fn, (None, 0))
        ratio = each(step, posterior.data) - each(positions, posterior.data)
        shares.append(np.mean(np.abs(np.asarray(ratio)) > 0.1 * bound))
    return float(np.mean(shares))


def covered(draws, truth):
    """Parameters whose interval holds the truth, and their number."""
    inside = [
        (np.quantile(draws[name], 0.05, axis=0) <= np.ravel(value))
        & (np.ravel(value) <= np.quantile(draws[name], 0.95, axis=0))
        for name, value in truth.items()
    ]
    return np.concatenate(inside) if inside else np.zeros(0)


def line(name, budget, num_chains, num_data_sets, num_steps):
    job = config.load(CONFIGS / f"{name}.toml")
    posterior, _, _ = job.load()
    expected, centre = reference(posterior)
    clipped = non_private_clipped(posterior, centre)
    count = num_data_sets if TRUTH[name] else 1
    found, seconds = [], []
    for seed in range(count):
        target = posterior
        if seed:
            data = records(name)(posterior.num_records, seed=1000 + seed)
            data = {key: jnp.asarray(values) for key, values in data.items()}
            target = dataclasses.replace(posterior, data=data)
        start = time.perf_counter()
        result = sample(
            jax.random.key(seed),
            target,
            budget=budget,
            num_chains=num_chains,
            num_steps=num_steps,
            verbose=False,
        )
        seconds.append(time.perf_counter() - start)
        draws = by_component(result.positions)
        if not seed:
            errors, ratios = [], []
            for site, values in expected.items():
                sd = values.std(0)
                errors.append(np.abs(draws[site].mean(0) - values.mean(0)) / sd)
                ratios.append(draws[site].std(0) / sd)
            errors, ratios = np.concatenate(errors), np.concatenate(ratios)
        found.append(covered(draws, TRUTH[name]))
        rate = f"{np.mean(found):.2f} of {np.size(found)}" if np.size(found) else "-"
        print(
            f"{name:<14}{errors.max():9.2f}{np.mean(errors < 1):9.2f}"
            f"{ratios.min():9.2f}{ratios.max():7.2f}{rate:>16}"
            f"{clipped:9.4f}{np.mean(seconds):9.0f} s   data sets: {seed + 1}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TRUTH, default=list(TRUTH))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--chains", type=int, default=1)
    parser.add_argument("--data-sets", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="(?s).*ArviZ is undergoing")
    budget = dpjax.Budget(options.epsilon, 1e-6)
    print(
        f"{'epsilon = ' + str(options.epsilon):<14}{'error/sd':>9}{'below 1':>9}"
        f"{'sd ratio':>16}{'90 % covers':>16}{'clipped':>9}{'time':>11}"
    )
    for name in options.only:
        line(name, budget, options.chains, options.data_sets, options.steps)


if __name__ == "__main__":
    main()
