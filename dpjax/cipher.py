"""The cipher of `noise.tape` on the device, for secret words in bulk.

A step that needs a word for every record cannot take them from its tape row, so it
takes 256 secret bits and expands them by ChaCha20 (RFC 7539) where the data are. What
is private then assumes of the cipher what the tape assumes: that without the key its
words cannot be told from uniform ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["expand"]


def expand(key: jax.Array, start, count: int) -> jax.Array:
    """Words `start` to ``start + count`` of the ChaCha20 stream of `key`, nonce zero.

    Parameters
    ----------
    key
        Eight secret uniform uint32 words, used for one stream only.
    start
        A multiple of 16, Python integer or traced.
    count
        Number of uint32 words.

    Returns
    -------
    uint32 ``(count,)``; a word depends on the key and its place in the stream only.
    """
    blocks = -(-count // 16)
    counter = jnp.asarray(start, jnp.uint32) // 16 + jnp.arange(
        blocks, dtype=jnp.uint32
    )
    shape = (4, blocks)
    constant = jnp.asarray(np.frombuffer(b"expand 32-byte k", "<u4"))
    first = (
        jnp.broadcast_to(constant[:, None], shape),
        jnp.broadcast_to(key[:4, None], shape),
        jnp.broadcast_to(key[4:, None], shape),
        jnp.zeros(shape, jnp.uint32).at[0].set(counter),
    )

    def double_round(_, rows):
        rows = _turned(_quarter_rounds(rows), 1)
        return _turned(_quarter_rounds(rows), -1)

    rows = lax.fori_loop(0, 10, double_round, first)
    words = jnp.concatenate([a + b for a, b in zip(rows, first, strict=True)])
    return words.T.reshape(-1)[:count]


def _rotated(x, bits):
    return (x << bits) | (x >> (32 - bits))


def _quarter_rounds(rows):
    a, b, c, d = rows
    for high, low in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(d ^ a, high)
        c = c + d
        b = _rotated(b ^ c, low)
    return a, b, c, d


def _turned(rows, sign):
    """Turn columns into diagonals, or back."""
    return tuple(jnp.roll(row, -sign * i, axis=0) for i, row in enumerate(rows))
