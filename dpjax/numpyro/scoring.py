"""Private Fisher scoring: some twenty steps from anywhere to the bulk of a posterior.

Let G be the information of the posterior at theta (`fisher`, public) and W W^T = G^-1.
A step from theta releases a noisy gradient g in units of the metric, and follows it:

    g = T (sum over records of clip(W^T (grad l_i - grad l_i')) + noise)
        + W^T grad log prior,
    theta <- theta + rate W g.

Here l_i is the log-likelihood of record i, and l_i' that of the same record with its
observations drawn anew from the model at theta. If the model holds at theta, the two
are exchangeable, so their clipped difference has mean zero whatever the clip norm and
the law of the regressors. The estimate is therefore not biased by clipping, as it would
be if grad l_i alone were clipped (cf. the conditionally unbiased estimators of bounded
influence of Kuensch, Stefanski and Carroll, 1989). The price is that drawing
observations anew adds the variance of one posterior standard deviation to a step.

In these units the gradient of a record has a norm of about sqrt(d / T n) and that of
the posterior a norm of a few sqrt(d), whatever the model, so one clip norm fits all
models. Scoring serves far from the bulk, where random walks are lost because an accept
bit says little of a slope.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Transition
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.fisher import whitening
from dpjax.posterior import Posterior
from dpjax.release.gaussian_sum import GaussianSum

__all__ = ["ScoringInfo", "SearchState", "noise_sd", "one_sum_a_step", "scoring"]

CLIP_NORM_SCALE = 3.0
"""Clip norm over sqrt(d / T n), the root mean square norm of a record's gradient."""

KEY_WORDS = 2
"""Random words of the key with which observations are drawn anew."""

MAX_STEP_SCALE = 0.2
"""Bound on the norm of a step, over sqrt(T n). The metric changes little along such a
step, which is a fifth of the standard deviation of a posterior given one record."""


class SearchState(NamedTuple):
    """Public: the position."""

    position: Any


class ScoringInfo(NamedTuple):
    """What a step releases: the noisy gradient in units of the metric, ``(d,)``."""

    gradient: jax.Array


def scoring(
    posterior: Posterior,
    fisher_information: Callable[[Any], jax.Array],
    *,
    noise_multiplier: float,
    rate: float,
    largest_move,
) -> Algorithm:
    """Ascent along noisy natural gradients, to search a posterior and not to sample it.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`: what to search, and the data.
    fisher_information
        ``position -> (d, d)``, public and positive definite.
    noise_multiplier
        As in `dpjax.release.gaussian_sum.GaussianSum`.
    rate
        Share of Newton's step that is taken.
    largest_move
        Shape ``(d,)``: how far a step may move each component of the flattened
        position, such as a share of the prior's standard deviation.

    Notes
    -----
    *Formal guarantees.* A step releases one noisy sum, over all records, of clipped
    differences of gradients, and functions of that sum. Each difference depends on one
    record and on random numbers that do not depend on the data.
    """
    model = model_of(posterior)
    dim = model.dim
    release = GaussianSum(_clip_norm(posterior), noise_multiplier)
    longest = MAX_STEP_SCALE * math.sqrt(posterior.tempering * posterior.num_records)

    def move(words, state, memory):
        flat, unravel = ravel_pytree(state.position)
        stretch, at = whitening(fisher_information, state.position)

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
        jump = jnp.matmul(stretch, step, precision="highest")
        position = unravel(flat + jnp.clip(jump, -limit, limit))
        return SearchState(position), ScoringInfo(gradient), memory

    num_words = KEY_WORDS + release.num_words(dim, posterior.num_records)
    transition = Transition(
        lambda state: num_words, move, lambda state: ScoringInfo(jnp.zeros(dim))
    )
    return one_sum_a_step(transition, release, dim)


def one_sum_a_step(transition: Transition, release: GaussianSum, size: int):
    """The algorithm of a public position that releases `size` noisy numbers a step."""

    def init(position, rng_key=None):
        return SearchState(jax.tree.map(jnp.asarray, position))

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        if neighboring_relation != NeighboringRelation.REPLACE_ONE:
            raise ValueError(
                "metric and clip bounds depend on the number of records, which is "
                "secret if one may be added or removed: use REPLACE_ONE"
            )
        return [(release.event(size, neighboring_relation), num_steps)]

    return Algorithm.of(init, transition, privacy)


def noise_sd(posterior: Posterior, noise_multiplier: float) -> float:
    """Sd that noise and new observations give a step's gradient, in posterior sds."""
    private = posterior.tempering * noise_multiplier * _clip_norm(posterior)
    return math.hypot(private, 1.0)


def _clip_norm(posterior) -> float:
    effective = posterior.tempering * posterior.num_records
    return CLIP_NORM_SCALE * math.sqrt(model_of(posterior).dim / effective)
