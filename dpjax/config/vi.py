"""The table ``[algorithm]`` of variational inference: see `dpjax.config`."""

import functools

import optax

from dpjax import privacy
from dpjax.config.keys import ConfigError, choice, keywords, only
from dpjax.vi.dpvi import dpvi
from dpjax.vi.guides import FullRank, LowRank, MeanField
from dpjax.vi.optimizers import noise_scaled_sgd

__all__ = ["read"]

GUIDES = {"mean_field": MeanField, "low_rank": LowRank, "full_rank": FullRank}
OPTIMIZERS = ("adam", "adagrad", "rmsprop", "sgd", "noise_scaled_sgd")
BRACKET = 0.1, 1e4
"""Noise multipliers among which one that spends the budget is looked for."""


def read(table, dim: int, budget: privacy.Budget, run: dict, outline):
    """`dpvi` and its keyword arguments; no data are read.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    arguments = keywords(dpvi.as_top_level_api)
    required = [*keywords(dpvi.as_top_level_api, required=True), "optimizer"]
    required.remove("noise_multiplier")
    only(table, ["name", *required], ["name", "optimizer", *arguments], "[algorithm]")
    options = {key: value for key, value in table.items() if key != "name"}
    options |= {"guide": _guide(table["guide"], dim)}
    options |= {"optimizer": _optimizer(table["optimizer"], run)}
    if "noise_multiplier" not in table:
        options["noise_multiplier"] = _calibrated(options, budget, run, outline)
    return dpvi, options


def _guide(table, dim):
    only(table, ["name"], ["name", "init_scale", "rank"], "[algorithm] guide")
    guide = GUIDES[choice(table["name"], tuple(GUIDES), "[algorithm] guide name")]
    settings = {key: value for key, value in table.items() if key != "name"}
    return guide(dim, **settings)


def _optimizer(table, run):
    where = "[algorithm] optimizer"
    only(table, ["name"], table, where)
    name = choice(table["name"], OPTIMIZERS, f"{where} name")
    settings = {key: value for key, value in table.items() if key != "name"}
    if name != "noise_scaled_sgd":
        only(table, ["name", "learning_rate"], ["name", "learning_rate"], where)
        return getattr(optax, name)(**settings)
    only(table, ["name"], ["name", "distance"], where)
    if "num_steps" not in run:
        raise ConfigError(f"{where} {name} needs [run] num_steps")
    return noise_scaled_sgd(run["num_steps"], **settings)


def _calibrated(options, budget, run, outline) -> float:
    if "num_steps" not in run:
        raise ConfigError(
            "[algorithm] needs noise_multiplier, or [run] num_steps to spend the "
            "budget on"
        )
    algorithm_fn = functools.partial(dpvi, outline, **options)

    def step_events(noise_multiplier):
        algorithm = algorithm_fn(noise_multiplier=noise_multiplier)
        return algorithm.privacy(run["num_chains"], budget.neighboring_relation)

    return privacy.calibrate(
        step_events,
        num_steps=run["num_steps"],
        epsilon=budget.epsilon,
        delta=budget.delta,
        bracket=BRACKET,
    )
