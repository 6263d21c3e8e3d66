"""Modes of what a release implies, wherever they are. Reads no data.

The objective is -log N(S; n m(t), Sigma) - log prior(t), with m(t) from records that
are simulated at t. Steps are Gauss and Newton's, with the curvature of the prior in
place of its Hessian. In a curved valley, a step to the right position may look worse
than none at first. So some undamped steps are made whatever they lead to, and Levenberg
and Marquardt's method goes on from the best position that they visited.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from dpjax.fit.precision import own_precision
from dpjax.fit.record_model import RecordModel, Window

__all__ = ["Law", "Prior"]

NUM_DRAWS = 2048
"""Positions that records are predicted at, first from the prior."""

NUM_FAR = 2048
"""Records that are simulated at each position on the way to the mode."""

UNDAMPED_STEPS, DAMPED_STEPS = 10, 100
"""Towards the mode."""

NUM_STARTS = 16
"""Where searches for the mode begin, at most: the center of a window, and draws of the
prior."""

MAX_EXCESS = 5.0
"""A mode explains the release if the log density there is at least the mean of the
prior's log density over draws of the prior, less this. The two are about equal where
only noise and chance keep the release from its mean."""

NUM_SPREAD = 32
"""Approximate draws of what a release implies."""

NUM_FAR_SPREAD = 256
"""Records that are simulated at each position on the way to one of these."""

MAX_GAIN = 1e-4
"""Twice the gain in log density, expected of a step, below which none is made."""

SPREAD_STEPS = 10
"""Undamped, towards each draw."""


class Prior(NamedTuple):
    """The prior of flat positions.

    logprior_fn
        ``t -> scalar``.
    draws
        ``(NUM_DRAWS, d)``.
    root
        A triangular root of the inverse of their covariance, ``(d, d)``.
    """

    logprior_fn: Callable[[jax.Array], jax.Array]
    draws: jax.Array
    root: jax.Array

    @classmethod
    def of(cls, logprior_fn, prior_sample_fn, like, is_wide: bool) -> "Prior":
        """The prior of positions like `like`; see `own_precision`."""
        keys = jax.random.split(jax.random.key(0), NUM_DRAWS)
        draws = jax.vmap(lambda key: ravel_pytree(prior_sample_fn(key))[0])(keys)
        with jax.enable_x64(True):
            draws = draws.astype(float)
            covariance = jnp.cov(draws, rowvar=False).reshape(2 * draws.shape[1:])
            root = jnp.linalg.cholesky(jnp.linalg.inv(covariance))
        return cls(own_precision(logprior_fn, like, is_wide), draws, root)


class _Fit(NamedTuple):
    """What is minimised, at a position.

    force, curvature
        Negative gradient, and a positive matrix in place of the Hessian.
    gain
        Twice what a step may gain.
    """

    position: jax.Array
    value: jax.Array
    force: jax.Array
    curvature: jax.Array
    gain: jax.Array


class Law(NamedTuple):
    """What a release S, together with the prior, says about the parameter.

    window, total, root
        The window and S of the release, and a triangular root of Sigma, ``(d, d)``.
    """

    model: RecordModel
    prior: Prior
    window: Window
    total: jax.Array
    root: jax.Array
    num_records: int

    def mode(self) -> jax.Array:
        """The mode that a search from the center of the window reaches.

        It may end where the release is not explained, as where two components of a
        mixture are alike. Then others begin at draws of the prior, until it is.
        """
        center = self.window.center[None]
        starts = jnp.concatenate([center, self.prior.draws[: NUM_STARTS - 1]])
        logpriors = jax.vmap(self.prior.logprior_fn)(self.prior.draws)
        enough = MAX_EXCESS - jnp.mean(logpriors)

        def is_sought(carry):
            best, count = carry
            return ~(best.value < enough) & (count < NUM_STARTS)

        def search(carry):
            best, count = carry
            return _better(self._minimum(starts[count]), best), count + 1

        carry = self._unknown(starts[0]), 0
        return jax.lax.while_loop(is_sought, search, carry)[0].position

    def _unknown(self, start) -> _Fit:
        """Worse than any position."""
        infinite = jnp.asarray(jnp.inf)
        precision = self.prior.root @ self.prior.root.T
        return _Fit(start, infinite, start, precision, infinite)

    def predicted(self, mode: jax.Array) -> jax.Array:
        """Positions at which to simulate records that may be in the data.

        They are modes, had S and the prior other noise: approximate draws of the law.
        The slope of the mean is computed at the mode alone. The search for each of the
        others starts there, and corrects the slope by Broyden's (1965) first update
        after every step.
        """
        with jax.enable_x64(self.model.is_wide):
            shape = NUM_SPREAD, 2, len(mode)
            normals = jax.random.normal(jax.random.key(1), shape)
        normals = normals.astype(float)
        totals = self.total[None] + normals[:, 0] @ self.root.T
        pushes = normals[:, 1] @ self.prior.root.T
        mean, slope = self.model.far(self.window, mode, NUM_FAR_SPREAD)

        def one(total, push):
            law = self._replace(total=total)

            def turn(_, carry):
                now, best, mean, slope = carry
                step = jnp.linalg.solve(now.curvature, now.force)
                t = now.position + step
                moved = self.model.far_mean(self.window, t, NUM_FAR_SPREAD)
                missed = moved - mean - slope @ step
                slope += jnp.outer(missed, step) / (step @ step)
                now = law._fit(t, moved, slope, push)
                return now, _better(now, best), moved, slope

            first = law._fit(mode, mean, slope, push)
            carry = first, first, mean, slope
            return jax.lax.fori_loop(0, SPREAD_STEPS, turn, carry)[1].position

        draws = jax.lax.map(lambda pair: one(*pair), (totals, pushes), batch_size=8)
        return jnp.tile(draws, (NUM_DRAWS // NUM_SPREAD, 1))

    def _fit(self, t, mean, slope, push=0.0) -> _Fit:
        """-log N(S; n m(t), Sigma) - log prior(t) - t^T push, from m and its slope."""
        residual = self.total - self.num_records * mean
        residual = solve_triangular(self.root, residual, lower=True)
        slope = solve_triangular(self.root, self.num_records * slope, lower=True)
        logprior, force = jax.value_and_grad(self.prior.logprior_fn)(t)
        value = residual @ residual / 2 - logprior - jnp.sum(t * push)
        value = jnp.where(jnp.isfinite(value), value, jnp.inf)
        force = slope.T @ residual + force + push
        curvature = slope.T @ slope + self.prior.root @ self.prior.root.T
        gain = force @ jnp.linalg.solve(curvature, force)
        return _Fit(t, value, force, curvature, gain)

    def _minimum(self, start) -> _Fit:
        """Where -log N(S; n m(t), Sigma) - log prior(t) is least."""

        def more(carry):
            _, best, _, count = carry
            # A NaN goes on: it is not a mode.
            return ~(best.gain <= MAX_GAIN) & (count < UNDAMPED_STEPS + DAMPED_STEPS)

        def turn(carry):
            t, best, damping, count = carry
            now = self._fit(t, *self.model.far(self.window, t, NUM_FAR))
            factor = jnp.where(now.value < best.value, 0.1, 10.0)
            best = _better(now, best)
            is_free = count < UNDAMPED_STEPS
            damping = damping * jnp.where(is_free, 1.0, factor)
            t, _, force, curvature, _ = jax.tree.map(
                lambda a, b: jnp.where(is_free, a, b), now, best
            )
            ridge = jnp.where(is_free, 0.0, damping) * jnp.diag(jnp.diag(curvature))
            moved = t + jnp.linalg.solve(curvature + ridge, force)
            return moved, best, damping, count + 1

        carry = start, self._unknown(start), jnp.asarray(1e-3), 0
        return jax.lax.while_loop(more, turn, carry)[1]


def _better(now: _Fit, best: _Fit) -> _Fit:
    """The one with the smaller value."""
    is_better = now.value < best.value
    return jax.tree.map(lambda a, b: jnp.where(is_better, a, b), now, best)
