"""Gaussian noise for released vectors, on a public lattice."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from dpjax.release.exact_sums import GRID
from dpjax.release.taint import released

__all__ = ["LOUDEST", "TOTAL_VARIATION", "gaussian_release"]

LOUDEST = 2.0**14
"""Largest noise multiplier for which the numerical error is known."""

TOTAL_VARIATION = 2.4e-15
"""Bound on the distance of one released coordinate from ideal Gaussian noise rounded
to the grid (64-bit words through float64 ndtri)."""


def gaussian_release(words: jax.Array, integers, unit: float, noise_multiplier: float):
    """Add rounded Gaussian noise to a clipped sum, and round to a public lattice.

    Parameters
    ----------
    words
        Two uniform uint32 words a coordinate, ``(2 * size,)``.
    integers
        Pytree of float64 integers in units of the grid, from `gradient_sum`.
    unit
        What one cell stands for: ``clip_norm / GRID``.
    noise_multiplier
        Noise standard deviation over the sensitivity under substitution, 2 clip norms;
        positive and at most `LOUDEST`, which of an array, float64, is not checked here.

    Raises
    ------
    ValueError
        If `noise_multiplier` is out of range.

    Returns
    -------
    A pytree of floats: multiples of ``unit`` times the largest power of two cells that
    is at most a sixteenth of the noise's standard deviation.

    Notes
    -----
    *Formal guarantees.* Rounding N(0, s^2) commutes with an integer shift, so the
    release is post-processing of the Gaussian mechanism with this multiplier, up to
    `TOTAL_VARIATION` a coordinate, which the accountant adds to delta.
    """
    is_array = isinstance(noise_multiplier, jax.Array)
    if not (is_array or 0 < noise_multiplier <= LOUDEST):
        raise ValueError(
            f"noise_multiplier must be positive and at most {LOUDEST:g}, got "
            f"{noise_multiplier}"
        )
    leaves, treedef = jax.tree.flatten(integers)
    found, start = [], 0
    with jax.enable_x64(True):
        noise_sd = noise_multiplier * 2 * GRID
        floor, log2 = (jnp.floor, jnp.log2) if is_array else (np.floor, np.log2)
        spacing = 2.0 ** floor(log2(noise_sd / 16))
        for leaf in leaves:
            pairs = words[start : start + 2 * leaf.size].reshape(2, *leaf.shape)
            start += 2 * leaf.size
            # 63 bits of magnitude below one half, and a sign.
            high = pairs[0].astype(jnp.float64) * 2.0**-33
            low = (pairs[1] >> 1).astype(jnp.float64) * 2.0**-64
            magnitude = -ndtri(high + low + 2.0**-65)
            noise = noise_sd * jnp.where(pairs[1] & 1, magnitude, -magnitude)
            noisy = leaf + jnp.floor(noise + 0.5)
            public = released(jnp.floor(noisy / spacing + 0.5))
            found.append(public * (spacing * unit))
    dtype = jnp.result_type(float)
    return treedef.unflatten([value.astype(dtype) for value in found])
