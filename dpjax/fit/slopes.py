"""What the releases of a fit say of the slope, which noise hides where n is small.

The slope J of the scores in a `dpjax.fit.frame` is about a multiple of the shares gamma
of the information that are expected from the records. A priori

    J = T^T (b K b + b (1 - b) diag(K)) T,  T^T K T = R B U c U^T B R,
    B = e^(a/2) (I + tau W / sqrt(r)),

where T is the stretch of the frame, R = diag(gamma)^(1/2), b and c are diagonal, the
symmetric W is standard normal (on its diagonal; off it, entries have the variance 1/2),
and a, log tau, log(-log b_i) and log(-log c_i) are normal. A share b_i of the records
tells of latent i: as if of each record, at random, some latents were left out. The b_i,
and the c_i of directions, are nearly one, but for a few that may be any share: records
may say nothing where the public design says that they do, as of a group that only the
design has, or of the difference of two covariates that only the design tells apart, and
clipping loses most of what a rare covariate says. U holds the eigenvectors of the slope
as released. Some of them are chosen by its noise, which makes slopes seem small there.
So the c_i are as much closer to one, a priori, as noise is likely to do that.

With Gaussian noise, J is observed three times: as released; in how the scores s_k
differ between the places y_k where they were released; and in their mean, whose law
given J follows from that of y a priori,

    s_k ~ N(J (y - y_k), rho Q + V + sigma_k^2 I),  Q = t J diag(gamma)^-1 J.

The search has led to y_1, where the score is about zero, so a priori J (y - y_1) is
also about N(0, alpha^2 I). Without this, a small J would be taken to be why the scores
are small.

The scatter of the clipped scores is at least J diag(gamma)^-1 J by the inequality of
Cauchy and Schwarz: J is their covariance with the scores before clipping, whose own
covariance is diag(gamma). What clipping adds to it is taken to be in proportion: t
gives Q the trace of J, and rho J has the trace of the scatter.

Elliptical slice sampling (Murray, Adams and MacKay 2010) draws J given all three. Its
ellipses are those of a law that is close to the posterior, and not of the prior
(Nishihara, Murray and Adams 2014). Given a and tau, W has the normal law there that it
would have given the released slope, were J linear in W. What is far from resolved keeps
its prior, so J may be nearly zero there, and the draws of y are then nearly those of
the prior.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.fit.compiled import QUICKLY
from dpjax.fit.contrast import packed, unpacked

__all__ = ["Evidence", "expected_slope", "largest_noise", "regular", "slopes"]

LEVEL_SD = 1.0
MEDIAN_SPREAD, SPREAD_SD = 0.5, 0.7
"""Of the priors: the sd of a; the median of tau, and the sd of log tau."""

SILENCE_SD, RARE = 3.0, 3.3
"""Of the priors of log(-log b_i): the sd, and by how many sds the mean is below zero.
One of two thousand b_i is below .37. For the c_i, about the largest eigenvalue of
standard noise adds to `RARE` in quadrature."""

MAX_SILENT = 0.5
"""Where the released slope shows that a b or c is less than one, chains begin with at
most this. Elsewhere they begin with one."""

MIN_SIZE = 1e-12
"""Of the expected slope of a latent over the largest one, below which it has none."""

MAX_SHRINKS = 64
"""Proposals of an elliptical step before it stays."""

MIN_EIGENVALUE = 0.2
"""Least eigenvalue of the slope, over their mean."""

NUM_CHAINS, SPACING = 32, 6
"""Chains, and their steps between draws."""

NUM_WINDOWS, WINDOW = 5, 8
"""Windows of the warm-up, and draws of every chain in a window. The ellipses of the
next window have the mean and the sds of these draws."""


class Evidence(NamedTuple):
    """What is known of the slope, in r measured directions.

    slope
        J as released, ``(r, r)``.
    slope_noise_sd
        Sd of the noise on a diagonal entry; off the diagonal it is less by sqrt(2).
    regular
        A positive estimate of J, ``(r, r)``, from which U is taken.
    data_share
        gamma, ``(r,)``.
    stretch, back
        The measured columns of T, ``(d, r)``, and rows of its inverse, ``(r, d)``.
    level
        Median of e^a.
    places, scores
        y_k and s_k, both ``(K, r)``.
    score_sds
        sigma_k, ``(K,)``.
    arrival_sd
        alpha.
    inefficiency, variance
        rho, and V ``(r, r)``, which is zero unless the fit is robust.
    """

    slope: np.ndarray
    slope_noise_sd: float
    regular: np.ndarray
    data_share: np.ndarray
    stretch: np.ndarray
    back: np.ndarray
    level: float
    places: np.ndarray
    scores: np.ndarray
    score_sds: np.ndarray
    arrival_sd: float
    inefficiency: float
    variance: np.ndarray

    def scatter(self, slope, noise_sd):
        """rho Q + V + noise_sd^2 I for J = `slope`, ``(..., r, r)``."""
        known = self.variance + noise_sd**2 * np.eye(len(self.variance))
        least = slope / self.data_share[None] @ slope
        factor = self.inefficiency * _trace(slope) / _trace(least)
        return factor * least + known

    def arrived(self, slope, mean):
        """Mean and covariance of y once the search has ended, for J = `slope`.

        Before the search, y has this mean and the precision 1 - gamma.
        """
        precision = 1 - self.data_share
        found = slope @ slope / self.arrival_sd**2
        covariance = jnp.linalg.inv(jnp.diag(precision) + found)
        return covariance @ (precision * mean + found @ self.places[0]), covariance

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


def slopes(evidence: Evidence, mean, rng_key: jax.Array, num_draws: int) -> np.ndarray:
    """Draws of the slope.

    Parameters
    ----------
    mean
        Of y a priori, ``(r,)``; its precision is 1 - gamma.
    num_draws
        Number of draws.

    Returns
    -------
    Positive definite matrices, ``(num_draws, r, r)``, float64.
    """
    per_chain = -(-num_draws // NUM_CHAINS)
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, (evidence, evidence.pooled, mean))
        found = _draw(*given, rng_key, per_chain)
    return np.asarray(found)[:num_draws]


@jax.jit(static_argnames="per_chain", compiler_options=QUICKLY)
def _draw(known: Evidence, pooled, mean, rng_key, per_chain):
    dim, num_latents = len(known.data_share), len(known.stretch)
    place, score, noise_sd = pooled
    back, stretch, share = known.back, known.stretch, known.data_share[:, None]
    root = jnp.sqrt(known.data_share)
    eye, units = jnp.eye(dim), jnp.outer(root, root)
    expected = back.T @ (share * back)
    sizes = jnp.diag(expected)
    sizes = jnp.where(sizes > MIN_SIZE * jnp.max(sizes), sizes, jnp.nan)

    def spoken(found):
        """B B if the slope is `found`, and the silence of latents.

        Rows and columns of silent latents tell nothing of B, so they are taken to be
        those that are expected.
        """
        along = back.T @ found @ back
        noise_sds = known.slope_noise_sd * jnp.sum(back**2, axis=0) / sizes
        silence = _silence(jnp.diag(along) / sizes, noise_sds, RARE)
        either = silence.is_silent[:, None] | silence.is_silent[None]
        whole = jnp.where(either, silence.typical * expected, along)
        return stretch.T @ whole @ stretch / units, silence

    _, basis = jnp.linalg.eigh(spoken(known.regular)[0])
    square, of_latents = spoken(known.slope)
    of_directions = _silence(
        jnp.sum(basis * (square @ basis), axis=0),
        known.slope_noise_sd * jnp.sum(basis**2 / share, axis=0),
        np.hypot(RARE, largest_noise(1.0, dim)),
    )
    outer, middle = (
        (basis * kept[None]) @ basis.T
        for kept in (of_directions.kept**-0.5, of_directions.kept**0.5)
    )
    values, vectors = jnp.linalg.eigh(middle @ square @ middle)
    # Noise may leave no eigenvalue positive.
    least = jnp.linalg.eigvalsh(known.regular)[0] / 2
    values = jnp.sqrt(jnp.maximum(values, least))
    # B as released. It is symmetric, and with the c gives the slope as released.
    released = outer @ (vectors * values[None]) @ vectors.T @ outer

    def scales(few):
        """e^(a/2), tau / sqrt(r), W times this as released, and its noise's sds.

        `few` holds a and log tau, as many sds of the prior from its median.
        """
        level = jnp.exp(LEVEL_SD / 2 * few[0]) * jnp.sqrt(known.level)
        spread = MEDIAN_SPREAD * jnp.exp(SPREAD_SD * few[1]) / np.sqrt(dim)
        noise = known.slope_noise_sd / (2 * level**2 * units[jnp.tril_indices(dim)])
        return level, spread, packed(released / level - eye), noise

    def slope(u):
        """J, and the logarithm of the density of u a priori."""
        few, silent, rest = jnp.split(u, [2, 2 + num_latents + dim])
        latents, directions = jnp.split(silent, [num_latents])
        latents, b = of_latents.at(latents)
        directions, c = of_directions.at(directions)
        level, spread, seen, noise = scales(few)
        hidden = noise**2 / (spread**2 + noise**2)
        turns = (1 - hidden) * seen / spread + jnp.sqrt(hidden) * rest
        inner = level * (eye + spread * unpacked(turns, dim))
        half = jnp.sqrt(c)[:, None] * (basis.T @ inner) * root[None] @ back
        alone = b * (1 - b) * jnp.sum(half**2, axis=0)
        half = half * b[None] @ stretch
        found = half.T @ half + (stretch.T * alone[None]) @ stretch
        squares = sum(jnp.sum(x**2) for x in (few, latents, directions, turns))
        return found, (jnp.sum(jnp.log(hidden)) - squares) / 2

    def logdensity(u):
        found, prior = slope(u)
        released = (known.slope - found) / known.slope_noise_sd
        apart = known.scores - score[None] + (known.places - place[None]) @ found
        apart = apart / known.score_sds[:, None]
        scatter = known.scatter(found, noise_sd)
        center, spread = known.arrived(found, mean)
        factor = jnp.linalg.cholesky(found @ spread @ found + scatter)
        rest = score - found @ (center - place)
        rest = jax.scipy.linalg.solve_triangular(factor, rest, lower=True)
        squares = sum(jnp.sum(part**2) for part in (released, apart, rest))
        value = prior - squares / 2 - jnp.sum(jnp.log(jnp.diag(factor)))
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    size = 2 + num_latents + dim + dim * (dim + 1) // 2
    found = _chains(rng_key, logdensity, size, per_chain)
    return jax.vmap(slope)(found)[0]


def _chains(rng_key, logdensity, size, per_chain):
    """At least `per_chain` draws of each chain, ``(draws, size)``, after a warm-up.

    Neighbouring draws are of different chains. These begin with draws of N(0, I), to
    which the law should be close. The warm-up finds its mean and its sds.
    """

    def window(carry, given):
        """Draws of every chain on ellipses about `mean`, ``(WINDOW, chains, size)``."""
        (x, value, mean, sd), (rng_key, is_warm) = carry, given

        def density(v):
            return logdensity(mean + sd * v) + jnp.sum(v**2) / 2

        def draw(states, rng_key):
            keys = jax.random.split(rng_key, NUM_CHAINS)
            move = jax.vmap(lambda key, state: _slices(key, state, density))
            states = move(keys, states)
            return states, mean[None] + sd[None] * states[0]

        v = (x - mean[None]) / sd[None]
        states = v, value + jnp.sum(v**2, axis=1) / 2
        rng_keys = jax.random.split(rng_key, WINDOW)
        (v, value), found = jax.lax.scan(draw, states, rng_keys)
        value -= jnp.sum(v**2, axis=1) / 2
        mean = jnp.where(is_warm, mean, found.mean((0, 1)))
        sd = jnp.where(is_warm, sd, found.std((0, 1)))
        return (found[-1], value, mean, sd), found

    first, second = jax.random.split(rng_key)
    x = jax.random.normal(first, (NUM_CHAINS, size))
    # The first proposal is taken whatever its density.
    carry = x, jnp.full(NUM_CHAINS, -jnp.inf), jnp.zeros(size), jnp.ones(size)
    num_windows = NUM_WINDOWS - (-per_chain // WINDOW)
    keys = jax.random.split(second, num_windows), jnp.arange(num_windows) >= NUM_WINDOWS
    _, found = jax.lax.scan(window, carry, keys)
    return found[NUM_WINDOWS:].reshape(-1, size)


class _Silence(NamedTuple):
    """How silent latents or directions are, as far as the slope as released tells.

    typical
        The median of the slopes along them.
    is_silent
        Whether noise explains that a slope is not zero, and does not explain that it is
        so much less than the median.
    kept
        b or c: one unless it is silent.
    rare, mean, sd
        log(-log b) is `SILENCE_SD` (x - `rare`), where x is about normal with this mean
        and sd, and standard normal a priori.
    """

    typical: jax.Array
    is_silent: jax.Array
    kept: jax.Array
    rare: float
    mean: jax.Array
    sd: jax.Array

    def at(self, u):
        """x, and b or c, where x is `u` sds from its mean."""
        x = self.mean + self.sd * u
        return x, jnp.exp(-jnp.exp(SILENCE_SD * (x - self.rare)))


def _silence(along, noise_sds, rare):
    """The `_Silence` of slopes with this noise; those that are nan are not counted."""
    typical, hidden = jnp.nanmedian(along), rare * noise_sds
    kept = jnp.clip(along / typical, 0.01, MAX_SILENT)
    is_silent = (along < hidden) & (along + hidden < MAX_SILENT * typical)
    mean = rare + jnp.log(-jnp.log(kept)) / SILENCE_SD
    # Of the slope, by x.
    derivative = SILENCE_SD * typical * kept * jnp.log(kept)
    sd = jax.lax.rsqrt(1 + (derivative / noise_sds) ** 2)
    kept, mean, sd = (
        jnp.where(is_silent, values, spoken)
        for values, spoken in ((kept, 1.0), (mean, 0.0), (sd, 1.0))
    )
    return _Silence(typical, is_silent, kept, rare, mean, sd)


def _slices(rng_key, state, logdensity):
    """`SPACING` elliptical steps from x with its log density over that of N(0, I).

    They are one loop over proposals, in which a chain need not wait for the steps of
    others. BlackJAX's step keeps a key in a loop, which the key checks of JAX refuse
    under `jax.vmap`. Here the random numbers of the loop are drawn before it.
    """
    x, value = state
    first, second, third = jax.random.split(rng_key, 3)
    others = jax.random.normal(first, (SPACING, *x.shape), x.dtype)
    # One more than the steps: the bracket after the last one is not used.
    falls = jnp.log(jax.random.uniform(second, (SPACING + 1,), x.dtype))
    shares = jax.random.uniform(third, (SPACING + 1, MAX_SHRINKS + 1), x.dtype)

    def begun(step, x, value):
        angle = 2 * jnp.pi * shares[step, 0]
        return step, 0, angle, angle - 2 * jnp.pi, angle, value + falls[step], x, value

    def propose(carry):
        step, count, angle, low, high, least, x, value = carry
        found = jnp.cos(angle) * x + jnp.sin(angle) * others[step]
        found_value = logdensity(found)
        is_taken = found_value > least
        x = jnp.where(is_taken, found, x)
        value = jnp.where(is_taken, found_value, value)
        low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
        following = low + shares[step, count + 1] * (high - low)
        shrunk = step, count + 1, following, low, high, least, x, value
        is_over = is_taken | (count + 1 == MAX_SHRINKS)
        return jax.tree.map(
            lambda new, old: jnp.where(is_over, new, old),
            begun(step + 1, x, value),
            shrunk,
        )

    start = begun(0, x, value)
    *_, x, value = jax.lax.while_loop(lambda carry: carry[0] < SPACING, propose, start)
    return x, value
