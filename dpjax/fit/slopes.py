"""Draws of the slope of the scores, given the releases of a fit.

The slope J in a `dpjax.fit.frame` is released with noise, which hides it if the number
of records is small. So it is drawn from its posterior.

*Prior.* J is about a multiple of diag(gamma), with gamma the shares of the information
that are expected from the records:

    J = T^T (b K b + b (1 - b) diag(K)) T,  T^T K T = R B U c U^T B R,
    B = e^(a/2) (I + tau W / sqrt(r)).

Here T is the stretch of the frame, R = diag(gamma)^(1/2), r is the number of measured
directions, and b and c are diagonal matrices. The symmetric matrix W has independent
normal entries, with variance 1 on the diagonal and 1/2 off it. The numbers a, log tau,
log(-log b_i) and log(-log c_i) are normal.

- b_i is the share of the records that inform about latent i. J is as if, for each
  record, latents were left out at random, latent i with probability 1 - b_i.
- c_i is the share of the information that the records have in direction i of U. The
  columns of U are eigenvectors of the slope as released.

Most b_i and c_i are nearly one, but a few may have any value below one. For the records
may say nothing where the public covariates lead to expect that they do. Examples are a
group that only the public covariates have, and the difference of two covariates that
only differ in the public data. Also, clipping loses most of the information about the
effect of a rare covariate. Noise turns U towards directions in which it makes the slope
seem small. The prior of the c_i allows for that: it is closer to one than that of the
b_i.

*Likelihood.* With Gaussian noise, J is observed in three ways: by its release; by the
differences between the scores s_k that were released at different places y_k; and by
the mean of the s_k, whose law given J follows from the prior of y. The law of a score
is

    s_k ~ N(J (y - y_k), rho Q + V + sigma_k^2 I),  Q = t J diag(gamma)^-1 J.

The search has led to y_1, where the score is about zero. So J (y - y_1) is a priori
about N(0, alpha^2 I). Without this, small scores would be explained by a small J.

*Scatter.* The scatter, which is the covariance of the clipped scores, is at least
J diag(gamma)^-1 J. This is the inequality of Cauchy and Schwarz, as J is the covariance
of the clipped scores with the scores before clipping, and diag(gamma) is the covariance
of the latter. Clipping makes the scatter larger than this bound. It is taken to be
proportional to the bound: t gives Q the trace of J, and rho gives rho Q the trace of
the scatter.

*Sampling.* Hamiltonian Monte Carlo draws J from the posterior. Its coordinates are such
that the posterior is close to N(0, I). For that, W given a and tau is measured from the
centre, and in the sds, of the normal law that the released slope would give it if J
were linear in W. Directions that noise hides keep their prior. There J may be nearly
zero, and the draws of y are then nearly those of the prior.
"""

from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from dpjax.compiled import QUICKLY, lapack_in_one_thread
from dpjax.fit.contrast import packed, unpacked

__all__ = ["Evidence", "expected_slope", "largest_noise", "regular", "slopes"]

LEVEL_SD = 1.0
MEDIAN_SPREAD, SPREAD_SD = 0.5, 0.7
"""Parameters of the prior: the sd of a; the median of tau and the sd of log tau."""

SILENCE_SD, RARE = 3.0, 3.3
"""Parameters of the prior of log(-log b_i): its sd, and the number of sds by which its
mean is below zero. So one of two thousand b_i is below .37, which is 1/e. For the c_i,
the number of sds is the root of the sum of the squares of `RARE` and of about the
largest eigenvalue of standard noise."""

MAX_SILENT = 0.5
"""The largest b_i or c_i that counts as silent (`_Silence`): chains begin near the
estimate of such a number, which is at most this. The others are drawn from the prior at
the start, and so are nearly one."""

MIN_SIZE = 1e-12
"""Expected slope of a latent, over the largest one of all latents, below which it
counts as zero."""

MIN_EIGENVALUE = 0.2
"""Least eigenvalue of a `regular` slope, over the mean of its eigenvalues."""

NUM_CHAINS, NUM_INTEGRATION_STEPS = 32, 6
"""Number of chains, and number of leapfrog steps between two draws of a chain."""

NUM_STARTS = 1024
"""Number of draws of N(0, I) among which the chains' starts are chosen."""

FIRST_STEP_SIZE, ACCEPTANCE = 0.1, 0.8
"""Size of the leapfrog steps of the first draw. After each draw of the warm-up, the
logarithm of the size changes by how far the chains' mean acceptance rate is above the
second number."""

