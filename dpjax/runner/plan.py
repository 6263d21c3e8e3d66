"""What a job would give for several budgets, before any record is read."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import privacy
from dpjax.algorithm import Algorithm
from dpjax.posterior import Posterior
from dpjax.privacy.budget import check_budget
from dpjax.privacy.shown import epsilon_up, shown
from dpjax.privacy.validate import check_count
from dpjax.runner.check import check_arguments, made, warn_of_large_delta
from dpjax.runner.run import cost_of
from dpjax.runner.statement import counted_chains, listed
from dpjax.runner.trial import trial

__all__ = ["EPSILONS", "Plan", "budgets", "plan", "shown_time"]

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Budgets that are compared with that of the job."""

MANY_STEPS = 100
"""Steps among which a schedule has made some that differ from the first."""


@dataclass(frozen=True, repr=False)
class Plan:
    """What a job would give for several budgets. It prints as a table.

    budget
        That of the job.
    columns
        By name, one number for each row of `to_dataframe`.
    curves
        What `plot` shows by label, one number for each epsilon.
    measure
        What the numbers of `curves` are.
    text
        What is printed.
    """

    budget: privacy.Budget
    columns: Mapping[str, Any]
    curves: Mapping[str, np.ndarray]
    measure: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def to_dataframe(self):
        """The table as a `pandas.DataFrame`."""
        import pandas

        return pandas.DataFrame(dict(self.columns))

    def plot(self):
        """What each epsilon buys, as a `matplotlib.figure.Figure`."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        epsilons = np.unique(self.columns["epsilon"])
        for label, values in self.curves.items():
            axes.loglog(epsilons, values, marker="o", label=label)
        axes.axvline(self.budget.epsilon, color="grey", linestyle=":", label="budget")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.set_xticks([], minor=True)
        axes.set(xlabel=f"epsilon at delta = {self.budget.delta:g}")
        axes.set(ylabel=self.measure)
        axes.legend()
        return figure


def plan(
    algorithm_fn: Callable[[Posterior], Algorithm],
    posterior: Posterior,
    num_steps: int | None = None,
    *,
    initial_position: Any,
    num_chains: int,
    budget: privacy.Budget,
    epsilons: Iterable[float] | None = None,
) -> Plan:
    """What `dpjax.run` would give for several budgets; no record is read.

    Parameters
    ----------
    algorithm_fn, posterior, num_steps, initial_position, num_chains, budget
        As in `dpjax.run`. Only the shapes of the data are used.
    epsilons
        Budgets to compare with that of the job, at its delta: by default `EPSILONS`, or
        none if steps differ in what they release, which takes the accountant long.

    Returns
    -------
    Plan
        The steps that each epsilon pays for, of one chain alone and of all chains, but
        no more than `num_steps` if steps differ in what they release; how
        far they take a chain, in units of the position, if half of the proposals are
        accepted; and how long they take on this machine, from a few steps on records
        of zeros.

    Raises
    ------
    TypeError, ValueError
        As in `dpjax.run`.

    Notes
    -----
    *Formal guarantees.* All that is returned follows from public numbers and the shapes
    of the data.
    """
    check_arguments(algorithm_fn, posterior)
    check_budget(budget)
    warn_of_large_delta(budget, posterior)
    num_chains = check_count("num_chains", num_chains)
    relation = budget.neighboring_relation
    algorithm = made(algorithm_fn, posterior)
    step = algorithm.privacy(1, relation)
    if num_steps is not None:
        num_steps = check_count("num_steps", num_steps)
    is_steady = len(algorithm.privacy(MANY_STEPS, relation)) == len(step)
    is_left_out = epsilons is None and not is_steady
    if epsilons is None:
        epsilons = EPSILONS if is_steady else ()
    every = budgets(budget, epsilons)

    @functools.cache
    def paid(num_chains):
        """The steps that each epsilon pays for."""
        cost_fn = functools.partial(cost_of, algorithm, num_chains, budget)

        def most(epsilon):
            # A schedule need not make sense after the steps that it was made for.
            if num_steps is not None and not is_steady:
                if privacy.epsilon(cost_fn(num_steps), budget.delta) <= epsilon:
                    return num_steps
            return privacy.max_steps(cost_fn, epsilon=epsilon, delta=budget.delta)

        return np.array([most(each.epsilon) for each in every])

    alone, together = paid(1), paid(num_chains)
    positions = jax.tree.map(jnp.asarray, initial_position)
    tried = trial(algorithm_fn, posterior, positions)
    moves = together * algorithm.transition.laziness
    reach, seconds = tried.jump * np.sqrt(moves / 2), tried.seconds * moves
    is_one = num_chains == 1
    several = "" if is_one else f"{f'steps, {num_chains} chains':>19}"
    lines = [
        *(f"one step of one chain releases {count} x {event}" for event, count in step),
        f"neighbours: {relation.name}, delta = {budget.delta}",
        f"{'epsilon':>9}{'steps, 1 chain':>17}{several}{'reach':>9}{'time':>10}",
    ]
    for i, each in enumerate(every):
        mark = "  <- budget" if each.epsilon == budget.epsilon else ""
        lines.append(
            f"{each.epsilon:9.3g}{alone[i]:17d}{'' if is_one else f'{together[i]:19d}'}"
            f"{'' if np.isnan(reach[i]) else f'{reach[i]:.2g}':>9}"
            f"{shown_time(seconds[i]):>10}{mark}"
        )
    if not np.isnan(tried.jump):
        lines.append(
            "reach: how far these steps take a component of the position, if half of "
            "the proposals are accepted"
        )
    lines.append(
        "time: an estimate for this machine, without compiling; memory: about "
        f"{shown(tried.num_bytes / 1e6)} MB"
    )
    if is_left_out:
        lines.append(
            "other budgets are compared if they are named, by epsilons= or --epsilons: "
            "steps differ in what they release, so each takes the accountant seconds"
        )
    if num_steps is not None:
        lines.append(_cost(algorithm, num_steps, num_chains, budget))
    columns = {
        "epsilon": np.array([each.epsilon for each in every]),
        "steps_of_one_chain": alone,
        "steps": together,
        "reach": reach,
        "seconds": seconds,
    }
    curves = {"one chain": alone}
    if not is_one:
        curves[f"each of {num_chains} chains"] = together
    return Plan(budget, columns, curves, "steps", "\n".join(lines))


def budgets(budget: privacy.Budget, epsilons: Iterable[float]) -> list[privacy.Budget]:
    """The budget with each epsilon and its own, in order."""
    return [
        dataclasses.replace(budget, epsilon=epsilon)
        for epsilon in sorted({*epsilons, budget.epsilon})
    ]


def shown_time(seconds: float) -> str:
    """As in a table: in seconds, minutes or hours."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _cost(algorithm, num_steps, num_chains, budget) -> str:
    events = cost_of(algorithm, num_chains, budget, num_steps)
    found = privacy.epsilon(events, budget.delta)
    fits = "within" if found <= budget.epsilon else "more than"
    return (
        f"{num_steps} steps of {counted_chains(num_chains)} release {listed(events)}: "
        f"epsilon = {epsilon_up(found)}, {fits} the budget"
    )
