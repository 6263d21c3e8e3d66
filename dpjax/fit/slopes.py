"""What the releases of a fit say of the slope, which noise hides where n is small.

The slope J of the scores in a `dpjax.fit.frame` is about a multiple of the shares gamma
of the information that are expected from the records. A priori

    J = R B U diag(c)^2 U^T B R,  B = e^(a/2) (I + tau (G + G^T) / sqrt(4 r)),

where R = diag(gamma)^(1/2), the entries of G are standard normal, and a, log tau and
log(-log c_i) are normal. The c_i are nearly one, but for a few that may be of any size:
records may say nothing where the public design says that they do, as of a group that
only the design has. U holds the eigenvectors of the slope as released. With Gaussian
noise, J is observed three times: as released; in how the scores s_k differ between the
places y_k where they were released; and in their mean, whose law given J follows from
that of y = y_0 a priori,

    s_k ~ N(J (y_0 - y_k), rho Q + V + sigma_k^2 I),  Q = t J diag(gamma)^-1 J.

The scatter of the clipped scores is at least J diag(gamma)^-1 J by the inequality of
Cauchy and Schwarz: J is their covariance with the scores before clipping, whose own
covariance is diag(gamma). What clipping adds to it is taken to be in proportion: t
gives Q the trace of J, and rho J has the trace of the scatter.

Elliptical slice sampling (Murray, Adams and MacKay 2010) draws J given all three. What
is far from resolved keeps its prior, so J may be nearly zero there, and the draws of y
are then nearly those of the prior.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.fit.compiled import QUICKLY

__all__ = ["Evidence", "expected_slope", "largest_noise", "regular", "slopes"]

LEVEL_SD = 1.0
MEDIAN_SPREAD, SPREAD_SD = 0.5, 0.7
"""Of the priors: the sd of a; the median of tau, and the sd of log tau."""

SILENCE_MEAN, SILENCE_SD = -8.0, 3.0
"""Of the priors of log(-log c_i). About .003 of the c_i are below .3, and half of these
below .05."""

SILENT, MAX_HIDDEN = 0.7, 0.6
"""Directions begin as silent ones where c_i is less in the released slope. None is
silent if about the largest eigenvalue of the slope's noise is more than this share of
the slope's mean eigenvalue: what is silent is then not told from what noise hides, and
chains would take one for the other."""

MAX_SHRINKS = 64
"""Proposals of an elliptical step before it stays."""

MIN_EIGENVALUE = 0.2
"""Least eigenvalue of the slope, over their mean."""

NUM_CHAINS, WARMUP, SPACING = 32, 300, 20
"""Chains, their steps before the first draw, and their steps between draws."""


class Evidence(NamedTuple):
    """What is known of the slope, in r measured directions.

    slope
        J as released, ``(r, r)``.
    slope_noise_sd
        Sd of the noise on a diagonal entry; off the diagonal it is less by sqrt(2).
    regular
        A positive estimate of J, ``(r, r)``, where the chains start.
    data_share
        gamma, ``(r,)``.
    level
        Median of e^a.
    places, scores
        y_k and s_k, both ``(K, r)``.
    score_sds
        sigma_k, ``(K,)``.
    inefficiency, variance
        rho, and V ``(r, r)``, which is zero unless the fit is robust.
    """

    slope: np.ndarray
    slope_noise_sd: float
    regular: np.ndarray
    data_share: np.ndarray
    level: float
    places: np.ndarray
    scores: np.ndarray
    score_sds: np.ndarray
    inefficiency: float
    variance: np.ndarray

    def scatter(self, slope, noise_sd):
        """rho Q + V + noise_sd^2 I for J = `slope`, ``(..., r, r)``."""
        known = self.variance + noise_sd**2 * np.eye(len(self.variance))
        least = slope / self.data_share[None] @ slope
        factor = self.inefficiency * _trace(slope) / _trace(least)
        return factor * least + known

    @property
    def pooled(self):
        """Mean place and score, weighted by precision, and the mean score's noise."""
        weights = self.score_sds**-2.0
        total = weights.sum()
        return weights @ self.places / total, weights @ self.scores / total, total**-0.5


def _trace(matrix):
    return matrix.trace(axis1=-2, axis2=-1)[..., None, None]


