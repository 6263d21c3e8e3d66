"""The `dpjax.fit.inquiry.ScoreModel` of a NumPyro model, and checks of where it begins.

A `ScoreModel` holds the scores of a record, and their expectations. Expectations are
over the observations that a record could have had, given its covariates, and over the
covariates of the example, which are public. If the nodes of the scores are not drawn
(`dpjax.numpyro.nodes`), expectations are weighted sums over the nodes, which include
rare observations such as the cases of a rare disease. Otherwise only the expected
information is computed, as a mean over simulated records.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.compiled import evaluated
from dpjax.fisher import simulated_scores
from dpjax.fit.inquiry import MAX_MOVE, ScoreModel
from dpjax.fit.scores import NUM_SEARCH_REDRAWS, Scores
from dpjax.fit.sparse import sparse_norm
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.fisher import check_simulable, prior_law, prior_mean
from dpjax.numpyro.model import Model
from dpjax.numpyro.nodes import are_redrawn, conditional_scores
from dpjax.posterior import Posterior
from dpjax.release.mixed_norm import MixedNorm
from dpjax.release.nominal import nominal_size

__all__ = ["check_center", "score_model", "score_norm"]

MAX_NUMBERS = 2**19
"""Bound on the number of entries of the scores that are kept in memory at a time, for
all rows of the example together. If there are more, some rows are left out."""

MAX_INFORMATION, MIN_USABLE = 1e12, 0.5
"""Where a fit begins: the largest information of one record about a component of the
latents, in units of the prior's precision; and the least share of the example's records
whose information is finite and below this."""


def score_model(posterior: Posterior, nominal_num_records: int | None) -> ScoreModel:
    """The model that `dpjax.fit.score_fit.score_fit` takes, from a posterior.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`.
    nominal_num_records
        As in `dpjax.sgld`.

    Raises
    ------
    ValueError
        As in `dpjax.numpyro.fisher_information`.
    """
    model = model_of(posterior)
    check_simulable(model)
    size = posterior.tempering * nominal_size(posterior, nominal_num_records)
    if is_redrawn := are_redrawn(model):
        of_one = _over_simulated(simulated_scores(posterior, model.simulate))
    else:
        of_one = _over_nodes(model)

    def information(position):
        """The expected Fisher information of all records, in float64.

        In float32 its rounding grows with the number of records, and looks like
        information about directions of which no record tells anything, such as that of
        an intercept against all effects of a group.
        """
        found = of_one(position)
        with jax.enable_x64(True):
            return size * found

    return ScoreModel(
        conditional_scores(model),
        conditional_scores(model, NUM_SEARCH_REDRAWS),
        None if is_redrawn else functools.partial(_mean_over_rows, model),
        information,
        *prior_law(model),
    )


def _over_simulated(scores_fn: Callable) -> Callable:
    """``position -> (d, d)``: the mean of s s^T over the scores s of `scores_fn`."""

    def mean(position):
        scores = scores_fn(position)
        with jax.enable_x64(True):
            scores = scores.astype(jnp.float64)
            return scores.T @ scores / len(scores)

    return mean


def _over_nodes(model: Model) -> Callable:
    """``position -> (d, d)``: the mean of `_information` over the example's rows."""
    mean, columns = _mean_over_rows(model, _information), np.eye(model.dim)
    return lambda position: mean(position, columns)[0]


def _information(scores: Scores) -> list[jax.Array]:
    """The expected Fisher information of one record, ``(d, d)``, in a list."""
    with jax.enable_x64(True):
        scores = Scores(*(leaf.astype(jnp.float64) for leaf in scores))
        squares = (scores.nodes * scores.weights[:, None]).T @ scores.nodes
        return [scores.directions.T @ squares @ scores.directions]


def _mean_over_rows(
    model: Model, function: Callable, has_pairs: bool = False
) -> Callable:
    """`dpjax.fit.inquiry.ScoreModel.expected`: a mean over the rows of the example.

    If all rows together make more than `MAX_NUMBERS` numbers, only some of the rows,
    evenly spaced, are in the mean. `function` and `has_pairs` are as there.
    """
    scores_fn = conditional_scores(model)

    def of_record(position, record):
        return scores_fn(position, record, jax.random.key(0))

    def mean(position, columns):
        first = jax.tree.map(lambda leaf: leaf[0], model.example)
        nodes = jax.eval_shape(of_record, position, first).nodes
        rows = len(jax.tree.leaves(model.example)[0])
        size = nodes.size * (len(nodes) if has_pairs else 1)
        count = min(rows, max(MAX_NUMBERS // size, 16))
        chosen = np.linspace(0, rows - 1, count).astype(int)
        records = jax.tree.map(lambda leaf: jnp.asarray(leaf)[chosen], model.example)

        def one(record):
            found = of_record(position, record)
            directions = found.directions @ columns.astype(found.directions.dtype)
            return function(found._replace(directions=directions))

        found: Sequence[jax.Array] = jax.vmap(one)(records)
        # A record whose numbers overflow adds nothing to a release, so it is left out
        # of the mean, too.
        with jax.enable_x64(True):
            usable = [jnp.all(jnp.isfinite(leaf), axis=(1, 2)) for leaf in found]
            usable = functools.reduce(jnp.logical_and, usable)
            kept = [jnp.where(usable[:, None, None], leaf, 0) for leaf in found]
            return [jnp.sum(leaf, axis=0) / jnp.sum(usable) for leaf in kept]

    return mean


def score_norm(
    posterior: Posterior,
    nominal_num_records: int | None,
    prior_precision: np.ndarray,
    kept: np.ndarray | None = None,
) -> MixedNorm | None:
    """The norm of `dpjax.fit.sparse.sparse_norm` for the scores of the model, or None.

    It is computed from the scores of the example's records at all of their nodes, at
    the centre of the prior.

    Parameters
    ----------
    posterior, nominal_num_records
        As in `score_model`.
    prior_precision
        Precision of the prior of the d components that the fit estimates, ``(d, d)``.
    kept
        Indices of these components in the flattened position, ``(d,)``; None if they
        are all components.
    """
    scores, weights, is_usable, _ = _center_scores(model_of(posterior))
    scores, weights = scores[is_usable], weights[is_usable]
    weights = weights / max(len(weights), 1)
    scores = scores.reshape(-1, scores.shape[-1])
    return sparse_norm(
        scores if kept is None else scores[:, kept],
        weights.ravel(),
        prior_precision,
        posterior.tempering * nominal_size(posterior, nominal_num_records),
    )


def check_center(model: Model) -> None:
    """Refuse a model whose numbers overflow at the centre of its prior, or a step away.

    A fit begins at the centre. A step is `dpjax.fit.inquiry.MAX_MOVE` prior standard
    deviations of every component.

    Raises
    ------
    ValueError
        If more than half of the example's records, at one of these positions, have
        scores that are not finite, or so much information about a latent, compared with
        the prior, that the search would not move. Half of the records may have, because
        extreme covariates overflow in models that are fitted well, too.
    """
    *_, usable = _center_scores(model)
    if np.any(usable < MIN_USABLE):
        raise ValueError(
            "gradients of the log-likelihoods of records like those of example= "
            "overflow, or nearly, at the centre of the prior, where the fit begins, or "
            f"{MAX_MOVE:g} prior standard deviations from it: the prior is too wide "
            "for the model, as Normal(0, 1000) is for the logarithm of a rate. Give "
            "the latents narrower priors, which allow for what is possible"
        )


def _center_scores(model: Model):
    """Scores of the example's records, at all of their nodes, near the prior's centre.

    Returns
    -------
    scores, weights
        The scores at the centre and the weights of the nodes, ``(m, K, d)`` and
        ``(m, K)``, float64, of m records with K nodes. If all records have more than
        `MAX_NUMBERS` numbers, some are left out.
    is_usable
        Whether the information of a record about each component is finite and at most
        `MAX_INFORMATION` at the centre, ``(m,)``.
    usable
        The share of all records for which this holds, at three positions, ``(3,)``:
        one step below the centre in every component, at the centre, and one step above.
    """
    scores_fn = conditional_scores(model)
    center, unravel = ravel_pytree(prior_mean(model))
    prior_sd = np.sqrt(np.diag(np.linalg.inv(prior_law(model)[1])))
    prior_sd = np.asarray(prior_sd, center.dtype)

    def of_record(flat, record):
        found = scores_fn(unravel(flat), record, jax.random.key(0))
        scores = found.nodes @ found.directions
        squares = found.weights @ scores**2 * prior_sd**2
        return scores, found.weights, jnp.max(squares) <= MAX_INFORMATION

    first = jax.tree.map(lambda leaf: leaf[0], model.example)
    scores, *_ = jax.eval_shape(of_record, center, first)
    rows = len(jax.tree.leaves(model.example)[0])
    count = min(rows, max(MAX_NUMBERS // scores.size, 16))
    chosen = np.linspace(0, rows - 1, count).astype(int)

    def of_records(positions, example):
        def at(flat):
            *found, is_usable = jax.vmap(of_record, (None, 0))(flat, example)
            kept = [leaf[chosen] for leaf in (*found, is_usable)]
            return kept, jnp.mean(is_usable)

        return jax.lax.map(at, positions)

    step = MAX_MOVE * prior_sd
    positions = np.asarray([center - step, center, center + step], center.dtype)
    kept, usable = evaluated(of_records, positions, model.example)
    scores, weights, is_usable = (np.asarray(leaf[1]) for leaf in kept)
    return scores.astype(float), weights.astype(float), is_usable, np.asarray(usable)
