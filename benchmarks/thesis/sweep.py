"""Runs of the experiments: one row of a CSV file for every chain.

As in the thesis, every chain is a private analysis of its own: the budget is what one
chain may spend, and the chains are repetitions of the experiment. The second half of a
chain is scored. What is scored, and the clip fractions, read the generated data: none
of it is private.
"""

import dataclasses
import json
import math
import time
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks.thesis import entries, fits, published, replay, report
from benchmarks.thesis.settings import Experiment
from dpjax.evaluation import median_bandwidth, mmd, reference_bandwidth

__all__ = ["Options", "Problem", "cell", "problem", "read"]

MOST_DRAWS = 4_000
"""States of the second half of a chain that are scored."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What does not belong to a model.

    `most_passes` caps the steps of a chain that read the data.
    """

    num_chains: int = 20
    seed: int = 0
    data_seed: int | None = None
    most_passes: int = 20_000


@dataclasses.dataclass(frozen=True)
class Problem:
    """An experiment with its data, reference draws and starts."""

    experiment: Experiment
    options: Options
    posterior: dpjax.Posterior
    reference: jax.Array
    starts: jax.Array


def problem(experiment: Experiment, options: Options) -> Problem:
    """Make the thesis's data, or other data of the same law (`Options.data_seed`)."""
    model, seed = experiment.model, options.data_seed
    data = model.simulate(seed=seed)
    if seed is None:
        reference = model.reference()
    else:
        key = jax.random.fold_in(jax.random.key(seed), 1)
        reference = model.exact_sample(key, data, 1000)
    starts = model.starts(reference, options.num_chains)
    return Problem(experiment, options, model.posterior(data), reference, starts)