def expected_slope(clip_norm):
    """About the share of the information that clipped scores carry.

    The clip norm is over the root mean square length of a record's score.
    """
    return 0.7 * clip_norm / (clip_norm + 0.8)


def largest_noise(noise_sd, dim):
    """About the largest eigenvalue of noise on a symmetric ``(dim, dim)`` matrix.

    The noise has sd `noise_sd` on the diagonal, and less by sqrt(2) off it.
    """
    return noise_sd * (np.sqrt(2 * dim) + 1)


def regular(matrix: jax.Array, noise_sd, is_measured: jax.Array) -> jax.Array:
    """A released slope or variance, shrunk towards a multiple of the identity.

    It is made positive. The multiple is the mean eigenvalue of the measured block. The
    share of the deviation from it that noise explains is taken off.

    Parameters
    ----------
    matrix
        Symmetric, ``(d, d)``, float64.
    noise_sd
        Sd of the noise on a diagonal entry; off the diagonal it is less by sqrt(2).
    is_measured
        ``(d,)``. Rows and columns of other directions become zero.
    """
    block = jnp.outer(is_measured, is_measured)
    unit = jnp.diag(is_measured.astype(matrix.dtype))
    rank = jnp.maximum(jnp.sum(is_measured), 1)
    mean = jnp.sum(matrix * unit) / rank
    apart = jnp.where(block, matrix, 0.0) - mean * unit
    noise = noise_sd**2 * (rank * (rank + 1) / 2 - 1)
    kept = jnp.maximum(0.0, 1 - noise / jnp.maximum(jnp.sum(apart**2), 1e-30))
    values, vectors = jnp.linalg.eigh(mean * jnp.eye(len(matrix)) + kept * apart)
    least = MIN_EIGENVALUE * jnp.maximum(mean, MIN_EIGENVALUE)
    found = (vectors * jnp.maximum(values, least)[None]) @ vectors.T
    return jnp.where(block, found, 0.0)


def slopes(
    evidence: Evidence, mean, covariance, rng_key: jax.Array, num_draws: int
) -> np.ndarray:
    """Draws of the slope.

    Parameters
    ----------
    mean, covariance
        Of y a priori, ``(r,)`` and ``(r, r)``.
    num_draws
        Number of draws.

    Returns
    -------
    Positive definite matrices, ``(num_draws, r, r)``, float64.
    """
    per_chain = -(-num_draws // NUM_CHAINS)
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, (evidence, evidence.pooled, mean, covariance))
        found = _draw(*given, rng_key, per_chain)
    return np.asarray(found).reshape(-1, *evidence.slope.shape)[:num_draws]


