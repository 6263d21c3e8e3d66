"""Changes of a released slope between two places, copied from the expected slope.

The slope J is released at one place. At another place, the slope that the model expects
of public covariates is different. J is changed in the same way, except that small
changes are left out.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Change", "between", "mapped", "root"]

SAME_SLOPE, OTHER_SLOPE = 0.1, 0.3
"""Bounds on the change of the logarithm of the expected slope between two places. If it
is below the first, the released slope is not changed. If it is above the second, the
released slope changes as much, and in between by a part of it. Public covariates may be
more extreme than those of the records, as for Adult. The expected slope then changes by
several hundredths where that of the records does not."""

MIN_EIGENVALUE = 1e-3
"""Least eigenvalue of an expected slope, in units of the frame."""


def mapped(matrix: jax.Array, function: Callable) -> jax.Array:
    """The symmetric matrix with each eigenvalue replaced by a function of it."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * function(values)[None]) @ vectors.T


def root(matrix: jax.Array) -> jax.Array:
    """A matrix A with orthogonal columns and A A^T = M, ``(d, d)``.

    M is the symmetric `matrix`, with eigenvalues raised to at least `MIN_EIGENVALUE`.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors * jnp.sqrt(jnp.maximum(values, MIN_EIGENVALUE))[None]


class Change(NamedTuple):
    """How the expected slope changes from M = A A^T to N; see `between`.

    The columns of `vectors` and the `logarithms` are the eigenvectors and eigenvalues
    of C, the logarithm of A^-1 N A^-T.
    """

    root: jax.Array
    vectors: jax.Array
    logarithms: jax.Array

    @property
    def turn(self) -> jax.Array:
        """The matrix S with S M S^T = N, except that small changes are left out."""
        return self._mapped(lambda changes: jnp.exp(changes / 2)).T

    @property
    def turn_back(self) -> jax.Array:
        """The matrix S with S N S^T = M, except that small changes are left out."""
        return self._mapped(lambda changes: jnp.exp(-changes / 2)).T

    @property
    def mean_over_first(self) -> jax.Array:
        """M^-1 P, with P the mean slope along the way from one place to the other.

        The slope changes exponentially on the way, from M to N, except that small
        changes are left out. The score changes by P times the displacement. So it would
        change as much if the slope were M everywhere and the displacement were
        multiplied by M^-1 P.
        """

        def mean(changes: jax.Array) -> jax.Array:
            safe = jnp.where(changes == 0, 1.0, changes)
            return jnp.where(changes == 0, 1.0, jnp.expm1(safe) / safe)

        return self._mapped(mean)

    def _mapped(self, function):
        """A^-T f(C) A^T, where f is `function`.

        In C, eigenvalues that are smaller than `SAME_SLOPE` in absolute value are
        replaced by zero. Those below `OTHER_SLOPE` are made smaller.
        """
        excess = jnp.abs(self.logarithms) - SAME_SLOPE
        excess = jnp.clip(excess / (OTHER_SLOPE - SAME_SLOPE), 0, 1)
        factors = function(excess * self.logarithms)
        of_vectors = (self.vectors * factors[None]) @ self.vectors.T
        return _inverse(self.root).T @ of_vectors @ self.root.T


def between(first: jax.Array, second: jax.Array) -> Change:
    """The change from M to N, given the `root` of each."""
    # The singular values of A^-1 B are the square roots of the eigenvalues of
    # A^-1 N A^-T. The least eigenvalue may be 1e-16 of the largest, and the rounded
    # product could have a negative one.
    vectors, values, _ = jnp.linalg.svd(_inverse(first) @ second)
    return Change(first, vectors, 2 * jnp.log(values))


def _inverse(root):
    """The inverse of a matrix with orthogonal columns."""
    return (root / jnp.sum(root**2, axis=0)[None]).T