NUM_WINDOWS, WINDOW = 5, 8
"""Number of windows of the warm-up, and number of draws of every chain in a window. The
draws of a window give the inverse mass matrix, which is diagonal, of the next one."""


class Evidence(NamedTuple):
    """What was released, in r measured directions, and what is known of its errors.

    slope
        J as released, ``(r, r)``.
    slope_noise_sd
        Sd of the noise on a diagonal entry; off the diagonal it is less by sqrt(2).
    regular
        A positive estimate of J, ``(r, r)``, from which U is taken.
    data_share
        gamma, ``(r,)``.
    stretch, back
        The measured columns of T, ``(d, r)``, and the measured rows of its inverse,
        ``(r, d)``.
    level
        The median of e^a in the prior.
    places, scores
        y_k and s_k for K scores, both ``(K, r)``.
    score_sds
        sigma_k, ``(K,)``.
    arrival_sd
        alpha, the sd of the score where the search has ended.
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
        """Mean and covariance of y given where the search has ended, for J = `slope`.

        A priori y has the mean `mean`, ``(r,)``, and the precision diag(1 - gamma). The
        search adds that J (y - y_1) is N(0, alpha^2 I).
        """
        precision = 1 - self.data_share
        found = slope @ slope / self.arrival_sd**2
        factor = jax.scipy.linalg.cho_factor(jnp.diag(precision) + found)
        covariance = jax.scipy.linalg.cho_solve(factor, jnp.eye(len(precision)))
        return covariance @ (precision * mean + found @ self.places[0]), covariance

    @property
    def pooled(self):
        """Means of the places and of the scores, and the sd of the mean score's noise.

        Both means are weighted with the precisions of the scores, sigma_k^-2.
        """
        weights = self.score_sds**-2.0
        total = weights.sum()
        return weights @ self.places / total, weights @ self.scores / total, total**-0.5


def _trace(matrix):
    return matrix.trace(axis1=-2, axis2=-1)[..., None, None]


def expected_slope(clip_norm):
    """About the share of the information that clipped scores carry.

    The clip norm is in units of the root mean square length of a record's score.
    """
    return 0.7 * clip_norm / (clip_norm + 0.8)


def largest_noise(noise_sd, dim):
    """About the largest eigenvalue of noise on a symmetric ``(dim, dim)`` matrix.

    The noise has sd `noise_sd` on the diagonal; off the diagonal it is less by sqrt(2).
    """
    return noise_sd * (np.sqrt(2 * dim) + 1)


def regular(matrix: jax.Array, noise_sd, is_measured: jax.Array) -> jax.Array:
    """A released slope or variance, made positive definite in the measured directions.

    The matrix is shrunk towards a multiple of the identity, its mean eigenvalue. Of the
    deviation from that multiple, the share that noise explains is taken off. Then
    eigenvalues that are too small are raised (`MIN_EIGENVALUE`).

    Parameters
    ----------
    matrix
        Symmetric, ``(d, d)``, float64.
    noise_sd
        Sd of the noise on a diagonal entry; off the diagonal it is less by sqrt(2).
    is_measured
        Which directions are measured, ``(d,)``. Rows and columns of the others become
        zero.
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
    found: jax.Array = (vectors * jnp.maximum(values, least)[None]) @ vectors.T
    return jnp.where(block, found, 0.0)


