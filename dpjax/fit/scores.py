"""Gradients of a record's log-likelihood, as observed and as it might have been."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

__all__ = ["Scores", "scores_at"]


class Scores(NamedTuple):
    """What one record says of a position, and what it could have said.

    Under the model, given the record's covariates, either the weighted mean of `nodes`
    is zero, or the observed score is one of `nodes` and exchangeable with the others.

    observed
        Gradient of the log-likelihood of the record, ``(d,)``, over the flattened
        position.
    nodes
        The gradients with other observations, ``(K, d)``.
    weights
        Probabilities of the nodes, ``(K,)``. They sum to one.
    """

    observed: jax.Array
    nodes: jax.Array
    weights: jax.Array


def scores_at(loglikelihood_fn, position, record: Any, others: Any) -> tuple:
    """Gradients at one record, ``(d,)``, and at `others` along an axis, ``(K, d)``."""
    flat, unravel = ravel_pytree(position)

    def score(record):
        return jax.grad(lambda x: loglikelihood_fn(unravel(x), record))(flat)

    everything = jax.tree.map(
        lambda one, more: jnp.concatenate([one[None], more.astype(one.dtype)]),
        record,
        others,
    )
    scores = jax.vmap(score)(everything)
    return scores[0], scores[1:]
