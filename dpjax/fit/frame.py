"""Coordinates in which the expected information of a posterior is the identity.

Let F be the expected Fisher information of all records at a public position, P the
precision of the prior, and L L^T = F + P. The covariates of the records may differ from
the public ones from which F is computed, and then F is wrong. So a fit releases a
correction R, and L R L^T stands for the information F + P. In directions of which F
says that the records tell nothing, such as that of an intercept against all effects of
a group, R is replaced by the identity. Otherwise corrections along single parameters
would make the records seem to tell something there. The directions of the frame are the
columns of the matrix T with

    T^T L R L^T T = I,   T^T P T = diag(1 - gamma).

A unit along a column of T is one posterior standard deviation in that direction, and
its gamma is the share of the information there that is expected from the records. A
frame is public.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from dpjax.release.mixed_norm import MixedNorm

__all__ = ["Frame", "frame", "sparse_turn"]

MIN_DATA_SHARE = 1e-3
"""Least gamma of a direction in which the scores of the records are released."""

MIN_PRIOR_SHARE = 1e-8
"""Least 1 - gamma. If the prior is vague, rounding could make 1 - gamma negative."""


class Frame(NamedTuple):
    """A frame at a position, in float64 arrays.

    stretch
        T, ``(d, d)``.
    back
        T^-1, ``(d, d)``.
    correction_root
        A matrix K with R = K K^T, which is L^-1 T^-T, ``(d, d)``.
    data_share
        gamma, ``(d,)``. It is zero for directions that are not measured.
    is_measured
        Which directions are measured: scores are released in these, ``(d,)``.
    turn
        Q, an orthogonal matrix, ``(d, d)``. If s are scores along the columns of T,
        Q^T s is released.
    """

    stretch: jax.Array
    back: jax.Array
    correction_root: jax.Array
    data_share: jax.Array
    is_measured: jax.Array
    turn: jax.Array

    @property
    def effective_dim(self) -> jax.Array:
        """The sum of gamma: how many parameters the records determine, at least one."""
        return jnp.maximum(jnp.sum(self.data_share), 1.0)

    def corrected(self, matrix: jax.Array) -> jax.Array:
        """The correction R for which L R L^T is `matrix` in units of this frame.

        That is, T^T L R L^T T is `matrix`, with the L and T of this frame.
        """
        product = self.correction_root @ matrix @ self.correction_root.T
        return (product + product.T) / 2


def frame(information: jax.Array, prior: jax.Array, correction: jax.Array) -> Frame:
    """The frame of an information F, a prior precision P and a correction R.

    All three are float64 matrices ``(d, d)``. R may be any positive definite matrix: it
    is replaced by the identity here where F says that the records tell nothing. Call
    this with x64 enabled. The turn of the frame is the identity.
    """
    root = jnp.linalg.cholesky(information + prior)
    inverse = solve_triangular(root, jnp.eye(len(root)), lower=True)
    rest, turn = jnp.linalg.eigh(inverse @ prior @ inverse.T)
    is_told = 1 - rest > MIN_DATA_SHARE
    turned: jax.Array = turn.T @ correction @ turn
    correction = jnp.where(jnp.outer(is_told, is_told), turned, jnp.eye(len(root)))
    of_correction = jnp.linalg.cholesky(correction)
    inverse = solve_triangular(of_correction, turn.T @ inverse, lower=True)
    of_correction = turn @ of_correction
    rest, turn = jnp.linalg.eigh(inverse @ prior @ inverse.T)
    share = 1 - jnp.maximum(rest, MIN_PRIOR_SHARE)
    is_measured = share > MIN_DATA_SHARE
    return Frame(
        inverse.T @ turn,
        (root @ of_correction @ turn).T,
        of_correction @ turn,
        jnp.where(is_measured, share, 0.0),
        is_measured,
        jnp.eye(len(root)),
    )


def sparse_turn(back: jax.Array, norm: MixedNorm) -> jax.Array:
    """The turn Q with which released scores stay sparse in the single components.

    Parameters
    ----------
    back
        T^-1, ``(d, d)``.
    norm
        A mixed norm. Its single components are components of the parameters.

    Returns
    -------
    Q, orthogonal, ``(d, d)``. Order the parameters with the single components first.
    Let (T T^T)^-1 = K K^T be the information in this order, with K lower triangular,
    and s a score along the parameters. Then Q^T T^T s is K^-1 s, put back into the
    original order of the parameters. So scores of single components are mixed with each
    other only where the information has correlations between them.
    """
    order = np.array([*norm.single, *norm.others])
    turn, _ = jnp.linalg.qr(back[:, order])
    return turn[:, np.argsort(order)]
