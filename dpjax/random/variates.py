"""Normal variates from uniform words."""

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

__all__ = ["normal"]


def normal(words: jax.Array, dtype=None) -> jax.Array:
    """Standard normal variates, one for each uint32 word, exactly symmetric about zero.

    They take at most 2^31 magnitudes, the largest of which is 6.4. This is accurate
    enough for proposals and for draws from guides, which are public. It must not be
    used for noise that protects data, which `dpjax.release` draws.
    """
    dtype = dtype or jnp.result_type(float)
    below_half = (words >> 1).astype(dtype) * 2.0**-32 + 2.0**-33
    # Rounding could make this one half, and the variate zero. A proposal divides by the
    # length of its variates.
    below_half = jnp.minimum(below_half, 0.5 - float(jnp.finfo(dtype).eps) / 4)
    magnitude = ndtri(below_half)
    return jnp.where(words & 1, magnitude, -magnitude)
