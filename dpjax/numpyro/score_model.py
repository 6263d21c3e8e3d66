"""What a fit asks of a NumPyro model: scores of records, and what is expected of them.

Expectations are over the observations that a record might have, given its covariates,
and over the covariates of the example, which are public. They are exact where the nodes
of the scores are known (`dpjax.numpyro.nodes`). Simulated records would miss what is
rare, such as the cases of a rare disease.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.fit.compiled import evaluated
from dpjax.fit.inquiry import MAX_MOVE, ScoreModel
from dpjax.fit.scores import NUM_SEARCH_REDRAWS, Scores
from dpjax.fit.sparse import sparse_norm
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.fisher import prior_law, prior_mean, record_information
from dpjax.numpyro.model import Model
from dpjax.numpyro.nodes import are_redrawn, conditional_scores
from dpjax.posterior import Posterior
from dpjax.release.mixed_norm import MixedNorm
from dpjax.release.nominal import nominal_size

__all__ = ["check_center", "score_model", "score_norm"]

MAX_NUMBERS = 2**19
"""Numbers, of all rows of the example together, from which a mean is taken."""

MAX_INFORMATION, MIN_USABLE = 1e12, 0.5
"""What a record may tell of a latent where a fit begins, in units of the prior; and the
least share of the example's records that tell no more."""


def score_model(posterior: Posterior, nominal_num_records: int | None) -> ScoreModel:
    """What `dpjax.fit.score_fit.score_fit` asks of the model of a posterior.

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
    simulated = record_information(posterior, nominal_num_records=nominal_num_records)
    found = ScoreModel(
        conditional_scores(model),
        conditional_scores(model, NUM_SEARCH_REDRAWS),
        None,
        simulated,
        *prior_law(model),
    )
    if are_redrawn(model):
        return found
    size = posterior.tempering * nominal_size(posterior, nominal_num_records)
    expected = functools.partial(_mean_over_rows, model)
    of_one = expected(_information)
    columns = np.eye(model.dim)
    return dataclasses.replace(
        found,
        expected=expected,
        information=lambda position: size * of_one(position, columns)[0],
    )


def _information(scores: Scores) -> list[jax.Array]:
    """The expected information of one record, ``(d, d)``."""
    squares = (scores.nodes * scores.weights[:, None]).T @ scores.nodes
    return [scores.directions.T @ squares @ scores.directions]


def _mean_over_rows(
    model: Model, function: Callable, has_pairs: bool = False
) -> Callable:
    """`dpjax.fit.inquiry.ScoreModel.expected`, over the rows of the example.

    If all rows together make more than `MAX_NUMBERS` numbers, some are left out.
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

        found = jax.vmap(one)(records)
        # Records whose numbers overflow add nothing to the releases, either.
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
    """`dpjax.fit.sparse.sparse_norm` of what records of the example could have said.

    Parameters
    ----------
    posterior, nominal_num_records
        As in `score_model`.
    prior_precision
        Of the components that are asked of, ``(d, d)``.
    kept
        Which components are, if not all.
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

    A fit begins there. Half of the example's records may overflow, as the most extreme
    covariates do in models that are fitted well.

    Raises
    ------
    ValueError
        If what more of them could have said is not finite there, or tells so much of a
        latent, beside its prior, that steps of the search would lead nowhere.
    """
    *_, usable = _center_scores(model)
    if np.any(usable < MIN_USABLE):
        raise ValueError(
            "numbers overflow, or nearly, in what records of the example could have "
            "said at the centre of the prior, where the fit begins, or a third of its "
            "width away: the prior is too wide for the model, as one of standard "
            "deviation 1000 is for the logarithm of a rate. Give the latents priors "
            "that allow for what is possible"
        )


def _center_scores(model: Model):
    """What records of the example could have said about the centre of the prior.

    Returns
    -------
    scores, weights
        There, of m records with K nodes, ``(m, K, d)`` and ``(m, K)``, float64. If
        these are more than `MAX_NUMBERS`, some records are left out.
    is_usable
        Whether a record tells a finite number of each latent, `MAX_INFORMATION` at
        most, ``(m,)``.
    usable
        The share of all records that do, a step before the centre, there, and a step
        behind it, ``(3,)``.
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
