"""Draws of the posterior that a fit's last release implies. Reads no data.

A draw solves n m(t) = S + N(0, Sigma) for t, so that draws are independent; they are
resampled with weights prior(t) / |det m'(t)|. Near theta the mean of clip(g) under the
model at t is one of records at theta, weighted with their likelihood ratios w,

    m(t) = m(theta) + E[(w(x) - 1) (clip(g) - m(theta))],    w = p(x | t) / p(x | theta),

which needs no simulation at t, and holds for discrete records as well. The term that is
linear in t - theta is replaced by that of many more records.
"""

from functools import partial
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from dpjax.fit.record_model import RecordModel, Window
from dpjax.fit.simulated import Released
from dpjax.posterior import Posterior

__all__ = ["draws"]

NUM_NEAR = 2048
"""Records whose likelihood ratios make up m(t)."""

NUM_SLOPE = 2048
"""Of them, those whose scores make up the slope of m."""

MAX_STEPS = 20
TOLERANCE = 0.01

EXCESS = 1.25
"""Equations that are solved, over draws."""

MAX_RESIDUAL = 0.02
"""Of a solution, in sds of the released sum."""


def draws(
    rng_key: jax.Array,
    posterior: Posterior,
    simulate_fn: Callable[[jax.Array, Any], Any],
    released: Released,
    num_draws: int,
    num_records: int,
):
    """Independent draws.
    """
    with jax.enable_x64(True):
        released = jax.tree.map(lambda x: jnp.asarray(x, float), released)
        flat, unravel = ravel_pytree(released.position)
        count = int(EXCESS * num_draws)
        solutions, residuals, log_weights, counts = _solve(
            rng_key, released, posterior.logprior_fn, posterior.loglikelihood_fn, simulate_fn,
            posterior.tempering, num_records, count)
        usable = residuals < MAX_RESIDUAL
        log_weights = np.where(usable, log_weights, -np.inf)
        weights = np.exp(log_weights - log_weights.max())
        print('steps',np.mean(counts),np.max(counts),'usable', np.mean(usable), 'ess', weights.sum()**2/(weights**2).sum()/count)
        offset = float(jax.random.uniform(jax.random.fold_in(rng_key, 1)))
        cumulated = np.cumsum(weights) / weights.sum()
        chosen = np.searchsorted(cumulated, (np.arange(num_draws) + offset) / num_draws)
        chosen = np.random.default_rng(0).permutation(chosen)
        return np.asarray(solutions)[chosen]


@partial(jax.jit, static_argnums=(2, 3, 4, 5, 6, 7))
def _solve(rng_key, released, logprior_fn, loglikelihood_fn, simulate_fn, tempering, num_records, count):
    center, unravel = ravel_pytree(released.position)
    model = RecordModel(
        lambda t, record: loglikelihood_fn(unravel(t), record),
        lambda rng_key, t: simulate_fn(rng_key, unravel(t)), True)
    window = Window(center, released.whitening, released.l2_clip_norm)
    records = model.simulate(center, NUM_NEAR)
    scores = model.scores(center, records)
    clipped = window(scores) - released.mean[None]
    excess_slope = released.slope - clipped.T @ scores / NUM_NEAR
    loglikelihoods = jax.vmap(model.loglikelihood_fn, (None, 0))
    base = loglikelihoods(center, records)
    root = jnp.linalg.cholesky(released.covariance)

    first = jax.tree.map(lambda leaf: leaf[:NUM_SLOPE], records)

    def residual_of(t, normal):
        ratios = jnp.exp(loglikelihoods(t, records) - base)
        mean = released.mean + (ratios - 1) @ clipped / NUM_NEAR
        mean = mean + excess_slope @ (t - center)
        difference = num_records * mean - released.total
        return solve_triangular(root, difference, lower=True) - normal

    def slope_of(t):
        ratios = jnp.exp(loglikelihoods(t, first) - base[:NUM_SLOPE])
        weighted = ratios[:, None] * clipped[:NUM_SLOPE]
        slope = weighted.T @ model.scores(t, first) / NUM_SLOPE
        slope0 = clipped[:NUM_SLOPE].T @ scores[:NUM_SLOPE] / NUM_SLOPE
        return released.slope + slope - slope0

    start = jnp.linalg.inv(solve_triangular(root, num_records * released.slope, lower=True))

    def solve(normal):
        def more(carry):
            _, residual, _, count = carry
            return (jnp.max(jnp.abs(residual)) > TOLERANCE) & (count < MAX_STEPS)

        def turn(carry):
            t, residual, inverse, count = carry
            step = -inverse @ residual
            now = residual_of(t + step, normal)
            # Broyden's (1965) first update of the inverse slope.
            moved = inverse @ (now - residual)
            change = jnp.outer(step - moved, step @ inverse) / (step @ moved)
            return t + step, now, inverse + change, count + 1

        carry = center, residual_of(center, normal), start, 0
        t, residual, _, count = jax.lax.while_loop(more, turn, carry)
        log_weight = logprior_fn(unravel(t)) - jnp.linalg.slogdet(slope_of(t))[1]
        return t, jnp.max(jnp.abs(residual)), log_weight, count

    normals = jax.random.normal(rng_key, (count, center.size))
    return jax.lax.map(solve, normals, batch_size=64)