def slopes(evidence: Evidence, mean, rng_key: jax.Array, num_draws: int) -> np.ndarray:
    """Draws of the slope from its posterior.

    Parameters
    ----------
    evidence
        What was released.
    mean
        Mean of y a priori, ``(r,)``. The precision of y is diag(1 - gamma).
    rng_key
        A JAX key.
    num_draws
        Number of draws.

    Returns
    -------
    Positive definite matrices, ``(num_draws, r, r)``, float64.
    """
    per_chain = -(-num_draws // NUM_CHAINS)
    with jax.enable_x64(True), lapack_in_one_thread():
        given = evidence, evidence.pooled, _centre(evidence), mean
        given = jax.tree.map(jnp.asarray, given)
        found = np.asarray(_draw(*given, rng_key, per_chain))
    return found[:num_draws]


class _Silence(NamedTuple):
    """Estimates of the b_i of latents, or of the c_i of directions.

    They come from the slope as released, along each latent or direction. A latent or
    direction is called silent if the records seem to say little about it.

    typical
        The median of the slopes along all latents or directions.
    is_silent
        Whether each is silent: noise may be the reason that its slope is not zero, but
        not the reason that its slope is so much less than the median.
    kept
        The estimate of b or c if it is silent; otherwise one.
    rare, mean, sd
        log(-log b) is `SILENCE_SD` (x - `rare`), where x is standard normal a priori.
        In the law that is close to the posterior, x is normal with this mean and sd.
    """

    typical: float
    is_silent: np.ndarray
    kept: np.ndarray
    rare: float
    mean: np.ndarray
    sd: np.ndarray

    def at(self, u):
        """The x that is `u` sds from its mean, and the b or c that it gives."""
        x = self.mean + self.sd * u
        return x, jnp.exp(-jnp.exp(SILENCE_SD * (x - self.rare)))


class _Centre(NamedTuple):
    """What the coordinates in which `_draw` samples are centred on.

    All of it follows from the slope as released.

    of_latents, of_directions
        The `_Silence` of the b_i and of the c_i.
    basis
        The columns of U, ``(r, r)``.
    vectors
        The eigenvectors of B as released, ``(r, r)``.
    released
        B as released, in the basis of `vectors`, ``(r, r)``.
    noises
        Sds of the noise on the entries of `released` on and below the diagonal,
        ``(r (r + 1) / 2,)``.
    """

    of_latents: _Silence
    of_directions: _Silence
    basis: np.ndarray
    vectors: np.ndarray
    released: np.ndarray
    noises: np.ndarray


def _silence(along, noise_sds, rare):
    """The `_Silence` of the slopes `along` latents or directions.

    The slopes have noise of these sds. Slopes that are NaN are not silent, and the
    median leaves them out.
    """
    typical, hidden = np.nanmedian(along), rare * noise_sds
    kept = np.clip(along / typical, 0.01, MAX_SILENT)
    is_silent = (along < hidden) & (along + hidden < MAX_SILENT * typical)
    mean = rare + np.log(-np.log(kept)) / SILENCE_SD
    # The derivative of the slope with respect to x.
    derivative = SILENCE_SD * typical * kept * np.log(kept)
    sd = (1 + (derivative / noise_sds) ** 2) ** -0.5
    kept, mean, sd = (
        np.where(is_silent, values, spoken)
        for values, spoken in ((kept, 1.0), (mean, 0.0), (sd, 1.0))
    )
    return _Silence(typical, is_silent, kept, rare, mean, sd)


def _centre(known: Evidence) -> _Centre:
    """The `_Centre` of what was released."""
    back, stretch, share = known.back, known.stretch, known.data_share[:, None]
    root = np.sqrt(known.data_share)
    units = np.outer(root, root)
    expected = back.T @ (share * back)
    sizes = np.diag(expected)
    sizes = np.where(sizes > MIN_SIZE * np.max(sizes), sizes, np.nan)

    def spoken(found):
        """B U c U^T B for the slope `found`, and the `_Silence` of latents.

        Rows and columns of silent latents say nothing about B, so they are replaced by
        the expected ones, times the typical share.
        """
        along = back.T @ found @ back
        noise_sds = known.slope_noise_sd * np.sum(back**2, axis=0) / sizes
        silence = _silence(np.diag(along) / sizes, noise_sds, RARE)
        either = silence.is_silent[:, None] | silence.is_silent[None]
        whole = np.where(either, silence.typical * expected, along)
        return stretch.T @ whole @ stretch / units, silence

    _, basis = np.linalg.eigh(spoken(known.regular)[0])
    square, of_latents = spoken(known.slope)
    of_directions = _silence(
        np.sum(basis * (square @ basis), axis=0),
        known.slope_noise_sd * np.sum(basis**2 / share, axis=0),
        np.hypot(RARE, largest_noise(1.0, len(root))),
    )
    outer, middle = (
        (basis * kept[None]) @ basis.T
        for kept in (of_directions.kept**-0.5, of_directions.kept**0.5)
    )
    values, vectors = np.linalg.eigh(middle @ square @ middle)
    # With noise, all eigenvalues may be negative.
    least = np.linalg.eigvalsh(known.regular)[0] / 2
    values = np.sqrt(np.maximum(values, least))
    # B as released: the symmetric matrix that gives the released slope with these c.
    released = outer @ (vectors * values[None]) @ vectors.T @ outer
    # In the eigenvectors of B, noise N on B^2 is noise N_ij / (b_i + b_j) on B.
    released = vectors.T @ released @ vectors
    noises = np.sqrt(np.sum(vectors**2 / share, axis=0))
    noises = np.outer(noises, noises) / (values[:, None] + values[None])
    noises = known.slope_noise_sd * noises[np.tril_indices(len(root))]
    return _Centre(of_latents, of_directions, basis, vectors, released, noises)


@jax.jit(static_argnames="per_chain", compiler_options=QUICKLY)
def _draw(known: Evidence, pooled, centre, mean, rng_key, per_chain):
    dim, num_latents = len(known.data_share), len(known.stretch)
    place, score, noise_sd = pooled
    of_latents, of_directions, basis, vectors, released, noises = centre
    back, stretch = known.back, known.stretch
    root, eye = jnp.sqrt(known.data_share), jnp.eye(dim)

    def scales(few):
        """e^(a/2), tau / sqrt(r), and tau W / sqrt(r) as released with its noise's sds.

        `few` holds a and log tau, in sds of the prior from its median. W is in the
        eigenvectors of B as released, which does not change its prior.
        """
        level = jnp.exp(LEVEL_SD / 2 * few[0]) * jnp.sqrt(known.level)
        spread = MEDIAN_SPREAD * jnp.exp(SPREAD_SD * few[1]) / np.sqrt(dim)
        return level, spread, packed(released / level - eye), noises / level

    def slope(u):
        """The slope J at the coordinates u, and the log density of u in the prior."""
        few, silent, rest = jnp.split(u, [2, 2 + num_latents + dim])
        latents, directions = jnp.split(silent, [num_latents])
        latents, b = of_latents.at(latents)
        directions, c = of_directions.at(directions)
        level, spread, seen, noise = scales(few)
        hidden = noise**2 / (spread**2 + noise**2)
        turns = (1 - hidden) * seen / spread + jnp.sqrt(hidden) * rest
        inner = eye + spread * vectors @ unpacked(turns, dim) @ vectors.T
        inner = level * inner
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
    """At least `per_chain` draws of each chain after a warm-up, ``(draws, size)``.

    Neighbouring draws are of different chains. The law that `logdensity` describes
    should be close to N(0, I). The chains begin with draws of the latter, chosen with
    probabilities that are proportional to their importance weights. Otherwise a chain
    could begin near a mode of little probability, which it would not leave in the few
    steps that it makes. The warm-up estimates the variances of the law, and chooses the
    size of the leapfrog steps.
    """

    def window(carry, given):
        """Draws of every chain in one window, ``(WINDOW, chains, size)``."""
        (states, variances, step_size), (rng_key, is_warm) = carry, given

        def draw(carry, rng_key):
            states, step_size = carry
            first, second = jax.random.split(rng_key)
            # Trajectories of equal length could be periods of some coordinate.
            share = jax.random.uniform(first, (), minval=0.6, maxval=1.0)
            kernel: Any = blackjax.hmc(
                logdensity, share * step_size, variances, NUM_INTEGRATION_STEPS
            )
            keys = jax.random.split(second, NUM_CHAINS)
            states, infos = jax.vmap(kernel.step)(keys, states)
            excess = jnp.mean(infos.acceptance_rate) - ACCEPTANCE
            step_size *= jnp.exp(jnp.where(is_warm, 0, excess))
            return (states, step_size), states.position

        rng_keys = jax.random.split(rng_key, WINDOW)
        (states, step_size), found = jax.lax.scan(draw, (states, step_size), rng_keys)
        variances = jnp.where(is_warm, variances, found.var((0, 1)))
        return (states, variances, step_size), found

    first, second, third = jax.random.split(rng_key, 3)
    starts = jax.random.normal(first, (NUM_STARTS, size))
    log_densities = jax.lax.map(logdensity, starts, batch_size=NUM_CHAINS)
    log_weights = log_densities + jnp.sum(starts**2, axis=1) / 2
    chosen = jax.random.categorical(second, log_weights, shape=(NUM_CHAINS,))
    # In the warm-up a chain takes its first gradient for zero, until it has moved. To
    # evaluate the gradients here, too, would take a fourth of the compilation.
    states = blackjax.mcmc.hmc.HMCState(
        starts[chosen], log_densities[chosen], jnp.zeros((NUM_CHAINS, size))
    )
    carry = states, jnp.ones(size), jnp.asarray(FIRST_STEP_SIZE)
    num_windows = NUM_WINDOWS - (-per_chain // WINDOW)
    keys = jax.random.split(third, num_windows), jnp.arange(num_windows) >= NUM_WINDOWS
    _, found = jax.lax.scan(window, carry, keys)
    return found[NUM_WINDOWS:].reshape(-1, size)
