"""The table ``[run]``."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import privacy
from dpjax.algorithm import Algorithm
from dpjax.config.keys import (
    NUMBER,
    NUMBERS,
    SEED,
    ConfigError,
    Key,
    check_keys,
    count_to,
    either,
    keys_of,
    one_of,
    without,
)
from dpjax.config.model import Model
from dpjax.privacy import Budget
from dpjax.privacy.events import repeat
from dpjax.runner.run import run

__all__ = [
    "KEYS",
    "START",
    "Run",
    "calibrated",
    "keys_without_algorithm",
    "read",
    "read_without_algorithm",
]

KEYS = {
    **keys_of(
        run,
        {"num_chains": count_to(100_000)},
        ["num_chains", "num_steps", "thinning", "warmup_fraction"],
    ),
    "unsafe_seed": Key(
        SEED,
        "Makes a job on generated or public data reproducible: whoever knows the seed "
        "can undo the privacy. Without it, randomness is the operating system's "
        "entropy.",
        None,
    ),
}
START = {
    "start": Key(
        either(NUMBER, NUMBERS),
        "The initial position; one number stands for all components. Chains on a "
        "NumPyro model start at `dpjax.numpyro.initial_position`, without ``start`` "
        "and ``start_sd``.",
    ),
    "start_sd": Key(NUMBER, "Standard deviation of the chains' starts about it.", 0.0),
}


class Run(NamedTuple):
    """The content of ``[run]``.

    options
        Keyword arguments of `dpjax.run`, or of the model's `sample_fn`.
    start
        The initial position, a pytree without an axis for chains: the given ``start``,
        or the first chain's position on a NumPyro model. None if `sample_fn` finds it.
    """

    options: dict[str, Any]
    start: Any = None

    def released(self, algorithm: Algorithm, budget: Budget, missing: str) -> list:
        """``[(event, count), ...]`` of all steps of all chains.

        It is used to calibrate a key of ``[algorithm]`` that is left out.

        Parameters
        ----------
        missing
            The name of that key, for the error message.

        Raises
        ------
        ConfigError
            If there is no number of steps.
        """
        if "num_steps" not in self.options:
            raise ConfigError(
                f"[algorithm] needs {missing}, or [run] num_steps to spend the budget "
                "on"
            )
        num_steps, num_chains = self.options["num_steps"], self.options["num_chains"]
        events = algorithm.privacy(num_steps, budget.neighboring_relation)
        return repeat(events, num_chains)


def calibrated(events_fn, budget: Budget, bracket: tuple[float, float]) -> float:
    """The value in `bracket` with which the events of a run spend the budget.

    `events_fn` maps the value to ``[(event, count), ...]`` of the whole run.
    """
    epsilon, delta = budget.epsilon, budget.delta
    return privacy.calibrate(
        events_fn, num_steps=1, epsilon=epsilon, delta=delta, bracket=bracket
    )


def read(table, model: Model) -> Run:
    """The run described by ``[run]``, for a job with an ``[algorithm]``.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    has_start = model.initial_position_fn is not None
    check_keys(table, "[run]", KEYS if has_start else KEYS | START)
    num_chains = table["num_chains"]
    if model.initial_position_fn is None:
        start = np.asarray(table["start"], float)
        start = np.full(model.dim, start) if start.ndim == 0 else start
        if start.shape != (model.dim,):
            raise ConfigError(f"[run] start must be a list of {model.dim} numbers")
        jitter = np.random.default_rng(0).normal(size=(num_chains, model.dim))
        start_sd = table.get("start_sd", START["start_sd"].default)
        positions = jnp.asarray(start + start_sd * jitter)
    else:
        positions = model.initial_position_fn(num_chains)
        start = jax.tree.map(lambda leaf: leaf[0], positions)
    options = _options(without(table, "start", "start_sd"))
    return Run(options | {"initial_position": positions}, start)


def read_without_algorithm(table) -> Run:
    """The run described by ``[run]``, for a job that calls the model's `sample_fn`.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    keys = keys_without_algorithm()
    check_keys(table, "[run] without [algorithm]", keys)
    defaults = {name: key.default for name, key in without(keys, "unsafe_seed").items()}
    return Run(defaults | _options(table))


def keys_without_algorithm() -> dict[str, Key]:
    """The keys of ``[run]`` in a job without an ``[algorithm]``."""
    # NumPyro is not imported by jobs that do not need it.
    from dpjax.numpyro.sample import METHODS, sample

    kinds = {"num_chains": KEYS["num_chains"].kind, "method": one_of(METHODS)}
    keys = keys_of(sample, kinds, ["num_draws", "num_chains", "method", "robust"])
    return keys | {"unsafe_seed": KEYS["unsafe_seed"]}


def _options(table) -> dict[str, Any]:
    """The keyword arguments in the table; ``unsafe_seed`` becomes ``unsafe_key``."""
    options = without(table, "unsafe_seed")
    if "unsafe_seed" in table:
        options["unsafe_key"] = jax.random.key(table["unsafe_seed"])
    return options
