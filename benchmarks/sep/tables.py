"""One-parameter models: what the published steps miss, and what noise costs.

- `steps`: SEP against Algorithm 3 as printed, without noise, on a Gaussian mean and on
  probit regression, n = 1000.
- `noise`: noise multipliers for epsilon = 1, delta = 1e-5, of the order of records in
  units of 2 C (replacing a record), of Poisson samples in units of C (adding one).
- `private`: DP-SEP on the probit model at epsilon = 1, 200 seeds.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import stats

import dpjax
from dpjax import privacy
from dpjax.comparisons.dp_sep_published import dp_sep_published
from dpjax.comparisons.sep import sep
from dpjax.ep import sites
from dpjax.ep.dp_sep import averaging, dp_sep
from dpjax.ep.gaussians import Full
from dpjax.models.probit import probit_regression
from dpjax.posterior import Posterior

__all__ = ["noise", "private", "steps"]

FAMILY = Full((1,))
NUM_RECORDS = 1000
SEED = 0
"""Of data whose exact posteriors are near those of the published check."""


def _gaussian_logprior(position):
    return -0.5 * jnp.sum(position**2)


def _gaussian_loglikelihood(position, record):
    features, target = record
    return -0.5 * (target - jnp.dot(features, position)) ** 2


def models(seed=SEED) -> dict:
    """Posteriors, matches, exact means and sds of both models."""
    rng = np.random.default_rng(seed)
    targets = 0.65 + rng.normal(size=NUM_RECORDS)
    ones = jnp.ones((NUM_RECORDS, 1))
    gaussian = Posterior(
        _gaussian_logprior, _gaussian_loglikelihood, (ones, jnp.asarray(targets))
    )
    exact = targets.sum() / (NUM_RECORDS + 1), (NUM_RECORDS + 1) ** -0.5
    features = rng.normal(size=NUM_RECORDS)
    labels = 1.0 * (1.2 * features + rng.normal(size=NUM_RECORDS) > 0)
    probit = probit_regression(jnp.asarray(features)[:, None], jnp.asarray(labels))
    grid = np.linspace(0.5, 2.5, 2001)
    log_density = stats.norm.logcdf(np.outer(grid, features * (2 * labels - 1)))
    log_density = log_density.sum(axis=1) - grid**2 / 2
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    mean = np.sum(weights * grid)
    sd = math.sqrt(np.sum(weights * (grid - mean) ** 2))
    return {
        "gaussian": (gaussian, sites.linear(1.0), *exact),
        "probit": (probit, sites.probit, mean, sd),
    }


def _mean_and_sd(moments):
    return float(moments.mean[0]), math.sqrt(float(moments.covariance[0, 0]))


def _run(kernel, posterior, num_steps, num_chains=1, **settings):
    """All states of a run without noise accounting, ``(chains, steps, size)``."""
    run = dpjax.run(
        functools.partial(kernel, family=FAMILY, **settings),
        posterior,
        num_steps,
        initial_position=jnp.zeros((num_chains, 1)),
        num_chains=num_chains,
        budget=None,
        warmup_fraction=0.0,
        verbose=False,
        unsafe_key=jax.random.key(0),
    )
    return run.infos.parameters


def steps() -> list[dict]:
    """SEP and the published steps, without noise and clipping."""
    rows = []
    for name, (posterior, site_fn, mean, sd) in models().items():
        rows.append(dict(model=name, method="exact", epochs=0, mean=mean, sd=sd))
        for epochs in (1, 3, 10):
            moments = sep(
                jax.random.key(epochs),
                posterior,
                site_fn,
                family=FAMILY,
                initial_position=jnp.zeros(1),
                num_epochs=epochs,
            )
            found = dict(zip(("mean", "sd"), _mean_and_sd(moments), strict=True))
            rows.append(dict(model=name, method="sep", epochs=epochs) | found)
        states = _run(
            dp_sep_published,
            posterior,
            100,
            match=site_fn,
            l2_clip_norm=20.0,
            noise_multiplier=0.0,
        )
        for epochs in (1, 10, 100):
            moments = FAMILY.moments(jnp.asarray(states[0, epochs - 1]))
            found = dict(zip(("mean", "sd"), _mean_and_sd(moments), strict=True))
            rows.append(dict(model=name, method="published", epochs=epochs) | found)
    return rows


def noise() -> list[dict]:
    """Noise multipliers of epsilon = 1 at delta = 1e-5."""
    added = privacy.NeighboringRelation.REPLACE_SPECIAL
    rows = []
    for num_records, epochs in ((1000, 40), (1000, 100), (45730, 40), (45730, 100)):
        kinds = {
            "order": (privacy.GaussianRelease, epochs),
            "poisson": (
                lambda s, n=num_records: privacy.PoissonGaussianRelease(
                    s, 1 / n, added
                ),
                epochs * num_records,
            ),
        }
        row = dict(num_records=num_records, epochs=epochs)
        for name, (event, count) in kinds.items():
            row[name] = privacy.calibrate(
                lambda s, event=event: [(event(s), 1)],
                num_steps=count,
                epsilon=1.0,
                delta=1e-5,
                bracket=(0.3, 100.0),
            )
        for sigma, key in (
            (row["order"], "order"),
            (_PAPER[num_records, epochs], "paper"),
        ):
            event = privacy.GaussianRelease(sigma)
            row[f"epsilon_{key}"] = privacy.epsilon([(event, epochs)], 1e-5)
        rows.append(row)
    return rows


_PAPER = {
    (1000, 40): 1.77,
    (1000, 100): 2.66,
    (45730, 40): 0.707,
    (45730, 100): 0.740,
}
"""Multipliers that the paper's accounting finds enough, in units of 2 C."""


