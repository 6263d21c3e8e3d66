"""The repaired mixture: accept rates, draws and cost of chains of Gaussian proposals.

Rows and the numbers beside them come from this project's audit of the paper: records
clipped to [-3, 3], |theta_j| <= 3, n = 50,000, T = 1/500, 10,000 steps of one chain,
delta = 1e-5; a cost is the odometer's, of one path.
"""

import functools
import math
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from tqdm import tqdm

import dpjax
from benchmarks.fast_mh import odometer
from benchmarks.fast_mh.settings import load
from benchmarks.thesis import report
from dpjax import bounds, privacy, proposals
from dpjax.models.mixture import exact_sample
from dpjax.privacy import composition

__all__ = ["ROWS", "Row", "measure", "write"]

STEPS, DELTA = 10_000, 1e-5


class Row(NamedTuple):
    """One kernel, and the audit's numbers of it.

    clip_bound
        ``"paper"``: sqrt(2) (X + 6) / V per unit of distance, the public constant that
        the paper's gradient bound allows; ``"range"``: centred.
    cost
        epsilon, of TunaMH the total variation.
    """

    sampler: str
    clip_bound: str
    step_size: float
    expected_batch_size: float | None
    acceptance: float
    draws: float
    cost: float


ROWS = (
    Row("fast_mh", "paper", 0.06, 10, 0.42, 58, 0.98),
    Row("fast_mh", "paper", 0.06, 50, 0.45, 98, 0.57),
    Row("fast_mh", "paper", 0.06, 200, 0.47, 246, 0.52),
    Row("barker", "paper", 0.06, None, 0.50, 50_000, 0.53),
    Row("tuna", "paper", 0.06, 50, 0.79, 98, 0.9999),
    Row("fast_mh", "range", 0.06, 10, 0.37, 18, 0.104),
    Row("fast_mh", "range", 0.06, 50, 0.44, 58, 0.086),
    Row("fast_mh", "range", 0.3, 50, 0.17, 88, 0.50),
    Row("fast_mh", "range", 0.3, 200, 0.23, 238, 0.48),
    Row("fast_mh", "range", 1.0, 200, 0.07, 306, 1.49),
)


def _algorithm(row: Row):
    """``posterior -> Algorithm`` of a row, and its clip bound."""
    known = bounds.GaussianMixture()
    reach = known.truncation + 2 * known.half_width
    clip_bound = dpjax.Lipschitz(math.sqrt(2) * reach / known.variance)
    if row.clip_bound == "range":
        clip_bound = dpjax.Range(known, known.half_range)
    options = dict(step_size=row.step_size, clip_bound=clip_bound)
    if row.expected_batch_size is not None:
        options["expected_batch_size"] = float(row.expected_batch_size)
    return functools.partial(getattr(dpjax, row.sampler), **options), clip_bound


def measure(row: Row, posterior, num_chains: int, num_steps: int, seed: int = 0):
    """Means over chains begun at draws of the posterior; costs are of `STEPS` steps.

    Returns
    -------
    dict
        ``acceptance`` with its standard error; ``draws``, none by proposals outside the
        box; ``cost``; ``loose_cost`` by the audit's conversion; and ``filtered``, the
        share of the first chain's steps that a filter with the audit's cost as its
        budget lets happen.
    """
    algorithm_fn, clip_bound = _algorithm(row)
    start_key, key = jax.random.split(jax.random.key(seed))
    starts = exact_sample(
        start_key, posterior.data, num_chains, tempering=posterior.tempering
    )
    walked_fn = algorithm_fn
    if row.sampler == "barker":
        # It refuses a bound without a largest value; this one never binds.
        longest = 10 * row.step_size
        walked_fn = functools.partial(
            algorithm_fn, clip_bound=clip_bound.constant * longest
        )
    path = odometer.walk(
        walked_fn, proposals.gaussian, posterior, starts, num_steps, key
    )
    # A proposal outside the box is rejected without a look at the data.
    inside = np.all(np.abs(path.proposed) <= 3, axis=-1)
    halves = odometer.half_ranges(clip_bound, path)
    events = odometer.events(
        algorithm_fn, posterior, halves[inside], round(STEPS * inside.mean())
    )
    rates = path.is_accepted.mean(axis=1)
    found = dict(
        acceptance=float(rates.mean()),
        error=float(rates.std(ddof=1) / num_chains**0.5),
        draws=odometer.records(events, posterior.num_records) * inside.mean(),
    )
    if row.sampler == "tuna":
        return found | dict(cost=privacy.delta(events, 0.0))
    first = halves[0][inside[0]]
    return found | dict(
        cost=privacy.epsilon(events, DELTA, "rdp"),
        loose_cost=_loose(events),
        filtered=_filtered(row, algorithm_fn, posterior, events, first) / first.size,
    )


def _filtered(row, algorithm_fn, posterior, typical, halves) -> int:
    """Steps of these half ranges that a filter lets happen."""
    # Twice as many steps as are typical: a chain may have more of them inside the box.
    budget = privacy.RdpFilter(row.cost, DELTA, typical, max_steps=2)
    for number, half in enumerate(halves):
        step = functools.partial(algorithm_fn, clip_bound=float(half))
        if not budget.spend(step(posterior).privacy(1)):
            return number
    return halves.size


def _loose(events) -> float:
    """Epsilon by the conversion of Mironov 2017, which the audit used."""
    orders = np.geomspace(2, 4096, 100)
    curve = sum(
        count * composition.renyi_curve(event, orders) for event, count in events
    )
    return float(np.min(curve + math.log(1 / DELTA) / (orders - 1)))


def certificate(row: Row, posterior) -> float:
    """Epsilon before the run, with proposals of constant length, as long on average."""
    algorithm_fn, _ = _algorithm(row)
    length = row.step_size * math.sqrt(math.pi / 2)
    fixed = functools.partial(
        algorithm_fn, step_size=length, proposal=proposals.fixed_length
    )
    return privacy.epsilon(fixed(posterior).privacy(STEPS), DELTA, "rdp")


def write(folder: Path, num_chains: int, num_steps: int) -> None:
    """Run what ``repaired.csv`` in `folder` lacks, and print the table."""
    path = folder / "repaired.csv"
    posterior, _, _ = load("mixture")["fast_mh"].job.load()
    done = {line["row"]: line for line in report.read(path)}
    lines = []
    for row in tqdm(ROWS, unit="row"):
        steps = num_steps // 10 if row.sampler == "barker" else num_steps
        name = f"{row[:4]} {num_chains} x {steps}"
        if name not in done:
            line = dict(
                row=name,
                sampler=row.sampler,
                clip_bound=row.clip_bound,
                step_size=row.step_size,
                expected_batch_size=row.expected_batch_size or math.nan,
            )
            found = measure(row, posterior, num_chains, steps)
            for key in ("acceptance", "draws", "cost"):
                line |= {key: found[key], f"audit_{key}": float(getattr(row, key))}
            line["error"] = found["error"]
            for key in ("loose_cost", "filtered"):
                line[key] = found.get(key, math.nan)
            line["certificate"] = math.nan
            if row.sampler != "tuna":
                line["certificate"] = certificate(row, posterior)
            report.append(path, [line])
            done[name] = line
        lines.append({key: value for key, value in done[name].items() if key != "row"})
    print(report.markdown(lines))
