"""What a fit would give for several budgets, before any record is read."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpjax import privacy
from dpjax.fit.foretold import MadeUp, Noise, made_up
from dpjax.fit.names import names_of, short_sites_first
from dpjax.fit.normal_laws import PriorLaw
from dpjax.fit.simulated import (
    MIN_RESOLUTION,
    SHARES,
    expected_resolution,
    num_parameters,
    simulated_fit,
)
from dpjax.posterior import Posterior
from dpjax.privacy.budget import check_budget
from dpjax.privacy.shown import shown
from dpjax.release.mixed_norm import MixedNorm
from dpjax.release.nominal import nominal_size
from dpjax.release.quietest_sum import relative_noise
from dpjax.runner.check import warn_of_large_delta
from dpjax.runner.fit import spending
from dpjax.runner.plan import EPSILONS, Plan, budgets, shown_time
from dpjax.runner.sample import checked_prior_draws, prior_draws

__all__ = [
    "NUM_POSITIONS",
    "FitCost",
    "Gain",
    "Passes",
    "plan_fit",
    "plan_sample",
    "simulated_cost",
    "spending_and_gain",
]

MAX_NOISE = 1.0
"""Noise in posterior sds up to which an answer is called worth its budget: that of half
of the parameters is at most as much."""

MAX_SHOWN = 20
"""Parameters that the print of a plan shows."""

MIN_PRIOR_DRAWS, PER_PARAMETER = 1000, 4
"""Draws from the prior to which a normal law is fitted: at least so many, and so many
for each parameter."""

NUM_POSITIONS = 5
"""Public positions at which records are made up: the prior's centre and draws."""

FARTHEST = 1e4
"""Factor up to which the number of records, or the noise, is searched."""


class Passes(NamedTuple):
    """About what all passes of a fit over the records take: seconds, and memory."""

    seconds: float
    num_bytes: float


class Gain(NamedTuple):
    """What the last release of a fit gains over a Gaussian one.

    noise
        Its noise over that of a Gaussian release.
    norm
        In which it clips, in place of the Euclidean norm.
    """

    noise: float = 1.0
    norm: MixedNorm | None = None


class FitCost(NamedTuple):
    """What a fit of so many records does with a budget. All of it is public.

    num_records
        n.
    spending
        ``(budget, n) -> (noise_multiplier, gain)`` of a fit that spends it.
    noise
        ``(noise_multiplier, n, gain) -> Noise``.
    resolution
        ``(noise_multiplier, n) -> float``: the `expected_resolution` of the fit.
    min_resolution
        Bound on it for draws that can be believed.
    events
        ``(neighboring_relation, noise_multiplier) -> [(event, count), ...]``.
    is_refused
        Whether a fit is refused whose resolution is below that.
    share
        Of epsilon that a fit gets.
    of_passes
        What the passes over the records take, or None if that is not known.
    """

    num_records: int
    spending: Callable[[privacy.Budget, float], tuple[float, Gain]]
    noise: Callable[[float, float, Gain], Noise]
    resolution: Callable[[float, float], float]
    min_resolution: float
    events: Callable[[NeighboringRelation, float], list]
    is_refused: bool
    share: float = 1.0
    of_passes: Passes | None = None


