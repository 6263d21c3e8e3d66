"""Uniform words from ChaCha20 (RFC 7539), on the host and on the device.

A step that needs a word for every record cannot take them from its tape row, so it
takes 256 secret bits and expands them by ChaCha20 (RFC 7539) where the data are. What
is private then assumes of the cipher what the tape assumes: that without the key its
words cannot be told from uniform ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from jax import lax

__all__ = ["expand", "tape"]


def tape(key: bytes, stream: int, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform uint32 words from ChaCha20 (RFC 7539).

    Parameters
    ----------
    key
        32 secret bytes.
    stream
        Number of the stream below 2^96; streams of one key are independent.
    shape
        Of the array returned; at most 2^36 words, the length of one stream.
    """
    nonce = bytes(4) + stream.to_bytes(12, "little")
    cipher = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(4 * int(np.prod(shape)))), "<u4").reshape(
        shape
    )


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
    zeros = jnp.zeros_like(counter)
    first = [zeros + word for word in np.frombuffer(b"expand 32-byte k", "<u4")]
    first += [zeros + key[i] for i in range(8)]
    first += [counter, zeros, zeros, zeros]

    def double_round(_, x):
        x = list(x)
        for quarter in QUARTERS:
            _quarter_round(x, *quarter)
        return x

    rounds = lax.fori_loop(0, 10, double_round, first)
    words = [a + b for a, b in zip(rounds, first, strict=True)]
    # Put in order once, not again wherever a word is used.
    words = lax.optimization_barrier(jnp.stack(words, axis=1))
    return words.reshape(-1)[:count]


QUARTERS = (
    *((i, 4 + i, 8 + i, 12 + i) for i in range(4)),
    *((i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)),
)
"""Words of a block that are mixed, column by column, then along the diagonals."""


def _quarter_round(x, a, b, c, d):
    for high, low in ((16, 12), (8, 7)):
        x[a] = x[a] + x[b]
        x[d] = _rotated(x[d] ^ x[a], high)
        x[c] = x[c] + x[d]
        x[b] = _rotated(x[b] ^ x[c], low)


def _rotated(x, bits):
    return (x << bits) | (x >> (32 - bits))
