"""The draw of an accept bit: what a Metropolis-Hastings step releases of the data."""

import jax
import jax.numpy as jnp

from dpjax.acceptance import probability
from dpjax.release.taint import released

__all__ = ["bit", "draw"]


def draw(words: jax.Array, family: str, log_ratio: jax.Array, noise_sd=0.0):
    """Draw the accept bit by comparing a 63-bit integer with a(l).

    Parameters
    ----------
    words
        Two uniform uint32 words, ``(2,)``.
    family, noise_sd
        As in `Acceptance`; `noise_sd` may be traced.
    log_ratio
        The log Metropolis-Hastings ratio l in float64, scalar.

    Returns
    -------
    A boolean scalar. No other number that depends on the data leaves this function.
    """
    with jax.enable_x64(True):
        return bit(words, probability(family, log_ratio, noise_sd))


def bit(words: jax.Array, chance: jax.Array) -> jax.Array:
    """True with probability `chance`, a float64 scalar, to 63 bits; see `draw`."""
    with jax.enable_x64(True):
        high, low = words[0].astype(jnp.uint64), words[1].astype(jnp.uint64)
        uniform = (high << 31) | (low >> 1)
        # An undefined ratio, of a prior that is undefined there, rejects.
        chance = jnp.nan_to_num(chance, nan=0.0)
        return released(uniform < jnp.floor(chance * 2.0**63).astype(jnp.uint64))
