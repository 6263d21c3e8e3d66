"""Draws of the parameters theta from what a `score_fit` of a pinned model released.

A fit of the pinned model (`dpjax.fit.pinned`) informs about zeta(theta), the position
at which the pinned model has the effects of theta. As in `dpjax.fit.score_draws`, let
y(theta) = T^-1 (zeta(theta) - position), and let s be the released scores. Let the J_j
be draws of the slope, given the releases and a normal prior of y. Each J_j then has a
density proportional to p(J_j | released slope) p(s | J_j). So the posterior of theta is
about

    p(theta) mean_j p(s | y(theta), J_j) / p(s | J_j).

Many values of theta have the same effects, so the posterior is curved, and chains of
NUTS draw from it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.diagnostics import potential_scale_reduction
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp

from dpjax.compiled import compiled
from dpjax.fit.normal_laws import Laws, PriorLaw, laws_of
from dpjax.fit.pinned import Pinned
from dpjax.fit.precision import is_wide, own_precision, unraveled
from dpjax.fit.released import Released
from dpjax.fit.score_draws import (
    Known,
    bend,
    evidence_of,
    fit_check_of,
    known_of,
)
from dpjax.fit.slopes import Evidence, slopes
from dpjax.nuts import nuts_chain
from dpjax.posterior import Posterior

__all__ = ["draws"]

NUM_SLOPES = 128
"""Number of draws J_j of the slope. The likelihood is a mean over them."""

NUM_CHAINS, NUM_WARMUP = 8, 200
"""Number of chains of NUTS, and number of warm-up steps of each. The chains move in
coordinates in which the posterior is about standard normal, so successive states are
nearly independent, and all of them are draws."""

MIN_STEPS = 50
"""Least number of steps of a chain after its warm-up. The R-hat of chains that agree is
above 1.1 by chance in one of 1e10 fits, but in many fits if the chains are short."""


def draws(
    posterior: Posterior,
    released: Released,
    rng_key: jax.Array,
    num_draws: int,
    like: Any,
    *,
    pinned: Pinned,
    prior_mean: np.ndarray,
    prior_precision: np.ndarray,
    lost_fn,
) -> tuple[Any, Known]:
    """Draws from the posterior that a fit of the pinned model implies.

    They are states of chains of NUTS. Neighbouring draws are of different chains.

    Parameters
    ----------
    posterior, rng_key, num_draws, like, lost_fn
        As in `dpjax.fit.score_draws.draws`. They are those of all parameters, not of
        the pinned model.
    released
        What `score_fit` released for the pinned model.
    pinned
        The pinned model.
    prior_mean, prior_precision
        Mean and precision of the normal law that stands for the prior of the flattened
        position, ``(d,)`` and ``(d, d)``.

    Returns
    -------
    positions
        Leaves ``(num_draws, ...)``.
    known
        How well they are determined. It names no noisiest component.
    """
    wide = is_wide()
    is_measured = np.asarray(released.data_share) > 0
    evidence = evidence_of(released, is_measured, posterior.tempering)
    share, everywhere = evidence.data_share, np.ones(len(evidence.slope), bool)
    prior = PriorLaw(np.asarray(released.prior_mean)[is_measured], np.diag(1 - share))
    near = laws_of(evidence, prior, everywhere, evidence.regular[None])
    evidence = evidence._replace(
        score_sds=np.hypot(
            evidence.score_sds, bend(evidence, near.mean[0], released.num_records)
        )
    )
    first, second = jax.random.split(rng_key)
    found = slopes(evidence, prior.mean, first, NUM_SLOPES)
    laws = laws_of(evidence, prior, everywhere, found)
    weights = _log_weights(evidence, prior.mean, np.diag(1 / (1 - share)), found)
    with jax.enable_x64(True):
        whitened = _Whitened.of(
            pinned, released, is_measured, near, prior_mean, prior_precision, wide
        )
        logprior_fn = own_precision(posterior.logprior_fn, like, wide)

    def run(rng_key, whitened, mixture):
        rows, targets, weights = mixture

        def logdensity(x):
            theta, volume = whitened.theta(x)
            squares = (rows @ whitened.y(theta) - targets) ** 2
            loglikelihood = logsumexp(weights - jnp.sum(squares, axis=1) / 2)
            return logprior_fn(theta) + loglikelihood + volume

        def chain(rng_key):
            keys = jax.random.split(rng_key, 3)
            start = jax.random.normal(keys[0], (len(pinned.center),)) / 2
            num_steps = max(MIN_STEPS, -(-num_draws // NUM_CHAINS))
            return nuts_chain(keys[1:], logdensity, start, NUM_WARMUP, num_steps)

        x = jax.vmap(chain)(jax.random.split(rng_key, NUM_CHAINS))
        theta = jax.vmap(jax.vmap(lambda x: whitened.theta(x)[0]))(x)
        return theta, jax.vmap(jax.vmap(whitened.y))(theta)

    with jax.enable_x64(True):
        given = second, whitened, (laws.rows, laws.target, weights)
        theta, y = map(np.asarray, compiled(run, *given)(*given))
    known = _known(
        evidence,
        laws,
        np.reshape(y, (-1, len(found[0]))),
        found,
        functools.partial(fit_check_of, released, posterior.tempering),
        released,
        lost_fn(released),
    )
    known = known._replace(r_hat=_r_hat(theta))
    theta = np.swapaxes(theta, 0, 1).reshape(-1, theta.shape[-1])[:num_draws]
    with jax.enable_x64(True):
        positions = jax.vmap(unraveled(like, True))(jnp.asarray(theta))
    return jax.tree.map(
        lambda leaf, one: np.asarray(leaf, jnp.result_type(one)), positions, like
    ), known


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Whitened:
    """Coordinates x in which the posterior of theta is about standard normal.

    The last components of x are the pinned components of theta, less those of c and in
    prior sds. The first components of x stand for the kept components of theta. Given
    the pinned ones, zeta is about linear in the kept ones. With a normal law for their
    prior, their posterior is then normal, and x are their whitened values.

    zeta, kept
        Those of the `Pinned` model; zeta takes and returns float64.
    origin, back
        `position` and the measured rows of T^-1, from what was released.
    rows, target
        The likelihood of y, as in `dpjax.fit.normal_laws.Laws`.
    base
        c with the kept components at the estimate of the fit, ``(d,)``.
    units
        Prior sds of theta, ``(d,)``.
    prior_mean, prior_precision
        The normal law that stands for the prior, in the kept components.
    """

    zeta: Callable = field(metadata=dict(static=True))
    kept: tuple = field(metadata=dict(static=True))
    origin: jax.Array
    back: jax.Array
    rows: jax.Array
    target: jax.Array
    base: jax.Array
    units: jax.Array
    prior_mean: jax.Array
    prior_precision: jax.Array

    @classmethod
    def of(cls, pinned, released, is_measured, near, prior_mean, prior_precision, wide):
        def zeta(theta):
            with jax.enable_x64(wide):
                found = pinned.zeta(theta.astype(float))
            return found.astype(jnp.float64)

        stretch = np.asarray(released.stretch, np.float64)
        start = np.where(is_measured, 0, np.asarray(released.prior_mean))
        start[is_measured] = near.mean[0]
        start = np.asarray(released.position, np.float64) + stretch @ start
        kept, base = pinned.kept, np.array(pinned.center, np.float64)
        base[kept] = start
        parts = (
            released.position,
            np.linalg.inv(stretch)[is_measured],
            near.rows[0],
            near.target[0],
            base,
            np.sqrt(np.diag(np.linalg.inv(prior_precision))),
            prior_mean[kept],
            prior_precision[np.ix_(kept, kept)],
        )
        parts = (jnp.asarray(part, jnp.float64) for part in parts)
        return cls(zeta, tuple(map(int, kept)), *parts)

    def y(self, theta):
        """y = T^-1 (zeta(theta) - position), in the measured directions."""
        return self.back @ (self.zeta(theta) - self.origin)

    def theta(self, x):
        """theta at x, and the log determinant of its derivative, up to a constant."""
        kept = np.array(self.kept)
        rest = np.setdiff1d(np.arange(len(self.base)), kept)
        theta = self.base.at[rest].add(self.units[rest] * x[len(kept) :])
        slope = self.rows @ jax.jacrev(self.y)(theta)[:, kept]
        miss = self.target - self.rows @ self.y(theta)
        pull = self.prior_precision @ (self.prior_mean - self.base[kept])
        whole = self.prior_precision + slope.T @ slope
        root = jnp.linalg.cholesky(whole)
        half = solve_triangular(root, slope.T @ miss + pull, lower=True)
        moved = solve_triangular(root, half + x[: len(kept)], lower=True, trans=1)
        return theta.at[kept].add(moved), -jnp.sum(jnp.log(jnp.diag(root)))


def _log_weights(evidence: Evidence, mean, covariance, found) -> np.ndarray:
    """log p(s | y, J) - log p(s | J) for each slope, without the square in the first.

    The square is that of the residual of s, -|rows y - target|^2 / 2. A priori, y is
    normal with this mean and covariance.
    """
    place, score, noise_sd = evidence.pooled
    scatter = evidence.scatter(found, noise_sd)
    whole = found @ covariance @ found + scatter
    rest = score - found @ (mean - place)
    squares = np.sum(rest * np.linalg.solve(whole, rest[:, :, None])[:, :, 0], axis=1)
    volumes = np.linalg.slogdet(whole)[1] - np.linalg.slogdet(scatter)[1]
    return (squares + volumes) / 2


def _r_hat(theta: np.ndarray) -> float:
    """The largest split R-hat of all components, for chains ``(chains, draws, d)``."""
    half = theta.shape[1] // 2
    parts = np.concatenate([theta[:, :half], theta[:, half : 2 * half]])
    return float(np.max(potential_scale_reduction(parts)))


def _known(
    evidence: Evidence, laws: Laws, y, found, check, released, lost: float
) -> Known:
    """`Known` of the draws y, ``(count, r)``.

    The precision of the prior of y is taken to be the precision of the draws less that
    of the likelihood.
    """
    transposed = np.swapaxes(laws.rows, 1, 2)
    likelihood = np.linalg.inv(transposed @ laws.rows)
    center = likelihood @ (transposed @ laws.target[:, :, None])
    spread = likelihood.mean(0) + np.atleast_2d(np.cov(center[:, :, 0].T))
    covariance = np.atleast_2d(np.cov(y.T))
    prior = np.linalg.inv(covariance) - np.linalg.inv(spread)
    slope = found.mean(0)
    exact = slope @ np.linalg.solve(evidence.scatter(slope, 0.0), slope) + prior
    without = np.linalg.inv(exact)
    distance = max(0.0, np.trace(np.linalg.solve(without, covariance)) - len(slope))
    return known_of(
        evidence, found, covariance, without, prior, distance, check, released, lost
    )
