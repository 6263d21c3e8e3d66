"""Changes of a released slope between two places, copied from the expected slope.

The slope J is released at one place. At another place, the slope that the model expects
of public covariates is different. J is changed in the same way, except that small
changes are left out.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

__all__ = ["mapped", "mean_over_first", "turn"]

SAME_SLOPE, OTHER_SLOPE = 0.1, 0.3
"""Bounds on the change of the logarithm of the expected slope between two places. If it
is below the first, the released slope is not changed. If it is above the second, the
released slope changes as much, and in between by a part of it. Public covariates may be
more extreme than those of the records, as for Adult. The expected slope then changes by
several hundredths where that of the records does not."""


def mapped(matrix: jax.Array, function: Callable) -> jax.Array:
    """The symmetric matrix with each eigenvalue replaced by a function of it."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * function(values)[None]) @ vectors.T


def turn(first: jax.Array, second: jax.Array) -> jax.Array:
    """The matrix S with S M S^T = N, except that small changes are left out.

    Parameters
    ----------
    first, second
        M^(1/2) and N^(1/2), symmetric, ``(d, d)``.
    """
    return _changed(first, second, lambda changes: jnp.exp(changes / 2)).T


def mean_over_first(first: jax.Array, second: jax.Array) -> jax.Array:
    """M^-1 P, with P the mean slope along a displacement from one place to another.

    The slope changes exponentially along the displacement, from M to N, except that
    small changes are left out. The score changes by P times the displacement. So it
    would change as much if the slope were M everywhere and the displacement were
    multiplied by M^-1 P.

    Parameters
    ----------
    first, second
        M^(1/2) and N^(1/2), symmetric, ``(d, d)``.
    """

    def mean(changes):
        safe = jnp.where(changes == 0, 1.0, changes)
        return jnp.where(changes == 0, 1.0, jnp.expm1(safe) / safe)

    return _changed(first, second, mean)


def _changed(first, second, function):
    """M^(-1/2) f(C) M^(1/2), with C the logarithm of M^(-1/2) N M^(-1/2).

    Here f is `function`, and C has eigenvalues that are smaller than `SAME_SLOPE` in
    absolute value replaced by zero. Those below `OTHER_SLOPE` are made smaller.
    """
    # The singular values of M^(-1/2) N^(1/2) are the square roots of the eigenvalues of
    # M^(-1/2) N M^(-1/2). The least eigenvalue may be 1e-16 of the largest, and the
    # rounded product could have a negative one.
    vectors, values, _ = jnp.linalg.svd(jnp.linalg.solve(first, second))
    changes = 2 * jnp.log(values)
    excess = jnp.abs(changes) - SAME_SLOPE
    excess = jnp.clip(excess / (OTHER_SLOPE - SAME_SLOPE), 0, 1)
    factors = function(excess * changes)
    return jnp.linalg.solve(first, (vectors * factors[None]) @ vectors.T @ first)
