"""The experiments' settings: one TOML file a model, checked before anything runs.

Names and units are the thesis's (table 5.2): `tau` and `tau_g` multiply sqrt(n)
sensitivities of noise, except in the minibatch methods, where `tau` multiplies the
variance; `clip_per_distance` is in nats per unit of Euclidean distance.
"""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

from dpjax.config import ConfigError
from dpjax.models import THESIS_MODELS
from dpjax.models.thesis import ThesisModel

__all__ = ["ALGORITHMS", "FOLDER", "Experiment", "load"]

FOLDER = Path(__file__).parents[2] / "configs" / "thesis"

_PENALTY = {"tau", "step_size", "clip_per_distance"}
_PATH = {"tau_g", "num_integration_steps", "l2_clip_norm"}
_OURS = {"metric", "laziness", "num_passes"}
_KEYS = {
    "dpps": [_PENALTY],
    "dppa": [_PENALTY],
    "mdpps": [_PENALTY | {"batch_size"}],
    "mdppa": [_PENALTY | {"batch_size"}],
    "barker": [{"step_size", "batch_size"}],
    "hmc": [_PENALTY | _PATH],
    "ours": [
        _OURS | {clip, step}
        for clip in ("clip_in_sds", "clip_per_step_size")
        for step in ("step_size", "largest_step_size")
    ],
    "fit": [set()],
    "exact": [set()],
}
"""Keys of an algorithm's table: any one of the sets."""

_INTEGERS = ("batch_size", "num_integration_steps", "num_passes")

ALGORITHMS = tuple(_KEYS)
"""The thesis's names, in its order; ours, a walk, and a fit without settings; and exact
draws, which are not private."""


@dataclass(frozen=True)
class Experiment:
    """A checked file: a model, its budgets, and the settings of every algorithm."""

    model: ThesisModel
    epsilons: tuple[float, ...]
    algorithms: dict[str, dict]


def load(path) -> Experiment:
    """Read and check a file.

    Raises
    ------
    ConfigError
        If it is not TOML, or holds unknown, missing or invalid keys.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    _same_keys(tables, [{"model", "epsilons", "algorithms"}], f"{path}")
    if tables["model"] not in THESIS_MODELS:
        raise ConfigError(
            f"{path}: unknown model {tables['model']!r}, choose from "
            f"{', '.join(THESIS_MODELS)}"
        )
    for epsilon in tables["epsilons"]:
        _positive(epsilon, f"{path}: an entry of epsilons")
    for name, table in tables["algorithms"].items():
        where = f"{path} [algorithms.{name}]"
        if name not in _KEYS:
            raise ConfigError(
                f"{where}: unknown algorithm, choose from {', '.join(ALGORITHMS)}"
            )
        _same_keys(table, _KEYS[name], where)
        for key, value in table.items():
            if key == "metric":
                if value not in ("constant", "geodesic"):
                    raise ConfigError(f"{where}: metric is 'constant' or 'geodesic'")
                continue
            _positive(value, f"{where} {key}")
            if key in _INTEGERS and not isinstance(value, int):
                raise ConfigError(f"{where} {key} must be an integer, got {value}")
        if table.get("laziness", 1.0) > 1:
            raise ConfigError(f"{where} laziness must be at most 1")
    return Experiment(
        THESIS_MODELS[tables["model"]],
        tuple(float(epsilon) for epsilon in tables["epsilons"]),
        tables["algorithms"],
    )


def _positive(value, where):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value > 0):
        raise ConfigError(f"{where} must be a positive number, got {value!r}")


def _same_keys(table, choices, where):
    """Refuse keys that are none of `choices`, naming the closest."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    wanted = min(choices, key=lambda keys: len(keys ^ set(table)))
    if unknown := sorted(set(table) - wanted):
        raise ConfigError(
            f"{where}: unknown key {unknown[0]!r}, expected {', '.join(sorted(wanted))}"
        )
    if missing := sorted(wanted - set(table)):
        raise ConfigError(f"{where} lacks the key {missing[0]!r}")
