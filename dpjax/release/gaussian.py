"""Gaussian noise for released vectors, on a public lattice."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from dpjax.release.exact_sums import GRID
from dpjax.release.taint import released

__all__ = [
    "MAX_NOISE_MULTIPLIER",
    "TOTAL_VARIATION",
    "WORDS_PER_COORDINATE",
    "add_noise",
]

WORDS_PER_COORDINATE = 2
"""Uniform uint32 words that `add_noise` needs for each coordinate."""

MAX_NOISE_MULTIPLIER = 2.0**15
"""Largest noise multiplier for which the numerical error is known."""

TOTAL_VARIATION = 2.4e-15
"""Bound on the total variation distance of one released coordinate from ideal Gaussian
noise rounded to the grid. The noise comes from 64-bit words through float64 ndtri."""


def add_noise(words: jax.Array, integers: jax.Array, unit: float, noise_multiplier):
    """Add rounded Gaussian noise to a clipped sum, and round to a public lattice.

    Parameters
    ----------
    words
        Uniform uint32, ``(WORDS_PER_COORDINATE * size,)``.
    integers
        Float64 integers ``(size,)`` in units of the grid, from `vector_sum`.
    unit
        What one cell stands for: ``l2_clip_norm / GRID``.
    noise_multiplier
        Noise standard deviation over the clip norm, in (0, `MAX_NOISE_MULTIPLIER`]: a
        float, or a float64 scalar array.

    Returns
    -------
    Floats ``(size,)``: multiples of ``unit`` times the largest power of two cells that
    is at most a sixteenth of the noise's standard deviation.

    Notes
    -----
    *Formal guarantees.* Rounding N(0, s^2) commutes with an integer shift, so the
    release is post-processing of the Gaussian mechanism with this multiplier, up to
    `TOTAL_VARIATION` a coordinate, which the accountant adds to delta.
    """
    is_array = isinstance(noise_multiplier, jax.Array)
    with jax.enable_x64(True):
        noise_sd = noise_multiplier * GRID
        floor, log2 = (jnp.floor, jnp.log2) if is_array else (np.floor, np.log2)
        spacing = 2.0 ** floor(log2(noise_sd / 16))
        first, second = words.reshape(WORDS_PER_COORDINATE, -1)
        # 63 bits of magnitude below one half, and a sign.
        high = first.astype(jnp.float64) * 2.0**-33
        low = (second >> 1).astype(jnp.float64) * 2.0**-64
        magnitude = -ndtri(high + low + 2.0**-65)
        noise = noise_sd * jnp.where(second & 1, magnitude, -magnitude)
        noisy = integers + jnp.floor(noise + 0.5)
        public = released(jnp.floor(noisy / spacing + 0.5)) * (spacing * unit)
    return public.astype(jnp.result_type(float))
