"""A sum over records of clipped vectors with Gaussian noise, as DP-SGD releases it.

    sum over the sample of clip(v_i) + N(0, (noise_multiplier C)^2 I),

where v_i is the vector that record i adds and C the clip norm. Each record enters the
sample with chance q, independently of the others. So the sum divided by q estimates the
sum over all records. The divisor q is public; the number of records in the sample is
not. `GaussianSum` puts together the sample (`dpjax.random.batches`), the clipped sum
(`vector_sums`) and the noise (`gaussian`).
"""

import math
from dataclasses import dataclass

from dpjax import privacy
from dpjax.privacy.validate import check_kept_size, check_real
from dpjax.random import batches
from dpjax.release import gaussian
from dpjax.release.noisy_sum import NoisySum

__all__ = ["GaussianSum"]


@dataclass(frozen=True)
class GaussianSum(NoisySum):
    """A `NoisySum` with Gaussian noise, over all records or over a fresh sample.

    Parameters
    ----------
    l2_clip_norm, noise_multiplier, diameter
        As in `NoisySum`.
    sampling_prob
        q in (0, 1], rounded up to a multiple of 2^-32. A sum over a sample is not
        divided by q.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    sampling_prob: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        prob = check_real("sampling_prob", self.sampling_prob, low=1e-50, high=1.0)
        rounded = math.ceil(prob * 2**32) / 2**32
        object.__setattr__(self, "sampling_prob", rounded)

    def num_words(self, size: int, num_records: int) -> int:
        sample_words = batches.num_poisson_words(self.sampling_prob, num_records)
        return sample_words + self.num_noise_words(size)

    def num_noise_words(self, size: int) -> int:
        return gaussian.WORDS_PER_COORDINATE * size

    def _sample(self, words, num_records):
        if self.sampling_prob == 1:
            return None
        return batches.poisson(words, self.sampling_prob, num_records)

    def _add_noise(self, words, total, unit, noise_multiplier):
        return gaussian.add_noise(words, total, unit, noise_multiplier)

    def _event(self, size, neighboring_relation, noise_multiplier):
        failure = size * gaussian.FAILURE_PROB
        relative = size * gaussian.RELATIVE_ERROR
        if self.sampling_prob == 1:
            multiplier = noise_multiplier / self._distance(neighboring_relation)
            return privacy.GaussianRelease(multiplier, failure, relative)
        return privacy.PoissonGaussianRelease(
            noise_multiplier,
            self.sampling_prob,
            check_kept_size("neighboring_relation", neighboring_relation),
            failure + batches.FAILURE_PROB,
            relative,
        )
