"""Random variates from uniform words."""

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

__all__ = ["normal"]


def normal(words: jax.Array, dtype=None) -> jax.Array:
    """Standard normal variates, one a word, exactly symmetric about zero.

    For proposals, which are public: 2^31 magnitudes, at most 6.4 standard deviations.
    """
    dtype = dtype or jnp.result_type(float)
    below_half = (words >> 1).astype(dtype) * 2.0**-32 + 2.0**-33
    # Rounding must not reach one half: a variate of zero has no direction.
    below_half = jnp.minimum(below_half, 0.5 - float(jnp.finfo(dtype).eps) / 4)
    magnitude = ndtri(below_half)
    return jnp.where(words & 1, magnitude, -magnitude)
