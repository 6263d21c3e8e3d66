"""Calls of the user's functions in their own precision, from code that uses float64.

A model may read NumPy arrays of float64. If x64 is off, JAX makes them float32
when it first traces the model, and keeps that form. If the model were traced again
under ``jax.enable_x64(True)``, it would mix both types. JAX could not draw random
float64 there either. So functions of the user are called with the x64 setting that the
process has by default.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

__all__ = ["is_wide", "own_precision", "unraveled"]


def is_wide() -> bool:
    """Whether JAX's default float is float64 where this is called."""
    return jnp.result_type(float) == jnp.float64


def unraveled(like: Any, is_wide: bool) -> Callable[[jax.Array], Any]:
    """``t -> position``, a function that unravels a flat position to one like `like`.

    Its leaves have the default float type of the precision that `is_wide` describes.
    """
    with jax.enable_x64(is_wide):
        zeros = jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf)), like)
        return ravel_pytree(zeros)[1]


def own_precision(function: Callable, like: Any, is_wide: bool) -> Callable:
    """`function` as a function of a flat float64 position, with a float64 value.

    Parameters
    ----------
    function
        ``position -> scalar``.
    like
        A position, for its structure.
    is_wide
        Whether the function computes in float64.
    """
    unravel = unraveled(like, is_wide)

    def of_flat(t):
        with jax.enable_x64(is_wide):
            found = function(unravel(t.astype(float)))
        return found.astype(jnp.float64)

    return of_flat
