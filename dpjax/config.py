"""Jobs from TOML files: what to sample, how, for what budget. Unknown keys are errors.

Tables and keys; those without a default are required:

- ``[model]``: ``name`` (``banana``, ``correlated_gaussian``, ``circle`` or
  ``logistic_regression``) and the keyword arguments of that function in
  `dpjax.models`, such as ``curvature``, ``prior_sd`` or ``tempering``.
- ``[data]``: ``source``, either ``generated`` with ``num_records``, ``seed`` and
  ``dim``, or ``adult`` with ``columns`` (``compact`` or ``all``).
- ``[algorithm]``: ``name`` (``barker`` or ``penalty``), ``step_size``, one of
  ``clip_bound`` and ``clip_per_distance``, ``proposal``, and ``laziness`` (barker) or
  ``noise_multiplier`` (penalty).
- ``[privacy]``: ``epsilon``, ``delta``, ``neighboring_relation`` (default
  ``REPLACE_ONE``), ``ledger`` (a file shared by the runs on one data set).
- ``[run]``: ``num_chains``, ``start``, the initial position, with ``start_sd`` of
  jitter (default 0), ``num_steps`` (default: what the budget pays), ``thinning``,
  ``warmup_fraction``, ``seed`` (default: operating system entropy).
"""

import functools
import inspect
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import data, proposals
from dpjax.mcmc.barker import barker
from dpjax.mcmc.penalty import penalty
from dpjax.models.banana import banana
from dpjax.models.banana import simulate as simulate_banana
from dpjax.models.circle import circle
from dpjax.models.circle import simulate as simulate_circle
from dpjax.models.gaussian import correlated_gaussian
from dpjax.models.gaussian import simulate as simulate_gaussian
from dpjax.models.logistic import logistic_regression
from dpjax.posterior import Posterior
from dpjax.privacy import Budget, NeighboringRelation
from dpjax.queries import Lipschitz

__all__ = ["ConfigError", "Job", "load"]

GENERATED = {
    "banana": (banana, simulate_banana),
    "correlated_gaussian": (correlated_gaussian, simulate_gaussian),
    "circle": (circle, simulate_circle),
}
ALGORITHMS = {"barker": barker, "penalty": penalty}
PROPOSALS = ("fixed_length", "gaussian", "one_component", "guided_walk")


class ConfigError(ValueError):
    """The configuration file cannot be run as it stands."""


@dataclass(frozen=True)
class Job:
    """A validated configuration.

    name
        The file's name without its ending.
    algorithm_fn
        ``posterior -> Algorithm``.
    budget
        What the run may spend.
    run
        Keyword arguments for `dpjax.run`.
    seed
        None for operating system entropy.
    outline
        The posterior with one made-up record: all that accounting needs.
    load
        Reads the data; returns the posterior, the parameters' names, and a held-out
        test set of records or None.
    """

    name: str
    algorithm_fn: Callable
    budget: Budget
    run: dict[str, Any]
    seed: int | None
    outline: Posterior
    load: Callable[[], tuple[Posterior, list[str], Any]]


