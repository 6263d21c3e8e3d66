"""A norm in which vectors with few large components are short.

    |x| = sum of |x_i| over the single components + w |the others|_2,
    w = sqrt((r + 1) / 2) for r others.

Its use is a sum whose components each belong to one of many groups of records: the
vector of a record has one large component among those, which is that of its own group.
These are the single components. Noise with a density proportional to e^(-c |x|) is
independent Laplace noise on the single components, and K-norm noise
(`dpjax.release.k_norm_sum`) on the others. The weight w is chosen so that both have the
same standard deviation. This noise does not grow with the number of components as
Euclidean K-norm noise does.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

__all__ = ["MixedNorm"]


@dataclass(frozen=True)
class MixedNorm:
    """The norm. It is at least as large as the Euclidean norm.

    Parameters
    ----------
    single
        Indices of the single components, at least one, in increasing order.
    size
        d, the number of all components.
    ratio
        How much longer vectors are expected to be in this norm: the root mean square of
        this norm over that of the Euclidean norm, for the vectors that records are
        expected to add. It must not depend on the data.
    """

    single: tuple[int, ...]
    size: int
    ratio: float = 1.0

    @property
    def others(self) -> tuple[int, ...]:
        """Indices of the components that are not single."""
        return tuple(sorted(set(range(self.size)) - set(self.single)))

    @property
    def weight(self) -> float:
        """The weight w of the others. If there are any, it is at least one."""
        return math.sqrt((self.size - len(self.single) + 1) / 2)

    def split(self, vectors, axis: int = -1):
        """The single components and the others of vectors along an axis of length d."""
        single, others = (np.array(part, int) for part in (self.single, self.others))
        return tuple(
            jnp.take(vectors, part, axis, mode="clip") for part in (single, others)
        )

    def of_parts(self, single, length_of_others, axis: int = -1):
        """The norms, given single components and the Euclidean norms of the others."""
        return jnp.sum(jnp.abs(single), axis=axis) + self.weight * length_of_others

    def __call__(self, vectors, axis: int = -1):
        """The norms of vectors along an axis of length d."""
        single, others = self.split(vectors, axis)
        length = jnp.sqrt(jnp.sum(others**2, axis=axis))
        return self.of_parts(single, length, axis)
