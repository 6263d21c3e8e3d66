"""The experiments' settings: jobs of configs/fast_mh, and what they compare with."""

import functools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpjax import config, proposals

__all__ = ["EPSILONS", "MODELS", "Entry", "load"]

FOLDER = Path(__file__).parents[2] / "configs" / "fast_mh"
OTHERS = Path(__file__).with_name("algorithms.toml")
MODELS = ("mixture", "mnist")

EPSILONS = {
    "mixture": (0.02, 0.05, 0.1, 0.2, 0.5),
    "mnist": (0.1, 0.5, 1.0, 2.0, 5.0),
}
"""Budgets of a chain; for ``published``, what it claims for every step."""


@dataclass(frozen=True)
class Entry:
    """An algorithm of a model's comparison.

    job
        The model's, with this algorithm.
    algorithm_fn
        ``posterior -> Algorithm``, a `functools.partial`.
    num_steps
        Of a chain, at most.
    num_chains
        At most.
    """

    name: str
    job: config.Job
    algorithm_fn: Callable
    num_steps: int
    num_chains: int


def load(model: str) -> dict[str, Entry]:
    """The entries of a model by name: ``fast_mh``, that of its file, comes first.

    Raises
    ------
    ConfigError
        If a file holds unknown or invalid keys.
    """
    tables = tomllib.loads((FOLDER / f"{model}.toml").read_text())
    others = tomllib.loads(OTHERS.read_text())[model]
    entries = {}
    for name, table in {"fast_mh": tables["algorithm"], **others}.items():
        table = dict(table)
        num_steps = table.pop("num_steps", tables["run"]["num_steps"])
        num_chains = table.pop("num_chains", 20)
        proposal = table.pop("proposal", "fixed_length")
        # The proposal is set afterwards, as jobs whose cost has no bound are refused.
        table["proposal"] = "fixed_length"
        job = config.read({**tables, "algorithm": table}, f"{model} {name}")
        algorithm_fn = functools.partial(
            job.algorithm_fn, proposal=getattr(proposals, proposal)
        )
        entries[name] = Entry(name, job, algorithm_fn, num_steps, num_chains)
    return entries
