"""Gaussian noise for released vectors, on a public lattice.

A sum from `vector_sums` is an exact integer. `add_noise` adds noise to it and rounds
the result to multiples of a public number, the lattice; `gaussian_sum` is built on
that. `on_lattice` does the same with noise drawn elsewhere, for `k_norm_sum`. A
*lattice cell* is the set of noisy values that are rounded to one lattice point.

The noise is drawn by inversion from 96 bits. One bit is the sign. The other 95 are a
number u below one half, and the magnitude of the noise is the one whose upper tail has
probability u. Computing the magnitude in float64 moves the ends of a lattice cell a
little, which multiplies the probability of the cell by a factor close to one.

That alone would fail far out: beyond 11 standard deviations few numbers u fall into a
cell, and beyond 12 none. An observer who saw noise there would learn much. So if the
first 82 bits of u are ones, which happens with probability 2^-82, the remaining 13 bits
place the magnitude uniformly below 40 standard deviations. Every cell then has at least
its ideal probability, up to a factor close to one: of the 2^96 possible draws at least
six reach it through this uniform law, and rounding u to 95 bits costs it at most two.
Ideal noise beyond 40 standard deviations has a probability below e^-800.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from dpjax.release.exact_sums import VECTOR_GRID
from dpjax.release.taint import released

__all__ = [
    "FAILURE_PROB",
    "MAX_NOISE_MULTIPLIER",
    "RELATIVE_ERROR",
    "WORDS_PER_COORDINATE",
    "add_noise",
    "on_lattice",
]

MAX_NOISE_MULTIPLIER = 2.0**15
"""Largest noise multiplier for which `FAILURE_PROB` and `RELATIVE_ERROR` hold."""

WORDS_PER_COORDINATE = 3
"""Number of uniform uint32 words that `add_noise` needs for each coordinate."""

FAILURE_PROB = 2.5e-25
"""Bound, for one coordinate, on the probability of noise from the uniform law together
with the probability that rounding u to 95 bits adds to cells."""

RELATIVE_ERROR = 1.2e-13
"""Bound on the error of the log probability of a lattice cell of one coordinate, in
nats, apart from what `FAILURE_PROB` covers."""

REACH = 40.0
"""Magnitude in standard deviations up to which the uniform law places noise."""


def add_noise(words: jax.Array, integers: jax.Array, unit: float, noise_multiplier):
    """Add rounded Gaussian noise to a clipped sum, and round to a public lattice.

    Parameters
    ----------
    words
        Uniform uint32, ``(WORDS_PER_COORDINATE * size,)``.
    integers
        The sum in cells of the grid, int64 ``(size,)``, from `vector_sum`.
    unit
        The size of one cell of the grid: ``l2_clip_norm / VECTOR_GRID``.
    noise_multiplier
        Noise standard deviation over the clip norm, in (0, `MAX_NOISE_MULTIPLIER`]: a
        float, or a float64 scalar array.

    Returns
    -------
    Floats ``(size,)``: multiples of 2^k ``unit``. The lattice spacing 2^k, in cells of
    the grid, is the largest power of two that is at most a sixteenth of the noise's
    standard deviation, and at least one.

    Notes
    -----
    *Formal guarantees.* Rounding N(0, s^2) commutes with an integer shift, so the
    release is post-processing of the Gaussian mechanism with this multiplier, up to
    `FAILURE_PROB` and `RELATIVE_ERROR` a coordinate: see `dpjax.privacy.accountant`.
    """
    with jax.enable_x64(True):
        noise = _standard_noise(*words.reshape(WORDS_PER_COORDINATE, -1))
        noise = noise_multiplier * VECTOR_GRID * noise
    return on_lattice(integers, noise, unit, noise_multiplier)


def on_lattice(integers: jax.Array, noise: jax.Array, unit: float, noise_multiplier):
    """Add float64 noise, in cells of the grid, to a clipped sum on a public lattice.

    The other parameters and the lattice are those of `add_noise`. The lattice must not
    depend on the noise, so it follows from the noise multiplier, which is public. If
    the multiplier is not positive and finite, zero is returned and nothing is released.
    """
    is_array = isinstance(noise_multiplier, jax.Array)
    with jax.enable_x64(True):
        floor, log2 = (jnp.floor, jnp.log2) if is_array else (np.floor, np.log2)
        places = jnp.maximum(floor(log2(noise_multiplier * VECTOR_GRID / 16)), 0)
        places = places.astype(jnp.int64)
        spacing: jax.Array = jnp.int64(1) << places
        noisy = integers + jnp.floor(noise + 0.5).astype(jnp.int64)
        is_noisy = (noise_multiplier > 0) & (noise_multiplier < jnp.inf)
        noisy = jnp.where(is_noisy, noisy + (spacing >> 1), 0)
        public = released(noisy >> places) * (spacing * unit)
    return public.astype(jnp.result_type(float))


def _standard_noise(first: jax.Array, second: jax.Array, third: jax.Array) -> jax.Array:
    """Float64 noise with standard deviation one, a number from three words each."""
    high = first.astype(jnp.float64) * 2.0**-33
    middle = second.astype(jnp.float64) * 2.0**-65
    low = (third >> 1).astype(jnp.float64) * 2.0**-96
    usual = -ndtri(high + middle + low + 2.0**-97)
    place = (third >> 1) & (2**13 - 1)
    rare = (place.astype(jnp.float64) + 0.5) * (REACH / 2**13)
    is_rare = (first & second == 2**32 - 1) & (third >> 14 == 2**18 - 1)
    magnitude = jnp.where(is_rare, rare, usual)
    return jnp.where(third & 1, magnitude, -magnitude)
