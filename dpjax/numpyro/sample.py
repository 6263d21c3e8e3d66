"""Private draws from a NumPyro model with nothing to tune.

1. *Start.* The share `SHARE` of epsilon, about its square of the budget, goes to
   private `scoring`: `ROUNDS` times `SEARCH` steps find the bulk, none of which moves a
   latent by more than `LEAP` prior standard deviations; `REFINE` steps, with less noise
   by `LOUDER`, say where its centre is. Each time one release of the `curvature` there
   corrects the metric. The mean of the last steps is off by s posterior standard
   deviations in every direction, and s is public: given what was released, the
   posterior is about normal, with covariance (1 + s^2) times that of step 2. Chains
   start there, spread evenly (`_around`); the share `WARMUP` of their steps is left out
   of the draws. Where the budget is too small for the walk to mix, draws are still
   those of that approximation, and R-hat says so.
2. *Metric.* The inverse information there: `fisher`, as corrected by what was released.
3. *Walk.* Lazy `dpjax.barker` in that metric. Steps are as long as the rest of the
   budget allows for the wanted number of them, at most `LONGEST` posterior standard
   deviations: with clip bounds in proportion, n steps of length h cost about n h^2.
4. *Clip bound.* The quantile `QUANTILE` of the log ratios of records that the model
   itself draws at the start: for n normal records 3.3 h / sqrt(n), more where their
   law has heavy tails.

Nothing else is learned from the chain (`dpjax.adaptation` can): what a budget of one or
so pays for is worth some ten independent draws, too few to estimate a metric from.
"""

import dataclasses
import functools
import itertools
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import stats

from dpjax import privacy
from dpjax.mcmc.barker import barker
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.curvature import Corrected, curvature
from dpjax.numpyro.fisher import (
    initial_position,
    inverse,
    local_information,
    prior_spread,
)
from dpjax.numpyro.scoring import noise_sd, scoring
from dpjax.posterior import Posterior
from dpjax.runner.results import PrivacyStatement, Run
from dpjax.runner.run import run

__all__ = ["Tuned", "clip_per_step", "sample", "tuned"]

SHARE, LEAP = 0.8, 0.3
ROUNDS, SEARCH, REFINE, LOUDER = 2, 20, 10, 5.0
LAZINESS, LONGEST, WARMUP = 0.2, 1.0, 0.1
QUANTILE, NUM_SIMULATED = 0.999, 20_000


class Tuned(NamedTuple):
    """A sampler for one posterior. Public.

    algorithm_fn
        ``posterior -> Algorithm``, as `dpjax.run` takes it.
    initial_position
        Dict of ``(num_chains, ...)``.
    spent
        ``[(event, count), ...]`` that finding it released.
    """

    algorithm_fn: Callable
    initial_position: dict[str, jax.Array]
    spent: list


def clip_per_step(posterior: Posterior, position, inverse_mass_matrix) -> float:
    """Clip bound in nats per step length in units of the metric; see the module.

    *Formal guarantees.* No data are read: the records are simulated.
    """
    model = model_of(posterior)
    flat, unravel = ravel_pytree(position)
    root = jnp.linalg.cholesky(jnp.asarray(inverse_mass_matrix, flat.dtype))

    @jax.jit
    @jax.vmap
    def slope(rng_key):
        first, second = jax.random.split(rng_key)
        record = model.simulate(first, position)
        direction = jax.random.normal(second, flat.shape, flat.dtype)
        direction = root @ direction / jnp.linalg.norm(direction)
        _, found = jax.jvp(
            lambda x: posterior.loglikelihood_fn(unravel(x), record),
            (flat,),
            (direction,),
        )
        return jnp.abs(found)

    slopes = slope(jax.random.split(jax.random.key(1), NUM_SIMULATED))
    return float(np.quantile(np.asarray(slopes, np.float64), QUANTILE))


