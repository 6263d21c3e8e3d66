"""Pay for several runs as a whole, before the first of them."""

import functools
import os
import secrets
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dpjax import privacy
from dpjax.algorithm import Algorithm
from dpjax.posterior import Posterior
from dpjax.privacy.budget import check_budget
from dpjax.privacy.events import check_events
from dpjax.privacy.shown import epsilon_up
from dpjax.privacy.validate import check_count
from dpjax.runner import ledger as ledgers
from dpjax.runner import processes
from dpjax.runner.check import check_arguments, made
from dpjax.runner.hashes import digest
from dpjax.runner.run import cost_of, total_epsilon
from dpjax.runner.statement import listed, spent

__all__ = ["Reserved", "reserve"]


class Reserved(NamedTuple):
    """What several runs may release together, and what the accountant says of it.

    epsilon, delta
        The cost of all runs within the plan, however many of them are made.
    neighboring_relation
        Name of the relation between data sets that the plan is about.
    events
        What the runs may release together, as text.
    accountant
        The method of `dpjax.privacy.accountant` that gave epsilon.
    """

    epsilon: float
    delta: float
    neighboring_relation: str
    events: str
    accountant: str

    def __str__(self):
        cost = spent(self.epsilon, self.delta, self.neighboring_relation)
        return (
            f"all planned runs together: {cost}\nreserved: {self.events}\n"
            f"accountant: {self.accountant}"
        )


def reserve(
    jobs: Iterable[tuple[Callable[[Posterior], Algorithm], int, int]],
    posterior: Posterior,
    *,
    budget: privacy.Budget,
    ledger: str | os.PathLike,
) -> Reserved:
    """Pay for several runs as a whole, before the first of them.

    Runs that are charged one by one add up by a privacy filter, which loses a fifth of
    epsilon, or more, if they release different kinds of events. Runs that are planned
    together cost what the accountant says of all their events at once. A run on this
    ledger takes its events from the plan, as far as there are some of each kind left.
    Events beyond the plan are charged as those of any later run.

    Parameters
    ----------
    jobs
        ``(algorithm_fn, num_steps, num_chains)`` of every run, as `dpjax.run` takes
        them.
    posterior
        What the runs sample, and the data.
    budget
        What all runs together may spend. Give the runs the same budget.
    ledger
        A new ledger. Give it to the runs.

    Returns
    -------
    Reserved
        What was charged. It stays spent whether or not the runs are made.

    Raises
    ------
    BudgetError
        If the budget does not pay for all runs together.
    LedgerError
        If runs were charged to the ledger before.
    TypeError
        If `budget` is of another class.
    ValueError
        If there are no jobs, or a number is out of range.

    Notes
    -----
    *Formal guarantees.* Nothing is released. The data are read for the keyed hash that
    names them in the ledger. Which of the planned runs are made, in which order, and
    what they do beside their events may be chosen in view of what was released
    before: see *Plans* in `dpjax.privacy.filter`.
    """
    check_budget(budget)
    events = []
    for algorithm_fn, num_steps, num_chains in jobs:
        check_arguments(algorithm_fn, posterior)
        num_steps = check_count("num_steps", num_steps)
        num_chains = check_count("num_chains", num_chains)
        events += cost_of(made(algorithm_fn, posterior), num_chains, budget, num_steps)
    events = check_events(events)

    def approve(spent):
        if spent.runs:
            raise ledgers.LedgerError(
                f"runs were charged to {ledger} before, and a plan is made before the "
                "first run: go on without one, or plan with a ledger of other data"
            )
        total = total_epsilon(spent, events, budget.delta)
        if total > budget.epsilon:
            raise privacy.BudgetError(
                f"the planned runs would spend epsilon = {epsilon_up(total)} of "
                f"{budget.epsilon} at delta = {budget.delta} together: plan fewer "
                "steps or chains, or a larger budget"
            )

    records = functools.cache(lambda: digest(posterior.data))
    if processes.are_many():
        records()  # In all of them at once, as the first one alone may ask for it.
    append = functools.partial(
        ledgers.reserve,
        ledger,
        events,
        budget.neighboring_relation.name,
        approve,
        rule=privacy.AdaptiveRule.of(events, budget),
        data_fn=records,
        nonce_fn=lambda state: secrets.token_hex(32),
        is_plan=True,
    )
    processes.first(lambda: append().encode())
    return Reserved(
        epsilon=privacy.epsilon(events, budget.delta),
        delta=budget.delta,
        neighboring_relation=budget.neighboring_relation.name,
        events=listed(events),
        accountant=privacy.best_method(events, budget.delta),
    )
