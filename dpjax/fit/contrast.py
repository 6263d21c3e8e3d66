"""What a record adds to a release: bounded functions of its scores, of mean zero.

The score of a record is the gradient of its log-likelihood. Clipped scores have a mean
that depends on the law of the covariates, so they estimate something else than the
parameters. Here a record's score h_0 is compared with the scores h_j that it would have
had with other observations, which have the chances w_j given its covariates
(`dpjax.fit.scores`). If the model holds, the difference has mean zero whatever the clip
norm and the covariates: the conditionally unbiased estimators of bounded influence of
Kuensch, Stefanski and Carroll (1989).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

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
"""Steps of the fixed point for the centre of the clipped scores."""

MAX_UNROLLED = 8
"""Directions up to which lengths are sums of products written one by one. XLA's CPU
compiler fuses them with what is done to the lengths; of a product of small matrices for
each record it makes a call, which takes several times as long."""


def length(
    coefficients: jax.Array, directions: jax.Array, norm: MixedNorm | None = None
) -> jax.Array:
    """Norms of ``coefficients @ directions`` over the last axis.

    They are Euclidean unless another norm is given, and at least a tiny number.
    Euclidean ones only need products of the p directions with each other, not the
    vectors.
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
    """``coefficients @ directions``, as a sum of products if these are few."""
    if len(directions) > MAX_UNROLLED:
        return coefficients @ directions
    columns = jnp.moveaxis(coefficients, -1, 0)
    terms = [
        jnp.multiply.outer(column, direction)
        for column, direction in zip(columns, directions, strict=True)
    ]
    return functools.reduce(jnp.add, terms)


def _products(directions: jax.Array) -> jax.Array:
    """Of the directions with each other, ``(p, p)``."""
    return jnp.matmul(directions, directions.T, precision="highest")


def difference(scores: Scores) -> jax.Array:
    """Mean of clip_1(h_0 - h_j) over the nodes, ``(d,)``.

    The scores are in units of the clip norm. This contrast needs no centre, so it
    serves far from the posterior.
    """
    apart = scores.observed[None] - scores.nodes
    shrink = jnp.minimum(1.0, 1.0 / length(apart, scores.directions))
    return (scores.weights * shrink) @ apart @ scores.directions


def expected_slopes(scores: Scores) -> tuple[jax.Array, jax.Array]:
    """The slopes that the model expects of `difference` and of the score, ``(d, d)``.

    They are the covariances with the score, given the record's covariates.
    """
    nodes, weights, directions = scores.nodes, scores.weights, scores.directions
    apart = nodes[:, None] - nodes[None]
    chances = jnp.minimum(1.0, 1.0 / length(apart, directions))
    chances = chances * jnp.outer(weights, weights) / 2
    kept = jnp.einsum("jk,jkp,jkq->pq", chances, apart, apart)
    whole = (nodes * weights[:, None]).T @ nodes
    return directions.T @ kept @ directions, directions.T @ whole @ directions


def curvature(scores: Scores, reach, bound, own_share=0.0) -> jax.Array:
    """The mean of h h^T over the nodes, of Frobenius norm `bound` at most, ``(d, d)``.

    It grows as the square of the length of h up to `reach`, and beyond it as the
    length. The score as observed counts for `own_share`, and the nodes for the rest.
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
    """What a record's scores say, in units of the clip norm.

    score
        psi, the clipped and centred score, ``(d,)``, of norm at most one. The Euclidean
        norm is no larger.
    slope
        J, the slope that the model expects of it, ``(d, d)``.
    square
        The mean of |psi|^2 under the model, at most one.
    lost
        By how much the trace of the slope of psi falls short of what the model expects,
        in [-1, 1]; see `contrast`.
    """

    score: jax.Array
    slope: jax.Array
    square: jax.Array
    lost: jax.Array

    @property
    def excess(self) -> jax.Array:
        """|psi|^2 - E |psi|^2, of mean zero under the model, in [-1, 1]."""
        return jnp.sum(self.score**2) - self.square


def contrast(scores: Scores, slope_bound, norm: MixedNorm | None = None) -> Contrast:
    """The clipped and centred score of a record, and what the model expects of it.

    With b about the centre at which the clipped nodes have mean zero, and the sums over
    nodes,

        e_j = h_j - b,  omega_j = min(1, 1 / |e_j|),  r = sum w omega e,
        psi = phi (clip_1(e_0) - r),  J = phi sum w omega e e^T,
        E |psi|^2 = phi^2 (sum w |omega e|^2 - |r|^2),

    where phi bounds both norms. It depends on the covariates alone, as r does, so psi
    has mean zero under the model, exactly.

    If the model is wrong, another share of the scores is clipped, and J is not the
    slope of the mean of psi. With one direction and a slope H = sum w h h^T of scores
    that does not depend on the observation, as in generalised linear models with their
    natural link, the slope is less than J by

        phi H (1[|e_0| > 1] - sum w 1[|e| > 1]).

    Parameters
    ----------
    scores
        In units of the clip norm.
    slope_bound
        Bound on the Frobenius norm of J.
    norm
        In which scores are clipped, in place of the Euclidean one.
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


def packed(matrix: jax.Array) -> jax.Array:
    """The lower triangle of a symmetric matrix, with its Frobenius norm.

    Entries off the diagonal are multiplied by sqrt(2).
    """
    rows, columns, weights = _triangle(len(matrix), matrix.dtype)
    return matrix[rows, columns] * weights


def unpacked(vector: jax.Array, dim: int) -> jax.Array:
    """The symmetric ``(dim, dim)`` matrix of a `packed` vector."""
    rows, columns, weights = _triangle(dim, vector.dtype)
    lower = jnp.zeros((dim, dim), vector.dtype).at[rows, columns].set(vector / weights)
    return lower + jnp.tril(lower, -1).T


def _triangle(dim: int, dtype):
    rows, columns = jnp.tril_indices(dim)
    return rows, columns, jnp.where(rows == columns, 1.0, 2**0.5).astype(dtype)