def load(path) -> Job:
    """Read and check a configuration; no data are read.

    Raises
    ------
    ConfigError
        If the file is missing, is not TOML, or holds unknown or invalid keys.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"there is no configuration file {path}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    names = ("model", "data", "algorithm", "privacy", "run")
    _only(tables, names, names, "the file")
    try:
        outline, loader = _model(tables["model"], tables["data"])
        algorithm_fn = _algorithm(tables["algorithm"])
        budget, ledger = _privacy(tables["privacy"])
        run, seed = _run(tables["run"])
        algorithm_fn(outline).privacy(1, budget.neighboring_relation)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return Job(
        path.stem,
        algorithm_fn,
        budget,
        {**run, "ledger": ledger},
        seed,
        outline,
        loader,
    )


def _only(table, required, allowed, where):
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    if unknown := sorted(set(table) - set(allowed)):
        raise ConfigError(
            f"unknown key {unknown[0]!r} in {where}; allowed are {', '.join(allowed)}"
        )
    if missing := [key for key in required if key not in table]:
        raise ConfigError(f"{where} lacks the key {missing[0]!r}")


def _choice(value, allowed, where):
    if value not in allowed:
        raise ConfigError(
            f"{where} must be one of {', '.join(map(str, allowed))}, got {value!r}"
        )
    return value


def _keywords(function):
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind == parameter.KEYWORD_ONLY
    ]


def _model(model, source):
    name = _choice(
        model.get("name"), (*GENERATED, "logistic_regression"), "[model] name"
    )
    options = {key: value for key, value in model.items() if key != "name"}
    if name == "logistic_regression":
        build = logistic_regression
        _only(model, ["name"], ["name", *_keywords(build)], "[model]")
        _only(source, ["source"], ["source", "columns"], "[data]")
        _choice(source["source"], ("adult",), "[data] source")
        columns = source.get("columns", "compact")

        def load_adult():
            splits = data.load_adult()
            features, labels, names = data.adult_features(splits["train"], columns)
            test = data.adult_features(splits["test"], columns)[:2]
            posterior = build(jnp.asarray(features), jnp.asarray(labels), **options)
            return posterior, names, test

        return build(np.zeros((1, 1)), np.zeros(1), **options), load_adult

    build, simulate = GENERATED[name]
    _only(model, ["name"], ["name", *_keywords(build)], "[model]")
    keys = ["source", "num_records", "seed", *(["dim"] if name != "circle" else [])]
    _only(source, keys, keys, "[data]")
    _choice(source["source"], ("generated",), "[data] source")
    shape = [source["num_records"], *([source["dim"]] if name != "circle" else [])]
    if not all(isinstance(size, int) and size > 0 for size in shape):
        raise ConfigError("[data] num_records and dim must be positive integers")

    def generate():
        records = simulate(jax.random.key(source["seed"]), *shape)
        dim = 2 if name == "circle" else source["dim"]
        return build(records, **options), [f"theta[{i}]" for i in range(dim)], None

    return build(np.zeros((1, *shape[1:])), **options), generate


def _algorithm(table):
    name = _choice(table.get("name"), tuple(ALGORITHMS), "[algorithm] name")
    sampler = ALGORITHMS[name]
    keywords = _keywords(sampler.as_top_level_api)
    clips = [key for key in ("clip_bound", "clip_per_distance") if key in table]
    _only(
        table,
        ["name", "step_size"],
        ["name", "step_size", "clip_per_distance", *keywords],
        "[algorithm]",
    )
    if len(clips) != 1:
        raise ConfigError("[algorithm] needs clip_bound or clip_per_distance, not both")
    options = {
        key: value
        for key, value in table.items()
        if key not in ("name", "clip_per_distance")
    }
    if "clip_per_distance" in table:
        options["clip_bound"] = Lipschitz(table["clip_per_distance"])
    if "proposal" in table:
        _choice(table["proposal"], PROPOSALS, "[algorithm] proposal")
        options["proposal"] = getattr(proposals, table["proposal"])
    if name == "penalty" and "noise_multiplier" not in table:
        raise ConfigError("[algorithm] lacks the key 'noise_multiplier'")
    return functools.partial(sampler, **options)


def _privacy(table):
    keys = ("epsilon", "delta", "neighboring_relation", "ledger")
    _only(table, keys[:2], keys, "[privacy]")
    relations = [relation.name for relation in NeighboringRelation]
    relation = _choice(
        table.get("neighboring_relation", "REPLACE_ONE"),
        relations,
        "[privacy] neighboring_relation",
    )
    budget = Budget(table["epsilon"], table["delta"], NeighboringRelation[relation])
    return budget, table.get("ledger")


def _run(table):
    keys = (
        "num_chains",
        "start",
        "start_sd",
        "num_steps",
        "thinning",
        "warmup_fraction",
        "seed",
    )
    _only(table, keys[:2], keys, "[run]")
    chains = table["num_chains"]
    if not (isinstance(chains, int) and chains > 0):
        raise ConfigError("[run] num_chains must be a positive integer")
    start = np.atleast_1d(np.asarray(table["start"], float))
    jitter = np.random.default_rng(0).normal(size=(chains, start.size))
    run = {
        "num_chains": chains,
        "initial_position": jnp.asarray(start + table.get("start_sd", 0.0) * jitter),
    }
    for key in ("num_steps", "thinning", "warmup_fraction"):
        if key in table:
            run[key] = table[key]
    return run, table.get("seed")
