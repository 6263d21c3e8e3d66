"""What a run returns: draws, accept rates and the privacy statement. All public."""

import ast
import itertools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax import privacy

__all__ = ["PrivacyStatement", "Run", "load_infos"]

MAX_SHOWN = 20
"""Components whose summary the print of a run shows."""

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
        return (
            f"{self.num_chains} chains x {self.num_steps} steps: epsilon = "
            f"{self.epsilon:.4g} at delta = {self.delta:.3g} ({relation} record), "
            f"{self.epsilon_per_chain:.4g} for one chain alone\n"
            f"released: {self.events}\naccountant: {self.accountant}; "
            f"randomness: {self.randomness}"
        )


def listed(events) -> str:
    """Events as text: all, or the first and the last if there are many kinds."""
    lines = [f"{count} x {event}" for event, count in events]
    if len(lines) > MAX_LISTED_EVENTS:
        lines[1:-1] = [f"... {len(lines) - 2} other kinds ..."]
    return "; ".join(lines)


@dataclass(frozen=True)
class Run:
    """Draws of a private run.

    positions
        Pytree of arrays ``(num_chains, num_draws, ...)``: positions of the chains, or
        parameters if the posterior has a `constrain_fn`.
    acceptance_rate
        ``(num_chains, num_draws)``: the share of the steps since the draw before that
        moved the chain. None if the kernel does not accept or reject.
    statement
        What the run cost.
    infos
        Infos of the steps that the draws are from, such as noisy gradients, leaves
        ``(num_chains, num_draws, ...)``. None if the kernel accepts or rejects.
    """

    positions: Any
    acceptance_rate: np.ndarray | None
    statement: PrivacyStatement
    infos: Any = None

    def __repr__(self) -> str:
        """The statement, and the summary of up to `MAX_SHOWN` components."""
        leaves = {name: np.asarray(leaf) for name, leaf in _by_site(self.positions)}
        components = (
            (f"{name}{list(index) or ''}", leaf[:, :, *index])
            for name, leaf in leaves.items()
            for index in np.ndindex(leaf.shape[2:])
        )
        shown = dict(itertools.islice(components, MAX_SHOWN))
        num_left = sum(leaf[0, 0].size for leaf in leaves.values()) - len(shown)
        with warnings.catch_warnings(action="ignore"):
            summary = Run(shown, None, self.statement).summary().reindex(list(shown))
        more = f"\n... and {num_left} more components" if num_left else ""
        return f"{self.statement}\n{summary}{more}"

    def to_arviz(self, component_names: list[str] | None = None):
        """The draws as `arviz.InferenceData`, with the statement in its attributes.

        Acceptance rates, or else infos, are its `sample_stats`; `load_infos` reads the
        infos from a file of it.

        Parameters
        ----------
        component_names
            Names for the components of a position that is one vector.
        """
        import arviz

        statistics = _named(self.infos) or None
        if self.acceptance_rate is not None:
            statistics = {"acceptance_rate": self.acceptance_rate}
        axes: dict[str, Any] = {}
        if component_names is not None:
            axes["coords"] = {"component": component_names}
            axes["dims"] = {"position": ["component"]}
        return arviz.from_dict(
            posterior=dict(_by_site(self.positions)),
            sample_stats=statistics,
            attrs=self.statement._asdict(),
            **axes,
        )

    def summary(self):
        """Mean, sd, interval, effective sample size and R-hat of every component.

        Returns
        -------
        pandas.DataFrame
            One row a component. Its print has all columns, however narrow the terminal.
        """
        import arviz

        from dpjax.runner.table import Table

        num_chains = len(jax.tree.leaves(self.positions)[0])
        kind = "all" if num_chains > 1 else "stats"
        return Table(arviz.summary(self.to_arviz(), kind=kind))


def load_infos(path, kind: type):
    """`Run.infos` from a file, to the last bit.

    Parameters
    ----------
    path
        What `Run.to_arviz` was written to, such as the draws.nc of ``dpjax run``.
    kind
        Class of the infos, a NamedTuple such as `dpjax.vi.dpvi.DPVIInfo`.

    Raises
    ------
    ValueError
        If the file has no infos of this kind, or a part of them is not an array or a
        dict of arrays.
    """
    import arviz
    from arviz.rcparams import rc_context

    with rc_context({"data.load": "eager"}):
        draws = arviz.from_netcdf(path)
    found = {}
    for name, values in getattr(draws, "sample_stats", {}).items():
        *outer, last = _path(name)
        part = found
        for key in outer:
            part = part.setdefault(key, {})
        part[last] = values.to_numpy()
    if not found or not found.keys() <= set(kind._fields):
        raise ValueError(
            f"{path} holds no {kind.__name__}: a run without accept bits writes its "
            "infos there"
        )
    return kind(**{name: found.get(name) for name in kind._fields})


def _by_site(positions) -> list[tuple[str, Any]]:
    """The leaves of the positions and their names."""
    if hasattr(positions, "_asdict"):
        positions = positions._asdict()
    if isinstance(positions, Mapping) and jax.tree_util.all_leaves(positions.values()):
        return list(positions.items())
    leaves = jax.tree.leaves(positions)
    if len(leaves) == 1:
        return [("position", leaves[0])]
    return [(f"position_{i}", leaf) for i, leaf in enumerate(leaves)]


def _named(infos) -> dict[str, Any]:
    """Leaves by the text that follows ``infos.`` in Python, ``"gradient['rho']"``."""
    leaves = jax.tree_util.tree_leaves_with_path(infos)
    return {jax.tree_util.keystr(path)[1:]: leaf for path, leaf in leaves}


def _path(name: str) -> list:
    """The field and the keys in such a text."""
    node, keys = ast.parse(name, mode="eval").body, []
    while isinstance(node, ast.Subscript):
        keys.append(ast.literal_eval(node.slice))
        node = node.value
    if not isinstance(node, ast.Name):
        raise ValueError(f"{name} is not an array, or one in dicts, of the infos")
    return [node.id, *reversed(keys)]