def cell(case: Problem, name: str, epsilon: float, done: dict) -> list[dict] | None:
    """Rows of one algorithm at one budget, one for every chain.

    Parameters
    ----------
    done
        Result of `read`: None is returned if it holds this cell, run with the same
        settings.
    """
    model, options = case.experiment.model, case.options
    key = jax.random.key(options.seed)
    label = f"{model.key} {name} {epsilon:g}"
    key = jax.random.fold_in(key, zlib.crc32(label.encode()))
    run_key, score_key = jax.random.split(key)
    settings = case.experiment.algorithms[name]
    identity = json.dumps({**settings, **dataclasses.asdict(options)})
    if (name, epsilon) in done and done[name, epsilon][0]["settings"] == identity:
        return None
    if name in ("exact", "fit"):
        return _fits(case, name, epsilon, identity, run_key, score_key)
    entry = entries.build(model, case.posterior, name, settings, epsilon)
    num_steps = min(entry.num_steps, int(options.most_passes / entry.laziness))
    start = time.perf_counter()
    scores = [{}] * options.num_chains
    if num_steps >= 3:
        thinning = max(num_steps // (2 * MOST_DRAWS), 1)
        result = dpjax.run(
            entry.algorithm_fn,
            case.posterior,
            num_steps,
            initial_position=case.starts,
            num_chains=options.num_chains,
            budget=None,
            thinning=thinning,
            warmup_fraction=0.0,
            verbose=False,
            unsafe_key=run_key,
        )
        seconds = time.perf_counter() - start
        scores = _score(
            case, name, entry, result, num_steps // thinning // 2, score_key
        )
        scores = [{**score, "seconds": seconds} for score in scores]
    common = dict(
        model=model.key,
        algorithm=name,
        epsilon=epsilon,
        steps=num_steps,
        budget_steps=entry.num_steps,
        published_steps=published.steps(model.key, name, epsilon),
        accountant=entry.accountant,
        passes=num_steps * entry.laziness,
        step_size=entry.step_size,
        settings=identity,
    )
    return [
        {**dict.fromkeys(FIELDS, math.nan), **common, "chain": chain, **score}
        for chain, score in enumerate(scores)
    ]


def _fits(case, name, epsilon, identity, run_key, score_key):
    """Rows of ``fit`` or ``exact``, one for every analysis."""
    model, count = case.experiment.model, case.options.num_chains
    if name == "exact":
        found, seconds = fits.exact(model, case.posterior, run_key, count)
        cost = dict(steps=0, budget_steps=0, accountant="none", passes=0)
    else:
        found, seconds = fits.analyses(model, case.posterior, epsilon, run_key, count)
        # Five releases read the data.
        cost = dict(steps=1, budget_steps=1, accountant="pld", passes=5)
    common = dict(
        model=model.key, algorithm=name, epsilon=epsilon, settings=identity, **cost
    )
    rows = []
    for chain, key in enumerate(jax.random.split(score_key, count)):
        distances = _distances(case, key, jnp.asarray(found[chain]))
        scores = dict(zip(DISTANCES, map(float, distances), strict=True))
        row = {**dict.fromkeys(FIELDS, math.nan), **common, **scores}
        rows.append({**row, "chain": chain, "seconds": seconds[chain]})
    return rows


DISTANCES = ("mmd", "mmd_thesis", "mean_error", "covariance_error")
SCORES = (
    "acceptance",
    *DISTANCES,
    "ratio_clip",
    "gradient_clip",
    "seconds",
)
NUMBERS = ("steps", "budget_steps", "published_steps", "passes", "step_size", *SCORES)
FIELDS = ("model", "algorithm", "epsilon", "chain", "accountant", *NUMBERS, "settings")


def _score(case, name, entry, result, num_dropped, key):
    """Scores of every chain; `num_dropped` of its states are its first half."""
    keys = jax.random.split(key, len(result.positions))
    draws = np.asarray(result.positions)
    count = min(replay.FEW if name == "hmc" else replay.MANY, draws.shape[1])
    chosen = np.linspace(0, draws.shape[1] - 1, count).astype(int)
    rows = []
    for key, chain, accepted in zip(keys, draws, result.acceptance_rate, strict=True):
        bandwidth_key, replay_key = jax.random.split(key)
        kept = jnp.asarray(chain[num_dropped:])
        ratios, gradients = replay.clip_fractions(
            entry.replay_fn, replay_key, case.posterior, jnp.asarray(chain[chosen])
        )
        numbers = (
            np.mean(accepted),
            *_distances(case, bandwidth_key, kept),
            np.mean(ratios),
            np.mean(gradients),
        )
        rows.append(dict(zip(SCORES, map(float, numbers), strict=False)))
    return rows


def _distances(case, key, kept):
    """Of the draws `kept` from the posterior: `DISTANCES`."""
    fixed = reference_bandwidth(case.reference)
    thesis = median_bandwidth(key, kept, case.reference)
    return (
        mmd(kept, case.reference, fixed),
        mmd(kept, case.reference, thesis),
        *_moment_errors(case, kept),
    )


def _moment_errors(case, kept):
    """Errors of mean and covariance; the circle's mean is the origin."""
    reference, draws = (np.asarray(x, np.float64) for x in (case.reference, kept))
    mean = reference.mean(axis=0)
    if case.experiment.model.key == "circle":
        mean = np.zeros(2)
    covariance = np.cov(draws.T) - np.cov(reference.T)
    return np.linalg.norm(draws.mean(axis=0) - mean), np.linalg.norm(covariance)


def read(folder: Path, model: str) -> dict[tuple[str, float], list[dict]]:
    """Rows of every (algorithm, epsilon), the last ones where a cell was run again."""
    cells: dict[tuple[str, float], list[dict]] = {}
    for row in report.read(folder / f"{model}.csv"):
        row |= {name: float(row[name]) for name in ("epsilon", *NUMBERS)}
        cell = row["algorithm"], row["epsilon"]
        if row["chain"] == "0":
            cells[cell] = []
        cells[cell].append(row)
    return cells
