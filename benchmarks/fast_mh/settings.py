"""The experiments' settings: jobs of configs/fast_mh, and what they compare with."""

import functools
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpjax import config, proposals

__all__ = ["Entry", "epsilons", "load"]

FOLDER = Path(__file__).parents[2] / "configs" / "fast_mh"
OTHERS = Path(__file__).with_name("algorithms.toml")

BUDGETS = {
    "mixture": (0.02, 0.05, 0.1, 0.2, 0.5),
    "mnist": (0.1, 0.5, 1.0, 2.0, 5.0),
}
CLAIMS = (0.05, 0.1, 0.2, 0.5)


def epsilons(model: str, name: str) -> tuple[float, ...]:
    """Budgets of a chain; of ``published``, what it claims of every step."""
    if name == "tuna":
        return (math.inf,)
    return CLAIMS if name == "published" else BUDGETS[model]


@dataclass(frozen=True)
class Entry:
    """An algorithm of a model's comparison.

    table
        Its settings, as in the file.
    job
        The model's, with this algorithm.
    algorithm_fn
        ``posterior -> Algorithm``, a `functools.partial` with the longest steps.
    num_steps
        Of a chain, at most.
    num_chains
        At most.
    """

    name: str
    table: dict
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
    longest = {"step_size": others.pop("longest_step_size")}
    entries = {}
    for name, given in {"fast_mh": tables["algorithm"] | longest, **others}.items():
        table = longest | given
        num_steps = table.pop("num_steps", tables["run"]["num_steps"])
        num_chains = table.pop("num_chains", 20)
        proposal = table.pop("proposal", "fixed_length")
        # The proposal is set afterwards, as jobs whose cost has no bound are refused.
        table["proposal"] = "fixed_length"
        job = config.read({**tables, "algorithm": table}, f"{model} {name}")
        algorithm_fn = functools.partial(
            job.algorithm_fn, proposal=getattr(proposals, proposal)
        )
        whole = {**tables, "algorithm": given}
        entries[name] = Entry(name, whole, job, algorithm_fn, num_steps, num_chains)
    return entries
