"""Algorithms of the experiments, built from their settings, and their steps.

Steps are what the budget of one chain pays by a sound accountant. The thesis's own
counts are the same for DP penalty and DP HMC, whose accounting is exact; those of the
minibatch methods are unsound or loose in places (`published.STEPS`).
"""

import functools
import json
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks.thesis import replay
from dpjax import fisher, privacy, proposals
from dpjax.models.thesis import ThesisModel

__all__ = ["ACCOUNTANTS", "Entry", "algorithm", "build"]

ACCOUNTANTS = {
    "dpps": "gdp",
    "dppa": "gdp",
    "mdpps": "pld",
    "mdppa": "pld",
    "barker": "rdp",
    "hmc": "gdp",
    "ours": "rdp",
}
"""Method of `privacy.max_steps`; ``gdp`` is the thesis's tight one."""


class Entry(NamedTuple):
    """One algorithm at one budget.

    algorithm_fn
        ``posterior -> Algorithm``.
    num_steps
        Of a chain.
    laziness
        Share of the steps that read the data.
    step_size
        As it is run.
    accountant
        The method that the steps are counted by.
    replay_fn
        What a step does, with the clipped records counted: see `replay`.
    settings
        What identifies the entry, as text.
    """

    algorithm_fn: Callable
    num_steps: int
    laziness: float
    step_size: float
    accountant: str
    replay_fn: Callable
    settings: str


def build(
    model: ThesisModel, posterior: dpjax.Posterior, name: str, settings: dict, epsilon
) -> Entry:
    """The entry `name` of a model's file, for a budget of (epsilon, 0.1 / n)."""
    accountant = ACCOUNTANTS[name]
    budget = dict(epsilon=epsilon, delta=model.delta, method=accountant)
    num_steps, laziness = None, 1.0
    step_size = settings.get("step_size")
    if name == "ours":
        laziness = settings["laziness"]
        step_size, num_steps = _plan(model, posterior, settings, budget)
    algorithm_fn, replay_fn = algorithm(model, posterior, name, settings, step_size)
    if num_steps is None:
        num_steps = privacy.max_steps(algorithm_fn(posterior).privacy(1), **budget)
    return Entry(
        algorithm_fn,
        num_steps,
        laziness,
        step_size,
        accountant,
        replay_fn,
        json.dumps(settings),
    )


def _plan(model, posterior, settings, budget):
    """Step size and steps of ours.

    As many steps as make `num_passes` over the data on average, with the longest steps
    that the budget pays for then, up to `largest_step_size`; fewer if it does not pay
    for steps of a fixed `step_size`.
    """
    wanted = round(settings["num_passes"] / settings["laziness"])

    def cost(step_size):
        algorithm_fn, _ = algorithm(model, posterior, "ours", settings, step_size)
        return algorithm_fn(posterior).privacy(1)

    if "step_size" in settings:
        step_size = settings["step_size"]
        return step_size, min(privacy.max_steps(cost(step_size), **budget), wanted)
    largest = settings["largest_step_size"]
    if privacy.max_steps(cost(largest), **budget) >= wanted:
        return largest, wanted
    bracket = (largest * 1e-4, largest)
    step_size = privacy.calibrate(cost, num_steps=wanted, bracket=bracket, **budget)
    return step_size, wanted


def algorithm(model, posterior, name, settings, step_size):
    root_n = posterior.num_records**0.5
    identity = np.ones(model.dim)
    if name == "hmc":
        clip_bound = dpjax.Lipschitz(settings["clip_per_distance"])
        path = {key: settings[key] for key in ("num_integration_steps", "l2_clip_norm")}
        path["noise_multiplier"] = 2 * settings["tau_g"] * root_n
        algorithm_fn = functools.partial(
            dpjax.hmc,
            step_size=step_size,
            clip_bound=clip_bound,
            test_noise_multiplier=settings["tau"] * root_n,
            inverse_mass_matrix=identity,
            **path,
        )
        return algorithm_fn, replay.leapfrog(step_size, clip_bound, **path)
    if name == "ours":
        clip_bound = step_size * settings.get(
            "clip_per_step_size",
            settings.get("clip_in_sds", 0.0)
            / math.sqrt(model.tempering * model.num_records),
        )
        fisher_information = model.fisher_information()
        if settings["metric"] == "geodesic":
            proposal, metric = fisher.geodesic(fisher_information), None
        else:
            at_centre = fisher_information(jnp.asarray(model.start_centre))
            proposal = proposals.fixed_length
            metric = np.linalg.inv(np.asarray(at_centre, np.float64))
        algorithm_fn = functools.partial(
            dpjax.barker,
            step_size=step_size,
            clip_bound=clip_bound,
            proposal=proposal,
            inverse_mass_matrix=metric,
            laziness=settings["laziness"],
        )
        proposal = proposals.in_metric(proposal, metric)
        return algorithm_fn, replay.walk(proposal, step_size, clip_bound)
    guided = name in ("dppa", "mdppa")
    proposal = proposals.guided_walk if guided else proposals.gaussian
    parameters = dict(step_size=step_size, proposal=proposal)
    if "batch_size" in settings:
        parameters["batch_size"] = settings["batch_size"]
    if name == "barker":
        clip_bound = 0.99 * settings["batch_size"] ** 0.5
        clip_bound /= model.tempering * model.num_records
        algorithm_fn = functools.partial(dpjax.minibatch_barker, **parameters)
    else:
        clip_bound = dpjax.Lipschitz(settings["clip_per_distance"])
        parameters["clip_bound"] = clip_bound
        if "batch_size" in settings:
            multiplier, sampler = settings["tau"] ** 0.5, dpjax.minibatch_penalty
        else:
            multiplier, sampler = settings["tau"] * root_n, dpjax.penalty
        algorithm_fn = functools.partial(
            sampler, test_noise_multiplier=multiplier, **parameters
        )
    return algorithm_fn, replay.walk(proposal, step_size, clip_bound)
