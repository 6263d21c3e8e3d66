"""Cells of the experiments: one algorithm at one budget, a CSV row for every chain.

Scores read the generated data or a held-out test set: none of them is private. Costs
are those of one chain.
"""

import dataclasses
import functools
import json
import math
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks.fast_mh import odometer
from benchmarks.fast_mh.settings import Entry
from benchmarks.thesis import report
from dpjax import privacy, proposals
from dpjax.evaluation import histogram, symmetric_kl
from dpjax.models.mixture import grid_posterior

__all__ = ["NUM_BINS", "Options", "Plan", "cell", "plan", "read", "scorer"]

NUM_BINS, BOX = 99, 3.0
CHECKPOINTS = 20


@dataclasses.dataclass(frozen=True)
class Options:
    """What does not belong to an algorithm; `scale` shortens chains for a quick run."""

    num_chains: int = 20
    seed: int = 0
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """`algorithm_fn` with the step size and the number of steps that are paid for."""

    algorithm_fn: Callable
    num_steps: int


def plan(entry: Entry, epsilon: float, num_steps: int) -> Plan:
    """The longest steps that the budget of a chain pays for, up to the entry's.

    ``published`` takes `epsilon` as what it claims of a step, ``tuna`` ignores it.
    Where the cost does not fall with the step size there are fewer steps.
    """
    algorithm_fn = entry.algorithm_fn
    if entry.name == "tuna":
        return Plan(algorithm_fn, num_steps)
    if entry.name == "published":
        return Plan(functools.partial(algorithm_fn, epsilon=epsilon), num_steps)
    longest = algorithm_fn.keywords["step_size"]
    budget = dict(epsilon=epsilon, delta=entry.job.budget.delta, method="rdp")

    def scaled(step_size):
        changed = dict(step_size=step_size)
        if "test_noise_multiplier" in algorithm_fn.keywords:
            # The same noise in nats.
            noise = algorithm_fn.keywords["test_noise_multiplier"]
            changed["test_noise_multiplier"] = noise * longest / step_size
        return functools.partial(algorithm_fn, **changed)

    def cost(step_size):
        return scaled(step_size)(entry.job.outline).privacy(1)

    paid = privacy.max_steps(cost(longest), **budget)
    if paid >= num_steps:
        return Plan(algorithm_fn, num_steps)
    if cost(longest / 2) == cost(longest):
        return Plan(algorithm_fn, paid)
    step_size = privacy.calibrate(
        cost, num_steps=num_steps, bracket=(1e-4 * longest, longest), **budget
    )
    return Plan(scaled(step_size), num_steps)


def scorer(model: str, posterior, test) -> Callable[[np.ndarray], list[float]]:
    """Scores of the first 1/20, 2/20, ... of a chain ``(steps, d)``.

    The mixture: symmetric KL of histograms to the grid posterior. MNIST: accuracy of
    the mean of the chain on the test set.
    """
    if model == "mixture":
        grid = grid_posterior(posterior.data, NUM_BINS, tempering=posterior.tempering)

        def score(draws):
            return symmetric_kl(histogram(draws, -BOX, BOX, NUM_BINS), grid)
    else:
        features, labels = test

        def score(draws):
            return float(np.mean((features @ draws.mean(axis=0) > 0) == labels))

    def scores(chain):
        stops = np.linspace(0, len(chain), CHECKPOINTS + 1).astype(int)[1:]
        return [score(chain[:stop]) for stop in stops]

    return scores


SCORES = ("score", "acceptance", "records", "epsilon_spent", "delta_spent", "seconds")
NUMBERS = ("epsilon", "steps", "step_size", *SCORES)


def cell(entry: Entry, epsilon: float, options: Options, data, score_fn, done: dict):
    """Rows of the chains of one algorithm at one budget.

    Parameters
    ----------
    data
        The posterior.
    score_fn
        Result of `scorer`.
    done
        Result of `read`: None is returned if it holds this cell, run with the same
        settings, and if the budget pays for next to nothing.
    """
    chosen = plan(entry, epsilon, round(entry.num_steps * options.scale))
    if chosen.num_steps < CHECKPOINTS:
        return None
    num_chains = min(options.num_chains, entry.num_chains)
    step_size = chosen.algorithm_fn.keywords["step_size"]
    identity = json.dumps([entry.table, step_size, dataclasses.asdict(options)])
    if (entry.name, epsilon) in done:
        if done[entry.name, epsilon][0]["settings"] == identity:
            return None
    label = f"{entry.job.name} {epsilon:g}"
    key = jax.random.fold_in(jax.random.key(options.seed), zlib.crc32(label.encode()))
    starts = jnp.tile(entry.job.run["initial_position"][:1], (num_chains, 1))
    begin = time.perf_counter()
    if entry.name == "published":
        chains, rates, events = _walked(chosen, data, starts, key)
    else:
        chains, rates = _run(chosen, data, starts, key)
        events = chosen.algorithm_fn(data).privacy(chosen.num_steps)
    seconds = time.perf_counter() - begin
    common = dict(
        algorithm=entry.name,
        epsilon=epsilon,
        steps=chosen.num_steps,
        step_size=step_size,
        records=odometer.records(events, data.num_records),
        seconds=seconds / num_chains,
        **_spent(events, entry, epsilon),
    )
    rows = []
    for chain, (draws, rate) in enumerate(zip(chains, rates, strict=True)):
        curve = score_fn(draws)
        rows.append(
            dict(
                **common,
                chain=chain,
                acceptance=float(rate),
                score=curve[-1],
                curve=json.dumps([round(number, 6) for number in curve]),
                settings=identity,
            )
        )
    return rows


def _run(chosen, posterior, starts, key):
    result = dpjax.run(
        chosen.algorithm_fn,
        posterior,
        chosen.num_steps,
        initial_position=starts,
        num_chains=len(starts),
        budget=None,
        thinning=max(chosen.num_steps // 10_000, 1),
        warmup_fraction=0.0,
        verbose=False,
        unsafe_key=key,
    )
    return np.asarray(result.positions), result.acceptance_rate.mean(axis=1)


def _walked(chosen, posterior, starts, key):
    """Chains of Gaussian proposals, and the events of the mean chain."""
    path = odometer.walk(
        chosen.algorithm_fn,
        proposals.gaussian,
        posterior,
        starts,
        chosen.num_steps,
        key,
    )
    halves = odometer.half_ranges(chosen.algorithm_fn.keywords["clip_bound"], path)
    events = odometer.events(
        chosen.algorithm_fn, posterior, halves.ravel(), chosen.num_steps
    )
    return path.positions, path.is_accepted.mean(axis=1), events


def _spent(events, entry, epsilon):
    """epsilon at the budget's delta, or the delta that is left without one."""
    if entry.name in ("tuna", "published"):
        at = 1.0 if entry.name == "tuna" else epsilon
        return dict(epsilon_spent=math.inf, delta_spent=privacy.delta(events, at))
    delta = entry.job.budget.delta
    return dict(epsilon_spent=privacy.epsilon(events, delta, "rdp"), delta_spent=delta)


def read(folder: Path, model: str) -> dict[tuple[str, float], list[dict]]:
    """Rows of every (algorithm, epsilon), the last ones where a cell was run again."""
    cells: dict[tuple[str, float], list[dict]] = {}
    for row in report.read(folder / f"{model}.csv"):
        row |= {name: float(row[name]) for name in NUMBERS}
        row["curve"] = json.loads(row["curve"])
        if row["chain"] == "0":
            cells[row["algorithm"], row["epsilon"]] = []
        cells[row["algorithm"], row["epsilon"]].append(row)
    return cells
