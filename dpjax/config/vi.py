"""The table ``[algorithm]`` for variational inference."""

import optax

from dpjax import privacy
from dpjax.config.keys import (
    NUMBER,
    TABLE,
    TREE,
    ConfigError,
    Key,
    check_keys,
    keys_of,
    named,
)
from dpjax.config.model import Model
from dpjax.config.run import Run, calibrated
from dpjax.vi import dpvi
from dpjax.vi.guides import FullRank, LowRank, MeanField
from dpjax.vi.optimizers import noise_scaled_sgd

__all__ = ["GUIDE_KEYS", "OPTIMIZER_KEYS", "keys", "read"]

GUIDES = {"mean_field": MeanField, "low_rank": LowRank, "full_rank": FullRank}
LEARNING_RATE = {"learning_rate": Key(NUMBER, "As in optax.")}
OPTIMIZER_KEYS = {
    **dict.fromkeys(("adam", "adagrad", "rmsprop", "sgd"), LEARNING_RATE),
    "noise_scaled_sgd": keys_of(noise_scaled_sgd, {"distance": TREE}, ["distance"]),
}
GUIDE_KEYS = {
    "mean_field": keys_of(MeanField, names=["init_scale"]),
    "low_rank": keys_of(LowRank, names=["rank", "init_scale"]),
    "full_rank": keys_of(FullRank, names=["init_scale"]),
}
BRACKET = 0.1, 1e4
"""Range in which the noise multiplier that spends the budget is searched for."""


def keys(name: str) -> dict[str, Key]:
    """The keys of ``[algorithm]`` for the algorithm `name`, except ``name`` itself."""
    found = keys_of(dpvi.as_top_level_api, {"guide": TABLE, "preconditioner": TREE})
    found["noise_multiplier"] = Key(
        NUMBER,
        "Standard deviation of the noise over ``l2_clip_norm``; by default what spends "
        "the budget on ``num_steps``.",
        None,
    )
    optimizer = Key(TABLE, "An optax transformation, or ``noise_scaled_sgd``: below.")
    return {"optimizer": optimizer, **found}


def read(name: str, table, model: Model, run: Run, budget: privacy.Budget):
    """`dpvi` and its keyword arguments; no data are read.

    If no noise multiplier is given, it is set to spend the budget.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    check_keys(table, "[algorithm]", keys(name))
    guide = _guide(table["guide"], model.dim)
    optimizer = _optimizer(table["optimizer"], run)
    options = {**table, "guide": guide, "optimizer": optimizer}
    if "noise_multiplier" not in table:
        options["noise_multiplier"] = _noise_multiplier(options, model, run, budget)
    return dpvi, options


def _guide(table, dim):
    where = "[algorithm] guide"
    name, settings = named(table, "name", GUIDES, where)
    check_keys(settings, where, GUIDE_KEYS[name])
    if settings.get("rank", 0) > dim:
        raise ConfigError(f"{where} rank is at most the {dim} components of a position")
    return GUIDES[name](dim, **settings)


def _optimizer(table, run):
    where = "[algorithm] optimizer"
    name, settings = named(table, "name", OPTIMIZER_KEYS, where)
    check_keys(settings, where, OPTIMIZER_KEYS[name])
    if name != "noise_scaled_sgd":
        return getattr(optax, name)(**settings)
    if "num_steps" not in run.options:
        raise ConfigError(f"{where} {name} needs [run] num_steps")
    return noise_scaled_sgd(run.options["num_steps"], **settings)


def _noise_multiplier(options, model, run, budget) -> float:
    """The noise multiplier with which all chains together spend the budget."""

    def events(noise_multiplier):
        algorithm = dpvi(model.outline, **options, noise_multiplier=noise_multiplier)
        return run.released(algorithm, budget, "noise_multiplier")

    return calibrated(events, budget, BRACKET)
