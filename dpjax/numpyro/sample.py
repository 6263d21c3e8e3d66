"""Private draws from a NumPyro model with nothing to tune.

1. *Start.* The share `SHARE` of epsilon, about its square of the budget, pays for a
   search. `ROUNDS` times `SEARCH` steps of private `scoring` find the bulk. No step
   moves a latent by more than `MAX_MOVE` prior standard deviations. Then `REFINE`
   steps, whose noise is smaller by the factor `LOUDER`, locate the centre of the bulk.
   After each of these stages one release of the `curvature` there corrects the metric.
   The mean of the last steps has an error of s posterior standard deviations in every
   direction, and s is public. Given what was released, the posterior is therefore about
   normal, with covariance (1 + s^2) times that of step 2. Chains start there, spread
   evenly (`_around`), and the share `WARMUP` of their steps is left out of the draws.
   If the budget is too small for the walk to mix, the draws are still those of this
   approximation, and R-hat says so.
2. *Metric.* The inverse of the information there: that of `fisher`, corrected by what
   was released.
3. *Walk.* Lazy `dpjax.barker` in that metric. Clip bounds are proportional to the step
   length h, so n steps cost about n h^2. Steps are as long as the rest of the budget
   allows for the wanted number of steps, and at most `MAX_LENGTH` posterior standard
   deviations.
4. *Clip bound.* The quantile `QUANTILE` of the log ratios of records that the model
   itself draws at the start. For n normal records it is 3.3 h / sqrt(n); it is larger
   for laws with heavy tails.

Nothing else is learned from the chain, although `dpjax.adaptation` could: a budget of
about one pays for some ten independent draws, which are too few to estimate a metric.
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
from dpjax.fisher import inverse_fisher_information
from dpjax.mcmc.barker import barker
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.curvature import Corrected, curvature
from dpjax.numpyro.fisher import initial_position, local_fisher_information, prior_sd
from dpjax.numpyro.scoring import noise_sd, scoring
from dpjax.posterior import Posterior
from dpjax.runner.results import PrivacyStatement, Run
from dpjax.runner.run import run

__all__ = ["Tuned", "clip_per_step", "sample", "tuned"]

SHARE, MAX_MOVE = 0.8, 0.3
ROUNDS, SEARCH, REFINE, LOUDER = 2, 20, 10, 5.0
LAZINESS, MAX_LENGTH, WARMUP = 0.2, 1.0, 0.1
QUANTILE, NUM_SIMULATED = 0.999, 20_000
"""See the module docstring; records are simulated for the quantile."""


class Tuned(NamedTuple):
    """A tuned sampler for one posterior. All of it is public.

    algorithm_fn
        ``posterior -> Algorithm``, as `dpjax.run` takes it.
    initial_position
        Arrays of shape ``(num_chains, ...)`` by latent.
    spent
        ``[(event, count), ...]``: what the tuning released.
    """

    algorithm_fn: Callable
    initial_position: dict[str, jax.Array]
    spent: list


def clip_per_step(posterior: Posterior, position, inverse_mass_matrix) -> float:
    """Clip bound in nats per unit of step length; see 4 of the module docstring.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`, with an ``example`` if its model does not
        generate all of its records.
    position
        Public position at which records are simulated.
    inverse_mass_matrix
        Metric in which step lengths are measured, ``(d, d)``.

    Notes
    -----
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
    posterior: Posterior,
    *,
    budget: privacy.Budget,
    num_chains: int,
    num_steps: int = 20_000,
    ledger: str | os.PathLike | None = None,
    checkpoint: str | os.PathLike | None = None,
    unsafe_key: jax.Array | None = None,
) -> Tuned:
    """Spend a part of the budget on a sampler that spends the rest.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`, with an ``example`` if its model does not
        generate all of its records.
    budget
        Pays for the tuning and for the draws of the tuned sampler.
    num_chains
        Number of chains that the tuned sampler will run.
    num_steps
        Number of steps of each of them, of which a fifth read the data.
    ledger, checkpoint, unsafe_key
        As in `dpjax.run`. There is a file for each run, whose name begins with that of
        `checkpoint`.

    Raises
    ------
    ValueError
        As in `dpjax.numpyro.fisher_information`, or if the neighbouring relation makes
        the number of records private.
    BudgetError
        As in `dpjax.run`.

    Notes
    -----
    *Formal guarantees.* The result is released, at the cost ``spent``.
    """
    relation = budget.neighboring_relation
    model = model_of(posterior)
    largest_move = MAX_MOVE * prior_sd(model)
    search = functools.partial(scoring, rate=0.5, largest_move=largest_move)
    information = Corrected(local_fisher_information(posterior), jnp.eye(model.dim))

    def kernels(information, noise):
        """By stage, in units of an information."""
        given = dict(fisher_information=information, noise_multiplier=noise)
        given_loud = given | dict(noise_multiplier=LOUDER * noise)
        return dict(
            search=functools.partial(search, **given_loud),
            refine=functools.partial(search, **given, rate=1.0),
            bend=functools.partial(curvature, **given),
        )

    def cost_of_start(noise):
        counts = dict(search=ROUNDS * SEARCH, refine=REFINE, bend=ROUNDS + 1)
        return [
            event
            for stage, kernel in kernels(information, noise).items()
            for event in kernel(posterior).privacy(counts[stage], relation)
        ]

    noise = privacy.calibrate(
        cost_of_start,
        num_steps=1,
        epsilon=SHARE * budget.epsilon,
        delta=budget.delta,
        bracket=(0.1, 2.0**15 / LOUDER),
        method="gdp",
    )
    spent = cost_of_start(noise)

    def release(kernel, centre, num_steps, warmup_fraction=0.0):
        return run(
            kernel,
            dataclasses.replace(posterior, constrain_fn=None),
            num_steps,
            initial_position=centre,
            num_chains=1,
            budget=budget,
            warmup_fraction=warmup_fraction,
            ledger=ledger,
            ledger_rule=privacy.AdaptiveRule.renyi(spent, budget),
            checkpoint=next(files),
            verbose=False,
            unsafe_key=next(keys),
        )

    stages = [*ROUNDS * [("search", SEARCH, 0.5)], ("refine", REFINE, 0.0)]
    keys = files = itertools.repeat(None)
    if unsafe_key is not None:
        keys = iter(jax.random.split(unsafe_key, 2 * len(stages)))
    if checkpoint is not None:
        files = (f"{os.fspath(checkpoint)}.{i}" for i in itertools.count(1))
    centre = initial_position(posterior, 1)
    for stage, count, warmup_fraction in stages:
        kernel = kernels(information, noise)
        scored = release(kernel[stage], centre, count, warmup_fraction)
        centre = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=1), scored.positions)
        bent = release(kernel["bend"], centre, 1)
        information = information.again(bent.infos.correction[0, 0])
    centre = jax.tree.map(lambda leaf: leaf[0], centre)
    error = noise_sd(posterior, noise) / math.sqrt(REFINE)
    metric = inverse_fisher_information(information, centre)
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
    return Tuned(walk(step_size), starts, spent)


def sample(
    posterior: Posterior,
    *,
    budget: privacy.Budget,
    num_chains: int = 20,
    num_steps: int = 20_000,
    thinning: int = 5,
    ledger: str | os.PathLike | None = None,
    checkpoint: str | os.PathLike | None = None,
    verbose: bool = True,
    unsafe_key: jax.Array | None = None,
) -> Run:
    """Draw from the posterior of a NumPyro model, and spend all of a budget.

    Parameters
    ----------
    posterior, budget, num_chains, num_steps
        As in `tuned`; the number of steps is approximate. A small number of chains says
        little of the tails. Most of what n chains know is where they start, and the
        range of n independent draws holds a new one with probability (n - 1) / (n + 1).
    thinning, ledger, verbose, unsafe_key
        As in `dpjax.run`.
    checkpoint
        As in `dpjax.run`, for the tuning as well. Once the draws are saved, delete all
        files whose names begin with this one.

    Returns
    -------
    Run
        The draws; the statement covers the tuning as well.

    Raises
    ------
    ValueError, BudgetError
        As in `tuned`.
    """
    first = second = None
    if unsafe_key is not None:
        first, second = jax.random.split(unsafe_key)
    with tempfile.TemporaryDirectory() as folder:
        common: dict[str, Any] = dict(
            budget=budget,
            num_chains=num_chains,
            ledger=ledger or f"{checkpoint or Path(folder) / 'run'}.ledger",
            checkpoint=checkpoint,
        )
        sampler = tuned(posterior, num_steps=num_steps, unsafe_key=first, **common)
        result = run(
            sampler.algorithm_fn,
            posterior,
            initial_position=sampler.initial_position,
            thinning=thinning,
            warmup_fraction=WARMUP,
            verbose=verbose,
            unsafe_key=second,
            **common,
        )
    num_steps = result.statement.num_steps
    step = sampler.algorithm_fn(posterior).privacy(1, budget.neighboring_relation)
    events = [(event, count * num_chains * num_steps) for event, count in step]
    statement = PrivacyStatement.of(
        events, budget, num_chains, num_steps, shared=sampler.spent
    )._replace(randomness=result.statement.randomness)
    if verbose:
        print(f"with the start that was found:\n{statement}")
    return dataclasses.replace(result, statement=statement)


def _affordable_length(walk, posterior, budget, num_chains, num_steps) -> float:
    """The step length of the walk; see 3 of the module docstring."""
    rest: dict[str, Any] = dict(
        epsilon=budget.epsilon * math.sqrt(1 - SHARE**2),
        delta=budget.delta,
        method="rdp",
    )

    def cost(step_size):
        step = walk(step_size)(posterior).privacy(1, budget.neighboring_relation)
        return [(event, count * num_chains) for event, count in step]

    if privacy.max_steps(cost(MAX_LENGTH), **rest) >= num_steps:
        return MAX_LENGTH
    bracket = (1e-6 * MAX_LENGTH, MAX_LENGTH)
    return privacy.calibrate(cost, num_steps=num_steps, bracket=bracket, **rest)


def _around(centre, covariance, num_chains) -> dict[str, Any]:
    """Starts that represent the normal law with this centre and covariance.

    In each direction of the covariance's Cholesky factor they are the `num_chains`
    mid-quantiles of the law, scaled to its variance, in random order.
    """
    flat, unravel = ravel_pytree(centre)
    points = stats.norm.ppf((np.arange(num_chains) + 0.5) / num_chains)
    points /= max(points.std(), 1e-6)
    order = np.tile(points[:, None], (1, flat.size))
    jitter = np.random.default_rng(0).permuted(order, axis=0)
    jitter = jnp.asarray(jitter @ np.linalg.cholesky(covariance).T, flat.dtype)
    return jax.vmap(unravel)(flat[None] + jitter)
