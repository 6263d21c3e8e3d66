"""A sum over records of clipped vectors with K-norm noise.

    sum over all records of clip(v_i) + x,

where v_i is the vector that record i adds, C the clip norm, and the density of the
noise x is proportional to e^(-c |x| / C). With the Euclidean norm, in few dimensions x
is smaller than Gaussian noise of the same privacy: see `dpjax.privacy.KNormRelease`.
With a `MixedNorm` it is smaller in many dimensions, if each record adds few large
components. The noise of a mixed norm consists of independent parts: one for each single
component, and one for all others together. The following applies to each part.

*Sampling.* In r dimensions c |x| / C has the law Gamma(r), and the direction of x is
uniform. So c x / C has the law of |z| g, where z is standard normal in r + 1 dimensions
and g in r dimensions: |z| |g| is a product of chi variates of r + 1 and of r degrees of
freedom, which by Legendre's duplication formula has the moments of Gamma(r). The sum
with noise is rounded to a lattice, whose spacing depends on c only.

*Floating point.* Let s = C sqrt(r + 1) / c be the standard deviation of x_i. Each
component v of z or g is computed from 896 random bits by float64 `ndtri`, with an error
of at most 7e-16 max(1, |v|), unless |v| exceeds 34. That any component exceeds 34 has a
probability of at most 1e-249, which is negligible even times e^500. Otherwise |x| is at
most 34^2 sqrt(r) s, and x_i has an error of at most e (|x_i| + 34 sqrt(r) s) with
e = 2^-53 (r + 30), which includes the rounding of the sum of r + 1 squares.

A lattice cell is the box of noise values that are rounded to one lattice point, with
sides at least s / 32 long. The errors move the ends of its sides by at most the error
of x_i. Along a side c |x| / C changes by at most sqrt(r + 1) / 16, so a share h of the
side holds at most a share h e^(sqrt(r + 1) / 16) of the probability. Over the r sides
of a cell the errors make up shares of

    64 e r (34^2 + 34 sqrt(r))

in all. So the probability of the cell is the ideal one within a factor of
exp(2e-10 r (r + 2)), for r up to 1000.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from dpjax import privacy
from dpjax.privacy.events import MAX_K_NORM_DIM
from dpjax.release import gaussian
from dpjax.release.exact_sums import VECTOR_GRID
from dpjax.release.mixed_norm import MixedNorm
from dpjax.release.noisy_sum import NoisySum

__all__ = ["KNormSum"]

WORDS = 28
"""Number of uniform uint32 words for one normal number. With so many bits only float64
limits the relative accuracy of the number, as far out in the tails as any epsilon asks
for."""

FAILURE_PROB = 1e-30
"""Bound on the probability of normal numbers beyond 34, times e^500."""

RELATIVE_ERROR = 2e-10
"""Bound on the error of the log probability of a lattice cell, in nats, divided by
r (r + 2) for r dimensions: see *Floating point* in the module docstring."""


@dataclass(frozen=True)
class KNormSum(NoisySum):
    """A `NoisySum` over all records with K-norm noise.

    Parameters
    ----------
    l2_clip_norm, diameter
        As in `NoisySum`.
    noise_multiplier
        As in `NoisySum`. For r numbers c is sqrt(r + 1) / noise_multiplier; with a
        mixed norm it is sqrt(2) / noise_multiplier.
    norm
        The norm in which vectors are clipped and of which the noise is; None for the
        Euclidean norm.

    Raises
    ------
    ValueError
        If a parameter is out of range. `event` also raises it for more than 1000
        numbers.
    """

    norm: MixedNorm | None = None

    def num_noise_words(self, size: int) -> int:
        return WORDS * sum(2 * part + 1 for part in self._parts(size))

    def _parts(self, size: int) -> list[int]:
        """The dimensions of the independent parts of the noise."""
        if self.norm is None:
            return [size]
        return [*(1 for _ in self.norm.single), len(self.norm.others)]

    def _add_noise(self, words, total, unit, noise_multiplier):
        noise = _noise(words, total.size, noise_multiplier, self.norm)
        return gaussian.on_lattice(total, noise, unit, noise_multiplier)

    def _event(self, size, neighboring_relation, noise_multiplier):
        multiplier = noise_multiplier / self._distance(neighboring_relation)
        error = RELATIVE_ERROR * sum(part * (part + 2) for part in self._parts(size))
        if self.norm is None:
            return privacy.KNormRelease(multiplier, size, FAILURE_PROB, error)
        if size != self.norm.size or size > MAX_K_NORM_DIM:
            raise ValueError(
                f"the norm is of {self.norm.size} numbers, got {size}; at most "
                f"{MAX_K_NORM_DIM} are released"
            )
        largest = math.sqrt(2) / multiplier
        return privacy.PureRelease(largest, FAILURE_PROB, error)


def _noise(
    words: jax.Array, size: int, noise_multiplier, norm: MixedNorm | None
) -> jax.Array:
    """The noise x in cells of the grid, ``(size,)``."""

    def part(normals, size):
        z, g = jnp.split(normals, [size + 1])
        scale = noise_multiplier * VECTOR_GRID / math.sqrt(size + 1)
        return scale * jnp.sqrt(jnp.sum(z**2)) * g

    with jax.enable_x64(True):
        normals = _normal(words)
        if norm is None:
            return part(normals, size)
        ends = 3 * len(norm.single)
        of_single = normals[:ends].reshape(-1, 3)
        single = jax.vmap(lambda normals: part(normals, 1))(of_single)
        others = part(normals[ends:], len(norm.others))
        places = np.array([*norm.single, *norm.others])
        noise = jnp.concatenate([single.ravel(), others])
        return jnp.zeros(size).at[places].set(noise)


def _normal(words: jax.Array) -> jax.Array:
    """Standard normal float64 numbers, each from `WORDS` uniform words, in x64 mode."""
    words = words.reshape(WORDS, -1)
    # The probability of the upper tail beyond the magnitude. The last bit is the sign,
    # and half a unit is added, so that the probability is never zero.
    places = 2.0 ** (-32.0 * np.arange(1, WORDS + 1) - 1)
    tail = jnp.sum(words.astype(jnp.float64) * places[:, None], axis=0)
    magnitude = -ndtri(tail + 2.0 ** (-32 * WORDS - 2))
    return jnp.where(words[-1] & 1, magnitude, -magnitude)