def plan_fit(
    models: Sequence[MadeUp],
    names: list[str],
    cost: FitCost,
    budget: privacy.Budget,
    epsilons: Iterable[float],
) -> Plan:
    """The noise and the width of a fit's draws, for each epsilon and parameter.

    Numbers are medians over the positions at which records are made up.
    """

    def noises(noise_multiplier, num_records, gain) -> np.ndarray:
        noise = cost.noise(noise_multiplier, num_records, gain)
        widths = [each.widths(num_records, noise) for each in models]
        return np.sqrt(np.maximum(np.median(widths, axis=0) ** 2 - 1, 0.0))

    def is_worth(noise_multiplier, num_records, gain) -> bool:
        resolution = cost.resolution(noise_multiplier, num_records)
        median = np.median(noises(noise_multiplier, num_records, gain))
        return resolution >= cost.min_resolution and median <= MAX_NOISE

    rows, resolutions, own, own_gain = [], [], math.inf, Gain()
    every = budgets(budget, epsilons)
    lines = [
        f"a fit of {cost.num_records} records; noise and width of the draws in sds of "
        "the exact posterior; below a resolution of "
        f"{cost.min_resolution:g}, noise hides what the records say",
        f"neighbours: {budget.neighboring_relation.name}, delta = {budget.delta}",
        f"{'epsilon':>9}{'noise, median':>15}{'worst':>8}{'width, median':>15}"
        f"{'worst':>8}{'resolution':>12}",
    ]
    for each in every:
        try:
            noise_multiplier, gain = cost.spending(each, cost.num_records)
        except privacy.BudgetError:
            noise_multiplier, gain = math.inf, Gain()
        if noise_multiplier == math.inf:
            found, resolution = np.full(len(names), np.inf), 0.0
            said = "  refused"
        else:
            found = noises(noise_multiplier, cost.num_records, gain)
            resolution = cost.resolution(noise_multiplier, cost.num_records)
            said = ""
            if resolution < cost.min_resolution:
                said = "  refused" if cost.is_refused else "  wide as the prior"
        if each.epsilon == budget.epsilon:
            own, own_gain, said = noise_multiplier, gain, f"{said}  <- budget"
        noisy, worst = np.median(found), np.max(found)
        lines.append(
            f"{each.epsilon:9.3g}{shown(noisy):>15}{shown(worst):>8}"
            f"{math.hypot(1, noisy):15.3g}{math.hypot(1, worst):8.3g}"
            f"{shown(resolution):>12}{said}"
        )
        rows.append(found)
        resolutions.append(resolution)
    at = [each.epsilon for each in every].index(budget.epsilon)
    lines.append(f"at epsilon = {budget.epsilon:g}:")
    first = short_sites_first(names, MAX_SHOWN)[:MAX_SHOWN]
    width = max(len(names[i]) for i in first)
    for i in first:
        noisy = rows[at][i]
        lines.append(
            f"  {names[i]:{width}}  noise {shown(noisy):>6}  width "
            f"{math.hypot(1, noisy):6.3g}"
        )
    if len(names) > MAX_SHOWN:
        lines.append(f"  ... and {len(names) - MAX_SHOWN} more parameters")
    if cost.of_passes is not None:
        seconds, num_bytes = cost.of_passes
        lines.append(
            f"time: about {shown_time(seconds)} for all passes over the records, an "
            "estimate for this machine, and as much as a minute more to compile; "
            f"memory: about {shown(num_bytes / 1e6)} MB"
        )
    lines.append(_advice(cost, budget, own, own_gain, is_worth))
    table = np.array(rows)
    return Plan(
        budget,
        {
            "epsilon": np.repeat([each.epsilon for each in every], len(names)),
            "parameter": names * len(every),
            "noise": table.ravel(),
            "width": np.hypot(1, table.ravel()),
            "resolution": np.repeat(resolutions, len(names)),
        },
        {names[i]: table[:, i] for i in first},
        "noise in posterior sds",
        "\n".join(lines),
    )


def _advice(cost: FitCost, budget, own: float, gain: Gain, is_worth) -> str:
    """From which number of records and from which epsilon on the answer is worth it."""

    def records(factor):
        """The number of records that suffices.

        `first` is found with the noise of the planned fit, and `second` with that of a
        fit of `first` records, whose search takes another share of the budget.
        """
        first = _boundary(lambda n: is_worth(own, n, gain), cost.num_records, factor)
        if first is None:
            return None
        of_first = cost.spending(budget, first)
        second = _boundary(
            lambda n: is_worth(of_first[0], n, of_first[1]), cost.num_records, factor
        )
        return second or first

    if own < math.inf and is_worth(own, cost.num_records, gain):
        few = records(1 / FARTHEST)
        said = f"worth the budget: noise moves half of the parameters by {MAX_NOISE:g}"
        least = "" if few is None else f", as from about {shown(few)} records on"
        return f"{said} posterior sds or less{least}"
    noise = own if own < math.inf else cost.num_records
    many = own < math.inf and records(FARTHEST)
    least = _boundary(
        lambda sigma: is_worth(sigma, cost.num_records, gain), noise, 1 / FARTHEST
    )
    needs = [f"about {shown(many)} records"] if many else []
    if least is not None:
        epsilon = privacy.epsilon(
            cost.events(budget.neighboring_relation, least), budget.delta
        )
        needs.append(f"epsilon = {shown(epsilon / cost.share)}")
    remedy = " or ".join(needs) or "fewer parameters or a more informative prior"
    return (
        "not worth the budget: noise moves more than half of the parameters by more "
        f"than {MAX_NOISE:g} posterior sds, or hides how much the records say in some "
        f"direction; it takes {remedy}"
    )


def _boundary(holds: Callable[[float], bool], start: float, factor: float):
    """The value nearest to `start`, on the way to `factor` times it, where `holds`
    changes, on the side where it holds; None if it does not change."""
    at_start = holds(start)
    if holds(start * factor) == at_start:
        return None
    low, high = 0.0, 1.0
    while (high - low) * abs(math.log(factor)) > 0.05:
        middle = (low + high) / 2
        if holds(start * factor**middle) == at_start:
            low = middle
        else:
            high = middle
    return start * factor ** (low if at_start else high)