def private(num_seeds=200) -> list[dict]:
    """DP-SEP on the probit model: B = 100, K = 400, epsilon = 1."""
    posterior, site_fn, mean, sd = models()["probit"]
    added = privacy.NeighboringRelation.REPLACE_SPECIAL
    settings = dict(match=site_fn, sampling_prob=0.1, nominal_num_records=NUM_RECORDS)

    def events(multiplier):
        kernel = dp_sep(
            posterior,
            family=FAMILY,
            l2_clip_norm=1.0,
            noise_multiplier=multiplier,
            **settings,
        )
        return kernel.privacy(1, added)

    multiplier = privacy.calibrate(
        events, num_steps=400, epsilon=1.0, delta=1e-5, bracket=(1.0, 100.0)
    )
    constant = optax.constant_schedule(0.1)
    cases = [
        ("averaging, C = 0.3", 0.3, averaging, 1),
        ("averaging, C = 1", 1.0, averaging, 1),
        ("averaging, C = 2", 2.0, averaging, 1),
        ("constant, C = 1", 1.0, constant, 1),
        ("constant, C = 1, averaged", 1.0, constant, 200),
    ]
    rows = [dict(case="exact", mean=mean, mean_spread=0.0, sd=sd, kl=0.0)]
    for name, clip, schedule, last in cases:
        states = _run(
            dp_sep,
            posterior,
            400,
            num_seeds,
            l2_clip_norm=clip,
            noise_multiplier=multiplier,
            schedule=schedule,
            **settings,
        )
        linear, precision = np.asarray(states)[:, -last:].mean(axis=1).T
        means, sds = linear / precision, precision**-0.5
        # KL of the exact posterior, taken as normal, from q.
        kl = np.log(sds / sd) + (sd**2 + (mean - means) ** 2) / (2 * sds**2) - 0.5
        rows.append(
            dict(
                case=name,
                mean=np.mean(means),
                mean_spread=np.std(means, ddof=1),
                sd=np.mean(sds),
                kl=np.mean(kl),
            )
        )
    return rows
