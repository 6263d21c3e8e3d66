"""Private Fisher scoring: from anywhere to the posterior's bulk in some twenty steps.

A step from theta, with G the information of the posterior at theta (`fisher`, public)
and W W^T = G^-1, releases a gradient in the metric's units and follows it,

    g = T (sum over records of clip(W^T (grad l_i - grad l_i')) + noise)
        + W^T grad log prior,
    theta <- theta + rate W g,

where l_i' is of the same record with its observations drawn anew from the model at
theta. If the model holds there, the two are exchangeable and their clipped difference
has mean zero, whatever the clip norm and the law of the regressors: clipping does not
move the estimate, as the clipped gradient alone would (cf. the conditionally unbiased
estimators of bounded influence of Kuensch, Stefanski and Carroll, 1989). What is drawn
anew adds the variance of one posterior standard deviation to a step.

In these units a record's gradient has a norm of about sqrt(d / T n) and the gradient of
the posterior one of a few sqrt(d), whatever the model: one clip norm fits all. It is
where random walks are lost: they feel a slope only as far as an accept bit shows it.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from dpjax.algorithm import Algorithm, Transition, take_step
from dpjax.numpyro.adapter import model_of
from dpjax.posterior import Posterior
from dpjax.release.gaussian_sum import GaussianSum

__all__ = ["ScoringInfo", "ScoringState", "noise_sd", "scoring"]

CLIP = 3.0
"""Clip norm over sqrt(d / T n), the root mean square norm of a record's gradient."""

KEY_WORDS = 2
"""Words that observations are drawn anew with."""

LONGEST = 0.2
"""Longest step within which the metric is trusted, in units of the standard deviation
that one record leaves."""


class ScoringState(NamedTuple):
    """Public: the position."""

    position: Any


class ScoringInfo(NamedTuple):
    """What a step releases: the noisy gradient in the units of the metric, ``(d,)``."""

    gradient: jax.Array


def scoring(
    posterior: Posterior,
    information_fn: Callable[[Any], jax.Array],
    *,
    noise_multiplier: float,
    rate: float,
    largest_move,
) -> Algorithm:
    """Ascent along noisy natural gradients; it does not sample.

    Parameters
    ----------
    posterior
        Whose bulk is looked for, and the data.
    information_fn
        As in `dpjax.fisher.geodesic`.
    noise_multiplier
        As in `dpjax.release.gaussian_sum.GaussianSum`.
    rate
        Share of Newton's step that is taken.
    largest_move
        Shape ``(d,)``: how far a step may move each component of the flattened
        position, such as a share of the prior's standard deviation.

    Notes
    -----
    *Formal guarantees.* A step releases one noisy sum of clipped differences of
    gradients over all records, each of which depends on one record and public
    randomness, and what follows from it.
    """
    model = model_of(posterior)
    dim = model.dim
    release = GaussianSum(_clip_norm(posterior), noise_multiplier)
    longest = LONGEST * math.sqrt(posterior.tempering * posterior.num_records)

    def init(position, rng_key=None):
        return ScoringState(jax.tree.map(jnp.asarray, position))

    def move(words, state, memory):
        flat, unravel = ravel_pytree(state.position)
        root = jnp.linalg.cholesky(information_fn(state.position)).astype(flat.dtype)
        stretch = solve_triangular(root, jnp.eye(dim, dtype=flat.dtype), lower=True).T

        def jump(z):
            return jnp.matmul(stretch, z, precision="highest")

        def at(z):
            return unravel(flat + jump(z))

        def contrast(z, record, rng_key):
            other = model.observe_anew(rng_key, state.position, record)
            there = at(z)
            loglikelihood = posterior.loglikelihood_fn
            return loglikelihood(there, record) - loglikelihood(there, other)

        start = jnp.zeros_like(flat)
        key_words, words = jnp.split(words, [KEY_WORDS])
        key = jax.random.wrap_key_data(key_words, impl="threefry2x32")
        slope = functools.partial(jax.grad(contrast), start)
        gradient = posterior.tempering * release(words, posterior, slope, rng_key=key)
        gradient += jax.grad(lambda z: posterior.logprior_fn(at(z)))(start)
        step = rate * gradient
        step /= jnp.maximum(1.0, jnp.linalg.norm(step) / longest)
        limit = jnp.asarray(largest_move, flat.dtype)
        position = unravel(flat + jnp.clip(jump(step), -limit, limit))
        return ScoringState(position), ScoringInfo(gradient), memory

    def steps(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        return [(release.event(dim, neighboring_relation), num_steps)]

    transition = Transition(
        num_words=lambda state: (
            KEY_WORDS + release.num_words(dim, posterior.num_records)
        ),
        recall=lambda state: None,
        move=move,
        stay=lambda state: ScoringInfo(jnp.zeros(dim)),
    )
    return Algorithm(
        init=init,
        step=lambda rng_key, state: take_step(rng_key, state, transition),
        privacy=steps,
        transition=transition,
    )


def noise_sd(posterior: Posterior, noise_multiplier: float) -> float:
    """Sd of a step's gradient by noise and new observations, in posterior sds."""
    private = posterior.tempering * noise_multiplier * _clip_norm(posterior)
    return math.hypot(private, 1.0)


def _clip_norm(posterior) -> float:
    effective = posterior.tempering * posterior.num_records
    return CLIP * math.sqrt(model_of(posterior).dim / effective)
