"""What releases of sums of clipped vectors with noise have in common.

    sum of clip(v_i) + noise,

where v_i is the vector that record i adds. The sum is an exact integer (`vector_sums`),
and with its noise it is rounded to a public lattice (`gaussian`). `GaussianSum` and
`KNormSum` say what the law of the noise is and what it costs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_positive_number, check_real
from dpjax.random.batches import Sample
from dpjax.release import clip_bounds, vector_sums
from dpjax.release.exact_sums import VECTOR_GRID
from dpjax.release.gaussian import MAX_NOISE_MULTIPLIER

__all__ = ["NoisySum"]


@dataclass(frozen=True)
class NoisySum(ABC):
    """How sums of vectors are released, and what a release costs.

    Call an instance to release a sum; `event` is what the release costs.

    Parameters
    ----------
    l2_clip_norm
        C, the bound on the norm of the vector that one record adds.
    noise_multiplier
        Standard deviation of the noise on one number, divided by C, as in DP-SGD; at
        most 2^15. Zero is not private. None if it varies: then it is an argument of
        each release and of `event`.
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
    diameter: float = field(default=2.0, kw_only=True)
    norm: ClassVar[Any] = None
    """The `MixedNorm` in which vectors are clipped; None for the Euclidean norm."""

    def __post_init__(self):
        numbers: dict[str, Any] = dict(
            l2_clip_norm=check_positive_number("l2_clip_norm", self.l2_clip_norm),
            diameter=check_real("diameter", self.diameter, low=1.0, high=2.0),
        )
        if self.noise_multiplier is not None:
            numbers["noise_multiplier"] = _checked(self.noise_multiplier)
        for name, number in numbers.items():
            object.__setattr__(self, name, number)

    @abstractmethod
    def num_noise_words(self, size: int) -> int:
        """Number of uniform uint32 words for the noise of `size` numbers."""

    @abstractmethod
    def _add_noise(self, words, total, unit: float, noise_multiplier) -> jax.Array:
        """`with_noise`, if there is noise; `unit` is the size of a cell of the grid."""

    @abstractmethod
    def _event(self, size: int, neighboring_relation, noise_multiplier: float):
        """`event`, with the noise multiplier that counts."""

    def num_words(self, size: int, num_records: int) -> int:
        """Number of uniform uint32 words for one release of `size` numbers."""
        return self.num_noise_words(size)

    def _sample(self, words, num_records: int) -> Sample | None:
        """The records that enter the sum, from the words that are not for the noise."""
        return None

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
        The sum: a pytree like the result of `contribution_fn`.

        Raises
        ------
        ValueError
            If a record adds more or fewer numbers than the words are for.

        Notes
        -----
        *Formal guarantees.* What is returned is one release of `event`; without noise
        it is not private.
        """
        shape = vector_sums.shape_of(posterior, contribution_fn, rng_key)
        flat, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, shape))
        # JAX would broadcast too little noise: one number of it for several numbers of
        # the sum, whose differences would then have none.
        if len(words) != self.num_words(flat.size, posterior.num_records):
            raise ValueError(
                f"a record adds {flat.size} numbers, but noise was made for another "
                "number of them: the kernel, its guide or family states a wrong size"
            )
        rest = len(words) - self.num_noise_words(flat.size)
        total = vector_sums.vector_sum(
            posterior,
            contribution_fn,
            self.l2_clip_norm,
            self._sample(words[:rest], posterior.num_records),
            rng_key,
            self.norm,
        )
        public = self.with_noise(words[rest:], total, noise_multiplier)
        return unravel(public.astype(flat.dtype))

    def with_noise(
        self, words: jax.Array, total: jax.Array, noise_multiplier=None
    ) -> jax.Array:
        """Release a sum that `vector_sums.vector_sum` has made.

        Parameters
        ----------
        words
            Uniform uint32, ``(num_noise_words(size),)``.
        total
            The sum of all records, int64 ``(size,)``, of vectors that were clipped at C
            in `norm`, or in a norm that is at least as large.
        noise_multiplier
            As in `__call__`.

        Returns
        -------
        Floats ``(size,)``.

        Raises
        ------
        ValueError
            If the words are not for as many numbers, or `noise_multiplier` is an array.

        Notes
        -----
        *Formal guarantees.* As for `__call__`.
        """
        if words.shape != (self.num_noise_words(total.size),) or total.ndim != 1:
            raise ValueError(
                f"{words.size} words are not the noise of a sum of shape {total.shape}"
            )
        unit = self.l2_clip_norm / VECTOR_GRID
        if self.noise_multiplier == 0:
            with jax.enable_x64(True):
                return total * unit
        multiplier: Any = self.noise_multiplier or noise_multiplier
        if np.ndim(multiplier):
            raise ValueError("noise_multiplier must be one number, not an array")
        return self._add_noise(words, total, unit, multiplier)

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
        return self._event(size, neighboring_relation, noise_multiplier)

    def _distance(self, neighboring_relation: NeighboringRelation) -> float:
        """How far neighbouring data can move the sum of all records, in clip norms."""
        return min(clip_bounds.sensitivity(1.0, neighboring_relation), self.diameter)


def _checked(noise_multiplier: float | None) -> float:
    return check_real(
        "noise_multiplier", noise_multiplier, low=0.0, high=MAX_NOISE_MULTIPLIER
    )
