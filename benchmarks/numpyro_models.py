"""NumPyro models sampled privately with nothing tuned, beside NUTS and the truth.

    python -m benchmarks.numpyro_models [--only NAME ...] [--epsilon E] [--data-sets N]

`dpjax.numpyro.sample` on the examples of configs/numpyro. Runs of one data set give,
over runs and parameters, the distances of posterior means from those of NUTS in its
standard deviations, and the ratios of standard deviations. Data sets drawn anew give
how often 90 % intervals cover the truth, and a standard error that takes the
parameters of a data set for one observation. For Adult the labels are drawn anew, at
the mean of NUTS. The share of records that a step from the posterior mean clips is not
private.
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
from dpjax import config
from dpjax.comparisons import baselines
from dpjax.fisher import inverse_fisher_information
from dpjax.numpyro import clip_per_step, fisher_information, initial_position, sample

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


def by_group(posterior):
    """The hierarchical posterior from sums over its groups, which suffice for it."""
    data = {name: np.asarray(values) for name, values in posterior.data.items()}
    x, y = data["x"].astype(float), data["y"].astype(float)
    columns = dict(n=x * 0 + 1, x=x, y=y, xx=x * x, xy=x * y, yy=y * y)
    rows = {k: np.bincount(data["group"], column) for k, column in columns.items()}

    def loglikelihood(position, row):
        sites = posterior.constrain_fn(position)
        level, slope = sites["intercept"][row["group"]], sites["slope"]
        squares = row["yy"] - 2 * level * row["y"] - 2 * slope * row["xy"]
        squares += row["n"] * level**2 + 2 * level * slope * row["x"]
        squares += slope**2 * row["xx"]
        return -0.5 * squares / sites["sigma"] ** 2 - row["n"] * jnp.log(sites["sigma"])

    rows["group"] = np.arange(GROUPS.size)
    rows = {name: jnp.asarray(values) for name, values in rows.items()}
    return dpjax.Posterior(posterior.logprior_fn, loglikelihood, rows)


def reference(name, posterior):
    """Draws of NUTS by site, and their mean in unconstrained space."""
    same = by_group(posterior) if name == "hierarchical" else posterior
    draws = baselines.nuts(
        jax.random.key(0),
        dataclasses.replace(same, constrain_fn=None),
        500,
        initial_position=initial_position(posterior, 2),
        num_warmup=500,
    ).positions
    centre = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=(0, 1)), draws)
    constrained = jax.vmap(jax.vmap(posterior.constrain_fn))(draws)
    return by_component(constrained), centre


def by_component(positions):
    """``{site: (draws, size)}``."""
    return {
        name: np.asarray(values).reshape(values.shape[0] * values.shape[1], -1)
        for name, values in positions.items()
    }


def non_private_clipped(posterior, positions) -> float:
    """Share of the records that a step from `positions`, unconstrained, clips."""
    information = fisher_information(posterior, positions)
    metric = inverse_fisher_information(information, positions)
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
    """For each parameter, whether its interval holds the truth."""
    inside = [
        (np.quantile(draws[name], 0.05, axis=0) <= np.ravel(value))
        & (np.ravel(value) <= np.quantile(draws[name], 0.95, axis=0))
        for name, value in truth.items()
    ]
    return np.concatenate(inside)


def drawn_anew(name, posterior, truth, seed):
    """A posterior of records of the model at the truth."""
    if name == "adult":
        x = np.asarray(posterior.data["x"], float)
        chance = 1 / (1 + np.exp(-x @ truth["coefficients"]))
        data = {"x": x, "y": np.random.default_rng(seed).random(len(x)) < chance}
    else:
        data = records(name)(posterior.num_records, seed=seed)
    data = {
        key: jnp.asarray(values, posterior.data[key].dtype)
        for key, values in data.items()
    }
    return dataclasses.replace(posterior, data=data)


def line(name, num_runs, num_data_sets, **options):
    job = config.load(CONFIGS / f"{name}.toml")
    posterior, _, _ = job.load()
    expected, centre = reference(name, posterior)
    truth = TRUTH[name] or {key: value.mean(0) for key, value in expected.items()}
    clipped = non_private_clipped(posterior, centre)
    start = time.perf_counter()

    def draws(target, seed):
        key = jax.random.key(seed)
        found = sample(target, verbose=False, unsafe_key=key, **options)
        return by_component(found.positions)

    errors, ratios, inside = [], [], []
    for seed in range(max(num_runs, num_data_sets)):
        if seed < num_runs:
            found = draws(posterior, seed)
            for site, values in expected.items():
                sd = values.std(0)
                errors.append(np.abs(found[site].mean(0) - values.mean(0)) / sd)
                ratios.append(found[site].std(0) / sd)
        if seed < num_data_sets:
            target = drawn_anew(name, posterior, truth, 1000 + seed)
            inside.append(covered(draws(target, 1000 + seed), truth))
        error, ratio = np.concatenate(errors), np.concatenate(ratios)
        rates = np.mean(inside, axis=1)
        print(
            f"{name:<13}{np.median(error):7.2f}{np.mean(error < 1):9.2f}"
            f"{error.max():7.2f}{np.median(ratio):10.2f}{rates.mean():12.3f} ("
            f"{rates.std() / len(rates) ** 0.5:.3f}){np.size(inside):6d}"
            f"{clipped:9.4f}{time.perf_counter() - start:8.0f} s",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TRUTH, default=list(TRUTH))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--chains", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--data-sets", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="(?s).*ArviZ is undergoing")
    budget = dpjax.Budget(options.epsilon, 1e-6)
    print(
        f"epsilon = {options.epsilon:g}\n{'':<13}{'error / sd of NUTS':>23}{'sd':>10}"
        f"{'90 % interval covers':>26}\n{'':<13}{'median':>7}{'below 1':>9}{'max':>7}"
        f"{'ratio':>10}{'rate (error)':>20}{'of':>6}{'clipped':>9}{'time':>10}"
    )
    for name in options.only:
        line(
            name,
            options.runs,
            options.data_sets,
            budget=budget,
            num_chains=options.chains,
            num_steps=options.steps,
        )


if __name__ == "__main__":
    main()
