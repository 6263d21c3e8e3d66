"""The draw of an accept bit: what a Metropolis-Hastings step releases of the data.

The chance of the bit is computed in float64, with an error e of at most f / 2, where f
is `FAILURE_PROB`. Near 0 and 1 such an error could multiply the chance of an outcome,
and with it the odds that an observer sees. So the bit is drawn with the chance

    (1 - f) (a + e) + f / 2.

This is at least (1 - f) a, and the chance of the other outcome is at least
(1 - f) (1 - a). Therefore the law of the bit is a mixture: with weight 1 - f the ideal
law, and with weight f some other law. A log ratio that is not finite is public, because
a sum over clipped records is finite. Then the bit is drawn with the chance that was
computed.
"""

import jax
import jax.numpy as jnp

from dpjax.acceptance import FAILURE_PROB, probability
from dpjax.release.taint import released

__all__ = ["bit", "draw", "threshold"]


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

    Notes
    -----
    *Formal guarantees.* The bit is Bernoulli(a(l)) up to `FAILURE_PROB`.
    """
    with jax.enable_x64(True):
        return bit(words, log_ratio, probability(family, log_ratio, noise_sd))


def bit(words: jax.Array, log_ratio: jax.Array, chance: jax.Array) -> jax.Array:
    """True with probability `chance`, which was computed from `log_ratio`: see `draw`.

    Both are float64 scalars.
    """
    # JAX would read the last word twice where one is missing.
    if words.shape != (2,):
        raise ValueError(f"an accept bit takes 2 words, got shape {words.shape}")
    with jax.enable_x64(True):
        high, low = words[0].astype(jnp.uint64), words[1].astype(jnp.uint64)
        uniform = (high << 31) | (low >> 1)
        return released(uniform < threshold(log_ratio, chance))


def threshold(log_ratio: jax.Array, chance: jax.Array) -> jax.Array:
    """2^63 times the chance of a bit, uint64; call it under `jax.enable_x64(True)`."""
    # An undefined ratio, of a prior that is undefined there, rejects.
    public = jnp.nan_to_num(chance, nan=0.0)
    secret = (1 - FAILURE_PROB) * chance + FAILURE_PROB / 2
    chance = jnp.where(jnp.isfinite(log_ratio), secret, public)
    return jnp.floor(chance * 2.0**63).astype(jnp.uint64)
