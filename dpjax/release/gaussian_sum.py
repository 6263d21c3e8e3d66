"""The noisy gradient of a log-likelihood, as DP-SGD releases it: clip, sum, add noise.

    G = T/q (sum over the sample of clip(grad l_i) + N(0, (noise_multiplier C)^2 I)),

C the clip norm, T the tempering, and q the chance with which each record enters the
sample, estimates the gradient of the tempered log-likelihood of all records. The
divisor is public, the number of records in the sample is not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpjax import privacy
from dpjax.posterior import Posterior
from dpjax.random import batches
from dpjax.release import clip_bounds, exact_sums, gaussian, vector_sums

__all__ = ["GradientRelease"]


@dataclass(frozen=True)
class GradientRelease:
    """How gradients are released, and what a release costs.

    Parameters
    ----------
    l2_clip_norm
        C, the bound on the norm of one record's gradient.
    noise_multiplier
        Sd of the noise on the sum of clipped gradients over C, as in DP-SGD; zero is
        not private. None: it varies, and is given where it is used.
    sampling_prob
        q in (0, 1], rounded up to a multiple of 2^-32.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    l2_clip_norm: float
    noise_multiplier: float | None
    sampling_prob: float = 1.0

    def __post_init__(self):
        if not 0 < self.l2_clip_norm < math.inf:
            raise ValueError(
                f"l2_clip_norm must be positive and finite, got {self.l2_clip_norm}"
            )
        if self.noise_multiplier is not None:
            _check_noise(self.noise_multiplier)
        if not 0 < self.sampling_prob <= 1:
            raise ValueError(
                f"sampling_prob must be in (0, 1], got {self.sampling_prob}"
            )
        rounded = math.ceil(self.sampling_prob * 2**32) / 2**32
        object.__setattr__(self, "sampling_prob", rounded)

    def num_words(self, size: int, num_records: int) -> int:
        """Uniform words for one release of `size` numbers."""
        return batches.num_poisson_words(self.sampling_prob, num_records) + 2 * size

    def __call__(
        self,
        words: jax.Array,
        posterior: Posterior,
        position,
        function: Callable | None = None,
        noise_multiplier: jax.Array | None = None,
        rng_key: jax.Array | None = None,
    ):
        """Release G at `position`.

        Parameters
        ----------
        words
            ``(num_words(size, num_records),)``, size the components of the position.
        position
            Where the gradient is taken, a public pytree.
        function
            ``(position, record) -> scalar`` that stands for the log-likelihood.
        noise_multiplier
            A positive float64 scalar, if it varies.
        rng_key
            As in `vector_sums.sampled_gradient_sum`.

        Returns
        -------
        A pytree like the position.

        Notes
        -----
        *Formal guarantees.* What is returned is post-processing of one release of
        `event`; without noise it is not private.
        """
        flat, unravel = ravel_pytree(position)
        sample_words, noise_words = jnp.split(words, [len(words) - 2 * flat.size])
        sample = batches.poisson(
            sample_words, self.sampling_prob, posterior.num_records
        )
        total = vector_sums.sampled_gradient_sum(
            posterior, sample, position, self.l2_clip_norm, function, rng_key
        )
        unit = self.l2_clip_norm / exact_sums.GRID
        if self.noise_multiplier == 0:
            with jax.enable_x64(True):
                total = (total * unit).astype(flat.dtype)
        else:
            # Counted in sensitivities under substitution, two clip norms.
            with jax.enable_x64(True):
                multiplier = (self.noise_multiplier or noise_multiplier) / 2
            total = gaussian.gaussian_release(noise_words, total, unit, multiplier)
        scale = posterior.tempering / self.sampling_prob
        return unravel(scale * total.astype(flat.dtype))

    def event(
        self,
        size: int,
        neighboring_relation: NeighboringRelation,
        noise_multiplier: float | None = None,
    ):
        """What one release of `size` numbers costs.

        Raises
        ------
        ValueError
            If there is no noise, or `noise_multiplier` is out of range.
        """
        if self.noise_multiplier is not None:
            noise_multiplier = self.noise_multiplier
        _check_noise(noise_multiplier)
        if noise_multiplier == 0:
            raise ValueError("a gradient without noise is not private")
        error = size * gaussian.TOTAL_VARIATION + 2 * batches.TOTAL_VARIATION
        if self.sampling_prob == 1:
            sensitivity = clip_bounds.sensitivity(1.0, neighboring_relation)
            return privacy.GaussianRelease(noise_multiplier / sensitivity, error)
        return privacy.PoissonGaussianRelease(
            noise_multiplier, self.sampling_prob, neighboring_relation, error
        )


def _check_noise(noise_multiplier) -> None:
    if not 0 <= noise_multiplier <= 2 * gaussian.LOUDEST:
        raise ValueError(
            f"noise_multiplier must be from 0 to {2 * gaussian.LOUDEST:g}, got "
            f"{noise_multiplier}"
        )
