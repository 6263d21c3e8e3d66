"""The privacy statement of a run."""

import math
from typing import NamedTuple

from dpjax import privacy
from dpjax.privacy.shown import epsilon_up, rounded_up

__all__ = ["PrivacyStatement", "listed", "spent"]

MAX_LISTED_EVENTS = 8
"""Kinds of events that a statement lists; of more, only the first and the last."""

RELATIONS = {
    "ADD_OR_REMOVE_ONE": "add or remove one record",
    "REPLACE_ONE": "replace one record",
    "REPLACE_SPECIAL": "replace one record by a blank",
}
"""Neighbouring relations in words. Statements of older runs may have any."""

CHANGES = {
    "ADD_OR_REMOVE_ONE": ("added or removed", "whether one record is among them"),
    "REPLACE_ONE": ("replaced by another", "which of two values one record has"),
    "REPLACE_SPECIAL": ("replaced by a blank", "whether one record is there"),
}
"""What becomes of a record, and what may then be guessed."""


class PrivacyStatement(NamedTuple):
    """What was released, and what the accountant says of it.

    epsilon, delta
        Of the whole run, all chains together.
    epsilon_per_chain
        Of one chain, had the others not been released. That of the whole run if a
        filter vouches for it.
    neighboring_relation
        Name of the relation between data sets that the statement is about.
    num_chains, num_steps
        Number of chains, and of the steps of each.
    events
        What all chains together released, as text.
    accountant
        The method of `dpjax.privacy.accountant` that gave epsilon, or "privacy filter".
    randomness
        Where the random numbers came from.
    epsilon_of_ledger
        What this run and those before it in its ledger spend together, at most, at the
        same delta. That of the run if it has no ledger.
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
    epsilon_of_ledger: float = math.inf

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
            of which it was chosen. A privacy filter keeps both within the budget, and
            that is what it promises, even if they come to less.
        """
        if shared:
            accountant = "privacy filter"
            total = of_one = budget.epsilon
        else:
            one_chain = [(event, n // num_chains) for event, n in events]
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
            epsilon_of_ledger=total,
        )

    @classmethod
    def none(cls, num_chains: int, num_steps: int):
        """The statement of a run without a budget."""
        nothing = math.inf, 1.0, math.inf, "NONE"
        return cls(*nothing, num_chains, num_steps, "everything", "none")

    def in_words(self) -> str:
        """What it says, for readers who do not know the field."""
        if self.epsilon == math.inf:
            return "These draws are not private: they were made without a budget."
        odds = math.exp(min(self.epsilon, 500.0))
        guess = math.ceil(1000 * (odds + self.delta) / (1 + odds) - 1e-9) / 1000
        how, which = CHANGES[self.neighboring_relation]
        epsilon, delta = rounded_up(self.epsilon), rounded_up(self.delta, 3)
        factor = rounded_up(odds, 3) if odds < 1e4 else f"exp({epsilon})"
        together = ""
        if self._has_other_runs():
            together = (
                " This run and those before it in its ledger are together "
                f"({rounded_up(self.epsilon_of_ledger)}, {delta}) differentially "
                "private."
            )
        if self.randomness != self._field_defaults["randomness"]:
            together += (
                " Nothing of this holds towards somebody who knows the key that the "
                "randomness came from."
            )
        return (
            f"What this run released is ({epsilon}, {delta}) differentially private: "
            f"the chances of all of it change by a factor of at most {factor}, but for "
            f"a probability of {delta}, if one record is {how}. Somebody who knows all "
            f"other records, and guesses {which}, is right with probability at most "
            f"{guess:.1%}; without the draws it would be 50%.{together}"
        )

    def __str__(self):
        if self.epsilon == math.inf:
            return f"{self._length()} without a budget: NOT PRIVATE"
        cost = spent(self.epsilon, self.delta, self.neighboring_relation)
        alone = together = ""
        if self._has_other_runs():
            together = (
                "\nthis run and those before it in its ledger together: at most "
                f"epsilon = {rounded_up(self.epsilon_of_ledger)} at delta = "
                f"{rounded_up(self.delta, 3)}"
            )
        if self.epsilon_per_chain < self.epsilon:
            alone = f", {rounded_up(self.epsilon_per_chain)} for one chain alone"
        return (
            f"{self._length()}: {cost}{alone}\nreleased: {self.events}\n"
            f"accountant: {self.accountant}; randomness: {self.randomness}{together}"
        )

    def _has_other_runs(self) -> bool:
        return self.epsilon < self.epsilon_of_ledger < math.inf

    def _length(self) -> str:
        if self.num_chains * self.num_steps == 1:
            return "one step"
        return f"{counted_chains(self.num_chains)} x {self.num_steps} steps"


def spent(epsilon: float, delta: float, neighboring_relation: str) -> str:
    """A cost as text: epsilon and delta, rounded up, and the relation in words."""
    most, relation = epsilon_up(epsilon), RELATIONS[neighboring_relation]
    return f"epsilon = {most} at delta = {rounded_up(delta, 3)} ({relation})"


def counted_chains(number: int) -> str:
    """The number of chains as text."""
    return "one chain" if number == 1 else f"{number} chains"


def listed(events) -> str:
    """Events as text: all, or the first and the last if there are many kinds."""
    lines = [f"{count} x {event}" for event, count in events]
    if len(lines) > MAX_LISTED_EVENTS:
        lines[1:-1] = [f"... {len(lines) - 2} other kinds ..."]
    return "; ".join(lines)
