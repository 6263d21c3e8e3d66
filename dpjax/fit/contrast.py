"""Bounded functions of a record's scores, which are summed over records and released.

The score of a record is the gradient of its log-likelihood. If scores are only clipped,
their mean at the true parameters is not zero and depends on the law of the covariates,
so that they estimate something else than the parameters. Here a record's score h_0 is
compared with the scores h_j, called nodes, that it would have had with other
observations. These have the probabilities w_j given the record's covariates
(`dpjax.fit.scores`). If the model holds, the difference has mean zero, whatever the
clip norm and the covariates are. Such estimators are the conditionally unbiased
estimators of bounded influence of Kuensch, Stefanski and Carroll (1989).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.fit.scores import Scores
from dpjax.release.mixed_norm import MixedNorm

__all__ = [
    "Contrast",
    "contrast",
    "curvature",
    "difference",
    "expected_slopes",
    "length",
    "packed",
    "unpacked",
]

CENTRINGS = 6
"""Number of fixed-point iterations that find the centre of the clipped scores."""

MAX_UNROLLED = 8
"""The most directions for which products with them are written as sums, term by term.
XLA's CPU compiler fuses these sums with the operations that follow. Of a product of
small matrices for each record it makes a call, which takes several times as long."""


def length(
    coefficients: jax.Array, directions: jax.Array, norm: MixedNorm | None = None
) -> jax.Array:
    """Norms of ``coefficients @ directions`` over the last axis.

    They are Euclidean norms if `norm` is None. Euclidean norms are at least 1e-15, and
    are computed from products of the p directions with each other, without the vectors.
    """
    if norm is not None:
        single, others = norm.split(directions)
        return norm.of_parts(
            _combined(coefficients, single), length(coefficients, others)
        )
    products = _products(directions)
    if len(directions) > MAX_UNROLLED:
        squares = jnp.sum((coefficients @ products) * coefficients, axis=-1)
    else:
        columns = jnp.moveaxis(coefficients, -1, 0)
        squares = sum(
            column * sum(map(jnp.multiply, row, columns))
            for column, row in zip(columns, products, strict=True)
        )
    return jnp.sqrt(jnp.maximum(squares, 1e-30))


def _combined(coefficients: jax.Array, directions: jax.Array) -> jax.Array:
    """``coefficients @ directions``, written as a sum if the directions are few."""
    if len(directions) > MAX_UNROLLED:
        return coefficients @ directions
    columns = jnp.moveaxis(coefficients, -1, 0)
    terms = [
        jnp.multiply.outer(column, direction)
        for column, direction in zip(columns, directions, strict=True)
    ]
    return functools.reduce(jnp.add, terms)


def _products(directions: jax.Array) -> jax.Array:
    """Inner products of the directions with each other, ``(p, p)``."""
    return jnp.matmul(directions, directions.T, precision="highest")


def difference(scores: Scores) -> jax.Array:
    """The mean over the nodes h_j of clip_1(h_0 - h_j), ``(d,)``.

    Here clip_1 shortens a vector to Euclidean norm one, if it is longer, and the scores
    are in units of the clip norm. The search uses this function, because it needs no
    centre of the clipped nodes, and so works far from the posterior.
    """
    apart = scores.observed[None] - scores.nodes
    shrink = jnp.minimum(1.0, 1.0 / length(apart, scores.directions))
    return (scores.weights * shrink) @ apart @ scores.directions


def expected_slopes(scores: Scores) -> tuple[jax.Array, jax.Array]:
    """The slopes that the model expects of `difference` and of the score, ``(d, d)``.

    The slope is minus the derivative of the mean with respect to the parameters. It is
    the covariance with the score, given the record's covariates.
    """
    nodes, weights, directions = scores.nodes, scores.weights, scores.directions
    apart = nodes[:, None] - nodes[None]
    chances = jnp.minimum(1.0, 1.0 / length(apart, directions))
    chances = chances * jnp.outer(weights, weights) / 2
    kept = jnp.einsum("jk,jkp,jkq->pq", chances, apart, apart)
    whole = (nodes * weights[:, None]).T @ nodes
    return directions.T @ kept @ directions, directions.T @ whole @ directions


def curvature(scores: Scores, reach, bound, own_share=0.0) -> jax.Array:
    """The mean of h h^T over the nodes h, with bounds, ``(d, d)``.

    Parameters
    ----------
    reach
        If h is longer than this, h h^T is multiplied by ``reach / length(h)``. So it
        grows as the square of the length up to `reach`, and beyond it as the length.
    bound
        Bound on the Frobenius norm of the mean.
    own_share
        Weight of the score as observed in the mean. The nodes share the rest.
    """
    vectors = jnp.concatenate([scores.nodes, scores.observed[None]])
    own_share = jnp.asarray(own_share, vectors.dtype)
    chances = jnp.append((1 - own_share) * scores.weights, own_share)
    lengths = length(vectors, scores.directions)
    chances = chances * jnp.minimum(1, reach / lengths)
    moments = (vectors * chances[:, None]).T @ vectors
    found = scores.directions.T @ moments @ scores.directions
    size = jnp.sqrt(jnp.maximum(jnp.sum(found**2), 1e-30))
    return found * jnp.minimum(1, bound / size)


class Contrast(NamedTuple):
    """The clipped score of a record and its moments, in units of the clip norm.

    score
        psi, the clipped and centred score, ``(d,)``. Its norm, which may be a mixed
        norm, is at most one, so its Euclidean norm is at most one as well.
    slope
        J, the slope of psi that the model expects, ``(d, d)``.
    square
        The mean of |psi|^2 under the model, at most one.
    lost
        The amount by which the trace of the slope of psi falls short of that of J, in
        [-1, 1]. Its mean is zero under the model; see `contrast`.
    """

    score: jax.Array
    slope: jax.Array
    square: jax.Array
    lost: jax.Array

    @property
    def excess(self) -> jax.Array:
        """|psi|^2 - E |psi|^2, in [-1, 1]; its mean is zero under the model."""
        return jnp.sum(self.score**2) - self.square


def contrast(scores: Scores, slope_bound, norm: MixedNorm | None = None) -> Contrast:
    """The clipped and centred score of a record, and what the model expects of it.

    Let b be about the centre for which the clipped vectors h_j - b have mean zero. The
    clipped score psi and its slope J are, with sums over the nodes,

        e_j = h_j - b,  omega_j = min(1, 1 / |e_j|),  r = sum w omega e,
        psi = phi (clip_1(e_0) - r),  J = phi sum w omega e e^T,
        E |psi|^2 = phi^2 (sum w |omega e|^2 - |r|^2).

    The factor phi bounds the norms of psi and J. Both phi and r depend on the nodes
    alone, so psi has exactly mean zero under the model, also if b is not exact.

    If the model is wrong, the share of scores that are clipped is not the one that it
    expects, and J is not the slope of the mean of psi. Suppose that there is one
    direction, and that the slope of a record's score does not depend on its
    observation, as in generalised linear models with their natural link: then it is H =
    sum w h h^T. In that case the slope of psi is less than J by

        phi H (1[|e_0| > 1] - sum w 1[|e| > 1]).

    `Contrast.lost` is this number with min(1, phi tr H) in place of phi H.

    Parameters
    ----------
    scores
        In units of the clip norm.
    slope_bound
        Bound on the Frobenius norm of J.
    norm
        The norm in which scores are clipped. None is the Euclidean norm.
    """
    nodes, directions = scores.nodes, scores.directions

    def kept(centre):
        lengths = length(nodes - centre[None], directions, norm)
        return scores.weights * jnp.minimum(1.0, 1.0 / lengths)

    def centring(_, centre):
        chances = kept(centre)
        return chances @ nodes / jnp.sum(chances)

    start = jnp.zeros_like(scores.observed)
    centre = jax.lax.fori_loop(0, CENTRINGS, centring, start)
    chances, apart = kept(centre), nodes - centre[None]
    rest = chances @ apart
    moments = (apart * chances[:, None]).T @ apart
    slope = directions.T @ moments @ directions
    turned = moments @ _products(directions)
    size = jnp.sqrt(jnp.maximum(jnp.sum(turned * turned.T), 1e-30))
    loss = length(rest, directions, norm)
    factor = jnp.minimum(1.0, slope_bound / size) / (1.0 + loss)
    lengths = length(apart, directions, norm)
    squares = jnp.minimum(1.0, lengths) ** 2
    if norm is not None:
        loss = length(rest, directions)
        squares = squares * (length(apart, directions) / lengths) ** 2
    square = factor**2 * (scores.weights @ squares - loss**2)
    own = scores.observed - centre
    size = length(own, directions, norm)
    own = own * jnp.minimum(1.0, 1.0 / size)
    whole = scores.weights @ length(nodes, directions) ** 2
    lost = jnp.minimum(1.0, factor * whole) * (
        (size > 1) - scores.weights @ (lengths > 1).astype(size.dtype)
    )
    return Contrast(factor * (own - rest) @ directions, factor * slope, square, lost)


def packed(matrix):
    """The lower triangle of a symmetric matrix as a vector, ``(d (d + 1) / 2,)``.

    Entries off the diagonal are multiplied by sqrt(2), so that the Euclidean norm of
    the vector is the Frobenius norm of the matrix. NumPy arrays may have leading axes.
    """
    rows, columns = np.tril_indices(matrix.shape[-1])
    weights = np.where(rows == columns, 1.0, 2**0.5)
    return matrix[..., rows, columns] * weights.astype(matrix.dtype)


def unpacked(vector, dim: int):
    """The symmetric ``(dim, dim)`` matrix of a `packed` vector."""
    rows, columns = np.tril_indices(dim)
    places = np.zeros((dim, dim), int)
    places[rows, columns] = places[columns, rows] = np.arange(len(rows))
    weights = np.where(np.eye(dim), 1.0, 2**0.5)
    return vector[..., places] / weights.astype(vector.dtype)
