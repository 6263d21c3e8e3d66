"""What private draws say when the model is wrong, with and without robust widths.

    python -m benchmarks.misspecified [--data-sets N] [--only CELL ...]

Regressions of 20,000 counts and labels on three covariates, at epsilon = 1. Each wrong
model is fitted to `--data-sets` data sets, as `dpjax.numpyro.sample` does but with
Gaussian noise only, and so is each right one. The parameter that likelihood methods
find is the maximiser of the likelihood on a million records. The one that a fit finds
is the mean of its centres over the other data sets. Results are written to
benchmarks/misspecified.json; docs/results/misspecified.md holds them as a table.
"""

import argparse
import dataclasses
import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import dpjax
from dpjax.fit.score_draws import draws
from dpjax.numpyro import initial_position, posterior
from dpjax.numpyro.fits import fit_algorithm
from dpjax.runner.fit import least_noise

NUM_RECORDS, NUM_LARGE, NUM_DRAWS = 20_000, 1_000_000, 1000
BUDGET = dpjax.Budget(1.0, 1e-6)
NORMAL_QUANTILE = 1.6449
COUNTS, LABELS = np.array([0.5, 0.5, -0.5, 0.25]), np.array([0.5, 2.0, -2.0, 1.0])


def poisson(x, y):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(x.shape[-1]), 2).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Poisson(jnp.exp(x @ b)), obs=y)


def logistic(x, y):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(x.shape[-1]), 2).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(logits=x @ b), obs=y)


def sigmoid(value):
    return 1 / (1 + np.exp(-value))


def counts(rng, predictor, x):
    return rng.poisson(np.exp(predictor))


def counts_with_outliers(rng, predictor, x):
    """One count in twenty is larger by ten."""
    return counts(rng, predictor, x) + 10 * (rng.random(len(x)) < 0.05)


def omitted(rng, x):
    return 0.5 * x[:, 1] + 0.5 * rng.standard_normal(len(x))


def counts_with_covariate(rng, predictor, x):
    """A covariate is omitted that is correlated with the first one."""
    return counts(rng, predictor + 0.8 * omitted(rng, x), x)


def overdispersed_counts(rng, predictor, x):
    """Negative binomial: the variance is m + m^2 / 2."""
    return counts(rng, predictor + np.log(rng.gamma(2.0, 0.5, len(x))), x)


def labels(rng, predictor, x):
    return rng.random(len(x)) < sigmoid(predictor)


def labels_with_outliers(rng, predictor, x):
    """One label in twenty is wrong."""
    return labels(rng, predictor, x) ^ (rng.random(len(x)) < 0.05)


def labels_with_covariate(rng, predictor, x):
    """A covariate is omitted that is correlated with the first one."""
    return labels(rng, predictor + 2.0 * omitted(rng, x), x)


CELLS = {
    "poisson, right": (poisson, COUNTS, counts),
    "poisson, outliers": (poisson, COUNTS, counts_with_outliers),
    "poisson, omitted covariate": (poisson, COUNTS, counts_with_covariate),
    "poisson, overdispersion": (poisson, COUNTS, overdispersed_counts),
    "logistic, right": (logistic, LABELS, labels),
    "logistic, outliers": (logistic, LABELS, labels_with_outliers),
    "logistic, omitted covariate": (logistic, LABELS, labels_with_covariate),
}


def records(observe, truth, seed, size):
    rng = np.random.default_rng(seed)
    x = np.concatenate([np.ones((size, 1)), rng.uniform(-1, 1, (size, 3))], axis=1)
    y = np.asarray(observe(rng, x @ truth, x), float)
    return dict(x=x.astype(np.float32), y=y.astype(np.float32))


def maximum(model, data, prior_precision=0.25):
    """Mode of the posterior and its sds without privacy, by Newton's method."""
    x, y = (np.asarray(data[name], float) for name in ("x", "y"))
    b = np.zeros(x.shape[1])
    for _ in range(12):
        mean = np.exp(x @ b) if model is poisson else sigmoid(x @ b)
        variance = mean if model is poisson else mean * (1 - mean)
        precision = (x.T * variance) @ x + prior_precision * np.eye(len(b))
        b = b + np.linalg.solve(precision, x.T @ (y - mean) - prior_precision * b)
    return b, np.sqrt(np.diag(np.linalg.inv(precision)))


