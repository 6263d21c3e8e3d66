"""What a fit asks: noisy sums over the records, and expectations of the model."""

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

__all__ = ["KEY_WORDS", "MAX_MOVE", "MAX_STEP", "Inquiry", "ScoreModel", "Units"]

KEY_WORDS = 2
"""Random words of the key from which the records get keys of their own."""

MAX_STEP, MAX_MOVE = 0.25, 0.3
"""The longest step, in standard deviations of the posterior given one record; and the
farthest that a step moves a component, in standard deviations of the prior."""


@dataclass(frozen=True)
class ScoreModel:
    """What a fit asks of a model. All of it is public but the scores.

    scores_fn
        ``(position, record, rng_key) -> Scores``; see `dpjax.fit.scores`.
    search_scores_fn
        As `scores_fn`, for the search: of fewer nodes if they are drawn, or the same.
    expected
        ``expected(function, has_pairs=False)`` is ``(position, columns) -> means`` over
        public covariates of the matrices that ``function(scores)`` returns for one
        record, whose directions are multiplied by `columns`, ``(d, d)``. `has_pairs`
        says that it makes numbers of every pair of nodes. None if the nodes are drawn.
    information
        ``position -> (d, d)``: the expected Fisher information of all records, as
        `dpjax.fisher.fisher_information` gives it.
    prior_mean, prior_precision
        Of the normal law that stands for the prior of the flattened position, ``(d,)``
        and ``(d, d)``. It only decides where the records are asked, and in what units.
    """

    scores_fn: Callable
    search_scores_fn: Callable
    expected: Callable | None
    information: Callable[[Any], jax.Array]
    prior_mean: np.ndarray
    prior_precision: np.ndarray


class Units(NamedTuple):
    """In which records' scores are clipped.

    axes
        Scores are taken in the measured directions of this frame.
    unit
        The clip norm of a record's score there.
    bound
        The clip norm of its expected slope, over the square of `unit`.
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
        How records are drawn.
    num_records
        n.
    words
        Random words of all releases, which `take` deals out in turn.
    position
        Where the fit begins, a pytree.
    norm
        In which scores are clipped; None is the Euclidean one.
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
        # How much longer a record's score is in this norm than in the Euclidean one.
        self.ratio = norm.ratio if norm else 1.0
        self.start, self.unravel = ravel_pytree(position)
        self.dim, self.dtype = self.start.size, self.start.dtype
        self.tempering = posterior.tempering
        self.is_wide = is_wide()
        # As many records tell as much without tempering.
        self.effective = posterior.tempering * num_records
        # Functions of the model are traced once, wherever they are called.
        self.scores_fn = jax.jit(model.scores_fn)
        self.search_scores_fn = jax.jit(model.search_scores_fn)
        self.information = jax.jit(self._information)
        covariance = np.linalg.inv(model.prior_precision)
        self.prior_sd = np.sqrt(np.diag(covariance))

    def take(self, release, size: int, count: int = 1) -> jax.Array:
        """The words of the next `count` releases, ``(count, words)``."""
        length = KEY_WORDS + release.num_words(size, self.posterior.num_records)
        taken, self.words = jnp.split(self.words, [count * length])
        return taken.reshape(count, length)

    def ask(self, release, words, noise, contribution_fn) -> jax.Array:
        """Release the noisy sum of what each record contributes."""
        key = jax.random.wrap_key_data(words[:KEY_WORDS], impl="threefry2x32")
        return release(
            words[KEY_WORDS:],
            self.posterior,
            contribution_fn,
            noise_multiplier=jnp.asarray(noise),
            rng_key=key,
        )

    def matrix(self, release, words, noise, contribution_fn, axes: Frame) -> jax.Array:
        """The noisy sum of symmetric matrices that come turned and `packed`."""
        found = self.ask(release, words, noise, contribution_fn)
        return axes.turn @ contrast.unpacked(found, self.dim) @ axes.turn.T

    def precision(self):
        """The context in which functions of the model are called: the user's own."""
        return jax.enable_x64(self.is_wide)

    def _information(self, z):
        with self.precision():
            information = self.model.information(self.unravel(z))
        return information.astype(jnp.float64)

    def expected(self, function: Callable, *options) -> Callable | None:
        """``(z, columns) -> `` means over public covariates, float64; traced once.

        See `ScoreModel.expected`. It is None where that is.
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

    def columns(self, axes: Frame, unit) -> jax.Array:
        """The measured directions of the frame, turned, over `unit`, ``(d, d)``."""
        columns = jnp.where(axes.is_measured, axes.stretch / unit, 0) @ axes.turn
        return columns.astype(self.dtype)

    def scores_at(self, z, axes: Frame, unit, scores_fn=None) -> Callable:
        """``(record, key) -> Scores`` in the measured directions, over `unit`."""
        scores_fn = scores_fn or self.scores_fn
        position, columns = self.unravel(z), self.columns(axes, unit)

        def scores(record, rng_key):
            with self.precision():
                found = scores_fn(position, record, rng_key)
            found = jax.lax.optimization_barrier(found)
            return found._replace(directions=found.directions @ columns)

        return scores

    def contrasts_at(self, z, units: Units) -> Callable:
        """``(record, key) -> Contrast`` at z."""
        scores = self.scores_at(z, units.axes, units.unit)
        bound = units.bound.astype(self.dtype)
        return lambda *record: contrast.contrast(scores(*record), bound, self.norm)

    def prior_score(self, z, axes: Frame) -> jax.Array:
        below = jnp.asarray(self.model.prior_mean) - z
        return axes.stretch.T @ (jnp.asarray(self.model.prior_precision) @ below)

    def moved(self, z, axes: Frame, step, reach=1.0) -> tuple[jax.Array, jax.Array]:
        """z after `reach` times a step in units of the frame, within a step's limits.

        Also the step over the longest one.
        """
        size = jnp.linalg.norm(step) / (MAX_STEP * math.sqrt(self.effective))
        jump = reach * axes.stretch @ (step / jnp.maximum(1.0, size))
        limit = MAX_MOVE * self.prior_sd
        return (z + jnp.clip(jump, -limit, limit)).astype(self.dtype), size
