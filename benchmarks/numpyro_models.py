"""NumPyro models sampled privately with nothing tuned, beside exact posteriors.

    python -m benchmarks.numpyro_models [--only NAME ...] [--epsilon E ...]
        [--data-sets N] [--records N] [--nuts] [--json FILE]

`dpjax.numpyro.sample` on the examples of configs/numpyro, with the number of their
records or fewer. Every data set is drawn anew from the model at the truth; for Adult
these are the labels, at the mean of NUTS. Its posterior without privacy is the normal
law at its mode in unconstrained space, or NUTS with ``--nuts``. Reported are, over data
sets and parameters, the distances of means in posterior standard deviations, the ratios
of standard deviations, their largest ratio to those of the prior, and how often 90 %
intervals hold the truth, with a standard error that takes the parameters of a data set
for one observation, beside how often those of the posterior without privacy hold it on
the same data sets. The docs read rows from files of benchmarks: numpyro_models.json has
the zoo, of 20,000 records, with not_centred beside NUTS and on 40,000;
numpyro_examples.json has all records; numpyro_small.json has 500 and 2000 of them.
"""

import argparse
import dataclasses
import importlib.util
import json
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax import config, privacy
from dpjax.comparisons import baselines
from dpjax.numpyro import initial_position, sample

CONFIGS = Path(__file__).parents[1] / "configs/numpyro"
GROUPS = 1.0 + 0.7 * np.random.default_rng(1).normal(size=20)
SLOPES = np.array([0.6, -0.4, 0.2])
WEIBULL = {"intercept": 0.2, "slopes": np.array([0.5, -0.3]), "shape": 1.5}
HIERARCHICAL = {"slope": -0.5, "sigma": 1.5, "intercept": GROUPS}
TRUTH = {
    "adult": {},
    "categorical": {
        "levels": np.array([0.3, -0.5]),
        "weights": np.array([[0.8, -0.4], [-0.5, 0.6]]),
    },
    "censored": WEIBULL,
    "censored_factor": WEIBULL,
    "hierarchical": HIERARCHICAL,
    "linear": {"intercept": 1.0, "slopes": np.array([0.5, -0.3, 0.2]), "sigma": 0.7},
    "logistic": {"intercept": -0.5, "slopes": np.array([1.0, -0.6, 0.3])},
    "masked": {"intercept": 1.0, "slopes": np.array([0.5, -0.3]), "sigma": 0.7},
    "mixture": {"weight": 0.4, "means": np.array([-1.5, 1.0]), "scale": 0.8},
    "negative_binomial": {
        "intercept": 1.0,
        "slopes": np.array([0.5, -0.3, 0.2]),
        "concentration": 2.0,
    },
    "not_centred": HIERARCHICAL,
    "ordinal": {"slopes": np.array([1.0, -0.5]), "cuts": np.array([-1.0, 0.3, 1.5])},
    "poisson": {"intercept": 0.5, "slopes": SLOPES},
    "poisson_offset": {"intercept": 0.5, "slopes": SLOPES},
    "student_t": {"slopes": np.linspace(-0.5, 0.5, 10), "sigma": 0.8},
    "survival": WEIBULL,
    "zero_inflated": {"gate": 0.25, "intercept": 1.0, "slopes": SLOPES[:2]},
}
"""Parameters that the generators fix; group effects and their law are drawn once."""


def records(name):
    """The function of the example that makes its records."""
    name = "hierarchical" if TRUTH[name] is HIERARCHICAL else name
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
    """Draws of NUTS by site."""
    if name == "not_centred":
        # NUTS mixes well in the intercepts, and slowly in effects.
        job = config.load(CONFIGS / "hierarchical.toml")
        posterior = dataclasses.replace(job.load()[0], data=posterior.data)
    same = by_group(posterior) if TRUTH[name] is HIERARCHICAL else posterior
    draws = baselines.nuts(
        jax.random.key(0),
        dataclasses.replace(same, constrain_fn=None),
        500,
        initial_position=initial_position(posterior, 2),
        num_warmup=500,
    ).positions
    return by_site(posterior, draws)


def by_site(posterior, positions):
    """``{site: (draws, size)}``, of unconstrained positions by chain and draw."""
    values = jax.vmap(jax.vmap(posterior.constrain_fn))(positions)
    return {
        name: np.asarray(leaf).reshape(leaf.shape[0] * leaf.shape[1], -1)
        for name, leaf in values.items()
    }


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


def mode(posterior, start):
    """Mean and sds of the normal law at the mode, and a chain of draws from it."""
    flat, unravel = ravel_pytree(start)

    @jax.jit
    def newton(flat, posterior):
        gradient = jax.grad(lambda z: posterior(unravel(z)))
        precision = -jax.jacfwd(gradient)(flat)
        values, vectors = jnp.linalg.eigh(precision)
        values = jnp.maximum(jnp.abs(values), 1e-3 * jnp.max(values))
        step = vectors @ ((vectors.T @ gradient(flat)) / values)
        step *= jnp.minimum(1.0, 0.5 / jnp.maximum(jnp.linalg.norm(step), 1e-9))
        return flat + step, precision

    for _ in range(40):
        flat, precision = newton(flat, posterior)
    covariance = np.linalg.inv(np.asarray(precision, np.float64))
    centre = np.asarray(flat, np.float64)
    draws = np.random.default_rng(0).multivariate_normal(centre, covariance, 10_000)
    draws = jax.vmap(jax.vmap(unravel))(jnp.asarray(draws[None], flat.dtype))
    return centre, np.sqrt(np.diag(covariance)), draws


