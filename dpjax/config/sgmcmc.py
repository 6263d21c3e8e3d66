"""The table ``[algorithm]`` of stochastic gradient MCMC: see `dpjax.config.job`."""

import functools

import optax

from dpjax import privacy
from dpjax.config.keys import check_keys, keywords, named
from dpjax.config.model import Model
from dpjax.config.run import Run, calibrated
from dpjax.sgmcmc import schedules, sghmc, sgld, sgnht

__all__ = ["SAMPLERS", "read"]

SAMPLERS = {"sgld": sgld, "sghmc": sghmc, "sgnht": sgnht}
SCHEDULES = {
    "power_decay": (schedules.power_decay, ("exponent",)),
    "cosine_decay": (optax.cosine_decay_schedule, ("decay_steps", "alpha")),
}
"""Schedules by name, with the keys that they take beside ``init_value``."""


def read(name: str, table, model: Model, run: Run, budget: privacy.Budget):
    """The sampler and its keyword arguments; no data are read.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    sampler = SAMPLERS[name]
    required, optional = keywords(sampler.as_top_level_api)
    required = [key for key in required if key != "dim"]
    check_keys(table, "[algorithm]", required, ["step_size", *optional])
    options = {**table, "dim": model.dim}
    step_size_fn = _step_size_fn(table.get("step_size", {}))
    if isinstance(step_size_fn, functools.partial):
        first = _first_step_size(sampler, options, step_size_fn, model, run, budget)
        step_size_fn = step_size_fn(first)
    return sampler, {**options, "step_size": step_size_fn}


def _step_size_fn(value):
    """What the key says, or a partial that lacks the size of the first step."""
    if not isinstance(value, dict):
        return value
    if not value:
        return functools.partial(float)
    where = "[algorithm] step_size"
    name, settings = named(value, "schedule", tuple(SCHEDULES), where)
    schedule, keys = SCHEDULES[name]
    check_keys(settings, where, optional=["init_value", *keys])
    if "init_value" in settings:
        return schedule(**settings)
    return functools.partial(schedule, **settings)


def _first_step_size(sampler, options, step_size_fn, model, run, budget) -> float:
    """The size of the first step that spends the budget on the steps of all chains."""

    def events(size):
        given = {**options, "step_size": step_size_fn(size)}
        return run.released(sampler(model.outline, **given), budget, "a step_size")

    def fits(size):
        return privacy.delta(events(size), budget.epsilon) < budget.delta

    high = 1.0
    while fits(high):
        high *= 4
    low = high / 4
    while not fits(low):
        low, high = low / 4, low
    return calibrated(events, budget, (low, high))
