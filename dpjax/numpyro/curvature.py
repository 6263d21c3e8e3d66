"""What the data say about the curvature of a posterior, in one private release.

The information G of `fisher` is an expectation over records that the model makes up.
What the model does not generate, such as regressors, comes from a public design. Where
that design differs from the data, G differs from the posterior's curvature. Let
W W^T = G^-1, and let P be the precision of the prior. The release in units of G,

    M = T (sum over records of clip(-W^T hess l_i W) + noise) + W^T P W,

is the identity where G is right. The clip norm bounds Frobenius norms; where G is
right, that of one record is about d / T n. The noise is a symmetric matrix of standard
deviation s on its diagonal and s / sqrt(2) off it. Its spectral norm rarely exceeds
b = (sqrt(2 d) + 1) s. With the eigendecomposition M = V e V^T, the correction is

    R = V r(e) V^T,   r(e) = 1 if |e - 1| <= b, else max(e, b).

It leaves G as it is where noise explains the difference. With G = L L^T the corrected
information is L R L^T. A direction in which G is far too large takes a second release,
in units of the first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.algorithm import Algorithm, Transition
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.fisher import prior_precision, whitening
from dpjax.numpyro.scoring import one_sum_a_step
from dpjax.posterior import Posterior
from dpjax.release.gaussian_sum import GaussianSum

__all__ = ["Corrected", "CurvatureInfo", "curvature"]

CLIP_NORM_SCALE = 6.0
"""Clip norm over d / T n, about the norm of one record's Hessian."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Corrected:
    """``position -> (d, d)``: the information L C L^T, with L L^T another information.

    fisher_information
        ``position -> (d, d)``, L L^T.
    correction
        C, ``(d, d)``: the identity, or what `curvature` released in units of L L^T.
    """

    fisher_information: Callable[[Any], jax.Array] = field(metadata=dict(static=True))
    correction: jax.Array

    def __call__(self, position) -> jax.Array:
        root = jnp.linalg.cholesky(self.fisher_information(position))
        return root @ self.correction.astype(root.dtype) @ root.T

    def again(self, correction: jax.Array) -> "Corrected":
        """This information corrected by what `curvature` released in units of it."""
        root = jnp.linalg.cholesky(self.correction)
        return replace(self, correction=root @ correction @ root.T)


class CurvatureInfo(NamedTuple):
    """What a step releases: the correction R, ``(d, d)``."""

    correction: jax.Array


def curvature(
    posterior: Posterior,
    fisher_information: Callable[[Any], jax.Array],
    *,
    noise_multiplier: float,
) -> Algorithm:
    """Release the correction R of the module docstring; the position does not change.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`.
    fisher_information
        ``position -> (d, d)``, public and positive definite: G.
    noise_multiplier
        As in `dpjax.release.gaussian_sum.GaussianSum`.

    Notes
    -----
    *Formal guarantees.* A step releases one noisy sum, over all records, of clipped
    Hessians of d (d + 1) / 2 numbers, and functions of that sum.
    """
    model = model_of(posterior)
    dim = model.dim
    size = dim * (dim + 1) // 2
    effective = posterior.tempering * posterior.num_records
    release = GaussianSum(CLIP_NORM_SCALE * dim / effective, noise_multiplier)
    noise_sd = posterior.tempering * noise_multiplier * release.l2_clip_norm
    threshold = noise_sd * (math.sqrt(2 * dim) + 1)
    rows, columns = jnp.tril_indices(dim)
    precision_fn = prior_precision(model)

    def correction(words, position):
        stretch, at = whitening(fisher_information, position)
        dtype = stretch.dtype
        # With these weights the Euclidean norm of the lower triangle, which is
        # released, is the Frobenius norm of the matrix.
        weights = jnp.where(rows == columns, 1.0, math.sqrt(2)).astype(dtype)

        def packed(record):
            def loglikelihood(z):
                return posterior.loglikelihood_fn(at(z), record)

            hessian = jax.hessian(loglikelihood)(jnp.zeros(dim, dtype))
            return -weights * hessian[rows, columns]

        found = posterior.tempering * release(words, posterior, packed)
        lower = jnp.zeros_like(stretch).at[rows, columns].set(found / weights)
        matrix = lower + jnp.tril(lower, -1).T
        matrix += stretch.T @ precision_fn(position).astype(dtype) @ stretch
        values, vectors = jnp.linalg.eigh(matrix)
        values = jnp.maximum(values, threshold)
        values = jnp.where(jnp.abs(values - 1) > threshold, values, 1.0)
        return (vectors * values) @ vectors.T

    def move(words, state, memory):
        return state, CurvatureInfo(correction(words, state.position)), memory

    num_words = release.num_words(size, posterior.num_records)
    transition = Transition(
        lambda state: num_words, move, lambda state: CurvatureInfo(jnp.eye(dim))
    )
    return one_sum_a_step(transition, release, size)
