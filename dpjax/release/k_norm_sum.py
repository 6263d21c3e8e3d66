"""A sum over records of clipped vectors with K-norm noise.

    sum of clip(v_i) + x,    with the density of x proportional to e^(-c |x| / C),

v_i what record i adds and C the clip norm. With the Euclidean norm, in few dimensions x
is smaller than Gaussian noise of the same privacy: see `dpjax.privacy.KNormRelease`.
With a `MixedNorm` it is in many, if records add few large components. It is then made
of independent parts, one of each single component and one of the others, to each of
which the following applies.

*Sampling.* In r dimensions c |x| / C has the law Gamma(r), and the direction of x is
uniform. So c x / C has the law of |z| g, with z normal in r + 1 dimensions and g in r:
|z| |g| is a product of chi variates of r + 1 and of r degrees of freedom, which by
Legendre's duplication formula has the moments of Gamma(r). The sum with noise is
rounded to a lattice, whose spacing depends on c only.

*Floating point.* Let s = C sqrt(r + 1) / c be the standard deviation of x_i. Each
number v of z or g comes from 896 random bits and float64 `ndtri`, with an error of at
most 7e-16 max(1, |v|), unless |v| exceeds 34. That has a probability of 1e-249 at most,
for all numbers together, which is negligible even times e^500. Otherwise |x| is at most
34^2 sqrt(r) s, and x_i has an error of at most e (|x_i| + 34 sqrt(r) s) with
e = 2^-53 (r + 30), which includes the rounding of the sum of r + 1 squares. So what a
lattice cell receives fell into a box whose sides end at most that far from the cell's.
The sides are at least s / 32 long. Along a side c |x| / C changes by at most
sqrt(r + 1) / 16, so a share h of it holds at most a share h e^(sqrt(r + 1) / 16) of the
probability. Over the r sides of a cell the errors make up shares of

    64 e r (34^2 + 34 sqrt(r))

in all, so the probability of the cell is the ideal one within a factor of
exp(2e-10 r (r + 2)), for r up to 1000.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree
from jax.scipy.special import ndtri

from dpjax import privacy
from dpjax.posterior import Posterior
from dpjax.privacy.events import MAX_K_NORM_DIM
from dpjax.privacy.validate import check_positive, check_real
from dpjax.release import clip_bounds, gaussian, vector_sums
from dpjax.release.exact_sums import VECTOR_GRID
from dpjax.release.mixed_norm import MixedNorm

__all__ = ["KNormSum"]

WORDS = 28
"""Uniform uint32 words of a normal number: so many that float64 alone limits its
relative accuracy, as far out as any epsilon asks for."""

FAILURE_PROB = 1e-30
"""Probability of numbers beyond 34, times e^500."""

RELATIVE_ERROR = 2e-10
"""Bound of the module docstring, over r (r + 2), nats."""


@dataclass(frozen=True)
class KNormSum:
    """How sums of numbers are released, and what a release costs.

    Parameters
    ----------
    l2_clip_norm
        C, the bound on the norm of what one record adds.
    noise_multiplier
        Sd of the noise of one number over C, at most 2^15; c is sqrt(r + 1) over it for
        r numbers, and sqrt(2) over it with a mixed norm. None if it varies, and is
        given where it is used.
    diameter
        As in `GaussianSum`.
    norm
        A norm in place of the Euclidean one, of which C is then the bound.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    l2_clip_norm: float
    noise_multiplier: float | None
    diameter: float = 2.0
    norm: MixedNorm | None = None

    def __post_init__(self):
        check_positive(l2_clip_norm=self.l2_clip_norm)
        if self.noise_multiplier is not None:
            _checked(self.noise_multiplier)
        check_real("diameter", self.diameter, low=1.0, high=2.0)

    def num_words(self, size: int, num_records: int) -> int:
        """Uniform words for one release of `size` numbers, however many records."""
        return WORDS * sum(2 * part + 1 for part in self._parts(size))

    def _parts(self, size: int) -> list[int]:
        """Sizes of the parts of the noise that are independent of the others."""
        if self.norm is None:
            return [size]
        return [*(1 for _ in self.norm.single), len(self.norm.others)]

    def __call__(
        self,
        words: jax.Array,
        posterior: Posterior,
        contribution_fn: Callable,
        *,
        noise_multiplier: jax.Array | None = None,
        rng_key: jax.Array | None = None,
    ):
        """Release the noisy sum.

        Parameters
        ----------
        words
            ``(num_words(size, num_records),)``, size the numbers that a record adds.
        posterior, contribution_fn, noise_multiplier, rng_key
            As in `GaussianSum`.

        Returns
        -------
        A pytree like that of `contribution_fn`.

        Notes
        -----
        *Formal guarantees.* What is returned is one release of `event`.
        """
        shape = vector_sums.shape_of(posterior, contribution_fn, rng_key)
        flat, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, shape))
        total = vector_sums.vector_sum(
            posterior,
            contribution_fn,
            self.l2_clip_norm,
            rng_key=rng_key,
            norm=self.norm,
        )
        multiplier = self.noise_multiplier or noise_multiplier
        noise = _noise(words, flat.size, multiplier, self.norm)
        unit = self.l2_clip_norm / VECTOR_GRID
        public = gaussian.on_lattice(total, noise, unit, multiplier)
        return unravel(public.astype(flat.dtype))

    def event(
        self,
        size: int,
        neighboring_relation: NeighboringRelation,
        noise_multiplier: float | None = None,
    ) -> privacy.KNormRelease | privacy.PureRelease:
        """What one release of `size` numbers costs.

        Raises
        ------
        ValueError
            If `noise_multiplier` is out of range, or there are more than 1000 numbers.
        """
        if self.noise_multiplier is not None:
            noise_multiplier = self.noise_multiplier
        sensitivity = clip_bounds.sensitivity(1.0, neighboring_relation)
        multiplier = _checked(noise_multiplier) / min(sensitivity, self.diameter)
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
    """x in cells of the grid, ``(size,)``."""

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
    """Standard normal float64 numbers, each of `WORDS` uniform words, in x64 mode."""
    words = words.reshape(WORDS, -1)
    # The upper tail's probability: one bit is the sign, half a cell is added.
    places = 2.0 ** (-32.0 * np.arange(1, WORDS + 1) - 1)
    tail = jnp.sum(words.astype(jnp.float64) * places[:, None], axis=0)
    magnitude = -ndtri(tail + 2.0 ** (-32 * WORDS - 2))
    return jnp.where(words[-1] & 1, magnitude, -magnitude)


def _checked(noise_multiplier: float | None) -> float:
    most = gaussian.MAX_NOISE_MULTIPLIER
    return check_real("noise_multiplier", noise_multiplier, low=1e-50, high=most)