def spending_and_gain(
    algorithm_fn,
    posterior: Posterior,
    size: int,
    budget: privacy.Budget,
    gaussian: Callable[[float], float],
    norm: MixedNorm | None = None,
) -> tuple[float, Gain]:
    """What `FitCost.spending` returns.

    Parameters
    ----------
    algorithm_fn, posterior, size, budget, norm
        As in `dpjax.runner.fit.spending`.
    gaussian
        The noise of the last release if it is Gaussian, given the noise multiplier of
        the fit.
    """
    noise_multiplier, last = spending(algorithm_fn, posterior, size, budget, norm)
    # A plan knows of no earlier runs, so the last release is known.
    assert last is not None
    noise = relative_noise(last) / gaussian(noise_multiplier)
    return noise_multiplier, Gain(noise, last.norm)


def plan_sample(
    posterior: Posterior,
    simulate_fn: Callable[[jax.Array, Any], Any],
    prior_sample_fn: Callable[[jax.Array], Any],
    *,
    budget: privacy.Budget,
    nominal_num_records: int | None = None,
    guess: Any = None,
    epsilons: Iterable[float] = EPSILONS,
) -> Plan:
    """What `dpjax.sample` would give for several budgets; nothing is spent.

    Parameters
    ----------
    posterior, simulate_fn, prior_sample_fn, budget, nominal_num_records
        As in `dpjax.sample`. The data may be of type `jax.ShapeDtypeStruct`. Otherwise
        they are compared with what the functions hold, and not read for anything else.
    guess
        A position where the parameters may be, in place of the prior: from earlier
        studies, not from the data.
    epsilons
        Budgets to compare with that of the job, at its delta.

    Returns
    -------
    Plan
        As `dpjax.numpyro.plan` returns it.

    Raises
    ------
    TypeError, ValueError
        As in `dpjax.sample`.

    Notes
    -----
    *Formal guarantees.* All that is returned follows from public numbers, the functions
    and the shapes of the data.
    """
    check_budget(budget)
    warn_of_large_delta(budget, posterior)
    draws = checked_prior_draws(posterior, simulate_fn, prior_sample_fn)
    size = sum(leaf[0].size for leaf in jax.tree.leaves(draws))
    many = prior_draws(prior_sample_fn, max(MIN_PRIOR_DRAWS, PER_PARAMETER * size))
    _, precision = PriorLaw.of(jax.vmap(lambda draw: ravel_pytree(draw)[0])(many))
    if guess is None:
        positions = jax.tree.map(
            lambda leaf: jnp.concatenate(
                [jnp.mean(leaf, axis=0)[None], leaf[: NUM_POSITIONS - 1]]
            ),
            draws,
        )
    else:
        positions = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], guess)
    found = made_up(
        posterior.loglikelihood_fn,
        simulate_fn,
        precision,
        posterior.tempering,
        positions,
    )
    cost = simulated_cost(posterior, simulate_fn, prior_sample_fn, nominal_num_records)
    names = names_of(jax.tree.map(lambda leaf: leaf[0], positions))
    return plan_fit(found, names, cost, budget, epsilons)


def simulated_cost(
    posterior: Posterior,
    simulate_fn: Callable,
    prior_sample_fn: Callable,
    nominal_num_records: int | None,
) -> FitCost:
    """The cost of `dpjax.fit.simulated.simulated_fit`, whose slope reads no data."""
    algorithm_fn = functools.partial(
        simulated_fit,
        simulate_fn=simulate_fn,
        prior_sample_fn=prior_sample_fn,
        nominal_num_records=nominal_num_records,
    )
    dim = num_parameters(prior_sample_fn)

    def gaussian(noise_multiplier):
        return noise_multiplier / math.sqrt(SHARES[-1])

    def events(relation, noise_multiplier):
        algorithm = algorithm_fn(posterior, noise_multiplier=noise_multiplier)
        return algorithm.privacy(1, relation)

    return FitCost(
        nominal_size(posterior, nominal_num_records),
        lambda budget, _: spending_and_gain(
            algorithm_fn, posterior, dim, budget, gaussian
        ),
        lambda noise_multiplier, _, gain: Noise(
            gain.noise * gaussian(noise_multiplier)
        ),
        lambda noise_multiplier, num_records: expected_resolution(
            dim, num_records, noise_multiplier
        ),
        MIN_RESOLUTION,
        events,
        True,
    )
