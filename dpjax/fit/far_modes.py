"""The mode of the posterior that a release implies, however far away it is.

No data are read. The objective, -log N(S; n m(t), Sigma) - log prior(t), is minimised
over t, with m(t) from records that are simulated at t. The method is that of Gauss and
Newton. The inverse of the prior's covariance takes the place of the Hessian of -log
prior. In a curved valley, a step in the right direction may lead to a larger value of
the objective at first. So some undamped steps are made whatever they lead to. Then the
method of Levenberg and Marquardt goes on from the best position that they visited.
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
"""Number of draws of the prior, and number of positions of `Law.predicted`."""

NUM_FAR = 2048
"""Number of records that are simulated at each position on the way to the mode."""

UNDAMPED_STEPS, DAMPED_STEPS = 10, 100
"""The most undamped and damped steps towards the mode."""

NUM_STARTS = 16
"""The most searches for the mode. The first begins at the center of the window, the
others at draws of the prior."""

MAX_EXCESS = 5.0
"""A mode explains the release if the log density there (minus the objective) is more
than the mean of the log prior over draws of the prior, less this. The two are about
equal if only noise and chance keep the release from its mean."""

NUM_SPREAD = 32
"""Number of approximate draws of the posterior that a release implies."""

NUM_FAR_SPREAD = 256
"""Number of records that are simulated at each position on the way to such a draw."""

MAX_GAIN = 1e-4
"""A search ends if twice the gain in log density that is expected of the next step is
at most this."""

SPREAD_STEPS = 10
"""Number of undamped steps towards each draw."""


class Prior(NamedTuple):
    """The prior of flat positions.

    logprior_fn
        ``t -> scalar``.
    draws
        Draws of the prior, ``(NUM_DRAWS, d)``.
    root
        A lower triangular root of the inverse of the draws' covariance, ``(d, d)``.
    """

    logprior_fn: Callable[[jax.Array], jax.Array]
    draws: jax.Array
    root: jax.Array

    @classmethod
    def of(cls, logprior_fn, prior_sample_fn, like, is_wide: bool) -> "Prior":
        """The prior of positions that have the structure of `like`.

        `is_wide` is as in `dpjax.fit.precision.own_precision`.
        """
        keys = jax.random.split(jax.random.key(0), NUM_DRAWS)
        draws = jax.vmap(lambda key: ravel_pytree(prior_sample_fn(key))[0])(keys)
        with jax.enable_x64(True):
            draws = draws.astype(float)
            covariance = jnp.cov(draws, rowvar=False).reshape(2 * draws.shape[1:])
            root = jnp.linalg.cholesky(jnp.linalg.inv(covariance))
        return cls(own_precision(logprior_fn, like, is_wide), draws, root)


class _Fit(NamedTuple):
    """The objective and its derivatives at a position.

    position, value
        The position ``(d,)``, and the objective there.
    force, curvature
        The negative gradient ``(d,)``, and a positive definite matrix in place of the
        Hessian ``(d, d)``.
    gain
        Twice the decrease of the objective that is expected of an undamped step.
    """

    position: jax.Array
    value: jax.Array
    force: jax.Array
    curvature: jax.Array
    gain: jax.Array


class Law(NamedTuple):
    """The posterior of the parameter t, given a release S.

    model, prior
        The model of a record, and the prior.
    window, total
        The window of the release, and S ``(d,)``.
    root
        A lower triangular root of Sigma, ``(d, d)``.
    num_records
        n.
    """

    model: RecordModel
    prior: Prior
    window: Window
    total: jax.Array
    root: jax.Array
    num_records: int

    def mode(self) -> jax.Array:
        """The mode of the posterior, ``(d,)``.

        The first search begins at the center of the window. It may end at a position
        that does not explain the release (`MAX_EXCESS`), such as one at which two
        components of a mixture are alike. Then further searches begin at draws of the
        prior, until one ends at a position that does.
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
        """A `_Fit` with an infinite objective, which any other is better than."""
        infinite = jnp.asarray(jnp.inf)
        precision = self.prior.root @ self.prior.root.T
        return _Fit(start, infinite, start, precision, infinite)

    def predicted(self, mode: jax.Array) -> jax.Array:
        """Positions at which to simulate records that may be in the data.

        They are `NUM_SPREAD` approximate draws of the posterior, repeated to
        ``(NUM_DRAWS, d)``. Each is the mode for an S with additional noise and a prior
        with a random push. The slope of the mean is computed at `mode` alone. The
        search for each draw starts there, and corrects the slope by Broyden's (1965)
        first update after every step.
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
        """The objective at t, from m(t) and its slope.

        It is -log N(S; n m(t), Sigma) - log prior(t) - t^T push, up to a constant.
        """
        residual = self.total - self.num_records * mean
        residual = solve_triangular(self.root, residual, lower=True)
        slope = solve_triangular(self.root, self.num_records * slope, lower=True)
        logprior, force = jax.value_and_grad(self.prior.logprior_fn)(t)
        value: jax.Array = residual @ residual / 2 - logprior - jnp.sum(t * push)
        value = jnp.where(jnp.isfinite(value), value, jnp.inf)
        force = slope.T @ residual + force + push
        curvature = slope.T @ slope + self.prior.root @ self.prior.root.T
        gain = force @ jnp.linalg.solve(curvature, force)
        return _Fit(t, value, force, curvature, gain)

    def _minimum(self, start) -> _Fit:
        """The best position that a search from `start` visits."""

        def more(carry):
            _, best, _, count = carry
            # A gain of NaN is not that of a mode, so the search goes on.
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
