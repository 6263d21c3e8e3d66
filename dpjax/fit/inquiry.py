"""What a fit by scores asks for: noisy sums over records, and means under the model.

`ScoreModel` is what a fit needs to know of a model. `Inquiry` puts the model together
with the data and with the random words of one fit. Positions are flat vectors z, and
scores are in the units of a `dpjax.fit.frame.Frame`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.fit import contrast
from dpjax.fit.frame import Frame, frame
from dpjax.fit.precision import is_wide
from dpjax.posterior import Posterior
from dpjax.release.mixed_norm import MixedNorm

__all__ = [
    "KEY_WORDS",
    "MAX_MOVE",
    "MAX_STEP",
    "Inquiry",
    "ScoreModel",
    "Units",
    "record_key",
]

KEY_WORDS = 2
"""Words of a release that make a JAX key, from which every record gets its own key."""

MAX_STEP, MAX_MOVE = 0.25, 0.3
"""The longest step, in standard deviations that the posterior would have if there were
only one record; and the farthest that a step moves a component, in standard deviations
of the prior."""


@dataclass(frozen=True)
class ScoreModel:
    """What a fit needs of a model. Only the scores of the records are not public.

    scores_fn
        ``(position, record, rng_key) -> Scores``; see `dpjax.fit.scores`.
    search_scores_fn
        As `scores_fn`, for the search. If the nodes are drawn, there are fewer of them;
        otherwise the scores are the same.
    expected
        ``expected(function, has_pairs=False)`` returns a function ``(position, columns)
        -> means``. The means are taken over public covariates, of the list of matrices
        that ``function(scores)`` returns for one record. Before that, the directions of
        the scores are multiplied by `columns`, ``(d, d)``. `has_pairs` says that
        `function` makes numbers of every pair of nodes. None if the nodes are drawn.
    information
        ``position -> (d, d)``: the expected Fisher information of all records, like the
        result of `dpjax.fisher.fisher_information`.
    prior_mean, prior_precision
        Mean and precision of a normal law that stands for the prior of the flattened
        position, ``(d,)`` and ``(d, d)``. They only decide where the records are asked,
        and in what units.
    """

    scores_fn: Callable
    search_scores_fn: Callable
    expected: Callable | None
    information: Callable[[Any], jax.Array]
    prior_mean: np.ndarray
    prior_precision: np.ndarray


class Units(NamedTuple):
    """The coordinates and the clip norms of records' scores.

    axes
        The frame in whose measured directions scores are taken.
    unit
        The clip norm of a record's score in this frame.
    bound
        The clip norm of a record's expected slope, divided by the square of `unit`.
    """

    axes: Frame
    unit: jax.Array
    bound: jax.Array


class Inquiry:
    """The posterior, the model and the random words of one fit.

    Parameters
    ----------
    posterior
        The prior and the data.
    model
        The scores of a record, and what the model expects of them.
    num_records
        n, the public number of records.
    words
        Uniform uint32 words for all releases. `take` deals them out in turn.
    position
        The position where the fit begins, a pytree.
    norm
        The norm in which scores are clipped; None is the Euclidean one.
    """

    def __init__(
        self,
        posterior: Posterior,
        model: ScoreModel,
        num_records: int,
        words: jax.Array,
        position,
        norm: MixedNorm | None,
    ):
        self.posterior, self.model, self.words = posterior, model, words
        self.norm = norm
        # The length of a record's score in this norm over its Euclidean length.
        self.ratio = norm.ratio if norm else 1.0
        self.start, self.unravel = ravel_pytree(position)
        self.dim, self.dtype = self.start.size, self.start.dtype
        self.tempering = posterior.tempering
        self.is_wide = is_wide()
        # So many records without tempering would tell as much.
        self.effective = posterior.tempering * num_records
        # Functions of the model are traced once, wherever they are called.
        self.scores_fn = jax.jit(model.scores_fn)
        self.search_scores_fn = jax.jit(model.search_scores_fn)
        self.information = jax.jit(self._information)
        covariance = np.linalg.inv(model.prior_precision)
        self.prior_sd = np.sqrt(np.diag(covariance))

    def take(self, release, size: int, count: int = 1) -> jax.Array:
        """The words of the next `count` releases, each of `size` numbers.

        The result has shape ``(count, words of one release)``.
        """
        length = KEY_WORDS + release.num_words(size, self.posterior.num_records)
        taken, self.words = jnp.split(self.words, [count * length])
        return taken.reshape(count, length)

    def ask(self, release, words, noise, contribution_fn) -> jax.Array:
        """Release the noisy sum over records of ``contribution_fn(record, rng_key)``.

        `noise` is the noise multiplier, and `words` are a row of what `take` returned.
        """
        return release(
            words[KEY_WORDS:],
            self.posterior,
            contribution_fn,
            noise_multiplier=jnp.asarray(noise),
            rng_key=record_key(words[:KEY_WORDS]),
        )

    def matrix(self, release, words, noise, contribution_fn, axes: Frame) -> jax.Array:
        """Release the noisy sum of symmetric matrices, in the directions of the frame.

        A record contributes ``contrast.packed(Q^T M Q)``, with Q the turn of the frame,
        and the result is the sum of the M, ``(d, d)``.
        """
        found = self.ask(release, words, noise, contribution_fn)
        return axes.turn @ contrast.unpacked(found, self.dim) @ axes.turn.T

    def precision(self):
        """The context to call functions of the model in: the user's x64 setting."""
        return jax.enable_x64(self.is_wide)

    def _information(self, z):
        with self.precision():
            information = self.model.information(self.unravel(z))
        return information.astype(jnp.float64)

    def expected(self, function: Callable, *options) -> Callable | None:
        """`ScoreModel.expected`, of flat positions, with float64 means.

        The result is a function ``(z, columns) -> means``, which is traced once. It is
        None if that of the model is None.
        """
        if self.model.expected is None:
            return None
        of_columns = self.model.expected(function, *options)

        def mean(z, columns):
            with self.precision():
                found = of_columns(self.unravel(z), columns)
            return [leaf.astype(jnp.float64) for leaf in found]

        return jax.jit(mean)

    def frame(self, information, correction) -> Frame:
        return frame(information, jnp.asarray(self.model.prior_precision), correction)

    def unit(self, axes: Frame) -> jax.Array:
        """Root mean square length of one record's score in this frame."""
        return jnp.sqrt(axes.effective_dim / self.effective)

    def columns(self, axes: Frame, unit: jax.Array | float) -> jax.Array:
        """Directions in which scores are released, in units of `unit`, ``(d, d)``.

        The columns of T that are not measured are set to zero, and the matrix is then
        multiplied by the turn Q of the frame and divided by `unit`.
        """
        columns = jnp.where(axes.is_measured, axes.stretch / unit, 0) @ axes.turn
        return columns.astype(self.dtype)

    def scores_at(self, z, axes: Frame, unit, scores_fn=None) -> Callable:
        """``(record, rng_key) -> Scores`` at z, in the directions of `columns`."""
        scores_fn = scores_fn or self.scores_fn
        position, columns = self.unravel(z), self.columns(axes, unit)

        def scores(record, rng_key):
            with self.precision():
                found = scores_fn(position, record, rng_key)
            found = jax.lax.optimization_barrier(found)
            return found._replace(directions=found.directions @ columns)

        return scores

    def contrasts_at(self, z, units: Units) -> Callable:
        """``(record, rng_key) -> Contrast`` at z, in these units."""
        scores = self.scores_at(z, units.axes, units.unit)
        bound = units.bound.astype(self.dtype)
        return lambda *record: contrast.contrast(scores(*record), bound, self.norm)

    def prior_score(self, z, axes: Frame) -> jax.Array:
        """The score at z of the normal law that stands for the prior, in the frame."""
        below = jnp.asarray(self.model.prior_mean) - z
        return axes.stretch.T @ (jnp.asarray(self.model.prior_precision) @ below)

    def moved(self, z, axes: Frame, step, reach=1.0) -> tuple[jax.Array, jax.Array]:
        """z after a step in units of the frame, and the relative length of the step.

        The step is shortened to at most `MAX_STEP` and then multiplied by `reach`, but
        no component of z moves by more than `MAX_MOVE`. The relative length is that of
        `step` as given, divided by the longest that a step may have.
        """
        size = jnp.linalg.norm(step) / (MAX_STEP * math.sqrt(self.effective))
        jump = reach * axes.stretch @ (step / jnp.maximum(1.0, size))
        limit = MAX_MOVE * self.prior_sd
        return (z + jnp.clip(jump, -limit, limit)).astype(self.dtype), size


def record_key(words: jax.Array) -> jax.Array:
    """A JAX key from `KEY_WORDS` uniform words."""
    return jax.random.wrap_key_data(words, impl="threefry2x32")