@jax.jit(static_argnames="per_chain", compiler_options=QUICKLY)
def _draw(known: Evidence, pooled, mean, covariance, rng_key, per_chain):
    dim = len(known.data_share)
    place, score, noise_sd = pooled
    root = jnp.sqrt(known.data_share)
    eye, units = jnp.eye(dim), jnp.outer(root, root)
    values, basis = jnp.linalg.eigh(known.slope / units)
    hidden = largest_noise(known.slope_noise_sd, dim)
    may_be_silent = hidden < MAX_HIDDEN * jnp.mean(values)

    def slope(x):
        level = jnp.exp(LEVEL_SD / 2 * x[0]) * jnp.sqrt(known.level)
        spread = MEDIAN_SPREAD * jnp.exp(SPREAD_SD * x[1])
        silent, turns = x[2 : 2 + dim], x[2 + dim :].reshape(dim, dim)
        inner = level * (eye + spread * (turns + turns.T) / jnp.sqrt(4 * dim))
        kept = jnp.exp(-jnp.exp(SILENCE_SD * silent + SILENCE_MEAN))
        kept = jnp.where(may_be_silent, kept, 1)
        half = kept[:, None] * (basis.T @ inner) * root[None]
        return half.T @ half

    def logdensity(x):
        found = slope(x)
        released = (known.slope - found) / known.slope_noise_sd
        apart = known.scores - score[None] + (known.places - place[None]) @ found
        apart = apart / known.score_sds[:, None]
        scatter = known.scatter(found, noise_sd)
        factor = jnp.linalg.cholesky(found @ covariance @ found + scatter)
        rest = score - found @ (mean - place)
        rest = jax.scipy.linalg.solve_triangular(factor, rest, lower=True)
        squares = sum(jnp.sum(part**2) for part in (released, apart, rest))
        value = -squares / 2 - jnp.sum(jnp.log(jnp.diag(factor)))
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    def start(rng_key):
        """Where the slope is the estimate, with the noise that the release leaves."""
        noise = known.slope_noise_sd * jax.random.normal(rng_key, (dim, dim))
        values, vectors = jnp.linalg.eigh(known.regular + (noise + noise.T) / 2)
        least = jnp.linalg.eigvalsh(known.regular)[0] / 2
        found = (vectors * jnp.maximum(values, least)[None]) @ vectors.T / units
        along = jnp.sum(basis * (found @ basis), axis=0)
        kept = jnp.sqrt(along / jnp.median(along))
        is_silent = may_be_silent & (kept < SILENT)
        kept = jnp.where(is_silent, kept, jnp.exp(-jnp.exp(SILENCE_MEAN)))
        silent = (jnp.log(-jnp.log(kept)) - SILENCE_MEAN) / SILENCE_SD
        # Symmetric, as B is, so that J is the estimate.
        back = (basis / kept[None]) @ basis.T
        middle = (basis * kept[None]) @ basis.T
        values, vectors = jnp.linalg.eigh(middle @ found @ middle)
        inner = back @ ((vectors * jnp.sqrt(values)[None]) @ vectors.T) @ back
        level = jnp.trace(inner) / dim
        apart = inner / level - eye
        spread = jnp.maximum(jnp.sqrt(jnp.sum(apart**2) * 2 / (dim + 1)), 0.05)
        first = 2 * (jnp.log(level) - jnp.log(known.level) / 2) / LEVEL_SD
        second = jnp.log(spread / MEDIAN_SPREAD) / SPREAD_SD
        rest = apart * jnp.sqrt(dim) / spread
        return jnp.concatenate([jnp.stack([first, second]), silent, rest.ravel()])

    def step(states, rng_key):
        keys = jax.random.split(rng_key, NUM_CHAINS)
        move = jax.vmap(lambda key, state: _slice(key, state, logdensity))
        return move(keys, states), None

    def draw(states, keys):
        states, _ = jax.lax.scan(step, states, keys)
        return states, jax.vmap(slope)(states[0])

    first, second, third = jax.random.split(rng_key, 3)
    x = jax.vmap(start)(jax.random.split(first, NUM_CHAINS))
    states = x, jax.vmap(logdensity)(x)
    keys = jnp.concatenate(
        [
            jax.random.split(second, WARMUP).reshape(-1, SPACING),
            jax.vmap(lambda key: jax.random.split(key, SPACING))(
                jax.random.split(third, per_chain)
            ),
        ]
    )
    return jax.lax.scan(draw, states, keys)[1][-per_chain:]


def _slice(rng_key, state, logdensity):
    """One elliptical step from x with its log density, where x is N(0, I) a priori.

    BlackJAX's step keeps a key in a loop, which the key checks of JAX refuse under
    `jax.vmap`. Here the random numbers of the loop are drawn before it.
    """
    x, value = state
    first, second, third = jax.random.split(rng_key, 3)
    other = jax.random.normal(first, x.shape, x.dtype)
    least = value + jnp.log(jax.random.uniform(second, dtype=x.dtype))
    shares = jax.random.uniform(third, (MAX_SHRINKS,), x.dtype)

    def goes_on(carry):
        count, _, _, _, (_, value) = carry
        return (value <= least) & (count < MAX_SHRINKS)

    def shrink(carry):
        """A proposal, and the bracket of the next one."""
        count, angle, low, high, _ = carry
        found = jnp.cos(angle) * x + jnp.sin(angle) * other
        low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
        following = low + shares[count + 1] * (high - low)
        return count + 1, following, low, high, (found, logdensity(found))

    angle = 2 * jnp.pi * shares[0]
    start = 0, angle, angle - 2 * jnp.pi, angle, (x, -jnp.inf * jnp.ones_like(value))
    *_, found = jax.lax.while_loop(goes_on, shrink, start)
    return jax.tree.map(
        lambda new, old: jnp.where(found[1] > least, new, old), found, state
    )
