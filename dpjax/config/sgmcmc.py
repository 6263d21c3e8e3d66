"""The table ``[algorithm]`` for stochastic gradient MCMC."""

import functools

import optax

from dpjax import privacy
from dpjax.config.keys import (
    NUMBER,
    TABLE,
    Key,
    check_keys,
    either,
    keys_of,
    named,
    without,
)
from dpjax.config.model import Model
from dpjax.config.run import Run, calibrated
from dpjax.sgmcmc import schedules, sghmc, sgld, sgnht

__all__ = ["SAMPLERS", "SCHEDULES", "keys", "read"]

SAMPLERS = {"sgld": sgld, "sghmc": sghmc, "sgnht": sgnht}

STEP_SIZE = Key(
    either(NUMBER, TABLE),
    "A number, or the table of a schedule. By default, and without an ``init_value``, "
    "the first step is as long as the budget pays for with ``num_steps``.",
    None,
)
INIT_VALUE = Key(NUMBER, "Size of the first step: see ``step_size``.", None)
FUNCTIONS = {
    "power_decay": schedules.power_decay,
    "cosine_decay": optax.cosine_decay_schedule,
}
COSINE = keys_of(FUNCTIONS["cosine_decay"], {"alpha": NUMBER}, ["decay_steps", "alpha"])
SCHEDULES = {
    "power_decay": {
        "init_value": INIT_VALUE,
        **keys_of(FUNCTIONS["power_decay"], names=["exponent"]),
    },
    "cosine_decay": {
        "init_value": INIT_VALUE,
        "decay_steps": COSINE["decay_steps"]._replace(
            meaning="After how many steps the step size is constant."
        ),
        "alpha": COSINE["alpha"]._replace(
            meaning="The share of the first step size that it then has."
        ),
    },
}
"""For each schedule, the keys of the table ``step_size`` except ``schedule``."""


def keys(name: str) -> dict[str, Key]:
    """The keys of ``[algorithm]`` for the sampler `name`, except ``name`` itself."""
    found = keys_of(SAMPLERS[name].as_top_level_api)
    return {"step_size": STEP_SIZE, **without(found, "dim")}


def read(name: str, table, model: Model, run: Run, budget: privacy.Budget):
    """The sampler and its keyword arguments; no data are read.

    If no size of the first step is given, it is set to spend the budget.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    sampler = SAMPLERS[name]
    check_keys(table, "[algorithm]", keys(name))
    options = {**table, "dim": model.dim}
    step_size_fn = _step_size_fn(table.get("step_size", {}))
    if isinstance(step_size_fn, functools.partial):
        first = _first_step_size(sampler, options, step_size_fn, model, run, budget)
        step_size_fn = step_size_fn(first)
    return sampler, {**options, "step_size": step_size_fn}


def _step_size_fn(value):
    """The step size, a number or a schedule, that the key ``step_size`` describes.

    If the key gives no size of the first step, a `functools.partial` is returned that
    makes the step size from it.
    """
    if not isinstance(value, dict):
        return value
    if not value:
        return functools.partial(float)
    where = "[algorithm] step_size"
    name, settings = named(value, "schedule", SCHEDULES, where)
    check_keys(settings, where, SCHEDULES[name])
    schedule = FUNCTIONS[name]
    if "init_value" in settings:
        return schedule(**settings)
    return functools.partial(schedule, **settings)


def _first_step_size(sampler, options, step_size_fn, model, run, budget) -> float:
    """The size of the first step with which all chains together spend the budget.

    `step_size_fn` makes the step size from it.
    """

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
