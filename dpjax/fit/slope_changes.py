"""How a slope changes from one place to another, as the expected one does."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

__all__ = ["mapped", "mean_over_first", "turn"]

SAME_SLOPE, OTHER_SLOPE = 0.1, 0.3
"""Changes of the logarithm of the expected slope, from one place to another, below
which the released slope stays as it is and beyond which it changes as much. The slope
is expected of public covariates. If these are more extreme than those of the records,
as for Adult, it changes by several hundredths where that of the records does not."""


def mapped(matrix: jax.Array, function: Callable) -> jax.Array:
    """The symmetric matrix with a function of its eigenvalues in their place."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * function(values)[None]) @ vectors.T


def turn(first: jax.Array, second: jax.Array) -> jax.Array:
    """S, where S M S^T is N, but for small changes.

    Parameters
    ----------
    first, second
        M^(1/2) and N^(1/2), ``(d, d)``.
    """
    return _changed(first, second, lambda changes: jnp.exp(changes / 2)).T


def mean_over_first(first: jax.Array, second: jax.Array) -> jax.Array:
    """M^-1 P, by which M times a displacement becomes the change of the score.

    P is the mean slope along the displacement, on which the slope changes exponentially
    from M to N, but for small changes.

    Parameters
    ----------
    first, second
        M^(1/2) and N^(1/2), ``(d, d)``.
    """

    def mean(changes):
        safe = jnp.where(changes == 0, 1.0, changes)
        return jnp.where(changes == 0, 1.0, jnp.expm1(safe) / safe)

    return _changed(first, second, mean)


def _changed(first, second, function):
    """M^(-1/2) f(C) M^(1/2), with C the logarithm of M^(-1/2) N M^(-1/2).

    Eigenvalues of C below `SAME_SLOPE` count as zero, and those up to `OTHER_SLOPE` in
    part.
    """
    # The eigenvalues of M^(-1/2) N M^(-1/2) are the squares of these. The least may be
    # 1e-16 of the largest, and negative if that product is rounded.
    vectors, values, _ = jnp.linalg.svd(jnp.linalg.solve(first, second))
    changes = 2 * jnp.log(values)
    excess = jnp.abs(changes) - SAME_SLOPE
    excess = jnp.clip(excess / (OTHER_SLOPE - SAME_SLOPE), 0, 1)
    factors = function(excess * changes)
    return jnp.linalg.solve(first, (vectors * factors[None]) @ vectors.T @ first)
