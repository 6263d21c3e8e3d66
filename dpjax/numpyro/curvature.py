"""What the data say about the curvature of a posterior, in one private release.

The information G of `fisher` is that of records that the model makes up; what it does
not generate, such as regressors, comes from a public design. Where that design is
unlike the data, so is G. In units of G, with W W^T = G^-1 and P the information of the
prior, the release

    M = T (sum over records of clip(-W^T hess l_i W) + noise) + W^T P W

is the identity where they are alike. The clip bounds Frobenius norms: if they are
alike, that of a record is about d / T n. The noise is a symmetric matrix, of standard
deviation s on its diagonal and s / sqrt(2) off it, whose spectral norm rarely exceeds
b = (sqrt(2 d) + 1) s. So

    R = V r(e) V^T,   V e V^T = M,   r(e) = 1 if |e - 1| <= b, else max(e, b),

leaves G alone where noise explains the difference, and W^-T R W^-1 is the corrected
information. A direction in which G is far too large needs a second release, in the
units of the first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from dpjax.algorithm import Algorithm, Transition, take_step
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.fisher import prior_information
from dpjax.posterior import Posterior
from dpjax.release.gaussian_sum import GaussianSum

__all__ = ["Corrected", "CurvatureInfo", "CurvatureState", "curvature"]

CLIP = 6.0
"""Clip norm over d / T n."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Corrected:
    """``position -> (d, d)``: the information L C L^T, where L L^T is another's.

    information_fn
        The other: as in `dpjax.fisher.geodesic`.
    correction
        C, ``(d, d)``; for the matrix of `curvature` in units of the other, R.
    """

    information_fn: Callable[[Any], jax.Array] = field(metadata=dict(static=True))
    correction: jax.Array

    def __call__(self, position) -> jax.Array:
        root = jnp.linalg.cholesky(self.information_fn(position))
        return root @ self.correction.astype(root.dtype) @ root.T

    def again(self, correction: jax.Array) -> "Corrected":
        """Corrected by R in units of this information."""
        root = jnp.linalg.cholesky(self.correction)
        return replace(self, correction=root @ correction @ root.T)


class CurvatureState(NamedTuple):
    """Public: the position, which a step does not change."""

    position: Any


class CurvatureInfo(NamedTuple):
    """What a step releases: R, ``(d, d)``."""

    correction: jax.Array


def curvature(
    posterior: Posterior,
    information_fn: Callable[[Any], jax.Array],
    *,
    noise_multiplier: float,
) -> Algorithm:
    """Releases R of the module docstring at the position; it does not sample.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`.
    information_fn
        As in `dpjax.fisher.geodesic`.
    noise_multiplier
        As in `dpjax.release.gaussian_sum.GaussianSum`.

    Notes
    -----
    *Formal guarantees.* A step releases one noisy sum of clipped Hessians, of
    d (d + 1) / 2 numbers, and what follows from it.
    """
    model = model_of(posterior)
    dim = model.dim
    size = dim * (dim + 1) // 2
    effective = posterior.tempering * posterior.num_records
    release = GaussianSum(CLIP * dim / effective, noise_multiplier)
    noise_sd = posterior.tempering * noise_multiplier * release.l2_clip_norm
    threshold = noise_sd * (math.sqrt(2 * dim) + 1)
    rows, columns = jnp.tril_indices(dim)
    of_prior = prior_information(model)

    def correction(words, position):
        flat, unravel = ravel_pytree(position)
        identity = jnp.eye(dim, dtype=flat.dtype)
        root = jnp.linalg.cholesky(information_fn(position)).astype(flat.dtype)
        stretch = solve_triangular(root, identity, lower=True).T
        # The Euclidean norm of what is released is the Frobenius norm of the matrix.
        weights = jnp.where(rows == columns, 1.0, math.sqrt(2)).astype(flat.dtype)

        def packed(record):
            def loglikelihood(z):
                jump = jnp.matmul(stretch, z, precision="highest")
                return posterior.loglikelihood_fn(unravel(flat + jump), record)

            hessian = jax.hessian(loglikelihood)(jnp.zeros_like(flat))
            return -weights * hessian[rows, columns]

        found = posterior.tempering * release(words, posterior, packed)
        lower = jnp.zeros_like(identity).at[rows, columns].set(found / weights)
        matrix = lower + jnp.tril(lower, -1).T
        matrix += stretch.T @ of_prior(position).astype(flat.dtype) @ stretch
        values, vectors = jnp.linalg.eigh(matrix)
        values = jnp.maximum(values, threshold)
        values = jnp.where(jnp.abs(values - 1) > threshold, values, 1.0)
        return (vectors * values) @ vectors.T

    def move(words, state, memory):
        return state, CurvatureInfo(correction(words, state.position)), memory

    def steps(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        return [(release.event(size, neighboring_relation), num_steps)]

    transition = Transition(
        num_words=lambda state: release.num_words(size, posterior.num_records),
        recall=lambda state: None,
        move=move,
        stay=lambda state: CurvatureInfo(jnp.eye(dim)),
    )
    return Algorithm(
        init=lambda position, rng_key=None: CurvatureState(
            jax.tree.map(jnp.asarray, position)
        ),
        step=lambda rng_key, state: take_step(rng_key, state, transition),
        privacy=steps,
        transition=transition,
    )
