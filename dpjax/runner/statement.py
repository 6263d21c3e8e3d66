"""The privacy statement of a run."""

import math
from typing import NamedTuple

from dpjax import privacy

__all__ = ["PrivacyStatement", "listed"]

MAX_LISTED_EVENTS = 8
"""Kinds of events that a statement lists; of more, only the first and the last."""


class PrivacyStatement(NamedTuple):
    """What was released, and what the accountant says of it.

    epsilon, delta
        Of the whole run, all chains together.
    epsilon_per_chain
        Of one chain, had the others not been released.
    neighboring_relation
        Name of the relation between data sets that the statement is about.
    num_chains, num_steps
        Number of chains, and of the steps of each.
    events
        What all chains together released, as text.
    accountant
        The method of `dpjax.privacy.accountant` that gave epsilon.
    randomness
        Where the random numbers came from.
    """

    epsilon: float
    delta: float
    epsilon_per_chain: float
    neighboring_relation: str
    num_chains: int
    num_steps: int
    events: str
    accountant: str
    randomness: str = "operating system entropy through ChaCha20"

    @classmethod
    def of(
        cls, events, budget: privacy.Budget, num_chains: int, num_steps: int, shared=()
    ):
        """The statement of a run.

        Parameters
        ----------
        events
            (event, count) pairs that all chains together release.
        budget
            Gives delta and the neighbouring relation.
        num_chains, num_steps
            Number of chains, and of the steps of each.
        shared
            (event, count) pairs released before the run, once for all chains, in view
            of which it was chosen.
        """
        one_chain = [(event, n // num_chains) for event, n in events]
        if shared:
            rule = privacy.AdaptiveRule.renyi(shared, budget)
            accountant = "rdp filter"
            total, of_one = (
                rule.epsilon([shared, run], budget.delta) for run in (events, one_chain)
            )
        else:
            accountant = privacy.best_method(events, budget.delta)
            total, of_one = (
                privacy.epsilon(run, budget.delta) for run in (events, one_chain)
            )
        return cls(
            epsilon=total,
            delta=budget.delta,
            epsilon_per_chain=of_one,
            neighboring_relation=budget.neighboring_relation.name,
            num_chains=num_chains,
            num_steps=num_steps,
            events=listed([*shared, *events]),
            accountant=accountant,
        )

    @classmethod
    def none(cls, num_chains: int, num_steps: int):
        """The statement of a run without a budget."""
        nothing = math.inf, 1.0, math.inf, "NONE"
        return cls(*nothing, num_chains, num_steps, "everything", "none")

    def __str__(self):
        if self.epsilon == math.inf:
            return (
                f"{self.num_chains} chains x {self.num_steps} steps without a budget: "
                "NOT PRIVATE"
            )
        relation = self.neighboring_relation.lower().replace("_", " ")
        length, alone = "one step", ""
        if self.num_chains * self.num_steps > 1:
            length = f"{self.num_chains} chains x {self.num_steps} steps"
            alone = f", {self.epsilon_per_chain:.4g} for one chain alone"
        return (
            f"{length}: epsilon = {self.epsilon:.4g} at delta = {self.delta:.3g} "
            f"({relation} record){alone}\n"
            f"released: {self.events}\naccountant: {self.accountant}; "
            f"randomness: {self.randomness}"
        )


def listed(events) -> str:
    """Events as text: all, or the first and the last if there are many kinds."""
    lines = [f"{count} x {event}" for event, count in events]
    if len(lines) > MAX_LISTED_EVENTS:
        lines[1:-1] = [f"... {len(lines) - 2} other kinds ..."]
    return "; ".join(lines)