def fits(model, truth, observe, num_data_sets, robust):
    """Means and sds of draws, and fit checks, over data sets."""
    target = posterior(
        model,
        records(observe, truth, 0, NUM_RECORDS),
        plate="data",
        example=records(labels if model is logistic else counts, truth, 1, 500),
    )
    start = jax.tree.map(lambda leaf: leaf[0], initial_position(target, 1))
    options = dict(robust=robust)
    noise = least_noise(
        lambda target, noise_multiplier: fit_algorithm(
            target, noise_multiplier=noise_multiplier, **options
        ),
        target,
        BUDGET,
    )

    @jax.jit
    def release(rng_key, data):
        same = dataclasses.replace(target, data=data)
        algorithm = fit_algorithm(same, noise_multiplier=noise, **options)
        return algorithm.step(rng_key, algorithm.init(start))[1]

    means, sds, checks = [], [], []
    for seed in range(num_data_sets):
        data = jax.tree.map(jnp.asarray, records(observe, truth, 2 + seed, NUM_RECORDS))
        first, second = jax.random.split(jax.random.key(seed))
        released = jax.tree.map(np.asarray, release(first, data))
        found, known = draws(
            target, released, second, NUM_DRAWS, start, lambda released: 0.0
        )
        values = np.asarray(found["b"], np.float64)
        means.append(values.mean(0))
        sds.append(values.std(0))
        checks.append(known.fit_check)
    return np.array(means), np.array(sds), np.array(checks)


def rate(inside):
    """Share, and its standard error with the parameters of a data set as one."""
    per_set = np.mean(inside, axis=1)
    return [
        round(float(v), 3) for v in (per_set.mean(), per_set.std() / len(inside) ** 0.5)
    ]


def covers(means, sds, value):
    return rate(np.abs(means - value) < NORMAL_QUANTILE * sds)


def cell(name, num_data_sets):
    model, truth, observe = CELLS[name]
    pseudo, _ = maximum(model, records(observe, truth, -1 % 2**32, NUM_LARGE))
    exact = [
        maximum(model, records(observe, truth, 2 + seed, NUM_RECORDS))
        for seed in range(num_data_sets)
    ]
    modes, widths = (np.array(part) for part in zip(*exact, strict=True))
    unit = widths.mean(0)
    rows = {
        "cell": name,
        "data_sets": num_data_sets,
        "pseudo_true_from_truth": list(np.round((pseudo - truth) / unit, 1)),
        "exact_posterior_covers_pseudo_true": covers(modes, widths, pseudo),
    }
    for robust in (False, True):
        means, sds, checks = fits(model, truth, observe, num_data_sets, robust)
        count = num_data_sets
        others = (means.sum(0) - means) / (count - 1)
        wider = sds * (1 + 1 / (count - 1)) ** 0.5
        apart = np.abs(checks[:, 0] - 1) / checks[:, 1]
        rows["robust" if robust else "default"] = {
            "limit_from_pseudo_true": list(
                np.round((means.mean(0) - pseudo) / unit, 2)
            ),
            "median_error": round(float(np.median(np.abs(means - modes) / widths)), 3),
            "sd_ratio": round(float(np.median(sds / widths)), 3),
            "spread_over_sd": round(
                float(np.sqrt(np.mean(means.var(0, ddof=1) / np.mean(sds**2, 0)))), 3
            ),
            "covers_pseudo_true": covers(means, sds, pseudo),
            "covers_own_limit": covers(means, wider, others),
            "covers_truth": covers(means, sds, truth),
            "fit_ratio": [round(float(v), 3) for v in checks.mean(0)],
            "fit_deviation": [
                round(float(f((checks[:, 0] - 1) / checks[:, 1])), 2)
                for f in (np.mean, np.std)
            ],
            "warned": round(float(np.mean(apart > 3.3)), 3),
        }
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-sets", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=CELLS, default=list(CELLS))
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="the model does not fit")
    path = Path(__file__).with_suffix(".json")
    table = json.loads(path.read_text()) if path.exists() else {}
    for name in options.only:
        table[name] = cell(name, options.data_sets)
        print(json.dumps(table[name]), flush=True)
        path.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
