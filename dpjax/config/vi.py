"""The table ``[algorithm]`` of variational inference: see `dpjax.config.job`."""

import optax

from dpjax import privacy
from dpjax.config.keys import ConfigError, check_keys, keywords, named
from dpjax.config.model import Model
from dpjax.config.run import Run, calibrated
from dpjax.vi import dpvi
from dpjax.vi.guides import FullRank, LowRank, MeanField
from dpjax.vi.optimizers import noise_scaled_sgd

__all__ = ["read"]

GUIDES = {"mean_field": MeanField, "low_rank": LowRank, "full_rank": FullRank}
OPTIMIZERS = ("adam", "adagrad", "rmsprop", "sgd", "noise_scaled_sgd")
BRACKET = 0.1, 1e4
"""Range in which a noise multiplier that spends the budget is searched."""


def read(name: str, table, model: Model, run: Run, budget: privacy.Budget):
    """`dpvi` and its keyword arguments; no data are read.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    required, optional = keywords(dpvi.as_top_level_api)
    required = [*(key for key in required if key != "noise_multiplier"), "optimizer"]
    check_keys(table, "[algorithm]", required, ["noise_multiplier", *optional])
    guide = _guide(table["guide"], model.dim)
    optimizer = _optimizer(table["optimizer"], run)
    options = {**table, "guide": guide, "optimizer": optimizer}
    if "noise_multiplier" not in table:
        options["noise_multiplier"] = _noise_multiplier(options, model, run, budget)
    return dpvi, options


def _guide(table, dim):
    where = "[algorithm] guide"
    name, settings = named(table, "name", tuple(GUIDES), where)
    check_keys(settings, where, optional=["init_scale", "rank"])
    return GUIDES[name](dim, **settings)


def _optimizer(table, run):
    where = "[algorithm] optimizer"
    name, settings = named(table, "name", OPTIMIZERS, where)
    if name != "noise_scaled_sgd":
        check_keys(settings, where, ["learning_rate"])
        return getattr(optax, name)(**settings)
    check_keys(settings, where, optional=["distance"])
    if "num_steps" not in run.options:
        raise ConfigError(f"{where} {name} needs [run] num_steps")
    return noise_scaled_sgd(run.options["num_steps"], **settings)


def _noise_multiplier(options, model, run, budget) -> float:
    """The noise that spends the budget on the steps of all chains."""

    def events(noise_multiplier):
        algorithm = dpvi(model.outline, **options, noise_multiplier=noise_multiplier)
        return run.released(algorithm, budget, "noise_multiplier")

    return calibrated(events, budget, BRACKET)
