"""Coordinates in which the expected information of a posterior is the identity.

Let F be the expected Fisher information of all records at a public position, P the
precision of the prior there, and L L^T = F + P. Where the public design is unlike the
data, F is wrong, and a released correction R replaces F + P by L R L^T. The columns of
T are the directions of the frame:

    T^T L R L^T T = I,   T^T P T = diag(1 - gamma).

A unit along a column of T is one posterior standard deviation there, and gamma is the
share of the information that is expected from the records. All of it is public.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from dpjax.release.mixed_norm import MixedNorm

__all__ = ["Frame", "frame", "sparse_turn"]

MIN_DATA_SHARE = 1e-3
"""Least gamma of a direction in which the records are asked anything."""

MIN_PRIOR_SHARE = 1e-8
"""Least 1 - gamma. That of a vague prior is lost in rounding, and could be negative."""


class Frame(NamedTuple):
    """A frame at a position; float64.

    stretch
        T, ``(d, d)``.
    root
        L, ``(d, d)``.
    data_share
        gamma, ``(d,)``, zero where the records are not asked.
    is_measured
        ``(d,)``: whether the records are asked in this direction.
    turn
        Q, orthogonal, ``(d, d)``: scores are released in the coordinates Q^T s of
        scores s along the columns of T.
    """

    stretch: jax.Array
    root: jax.Array
    data_share: jax.Array
    is_measured: jax.Array
    turn: jax.Array

    @property
    def effective_dim(self) -> jax.Array:
        """d_eff, the number of parameters that the records determine, at least one."""
        return jnp.maximum(jnp.sum(self.data_share), 1.0)

    def corrected(self, matrix: jax.Array) -> jax.Array:
        """The R that makes the information, in units of this frame, `matrix`."""
        back = jnp.linalg.solve(self.root, jnp.linalg.inv(self.stretch).T)
        product = back @ matrix @ back.T
        return (product + product.T) / 2


def frame(information: jax.Array, prior: jax.Array, correction: jax.Array) -> Frame:
    """The frame of an information F, a prior precision P and a correction R.

    All are float64 of shape ``(d, d)``; call it with x64 enabled.
    """
    root = jnp.linalg.cholesky(information + prior)
    whole = root @ jnp.linalg.cholesky(correction)
    inverse = solve_triangular(whole, jnp.eye(len(whole)), lower=True)
    rest, turn = jnp.linalg.eigh(inverse @ prior @ inverse.T)
    share = 1 - jnp.maximum(rest, MIN_PRIOR_SHARE)
    is_measured = share > MIN_DATA_SHARE
    return Frame(
        inverse.T @ turn,
        root,
        jnp.where(is_measured, share, 0.0),
        is_measured,
        jnp.eye(len(whole)),
    )


def sparse_turn(stretch: jax.Array, norm: MixedNorm) -> jax.Array:
    """Q such that scores are sparse where their single components are.

    Parameters
    ----------
    stretch
        T, ``(d, d)``.
    norm
        Its single components are those of the parameters.

    Returns
    -------
    With the single components first, let K K^T be the information (T T^T)^-1 and s a
    score along the parameters. Then Q^T T^T s is K^-1 s, in the order of the
    parameters. K is lower triangular: the scores of single components are only mixed
    where the information has correlations between them.
    """
    order = np.array([*norm.single, *norm.others])
    turn, _ = jnp.linalg.qr(jnp.linalg.inv(stretch)[:, order])
    return turn[:, np.argsort(order)]
