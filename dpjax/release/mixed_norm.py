"""A norm that is short for vectors with few large components.

    |x| = sum of |x_i| over the single components + w |the others|_2,
    w = sqrt((r + 1) / 2) for r others.

What a record of one group adds has one large component among those of all groups. Noise
of a density proportional to e^(-c |x|) is then independent Laplace noise on the single
components, and on the others K-norm noise (`dpjax.release.k_norm_sum`) of the same
standard deviation, which is why w is what it is. It does not grow with the number of
components as Euclidean K-norm noise does.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

__all__ = ["MixedNorm"]


@dataclass(frozen=True)
class MixedNorm:
    """The norm, which is at least the Euclidean one.

    Parameters
    ----------
    single
        The single components, at least one, in increasing order.
    size
        d, the number of all components.
    ratio
        Root mean square norm of what a record is expected to add, over that of its
        Euclidean norm. It must not depend on the data.
    """

    single: tuple[int, ...]
    size: int
    ratio: float = 1.0

    @property
    def others(self) -> tuple[int, ...]:
        """The components that are not single."""
        return tuple(sorted(set(range(self.size)) - set(self.single)))

    @property
    def weight(self) -> float:
        """w. It is at least one where there are others."""
        return math.sqrt((self.size - len(self.single) + 1) / 2)

    def split(self, vectors, axis: int = -1):
        """The single components and the others, of arrays of length d along an axis."""
        single, others = (np.array(part, int) for part in (self.single, self.others))
        return jnp.take(vectors, single, axis), jnp.take(vectors, others, axis)

    def of_parts(self, single, length_of_others, axis: int = -1):
        """Norms, from the single components and the Euclidean norm of the others."""
        return jnp.sum(jnp.abs(single), axis=axis) + self.weight * length_of_others

    def __call__(self, vectors, axis: int = -1):
        """Norms of arrays of length d along an axis."""
        single, others = self.split(vectors, axis)
        length = jnp.sqrt(jnp.sum(others**2, axis=axis))
        return self.of_parts(single, length, axis)
