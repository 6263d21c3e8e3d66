"""The row ``fit``: private analyses from releases of scores, without chains.

The row ``exact`` is what as many draws of the posterior itself score.

Every analysis spends a budget of its own. One public rule holds for all models and
budgets: each fit starts at the same position, with the prior of its model. The records
of the circle are squared first, as its likelihood is a density of the squared radius,
that of a normal variable. Its prior is flat; the fit expects the parameters within
about 10 of the origin.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax.fit.simulated import simulated_fit
from dpjax.fit.simulated_draws import draws
from dpjax.models.banana import simulate as simulate_banana
from dpjax.models.gaussian import simulate as simulate_gaussian
from dpjax.models.thesis import ThesisModel
from dpjax.runner.fit import spending

__all__ = ["START", "analyses", "exact", "model_of"]

START = 0.1
"""Every component of the position at which a fit starts."""

NUM_DRAWS = 4_000

CIRCLE_SD = 10.0


def model_of(model: ThesisModel, posterior: dpjax.Posterior):
    """Posterior, simulator of a record, and sampler of the prior."""
    if model.key == "circle":
        return _circle(posterior)
    loglikelihood, logprior = posterior.loglikelihood_fn, posterior.logprior_fn
    if model.key == "hard-gauss-2d":

        def prior_sample_fn(rng_key):
            return logprior.sd * jax.random.normal(rng_key, (model.dim,))

        return posterior, _about_mean, prior_sample_fn
    curvature, sd = loglikelihood.curvature, logprior.precision**-0.5

    def simulate_fn(rng_key, position):
        straight = position.at[1].add(curvature * position[0] ** 2 - 3)
        return straight + simulate_banana(rng_key, 1, model.dim)[0]

    def prior_sample_fn(rng_key):
        straight = sd * jax.random.normal(rng_key, (model.dim,))
        return straight.at[1].add(-curvature * straight[0] ** 2)

    return posterior, simulate_fn, prior_sample_fn


def _about_mean(rng_key, position):
    # `simulate` draws about (0, 3).
    return position.at[1].add(-3) + simulate_gaussian(rng_key, 1)[0]


def _circle(posterior):
    sharpness = posterior.loglikelihood_fn.sharpness

    def loglikelihood_fn(position, record):
        return -sharpness * (jnp.sum(position**2) - record) ** 2

    def simulate_fn(rng_key, position):
        return (
            jnp.sum(position**2) + jax.random.normal(rng_key) / (2 * sharpness) ** 0.5
        )

    squared = dpjax.Posterior(
        posterior.logprior_fn, loglikelihood_fn, posterior.data**2, posterior.tempering
    )
    return squared, simulate_fn, lambda key: CIRCLE_SD * jax.random.normal(key, (2,))


def analyses(model: ThesisModel, posterior, epsilon: float, rng_key, count: int):
    """Independent analyses, each of which spends (epsilon, 0.1 / n).

    Returns
    -------
    draws
        ``(count, NUM_DRAWS, d)``.
    seconds
        Of each analysis ``(count,)``; the first ones compile.
    """
    posterior, simulate_fn, prior_sample_fn = model_of(model, posterior)
    algorithm_fn = functools.partial(
        simulated_fit, simulate_fn=simulate_fn, prior_sample_fn=prior_sample_fn
    )
    budget = dpjax.Budget(epsilon, model.delta)
    noise_multiplier, last = spending(algorithm_fn, posterior, model.dim, budget)

    @jax.jit
    def released(rng_key, posterior):
        algorithm = algorithm_fn(
            posterior, noise_multiplier=noise_multiplier, last=last
        )
        return algorithm.step(rng_key, algorithm.init(start))[1]

    start = jnp.full(model.dim, START)
    found, seconds = [], []
    for key in jax.random.split(rng_key, count):
        began = time.perf_counter()
        fit_key, draw_key = jax.random.split(key)
        info = released(fit_key, posterior)
        positions, _ = draws(
            posterior, info, draw_key, NUM_DRAWS, start, simulate_fn=simulate_fn
        )
        found.append(positions)
        seconds.append(time.perf_counter() - began)
    return np.stack(found), np.array(seconds)


def exact(model: ThesisModel, posterior, rng_key, count: int):
    """As `analyses`, without privacy."""
    keys = jax.random.split(rng_key, count)
    found = [model.exact_sample(key, posterior.data, NUM_DRAWS) for key in keys]
    return np.stack(found), np.zeros(count)
