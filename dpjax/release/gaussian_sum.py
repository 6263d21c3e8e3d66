"""A sum over records of clipped vectors with Gaussian noise, as DP-SGD releases it.

    sum over the sample of clip(v_i) + N(0, (noise_multiplier C)^2 I),

where v_i is the vector that record i adds and C the clip norm. Each record enters the
sample with chance q, independently of the others. So the sum divided by q estimates the
sum over all records. The divisor q is public; the number of records in the sample is
not. `GaussianSum` puts together the sample (`dpjax.random.batches`), the clipped sum
(`vector_sums`) and the noise (`gaussian`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpjax import privacy
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_kept_size, check_positive, check_real
from dpjax.random import batches
from dpjax.release import clip_bounds, gaussian, vector_sums
from dpjax.release.exact_sums import VECTOR_GRID

__all__ = ["GaussianSum"]


@dataclass(frozen=True)
class GaussianSum:
    """How sums of vectors are released, and what a release costs.

    Call an instance to release a sum; `event` is what the release costs.

    Parameters
    ----------
    l2_clip_norm
        C, the bound on the Euclidean norm of the vector that one record adds.
    noise_multiplier
        Standard deviation of the noise on the sum, divided by C, as in DP-SGD. Zero is
        not private. None if it varies: then it is an argument of each release and of
        `event`.
    sampling_prob
        q in (0, 1], rounded up to a multiple of 2^-32.
    diameter
        Bound on the distance between the vectors that two records add, in clip norms,
        in [1, 2]. It is 2 unless the vectors of all records are known to have similar
        directions.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    l2_clip_norm: float
    noise_multiplier: float | None
    sampling_prob: float = 1.0
    diameter: float = 2.0
    norm: ClassVar[None] = None
    """None: vectors are clipped in the Euclidean norm. `KNormSum` may have another."""

    def __post_init__(self):
        check_positive(l2_clip_norm=self.l2_clip_norm)
        if self.noise_multiplier is not None:
            _checked(self.noise_multiplier)
        check_real("diameter", self.diameter, low=1.0, high=2.0)
        prob = check_real("sampling_prob", self.sampling_prob, low=1e-50, high=1.0)
        rounded = math.ceil(prob * 2**32) / 2**32
        object.__setattr__(self, "sampling_prob", rounded)

    def num_words(self, size: int, num_records: int) -> int:
        """Number of uniform uint32 words for one release of `size` numbers."""
        sample_words = batches.num_poisson_words(self.sampling_prob, num_records)
        return sample_words + gaussian.WORDS_PER_COORDINATE * size

    def __call__(
        self,
        words: jax.Array,
        posterior: Posterior,
        contribution_fn: Callable,
        *,
        noise_multiplier: jax.Array | None = None,
        rng_key: jax.Array | None = None,
    ):
        """Release the noisy sum over a fresh sample.

        Parameters
        ----------
        words
            Uniform uint32, ``(num_words(size, num_records),)``, where ``size`` is how
            many numbers a record adds.
        posterior
            Its records are summed over.
        contribution_fn, rng_key
            ``record -> pytree`` of floats, as in `vector_sums.vector_sum`.
        noise_multiplier
            A positive float64 scalar, if that of the instance is None.

        Returns
        -------
        The sum, not divided by q: a pytree like the result of `contribution_fn`.

        Notes
        -----
        *Formal guarantees.* What is returned is one release of `event`; without noise
        it is not private.
        """
        shape = vector_sums.shape_of(posterior, contribution_fn, rng_key)
        flat, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, shape))
        sample = None
        sample_words = len(words) - gaussian.WORDS_PER_COORDINATE * flat.size
        if self.sampling_prob < 1:
            sample = batches.poisson(
                words[:sample_words], self.sampling_prob, posterior.num_records
            )
        total = vector_sums.vector_sum(
            posterior, contribution_fn, self.l2_clip_norm, sample, rng_key
        )
        unit = self.l2_clip_norm / VECTOR_GRID
        if self.noise_multiplier == 0:
            with jax.enable_x64(True):
                total = total * unit
        else:
            multiplier = self.noise_multiplier or noise_multiplier
            total = gaussian.add_noise(words[sample_words:], total, unit, multiplier)
        return unravel(total.astype(flat.dtype))

    def event(
        self,
        size: int,
        neighboring_relation: NeighboringRelation,
        noise_multiplier: float | None = None,
    ):
        """The privacy event of one release of `size` numbers.

        `noise_multiplier` counts only if that of the instance is None.

        Raises
        ------
        ValueError
            If there is no noise, or `noise_multiplier` is out of range; or as
            `dpjax.privacy.validate.check_kept_size`.
        """
        if self.noise_multiplier is not None:
            noise_multiplier = self.noise_multiplier
        noise_multiplier = _checked(noise_multiplier)
        if noise_multiplier == 0:
            raise ValueError("a sum without noise is not private")
        failure = size * gaussian.FAILURE_PROB
        relative = size * gaussian.RELATIVE_ERROR
        if self.sampling_prob == 1:
            sensitivity = clip_bounds.sensitivity(1.0, neighboring_relation)
            sensitivity = min(sensitivity, self.diameter)
            multiplier = noise_multiplier / sensitivity
            return privacy.GaussianRelease(multiplier, failure, relative)
        return privacy.PoissonGaussianRelease(
            noise_multiplier,
            self.sampling_prob,
            check_kept_size("neighboring_relation", neighboring_relation),
            failure + batches.FAILURE_PROB,
            relative,
        )


def _checked(noise_multiplier: float | None) -> float:
    most = gaussian.MAX_NOISE_MULTIPLIER
    return check_real("noise_multiplier", noise_multiplier, low=0.0, high=most)
