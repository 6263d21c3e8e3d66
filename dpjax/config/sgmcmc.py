"""The table ``[algorithm]`` of stochastic gradient MCMC: see `dpjax.config`."""

import functools

import optax

from dpjax import privacy
from dpjax.config.keys import ConfigError, choice, keywords, only
from dpjax.sgmcmc import schedules
from dpjax.sgmcmc.sghmc import sghmc
from dpjax.sgmcmc.sgld import sgld
from dpjax.sgmcmc.sgnht import sgnht

__all__ = ["SAMPLERS", "read"]

SAMPLERS = {"sgld": sgld, "sghmc": sghmc, "sgnht": sgnht}
SCHEDULES = {
    "power_decay": (schedules.power_decay, ("exponent",)),
    "cosine_decay": (optax.cosine_decay_schedule, ("decay_steps", "alpha")),
}


def read(table, dim: int, budget: privacy.Budget, run: dict, outline):
    """The sampler and its keyword arguments; no data are read.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    sampler = SAMPLERS[table["name"]]
    required, arguments = (
        [key for key in keywords(sampler.as_top_level_api, is_required) if key != "dim"]
        for is_required in (True, False)
    )
    only(table, ["name", *required], ["name", "step_size", *arguments], "[algorithm]")
    options = {key: value for key, value in table.items() if key in arguments}
    options["dim"] = dim
    step_size_fn = _step_size_fn(table.get("step_size", {}))
    if isinstance(step_size_fn, functools.partial):
        size = _largest(sampler, options, step_size_fn, budget, run, outline)
        step_size_fn = step_size_fn(size)
    return sampler, {**options, "step_size": step_size_fn}


def _step_size_fn(value):
    """What the key says, or a partial that lacks the size of the first step."""
    if not isinstance(value, dict):
        return value
    if not value:
        return functools.partial(float)
    where = "[algorithm] step_size"
    name = choice(value.get("schedule"), tuple(SCHEDULES), f"{where} schedule")
    schedule, keys = SCHEDULES[name]
    only(value, ["schedule"], ["schedule", "init_value", *keys], where)
    settings = {key: number for key, number in value.items() if key != "schedule"}
    if "init_value" in settings:
        return schedule(**settings)
    return functools.partial(schedule, **settings)


def _largest(sampler, options, step_size_fn, budget, run, outline) -> float:
    """The first step size that spends the budget on the steps asked for."""
    if "num_steps" not in run:
        raise ConfigError(
            "[algorithm] needs a step_size, or [run] num_steps to spend the budget on"
        )

    def events(size):
        algorithm = sampler(outline, step_size=step_size_fn(size), **options)
        released = algorithm.privacy(run["num_steps"], budget.neighboring_relation)
        return [(event, count * run["num_chains"]) for event, count in released]

    def fits(size):
        return privacy.delta(events(size), budget.epsilon) < budget.delta

    high = 1.0
    while fits(high):
        high *= 4
    low = high / 4
    while not fits(low):
        low, high = low / 4, low
    return privacy.calibrate(
        events,
        num_steps=1,
        epsilon=budget.epsilon,
        delta=budget.delta,
        bracket=(low, high),
    )
