"""Private Fisher scoring: from anywhere to the posterior's bulk in some twenty steps.

A step from theta, with G the information of the posterior at theta (`fisher`, public)
and W W^T = G^-1, releases the gradient in the metric's units and follows it,

    g = T (sum over records of clip(W^T grad l_i) + noise + n b) + W^T grad log prior,
    theta <- theta + rate W g,

where b is what clipping takes off a record's gradient on average if the model holds at
theta, by records that it simulates: with it, clipping does not move the estimate.

In these units a record's gradient has a norm of about sqrt(d / T n) and the gradient of
the posterior one of a few sqrt(d), whatever the model: one clip norm fits all. It is
where random walks are lost: they feel a slope only as far as an accept bit shows it.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from dpjax.algorithm import Algorithm, Transition, take_step
from dpjax.gradient_release import GradientRelease
from dpjax.numpyro.adapter import model_of
from dpjax.posterior import Posterior

__all__ = ["ScoringInfo", "ScoringState", "noise_sd", "scoring"]

CLIP = 3.0
"""Clip norm over sqrt(d / T n), the root mean square norm of a record's gradient."""

NUM_SIMULATED = 20_000
"""Records that say what clipping takes off."""

RATE = 0.5
"""Share of Newton's step that is taken."""

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
        As in `dpjax.gradient_release.GradientRelease`.
    largest_move
        Shape ``(d,)``: how far a step may move each component of the flattened
        position, such as a share of the prior's standard deviation.

    Notes
    -----
    *Formal guarantees.* A step releases one noisy sum of the clipped gradients of all
    records, and what follows from it.
    """
    dim = _dimension(posterior)
    release = GradientRelease(_clip_norm(posterior), noise_multiplier)
    longest = LONGEST * math.sqrt(posterior.tempering * posterior.num_records)
    model = model_of(posterior)

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

        def loglikelihood(z, record):
            return posterior.loglikelihood_fn(at(z), record)

        start = jnp.zeros_like(flat)
        gradient = release(words, posterior, start, loglikelihood)
        keys = jax.random.split(jax.random.key(2), NUM_SIMULATED)
        made_up = jax.vmap(model.simulate, (0, None))(keys, state.position)
        scores = jax.vmap(jax.grad(loglikelihood), (None, 0))(start, made_up)
        norms = jnp.linalg.norm(scores, axis=1, keepdims=True)
        taken_off = jnp.maximum(0.0, 1 - release.l2_clip_norm / norms) * scores
        # As of the data, gradients that are not finite do not count.
        taken_off = jnp.mean(jnp.where(jnp.isfinite(norms), taken_off, 0.0), axis=0)
        gradient += posterior.tempering * posterior.num_records * taken_off
        gradient += jax.grad(lambda z: posterior.logprior_fn(at(z)))(start)
        step = RATE * gradient
        step /= jnp.maximum(1.0, jnp.linalg.norm(step) / longest)
        limit = jnp.asarray(largest_move, flat.dtype)
        position = unravel(flat + jnp.clip(jump(step), -limit, limit))
        return ScoringState(position), ScoringInfo(gradient), memory

    def steps(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        return [(release.event(dim, neighboring_relation), num_steps)]

    transition = Transition(
        num_words=lambda state: release.num_words(dim, posterior.num_records),
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
    """Sd of the noise on a step's gradient, in posterior standard deviations."""
    return posterior.tempering * noise_multiplier * _clip_norm(posterior)


def _dimension(posterior) -> int:
    shapes = jax.eval_shape(model_of(posterior).draw, jax.random.key(0))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def _clip_norm(posterior) -> float:
    effective = posterior.tempering * posterior.num_records
    return CLIP * math.sqrt(_dimension(posterior) / effective)