def rows(name, num_data_sets, num_records, with_nuts, epsilons, **options):
    """A row of the table for each epsilon."""
    job = config.load(CONFIGS / f"{name}.toml")
    posterior: Any
    posterior, _, _ = job.load()
    truth = TRUTH[name]
    if not truth:
        expected = reference(name, posterior)
        truth = {key: value.mean(0) for key, value in expected.items()}
    if num_records:
        chosen = np.random.default_rng(0).permutation(posterior.num_records)
        chosen = chosen[:num_records]
        few = jax.tree.map(lambda leaf: leaf[chosen], posterior.data)
        posterior = dataclasses.replace(posterior, data=few)
    start = jax.tree.map(lambda leaf: leaf[0], initial_position(posterior, 1))
    flatten = jax.vmap(lambda position: ravel_pytree(position)[0])
    prior_sd = np.asarray(flatten(posterior.model.prior_draws), np.float64).std(0)
    scores = {epsilon: [] for epsilon in epsilons}
    for seed in range(num_data_sets):
        target = drawn_anew(name, posterior, truth, 1000 + seed)
        if with_nuts:
            expected = reference(name, target)
            centre, sd = (
                np.concatenate([f(values, 0) for values in expected.values()])
                for f in (np.mean, np.std)
            )
        else:
            centre, sd, exact = mode(target, start)
            expected = by_site(target, exact)
        exact_inside = covered(expected, truth)
        for epsilon, found in scores.items():
            began = time.perf_counter()
            positions = sample(
                dataclasses.replace(target, constrain_fn=None),
                budget=dpjax.Budget(epsilon, 1e-6),
                verbose=False,
                unsafe_key=jax.random.key(seed),
                **options,
            ).positions
            seconds = time.perf_counter() - began
            draws = by_site(target, positions)
            flat = np.asarray(jax.vmap(flatten)(positions), np.float64)
            flat = values = flat.reshape(-1, prior_sd.size)
            if with_nuts:
                values = np.concatenate([draws[site] for site in expected], axis=1)
            error = np.abs(values.mean(0) - centre) / sd
            ratio, width = values.std(0) / sd, flat.std(0) / prior_sd
            inside = covered(draws, truth)
            found.append((error, ratio, width, inside, exact_inside, seconds))
    return summaries(name, posterior.num_records, scores)


def summaries(name, num_records, scores):
    """A row for each epsilon, from `scores`: those of every data set, by epsilon."""
    return [
        dict(model=name, records=num_records, epsilon=epsilon)
        | summary(*zip(*found, strict=True))
        for epsilon, found in scores.items()
    ]


def summary(errors, ratios, widths, inside, exact_inside, seconds):
    """The numbers of a row, from those of every data set."""
    errors, rates = np.stack(errors), np.mean(np.stack(inside), axis=1)
    numbers = dict(
        median=np.median(errors),
        rms=np.mean(errors**2) ** 0.5,
        largest=errors.max(),
        below_1=np.mean(errors < 1),
        sd_ratio=np.median(ratios),
        widest=np.max(widths),
        covers=rates.mean(),
        covers_error=rates.std() / len(rates) ** 0.5,
        exact_covers=np.mean(exact_inside),
        first_seconds=seconds[0],
        seconds=np.median(seconds),
    )
    return dict(parameters=errors.shape[1], data_sets=len(errors)) | {
        key: round(float(value), 3) for key, value in numbers.items()
    }


HEADER = (
    f"{'delta = 1e-6':<18}{'records':>8}{'epsilon':>8}{'error / posterior sd':>30}"
    f"{'sd':>10}{'widest':>7}{'90 % covers':>20}{'exact':>7}"
    f"{'data':>6}{'seconds':>15}\n"
    f"{'':<34}{'median':>7}{'rms':>7}{'max':>7}{'below 1':>9}{'ratio':>10}{'':>7}"
    f"{'':>27}{'sets':>6}{'first':>8}{'others':>7}"
)
LINE = (
    "{model:<18}{records:8d}{epsilon:8g}{median:7.3f}{rms:7.3f}{largest:7.2f}"
    "{below_1:9.2f}{sd_ratio:10.2f}{widest:7.2f}{covers:12.3f} ({covers_error:.3f})"
    "{exact_covers:7.3f}{data_sets:6d}{first_seconds:8.1f}{seconds:7.1f}"
)


def parser_of(description, names, num_records=None) -> argparse.ArgumentParser:
    """What a table of models may be asked for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", nargs="+", choices=names, default=list(names))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--data-sets", type=int, default=20)
    parser.add_argument("--records", type=int, default=num_records)
    parser.add_argument("--json", type=Path, help="a file that the rows are written to")
    return parser


def print_table(options, rows_fn):
    """Print the rows ``rows_fn(name)`` of every model, and write them to a file."""
    warnings.filterwarnings("ignore", message="(?s).*ArviZ is undergoing")
    print(HEADER)
    found = []
    for name in options.only:
        try:
            of_model = rows_fn(name)
        except privacy.BudgetError as error:
            print(f"{name:<18}{error}")
            continue
        found += of_model
        for row in of_model:
            print(LINE.format(**row), flush=True)
        if options.json:
            lines = ",\n".join(json.dumps(row) for row in found)
            options.json.write_text(f"[\n{lines}\n]\n")


def main():
    parser = parser_of(__doc__.splitlines()[0], TRUTH)
    parser.add_argument("--method", default="fit")
    parser.add_argument("--nuts", action="store_true")
    options = parser.parse_args()
    print_table(
        options,
        lambda name: rows(
            name,
            options.data_sets,
            options.records,
            options.nuts,
            options.epsilon,
            method=options.method,
        ),
    )


if __name__ == "__main__":
    main()
