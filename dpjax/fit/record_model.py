"""Scores, clipped scores and their moments under a model, from simulated records.

No data are read. All positions are flat vectors ``(d,)`` in float64. The score of a
record x at t is s = grad log p(x | t). Then g = W^T s is the score after whitening with
a public matrix W, and clip(g) is g shortened to the norm C.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.fit.precision import unraveled
from dpjax.release.gradient_parts import gradient_parts, whole

__all__ = ["Moments", "RecordModel", "Window", "clip"]

RANK_TOLERANCE = 1e-11
"""Records say nothing about a direction if its eigenvalue of the Fisher information,
scaled to a unit diagonal, is below this share of the largest eigenvalue."""

CLIP_NORMS = np.geomspace(0.6, 16.0, 40)
"""The values of C to choose from, over the median norm of g."""

TINY = 1e-300

BLOCK = 10_000
"""Number of records that are simulated at once."""

MAX_PARTS = 64
"""The most components of a score that are computed one by one."""

SEED = 0
"""Seed of all simulated records. They are public, and the same in every fit."""


class Window(NamedTuple):
    """The function of a record that a release sums: clip(W^T s), with s at `center`.

    center
        theta ``(d,)``.
    whitening
        W ``(d, d)``. The column of a direction that records say nothing about is zero.
    l2_clip_norm
        C.
    """

    center: jax.Array
    whitening: jax.Array
    l2_clip_norm: jax.Array

    def __call__(self, scores: jax.Array) -> jax.Array:
        """clip(g) for scores s at the center, both ``(..., d)``."""
        return clip(scores @ self.whitening, self.l2_clip_norm)


class Moments(NamedTuple):
    """Moments of clip(g) and g, for records from the model at the center of a window.

    mean
        E clip(g) ``(d,)``, up to the error of the simulation.
    information
        A E[g g^T] A^T ``(d, d)``, with A the regression of clip(g) on g.
    loss
        Covariance of the residual of that regression ``(d, d)``.
    slope
        E[clip(g) s^T] ``(d, d)``, the derivative of E clip(g) with respect to the
        parameter at which records are drawn.
    square
        E |clip(g)|^2.
    """

    mean: jax.Array
    information: jax.Array
    loss: jax.Array
    slope: jax.Array
    square: jax.Array


def clip(vectors: jax.Array, l2_clip_norm) -> jax.Array:
    """Vectors ``(..., d)`` with norms of at most `l2_clip_norm`."""
    squares = jnp.sum(vectors**2, axis=-1, keepdims=True)
    norms = jnp.sqrt(jnp.maximum(squares, TINY))
    return vectors * jnp.minimum(1, l2_clip_norm / norms)


@dataclass(frozen=True)
class RecordModel:
    """The model of one record, on flat positions.

    loglikelihood_fn
        ``(t, record) -> scalar``.
    simulate_fn
        ``(rng_key, t) -> record``.
    is_wide
        Whether functions of the model compute in float64: see `own_precision`.
    """

    loglikelihood_fn: Callable[[jax.Array, Any], jax.Array]
    simulate_fn: Callable[[jax.Array, jax.Array], Any]
    is_wide: bool

    @classmethod
    def of(cls, loglikelihood_fn: Callable, simulate_fn: Callable, like, is_wide: bool):
        """The model of positions like `like`."""
        unravel = unraveled(like, is_wide)
        return cls(
            lambda t, record: loglikelihood_fn(unravel(t), record),
            lambda rng_key, t: simulate_fn(rng_key, unravel(t)),
            is_wide,
        )

    def simulate(self, positions: jax.Array, count: int | None = None, block=0):
        """Records from the model: `count` at one position, or one at each of many.

        Records of different blocks are independent.
        """
        axis = None if count else 0
        with jax.enable_x64(self.is_wide):
            block = jnp.asarray(block, jnp.uint32)
            key = jax.random.fold_in(jax.random.key(SEED), block)
            keys = jax.random.split(key, count or len(positions))
            positions = positions.astype(float)
            return jax.vmap(self.simulate_fn, (0, axis))(keys, positions)

    def loglikelihoods(self, position: jax.Array, records) -> jax.Array:
        """Log-likelihoods of the records at one position, ``(count,)``."""
        with jax.enable_x64(self.is_wide):
            position = position.astype(float)
            found = jax.vmap(self.loglikelihood_fn, (None, 0))(position, records)
        return found.astype(jnp.float64)

    def scores(self, position: jax.Array, records) -> jax.Array:
        """Scores of the records at one position, ``(count, d)``."""
        return self._scores(position, records).astype(jnp.float64).T

    def score_sums(self, weights: jax.Array, position: jax.Array, records) -> jax.Array:
        """Sums of scores times weights ``(count, k)``; the result is ``(k, d)``.

        They are added up in the precision of the model. If that is float32, it takes
        half the time that float64 would take.
        """
        scores = self._scores(position, records)
        product = jnp.matmul(scores, weights.astype(scores.dtype), precision="highest")
        return product.astype(jnp.float64).T

    def _scores(self, position, records):
        """Scores ``(d, count)``: XLA stores them much faster in this order of axes."""
        with jax.enable_x64(self.is_wide):
            scores = jax.vmap(self._score, (None, 0), out_axes=1)
            return scores(position.astype(float), records)

    @functools.cached_property
    def _score(self):
        """``(position, record) -> score``, a function that is traced once in a fit."""

        @jax.jit
        def score(position, record):
            parts = gradient_parts(self.loglikelihood_fn, position, record, MAX_PARTS)
            return jnp.concatenate([whole(part) for part in parts])

        return score

    def window(self, center: jax.Array, noise_variance, predicted=None) -> Window:
        """The window at a center with which a release determines the parameters best.

        Parameters
        ----------
        noise_variance
            Variance of the noise on the sum of clip(g) over n records if C = 1, divided
            by n.
        predicted
            Records that are simulated where the parameters may be. C is at least the
            95 % quantile of their |g|. None if the center is known to be close to the
            parameters.

        Notes
        -----
        Let B be the covariance of clip(g) and g, and R the covariance of the residual
        of the regression of clip(g) on g. C minimises
        tr[B^-1 (R + C^2 noise_variance I) B^-T], up to the quantile above.
        """
        scores = self.scores(center, self.simulate(center, BLOCK))
        whitening = _whitening(scores.T @ scores / BLOCK)
        white = scores @ whitening
        is_measured = jnp.any(whitening != 0, axis=0)
        unmeasured = jnp.diag(jnp.where(is_measured, 0.0, 1.0))
        median = jnp.median(jnp.linalg.norm(white, axis=1))

        def unknown(l2_clip_norm):
            clipped = clip(white, l2_clip_norm)
            slope = clipped.T @ white / BLOCK + unmeasured
            residual = clipped - white @ slope.T
            noise = (
                noise_variance * l2_clip_norm**2 * (jnp.eye(len(center)) - unmeasured)
            )
            covariance = residual.T @ residual / BLOCK + noise
            left = jnp.linalg.solve(slope, covariance)
            return jnp.trace(jnp.linalg.solve(slope, left.T))

        choices = median * CLIP_NORMS
        # `jnp.argmin` of float64 cannot be lowered where x64 is off.
        costs = jax.lax.map(unknown, choices)
        best = jax.lax.sort((costs, choices), num_keys=1)[1][0]
        if predicted is not None:
            norms = jnp.linalg.norm(self.scores(center, predicted) @ whitening, axis=1)
            best = jnp.maximum(best, jnp.quantile(norms, 0.95))
        return Window(center, whitening, best)

    def moments(self, window: Window, num_blocks: int) -> Moments:
        """Moments at the center of the window, from `num_blocks` x `BLOCK` records."""
        dim = len(window.center)

        def add(block, total):
            records = self.simulate(window.center, BLOCK, 1 + block)
            scores = self.scores(window.center, records)
            one = jnp.ones((BLOCK, 1))
            rows = jnp.concatenate([window(scores), scores @ window.whitening, one], 1)
            return total + rows.T @ rows

        total = jnp.zeros((2 * dim + 1, 2 * dim + 1))
        total = jax.lax.fori_loop(0, num_blocks, add, total) / (num_blocks * BLOCK)
        clipped, white = total[:dim], total[dim:-1]
        product, fisher = clipped[:, dim:-1], white[:, dim:-1]
        regression = product @ jnp.linalg.pinv(
            fisher, rtol=RANK_TOLERANCE, hermitian=True
        )
        # The exact mean of g is zero, so the regression on g may be subtracted. What is
        # left of clip(g) varies little.
        mean = clipped[:, -1] - regression @ white[:, -1]
        information = regression @ product.T
        loss = clipped[:, :dim] - information - jnp.outer(mean, mean)
        slope = product @ jnp.linalg.pinv(window.whitening)
        return Moments(mean, information, loss, slope, jnp.trace(clipped[:, :dim]))

    def far_mean(self, window: Window, position: jax.Array, count: int) -> jax.Array:
        """An estimate of E clip(g) ``(d,)`` for records from the model at `position`.

        The score at `position` has mean zero. So clip(g) is regressed on it, and the
        estimate is the value of the regression where the score is zero. The expectation
        of its derivative by the position is right for continuous records, which move
        with the position, and for discrete ones, which do not: then the score carries
        the derivative.
        """
        records = self.simulate(position, count)
        scores = self.scores(position, records)
        clipped = window(self.scores(window.center, records))
        fisher = scores.T @ scores
        scale = jax.lax.stop_gradient(jnp.sqrt(jnp.diag(fisher)) + TINY)
        scaled = fisher / jnp.outer(scale, scale)
        ridge = RANK_TOLERANCE * jnp.eye(len(scale))
        weights = jnp.linalg.solve(scaled + ridge, jnp.sum(scores, axis=0) / scale)
        return clipped.T @ (1 - scores @ (weights / scale)) / count

    def far(self, window: Window, position: jax.Array, count: int):
        """`far_mean` and its derivative ``(d, d)``."""

        def mean(position):
            found = self.far_mean(window, position, count)
            return found, found

        slope, value = jax.jacfwd(mean, has_aux=True)(position)
        return value, slope


def _whitening(fisher: jax.Array) -> jax.Array:
    """W with W^T F W = I, where F has a direction, and zero columns for the rest."""
    scale = 1 / jnp.sqrt(jnp.maximum(jnp.diag(fisher), TINY))
    values, vectors = jnp.linalg.eigh(fisher * jnp.outer(scale, scale))
    is_measured = values > RANK_TOLERANCE * values[-1]
    inverse: jax.Array = values**-0.5
    return scale[:, None] * vectors * jnp.where(is_measured, inverse, 0)[None, :]
