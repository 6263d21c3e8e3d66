"""What a run returns: draws, accept rates and the privacy statement. All public."""

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax import privacy

__all__ = ["PrivacyStatement", "Run", "load_infos"]


class PrivacyStatement(NamedTuple):
    """What was released, and what the accountant says of it.

    epsilon, delta
        Of the whole run: all the chains together.
    epsilon_per_chain
        Of one chain, had the others not been released.
    neighboring_relation
        Name of the relation between data sets that the statement is about.
    num_chains, num_steps
        Chains, and steps of each.
    events
        What all the chains released, as text.
    accountant
        The method of `dpjax.privacy.accountant` that gave epsilon.
    randomness
        Where it came from.
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
        """The statement of a run whose chains together release `events`.

        What is `shared` was released once for all of them, before.
        """
        one_chain = [*shared, *((event, n // num_chains) for event, n in events)]
        events = [*shared, *events]
        return cls(
            epsilon=privacy.epsilon(events, budget.delta),
            delta=budget.delta,
            epsilon_per_chain=privacy.epsilon(one_chain, budget.delta),
            neighboring_relation=budget.neighboring_relation.name,
            num_chains=num_chains,
            num_steps=num_steps,
            events=_listed(events),
            accountant=privacy.best_method(events, budget.delta),
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


def _listed(events) -> str:
    """As text; the first and the last of many, as of steps whose sizes decrease."""
    lines = [f"{count} x {event}" for event, count in events]
    if len(lines) > 8:
        lines = [lines[0], f"... {len(lines) - 2} other kinds ...", lines[-1]]
    return "; ".join(lines)


@dataclass(frozen=True)
class Run:
    """Draws of a private run.

    positions
        Pytree of arrays ``(num_chains, num_draws, ...)``; parameters instead if the
        posterior has a `constrain_fn`.
    acceptance_rate
        Share of the steps since the draw before that moved,
        ``(num_chains, num_draws)``; None if steps are not accepted or rejected.
    statement
        What it cost.
    infos
        The infos of the steps of the draws if they are not accepted or rejected, such
        as noisy gradients: leaves ``(num_chains, num_draws, ...)``. Otherwise None.
    """

    positions: Any
    acceptance_rate: np.ndarray | None
    statement: PrivacyStatement
    infos: Any = None

    def to_arviz(self, component_names: list[str] | None = None):
        """The draws as `arviz.InferenceData`, the statement in its attributes.

        Accept rates or infos are its `sample_stats`; `load_infos` reads the latter.

        Parameters
        ----------
        component_names
            Names for the components of a position that is one vector.
        """
        import arviz

        positions = self.positions
        if hasattr(positions, "_asdict"):
            positions = positions._asdict()
        if not isinstance(positions, Mapping):
            leaves = jax.tree.leaves(positions)
            names = (
                ["position"]
                if len(leaves) == 1
                else [f"position_{i}" for i in range(len(leaves))]
            )
            positions = dict(zip(names, leaves, strict=True))
        return arviz.from_dict(
            posterior=dict(positions),
            coords=None if component_names is None else {"component": component_names},
            dims=None if component_names is None else {"position": ["component"]},
            sample_stats=_named(self.infos)
            if self.acceptance_rate is None
            else {"acceptance_rate": self.acceptance_rate},
            attrs=self.statement._asdict(),
        )

    def summary(self):
        """Mean, sd, interval, effective sample size and R-hat of every component."""
        import arviz

        kind = "all" if self.statement.num_chains > 1 else "stats"
        return arviz.summary(self.to_arviz(), kind=kind)


def load_infos(path, kind: type):
    """`Run.infos` from a file, to the last bit.

    Parameters
    ----------
    path
        What `Run.to_arviz` was written to, such as the draws.nc of ``dpjax run``.
    kind
        Class of the infos, such as `dpjax.vi.dpvi.DPVIInfo`.

    Raises
    ------
    ValueError
        If the file has no infos of this kind, or their parts are not in dicts.
    """
    import arviz

    with arviz.rc_context({"data.load": "eager"}):
        draws = arviz.from_netcdf(path)
    found = {}
    for name, values in getattr(draws, "sample_stats", {}).items():
        *within, last = _keys(name)
        part = found
        for key in within:
            part = part.setdefault(key, {})
        part[last] = values.to_numpy()
    if not found or not found.keys() <= set(kind._fields):
        raise ValueError(
            f"{path} holds no {kind.__name__}: a run without accept bits writes its "
            "infos there"
        )
    return kind(**{name: found.get(name) for name in kind._fields})


def _named(infos) -> dict[str, Any] | None:
    """Leaves by what follows ``infos.`` in Python, ``"gradient['rho']"``."""
    leaves = jax.tree_util.tree_leaves_with_path(infos)
    found = {jax.tree_util.keystr(path)[1:]: leaf for path, leaf in leaves}
    return found or None


def _keys(name: str) -> list:
    """The field and the keys in one of these names."""
    node, keys = ast.parse(name, mode="eval").body, []
    while isinstance(node, ast.Subscript):
        keys.append(ast.literal_eval(node.slice))
        node = node.value
    if not isinstance(node, ast.Name):
        raise ValueError(f"{name} is not a part of infos in dicts")
    return [node.id, *reversed(keys)]
