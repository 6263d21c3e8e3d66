"""Gradients of a record's log-likelihood, as observed and as it might have been."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

__all__ = [
    "NUM_REDRAWS",
    "NUM_SEARCH_REDRAWS",
    "Scores",
    "redrawn_scores",
    "scores_of",
]

NUM_REDRAWS = 64
"""K, of observations that are drawn anew for a record. They leave K / (K + 1) of what
it tells, so that the centre of the draws is off by about K^(-1/2) posterior sds: .25
for 16, and .12 for 64, which take up to twice the time."""

NUM_SEARCH_REDRAWS = 8
"""K in the search, whose steps are most of the passes over the records. It only has to
end near the posterior."""


class Scores(NamedTuple):
    """What one record says of a position, and what it could have said.

    Under the model, given the record's covariates, the weighted mean of `nodes` is
    zero, or the observed score is one of `nodes` and exchangeable with the others.

    Gradients of log-likelihoods over the flattened position are combinations of p
    directions, such as one direction for each parameter of the record's law.

    observed
        Coefficients of the gradient of the record as observed, ``(p,)``.
    nodes
        Those of the gradients with other observations, ``(K, p)``.
    weights
        Probabilities of the nodes, ``(K,)``. They sum to one.
    directions
        ``(p, d)``: the gradients are ``observed @ directions``, ``nodes @ directions``.
    """

    observed: jax.Array
    nodes: jax.Array
    weights: jax.Array
    directions: jax.Array

    def gradients(self) -> tuple[jax.Array, jax.Array]:
        """The gradients ``(d,)`` as observed and ``(K, d)`` at the nodes."""
        return self.observed @ self.directions, self.nodes @ self.directions


def scores_of(
    loglikelihood_fn: Callable, position, record, others, weights=None
) -> Scores:
    """Scores of a record whose observations could have been those of `others`.

    Parameters
    ----------
    loglikelihood_fn
        ``(position, record) -> scalar``.
    position, record
        Where the gradients are taken, and the record as observed.
    others
        Pytree like `record`, with K records along the leading axis.
    weights
        Probabilities of the others, ``(K,)``. None if they were drawn from the model;
        then the record is one more node, and all have the same weight.
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
    """Scores of any model whose observations can be drawn.

    Parameters
    ----------
    loglikelihood_fn
        ``(position, record) -> scalar``.
    simulate_fn
        ``(rng_key, position, record) -> record``: the record with its observations
        drawn from the model at the position, and its covariates as they are.

    Returns
    -------
    Callable
        ``(position, record, rng_key, num_redraws=NUM_REDRAWS) -> Scores``. The nodes
        are the record as observed and the others: under the model they are
        exchangeable, so their mean is zero however many they are.

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
