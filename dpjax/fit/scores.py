"""Scores of a record: gradients of its log-likelihood with respect to the parameters.

Besides the score of the record as observed, there are those that it would have had with
other observations and the same covariates.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

__all__ = [
    "MAX_MEAN",
    "MOVING_END",
    "NUM_CHECKS",
    "NUM_REDRAWS",
    "NUM_SEARCH_REDRAWS",
    "Scores",
    "redrawn_scores",
    "scores_of",
]

NUM_REDRAWS = 64
"""K, the number of observations that are drawn anew for a record. Comparing the record
with them leaves K / (K + 1) of its information, so that the centre of the posterior
draws is off by about K^(-1/2) posterior standard deviations: .25 for 16 redraws, and
.12 for 64, which take up to twice the time."""

NUM_SEARCH_REDRAWS = 8
"""K in the search (`dpjax.fit.search`). The search makes most of the passes over the
records, and it only has to end near the posterior."""

NUM_CHECKS, MAX_MEAN = 4, 0.1
"""Made-up records do not follow a likelihood if the mean of their scores, over so many
positions or at one of them, is above this multiple of the root mean square."""

MOVING_END = (
    "Where the density ends at a parameter, as that of Uniform(0, parameter) does, "
    "gradients do not see the end, and no fit finds it"
)
"""Part of the message of an error about such records."""


class Scores(NamedTuple):
    """The score of a record at a position, and the scores it could have had there.

    The possible scores are called nodes. Let the model hold, and the covariates of the
    record be given. Then either the weighted mean of the nodes is zero, or the observed
    score is one of the nodes and exchangeable with the others.

    A score is a vector of d numbers, one for each component of the flattened position.
    All scores of a record are linear combinations of the same p directions. There may
    be one direction for each parameter of the distribution of the observations, for
    instance. The scores are ``observed @ directions`` and ``nodes @ directions``.

    observed
        Coefficients of the score of the record as observed, ``(p,)``.
    nodes
        Coefficients of the scores with other observations, ``(K, p)``.
    weights
        Probabilities of the nodes, ``(K,)``. They sum to one.
    directions
        The directions, ``(p, d)``.
    """

    observed: jax.Array
    nodes: jax.Array
    weights: jax.Array
    directions: jax.Array

    def gradients(self) -> tuple[jax.Array, jax.Array]:
        """The score as observed, ``(d,)``, and those of the nodes, ``(K, d)``."""
        return self.observed @ self.directions, self.nodes @ self.directions


def scores_of(
    loglikelihood_fn: Callable, position, record, others, weights=None
) -> Scores:
    """`Scores` of a record whose observations could have been those of `others`.

    The directions are the d axes.

    Parameters
    ----------
    loglikelihood_fn
        ``(position, record) -> scalar``.
    position, record
        The position where the gradients are taken, and the record as observed.
    others
        Pytree like `record`, with K records along the leading axis.
    weights
        Probabilities of the others, ``(K,)``. None if the others were drawn from the
        model. The record itself is then one more node, and all nodes have the same
        weight.
    """
    flat, unravel = ravel_pytree(position)

    def score(record):
        return jax.grad(lambda x: loglikelihood_fn(unravel(x), record))(flat)

    everything = jax.tree.map(
        lambda one, more: jnp.concatenate([jnp.asarray(one)[None], more]),
        record,
        others,
    )
    scores = jax.vmap(score)(everything)
    nodes, directions = scores[1:], jnp.eye(flat.size, dtype=flat.dtype)
    if weights is None:
        nodes, weights = scores, jnp.full(len(scores), 1 / len(scores))
    return Scores(scores[0], nodes, weights.astype(scores.dtype), directions)


def redrawn_scores(
    loglikelihood_fn: Callable[[Any, Any], jax.Array],
    simulate_fn: Callable[[jax.Array, Any, Any], Any],
) -> Callable[..., Scores]:
    """A function that computes `Scores` of any model whose observations can be drawn.

    Parameters
    ----------
    loglikelihood_fn
        ``(position, record) -> scalar``.
    simulate_fn
        ``(rng_key, position, record) -> record``: the record with the same covariates
        and with new observations, drawn from the model at the position.

    Returns
    -------
    Callable
        ``(position, record, rng_key, num_redraws=NUM_REDRAWS) -> Scores``. The nodes
        are the record as observed and `num_redraws` redrawn ones. Under the model they
        are exchangeable. So the mean of the observed score less the mean of the nodes
        is zero, however many nodes there are.

    Notes
    -----
    *Formal guarantees.* The scores are a function of the record, the position and the
    key alone.
    """

    def scores_fn(position, record, rng_key, num_redraws=NUM_REDRAWS):
        keys = jax.random.split(rng_key, num_redraws)
        others = jax.vmap(lambda key: simulate_fn(key, position, record))(keys)
        return scores_of(loglikelihood_fn, position, record, others)

    return scores_fn
