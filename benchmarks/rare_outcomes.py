"""Logistic regression in which cases are rare, sampled privately with nothing tuned.

    python -m benchmarks.rare_outcomes [--rate R ...] [--data-sets N] [--first SEED]

The fit begins at an intercept of -4, far from where few cases put it. For every rate of
cases at a covariate of zero: the distance of the means from the exact mode, in standard
deviations of the draws; the standard deviation of the intercept, exact and of the
draws; and how often 90 % intervals hold the truth. Pairs are intercept, slope. Fits
that have not arrived, of which the call warns, are counted.
"""

import argparse
import functools
import math
import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import dpjax
from benchmarks.numpyro_models import covered
from dpjax.numpyro import posterior, sample

NUM_RECORDS, SLOPE = 40_000, 0.5
PRIOR_MEAN, PRIOR_SD = np.array([-4.0, 0.0]), np.array([3.0, 1.0])


def model(x, y):
    law = dist.Normal(PRIOR_MEAN, PRIOR_SD).to_event(1)
    coefficients = numpyro.sample("coefficients", law)
    with numpyro.plate("people", len(y)):
        logits = coefficients[0] + coefficients[1] * x
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def normal_law(x, y):
    """Mode of the exact posterior, and the standard deviations of the law there."""
    columns, precision = np.column_stack([np.ones_like(x), x]), PRIOR_SD**-2
    mode, covariance = PRIOR_MEAN, np.eye(2)
    for _ in range(30):
        chances = 1 / (1 + np.exp(-columns @ mode))
        weights = chances * (1 - chances)
        covariance = np.linalg.inv((columns.T * weights) @ columns + np.diag(precision))
        gradient = columns.T @ (y - chances) - precision * (mode - PRIOR_MEAN)
        mode = mode + covariance @ gradient
    return mode, np.sqrt(np.diag(covariance))


def fitted(rate, seed):
    """Distances, exact sds, sds of draws, what is covered, and whether it arrived."""
    rng = np.random.default_rng(seed)
    truth = np.array([math.log(rate / (1 - rate)), SLOPE])
    x = rng.uniform(-1, 1, NUM_RECORDS)
    y = (rng.random(NUM_RECORDS) < 1 / (1 + np.exp(-truth[0] - SLOPE * x))).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sample(
            posterior(
                model,
                dict(x=x, y=y),
                plate="people",
                example=dict(x=np.linspace(-1, 1, 500)),
            ),
            budget=dpjax.Budget(1.0, 1e-6),
            verbose=False,
            unsafe_key=jax.random.key(seed),
        )
    draws = np.reshape(found.positions["coefficients"], (-1, 2))
    mode, sd = normal_law(x, y)
    inside = covered({"coefficients": draws}, {"coefficients": truth})
    distance = (draws.mean(0) - mode) / draws.std(0)
    return distance, sd, draws.std(0), inside, found.known.is_near


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, nargs="+", default=[0.001, 0.01, 0.05])
    parser.add_argument("--data-sets", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.data_sets)
    pair = functools.partial(np.array2string, precision=2)
    for rate in options.rate:
        found = zip(*(fitted(rate, seed) for seed in seeds), strict=True)
        distances, sds, widths, inside, near = map(np.array, found)
        print(
            f"{rate:g}: largest distance {np.abs(distances).max():.1f}, "
            f"rms {pair(np.mean(distances**2, 0) ** 0.5)}; sd of the intercept "
            f"{np.median(sds[:, 0]):.2f}, of its draws {widths[:, 0].min():.2f} to "
            f"{widths[:, 0].max():.2f}; covers {pair(inside.mean(0))}; "
            f"{np.sum(~near)} of {len(seeds)} warned",
            flush=True,
        )


if __name__ == "__main__":
    main()