def tuned(
    rng_key: jax.Array | None,
    posterior: Posterior,
    *,
    budget: privacy.Budget,
    num_chains: int,
    num_steps: int = 20_000,
    ledger: str | os.PathLike | None = None,
) -> Tuned:
    """Spend a part of the budget on a sampler that spends the rest.

    Parameters
    ----------
    rng_key, ledger
        As in `dpjax.run`.
    posterior
        From `dpjax.numpyro.posterior`, with an ``example`` if its model does not
        generate all of its records.
    budget
        For all: what is found and what is then drawn with it.
    num_chains
        Chains that are to be run.
    num_steps
        Steps of each, of which a fifth read the data.

    Raises
    ------
    ValueError
        As of `fisher_information`; if the number of records would be private.
    BudgetError
        As of `dpjax.run`.

    Notes
    -----
    *Formal guarantees.* The result is released; ``spent`` is its cost.
    """
    relation = budget.neighboring_relation
    if relation == privacy.NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            "metric and clip bounds depend on the number of records, which is private "
            "if one may be added or removed: use REPLACE_ONE"
        )
    largest_move = LEAP * prior_spread(model_of(posterior))
    unconstrained = dataclasses.replace(posterior, constrain_fn=None)

    model = model_of(posterior)
    information = Corrected(local_information(posterior), jnp.eye(model.dim))

    def search(information, noise_multiplier):
        return functools.partial(
            scoring,
            information_fn=information,
            noise_multiplier=LOUDER * noise_multiplier,
            rate=0.5,
            largest_move=largest_move,
        )

    def refine(information, noise_multiplier):
        return functools.partial(
            scoring,
            information_fn=information,
            noise_multiplier=noise_multiplier,
            rate=1.0,
            largest_move=largest_move,
        )

    def bend(information, noise_multiplier):
        return functools.partial(
            curvature, information_fn=information, noise_multiplier=noise_multiplier
        )

    def cost_of_start(noise_multiplier):
        kernels = (search, ROUNDS * SEARCH), (refine, REFINE), (bend, ROUNDS + 1)
        return [
            event
            for kernel, count in kernels
            for event in kernel(information, noise_multiplier)(posterior).privacy(
                count, relation
            )
        ]

    noise_multiplier = privacy.calibrate(
        cost_of_start,
        num_steps=1,
        epsilon=SHARE * budget.epsilon,
        delta=budget.delta,
        bracket=(0.1, 2.0**15 / LOUDER),
        method="gdp",
    )
    rounds = [*ROUNDS * [(search, SEARCH, 0.5)], (refine, REFINE, 0.0)]
    keys = itertools.repeat(None)
    if rng_key is not None:
        keys = iter(jax.random.split(rng_key, 2 * len(rounds)))

    def released(kernel, num_steps, start, warmup_fraction=0.0):
        return run(
            next(keys),
            kernel(information, noise_multiplier),
            unconstrained,
            num_steps,
            initial_position=start,
            num_chains=1,
            budget=budget,
            warmup_fraction=warmup_fraction,
            ledger=ledger,
            verbose=False,
        )

    centre = initial_position(posterior, 1)
    for kernel, count, warmup_fraction in rounds:
        found = released(kernel, count, centre, warmup_fraction)
        centre = jax.tree.map(lambda x: jnp.mean(x, axis=1), found.positions)
        bent = released(bend, 1, centre)
        information = information.again(bent.infos.correction[0, 0])
    centre = _first(centre)
    error = noise_sd(posterior, noise_multiplier) / math.sqrt(REFINE)
    metric = inverse(information, centre)
    per_step = clip_per_step(posterior, centre, metric)

    def walk(step_size):
        return functools.partial(
            barker,
            step_size=step_size,
            clip_bound=step_size * per_step,
            inverse_mass_matrix=metric,
            laziness=LAZINESS,
        )

    step_size = _affordable_length(walk, posterior, budget, num_chains, num_steps)
    starts = _around(centre, (1 + error**2) * metric, num_chains)
    return Tuned(walk(step_size), starts, cost_of_start(noise_multiplier))


def sample(
    rng_key: jax.Array | None,
    posterior: Posterior,
    *,
    budget: privacy.Budget,
    num_chains: int = 20,
    num_steps: int = 20_000,
    thinning: int = 5,
    ledger: str | os.PathLike | None = None,
    verbose: bool = True,
) -> Run:
    """Draws from the posterior of a NumPyro model, for all of a budget.

    Parameters
    ----------
    rng_key, thinning, ledger, verbose
        As in `dpjax.run`.
    posterior, budget, num_chains, num_steps
        As in `tuned`; the number of steps is approximate. Few chains say little of the
        tails: most of what n chains know is where they start, and the range of n
        draws covers (n - 1) / (n + 1).

    Returns
    -------
    Run
        Its statement covers the tuning as well.

    Raises
    ------
    ValueError, BudgetError
        As of `tuned`.
    """
    first, second = (None, None) if rng_key is None else jax.random.split(rng_key)
    with tempfile.TemporaryDirectory() as folder:
        ledger = ledger or Path(folder) / "ledger.jsonl"
        sampler = tuned(
            first,
            posterior,
            budget=budget,
            num_chains=num_chains,
            num_steps=num_steps,
            ledger=ledger,
        )
        result = run(
            second,
            sampler.algorithm_fn,
            posterior,
            initial_position=sampler.initial_position,
            num_chains=num_chains,
            budget=budget,
            thinning=thinning,
            warmup_fraction=WARMUP,
            ledger=ledger,
            verbose=verbose,
        )
    num_steps = result.statement.num_steps
    step = sampler.algorithm_fn(posterior).privacy(1, budget.neighboring_relation)
    events = [(event, count * num_chains * num_steps) for event, count in step]
    statement = PrivacyStatement.of(
        events, budget, num_chains, num_steps, shared=sampler.spent
    )
    statement = statement._replace(randomness=result.statement.randomness)
    if verbose:
        print(f"with the start that was found:\n{statement}")
    return dataclasses.replace(result, statement=statement)


def _affordable_length(walk, posterior, budget, num_chains, num_steps) -> float:
    """See the module docstring, 3."""
    rest = dict(
        epsilon=budget.epsilon * math.sqrt(1 - SHARE**2),
        delta=budget.delta,
        method="rdp",
    )

    def cost(step_size):
        step = walk(step_size)(posterior).privacy(1, budget.neighboring_relation)
        return [(event, count * num_chains) for event, count in step]

    if privacy.max_steps(cost(LONGEST), **rest) >= num_steps:
        return LONGEST
    bracket = (1e-6 * LONGEST, LONGEST)
    return privacy.calibrate(cost, num_steps=num_steps, bracket=bracket, **rest)


def _first(positions):
    return jax.tree.map(lambda leaf: leaf[0], positions)


def _around(centre, covariance, num_chains) -> dict[str, Any]:
    """Starts that represent a normal law: in each direction of the Cholesky factor they
    are its `num_chains` mid-quantiles, stretched to its variance, in random order."""
    flat, unravel = ravel_pytree(centre)
    points = stats.norm.ppf((np.arange(num_chains) + 0.5) / num_chains)
    points /= max(points.std(), 1e-6)
    order = np.tile(points[:, None], (1, flat.size))
    jitter = np.random.default_rng(0).permuted(order, axis=0)
    jitter = jnp.asarray(jitter @ np.linalg.cholesky(covariance).T, flat.dtype)
    return jax.vmap(unravel)(flat[None] + jitter)
