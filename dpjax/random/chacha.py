"""Uniform words from the cipher ChaCha20 (RFC 7539), on the host and on the device.

A run draws the random words of its steps with `tape`, on the host. A step that needs a
word for every record would make the tape too long. Such a step takes a key of 256 bits
from the tape, and `expand` computes words from the key on the device that holds the
data. Both functions rely on one assumption: without the key, the words of the cipher
cannot be told from uniform words.
"""

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from jax import lax

__all__ = ["expand", "tape"]


def tape(key: bytes, stream: int, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform uint32 words, computed on the host.

    Parameters
    ----------
    key
        32 secret bytes.
    stream
        Number of the stream, below 2^96. Streams of one key are independent.
    shape
        Shape of the array that is returned. It has at most 2^36 words, the length of
        one stream.
    """
    nonce = bytes(4) + stream.to_bytes(12, "little")
    cipher = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
    words = np.frombuffer(cipher.update(bytes(4 * int(np.prod(shape)))), "<u4")
    return words.reshape(shape)


def expand(key: jax.Array, start, count: int) -> jax.Array:
    """Words `start` to ``start + count - 1`` of the stream of `key` with nonce zero.

    Parameters
    ----------
    key
        Eight secret uniform uint32 words, ``(8,)``, used for this stream only.
    start
        Place of the first word: a multiple of 16, a Python integer or traced.
    count
        Number of words.

    Returns
    -------
    uint32 ``(count,)``. A word depends only on the key and its place in the stream.
    """
    if key.shape != (8,):
        raise ValueError(f"a key is 8 words, got shape {key.shape}")
    blocks = -(-count // 16)
    counter = jnp.arange(blocks, dtype=jnp.uint32)
    counter = jnp.asarray(start, jnp.uint32) // 16 + counter
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
    # The barrier keeps XLA from fusing this transposition into every use of a word.
    words = lax.optimization_barrier(jnp.stack(words, axis=1))
    return words.reshape(-1)[:count]


QUARTERS = (
    *((i, 4 + i, 8 + i, 12 + i) for i in range(4)),
    *((i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)),
)
"""Numbers of the four words that each quarter round of a double round mixes: those of
the columns, then those of the diagonals."""


def _quarter_round(x, a, b, c, d):
    for high, low in ((16, 12), (8, 7)):
        x[a] = x[a] + x[b]
        x[d] = _rotated(x[d] ^ x[a], high)
        x[c] = x[c] + x[d]
        x[b] = _rotated(x[b] ^ x[c], low)


def _rotated(x, bits):
    return (x << bits) | (x >> (32 - bits))
