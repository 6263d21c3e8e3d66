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

*Sampling.* Hamiltonian Monte Carlo draws J from the posterior
(`dpjax.fit.slope_chains`). Its coordinates are such that the posterior is close to
N(0, I). For that, W given a and tau is measured from the centre, and in the sds, of the
normal law that the released slope would give it if J were linear in W. Directions that
noise hides keep their prior. There J may be nearly zero, and the draws of y are then
nearly those of the prior.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.compiled import lapack_in_one_thread
from dpjax.fit.contrast import packed, unpacked
from dpjax.fit.slope_chains import NUM_CHAINS, chains
from dpjax.random.generator import generator

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

    def through_scatter(self, slope, of_scatter):
        """The derivative by J of a number that depends on J through `scatter`.

        `of_scatter` is the derivative of the number by the scatter, a symmetric matrix
        ``(..., r, r)``. The result is not symmetric; its symmetric part is what counts.
        """
        back = slope / self.data_share[None]
        least, eye = back @ slope, np.eye(len(self.data_share))
        share = self.inefficiency / _trace(least)
        factor, of_factor = share * _trace(slope), _trace(of_scatter @ least)
        of_least = factor * (of_scatter - of_factor / _trace(least) * eye)
        return 2 * of_least @ back + share * of_factor * eye

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
    centre = _centre(evidence)
    dim, num_latents = len(evidence.data_share), len(evidence.stretch)
    size = 2 + num_latents + dim + dim * (dim + 1) // 2

    def log_density(u):
        found, prior, gradient_fn = _slope(evidence, centre, u)
        value, derivative = _log_likelihood(evidence, mean, found)
        return prior + value, gradient_fn(derivative)

    per_chain = -(-num_draws // NUM_CHAINS)
    with lapack_in_one_thread():
        found = chains(generator(rng_key), log_density, size, per_chain)
    return _slope(evidence, centre, found[:num_draws])[0]


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
        """The x that are `u` sds from their means, and -log of the b or c they give."""
        x = self.mean + self.sd * u
        return x, np.exp(SILENCE_SD * (x - self.rare))


class _Centre(NamedTuple):
    """What the coordinates in which slopes are drawn are centred on.

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


def _slope(
    known: Evidence, centre: _Centre, u
) -> tuple[np.ndarray, np.ndarray, Callable]:
    """The slopes J at the coordinates u, ``(chains, size)``.

    A row of u holds a and log tau, in sds of the prior from its median; the b_i and the
    c_i, as `_Silence.at` reads them; and W in the eigenvectors of B as released, which
    does not change its prior.

    Returns
    -------
    slopes
        ``(chains, r, r)``.
    log_prior
        The log density of u in the prior, up to a constant, ``(chains,)``.
    gradient_fn
        Given the derivative of a number by J, a symmetric matrix ``(chains, r, r)``,
        the gradient in u of this number plus `log_prior`, ``(chains, size)``. Here
        ``of_x`` is the derivative by x.
    """
    of_latents, of_directions, basis, vectors, released, noises = centre
    stretch, root = known.stretch, np.sqrt(known.data_share)
    dim, num_latents = len(root), len(stretch)
    ends = np.cumsum([1, 1, num_latents, dim])
    level_sds, spread_sds, latents, directions, rest = np.split(u, ends, axis=1)
    x_b, rate_b = of_latents.at(latents)
    x_c, rate_c = of_directions.at(directions)
    b, c = np.exp(-rate_b), np.exp(-rate_c)
    level = np.sqrt(known.level) * np.exp(LEVEL_SD / 2 * level_sds)
    spread = level * MEDIAN_SPREAD * np.exp(SPREAD_SD * spread_sds) / np.sqrt(dim)
    # B is level I + V turns V^T, with turns of sd `spread` in the prior. They were seen
    # with noise, which hides a share of their variance.
    hidden = noises**2 / (spread**2 + noises**2)
    eye = packed(np.eye(dim))
    seen = packed(released) - level * eye
    turns = (1 - hidden) * seen + np.sqrt(hidden) * spread * rest
    inner = vectors @ unpacked(turns, dim) @ vectors.T
    inner += level[..., None] * np.eye(dim)
    # K is half^T half, and J is told^T told + T^T diag(alone) T.
    right = root[:, None] * known.back
    half = np.sqrt(c)[..., None] * (basis.T @ inner @ right)
    squares = np.sum(half**2, axis=1)
    told = (half * b[:, None]) @ stretch
    alone = b * (1 - b) * squares
    found = np.swapaxes(told, 1, 2) @ told + (stretch.T * alone[:, None]) @ stretch
    normal = level_sds, spread_sds, x_b, x_c, turns / spread
    log_prior = np.sum(np.log(hidden), axis=1)
    log_prior -= sum(np.sum(x**2, axis=1) for x in normal)

    def gradient_fn(of_found):
        of_told = 2 * (told @ of_found) @ stretch.T
        of_alone = np.sum(stretch @ of_found * stretch, axis=2)
        of_half = of_told * b[:, None] + 2 * half * (b * (1 - b) * of_alone)[:, None]
        of_b = np.sum(of_told * half, axis=1) + (1 - 2 * b) * squares * of_alone
        of_rate_c = -np.sum(of_half * half, axis=2) / 2
        of_inner = basis @ (np.sqrt(c)[..., None] * of_half) @ right.T
        of_inner = (of_inner + np.swapaxes(of_inner, 1, 2)) / 2
        of_turns = packed(vectors.T @ of_inner @ vectors) - turns / spread**2
        of_hidden = of_turns * (spread * rest / (2 * np.sqrt(hidden)) - seen)
        of_hidden += 1 / (2 * hidden)
        of_spread = of_turns * np.sqrt(hidden) * rest + turns**2 / spread**3
        of_spread -= of_hidden * 2 * hidden * (1 - hidden) / spread
        of_spread = np.sum(of_spread, axis=1, keepdims=True)
        of_level = np.trace(of_inner, axis1=1, axis2=2)[:, None]
        of_level -= (of_turns * (1 - hidden)) @ eye[:, None]
        of_level_sds = LEVEL_SD / 2 * (level * of_level + spread * of_spread)
        parts = (
            of_level_sds - level_sds,
            SPREAD_SD * spread * of_spread - spread_sds,
            of_latents.sd * (-SILENCE_SD * rate_b * b * of_b - x_b),
            of_directions.sd * (SILENCE_SD * rate_c * of_rate_c - x_c),
            np.sqrt(hidden) * spread * of_turns,
        )
        return np.concatenate(parts, axis=1)

    return found, log_prior / 2, gradient_fn


def _log_likelihood(known: Evidence, mean, slope) -> tuple[np.ndarray, np.ndarray]:
    """The log likelihoods of the slopes J, and their derivatives by J.

    Parameters
    ----------
    known, mean
        As in `slopes`.
    slope
        J, ``(chains, r, r)``.

    Returns
    -------
    Log likelihoods up to a constant, ``(chains,)``, and symmetric matrices ``(chains,
    r, r)``. Here ``of_x`` is the derivative by x.
    """
    place, score, noise_sd = known.pooled
    missed = (known.slope - slope) / known.slope_noise_sd
    places = known.places - place
    apart = (known.scores - score + places @ slope) / known.score_sds[:, None]
    # A priori y has the mean `mean` and the precision diag(1 - gamma). The search adds
    # that J (y - y_1) is N(0, alpha^2 I).
    precision, arrived = 1 - known.data_share, slope @ slope / known.arrival_sd**2
    covariance = _inverse(np.diag(precision) + arrived)
    pull = precision * mean + arrived @ known.places[0]
    center = _times(covariance, pull)
    # The law of the mean score.
    scatter = known.scatter(slope, noise_sd)
    inverse = _inverse(slope @ covariance @ slope + scatter)
    rest = score - _times(slope, center - place)
    weighed = _times(inverse, rest)
    sign, log_determinant = np.linalg.slogdet(inverse)
    log_determinant = np.where(sign > 0, log_determinant, np.nan)
    squares = np.sum(missed**2, axis=(1, 2)) + np.sum(apart**2, axis=(1, 2))
    value = (log_determinant - squares - np.sum(rest * weighed, axis=1)) / 2

    of_law = (_outer(weighed, weighed) - inverse) / 2
    of_center = _times(slope, weighed)
    of_pull = _times(covariance, of_center)
    of_covariance = slope @ of_law @ slope + _outer(of_center, pull)
    of_arrived = _outer(of_pull, known.places[0])
    of_arrived -= covariance @ of_covariance @ covariance
    derivative = missed / known.slope_noise_sd
    derivative -= places.T @ (apart / known.score_sds[:, None])
    derivative += 2 * of_law @ slope @ covariance + _outer(weighed, center - place)
    of_arrived = of_arrived + np.swapaxes(of_arrived, 1, 2)
    derivative += of_arrived @ slope / known.arrival_sd**2
    derivative += known.through_scatter(slope, of_law)
    return value, (derivative + np.swapaxes(derivative, 1, 2)) / 2


def _inverse(matrices):
    """Their inverses, which are NaN for matrices that are singular as rounded."""
    try:
        return np.linalg.inv(matrices)
    except np.linalg.LinAlgError:
        if matrices.ndim == 2:
            return np.full_like(matrices, np.nan)
        return np.stack([_inverse(matrix) for matrix in matrices])


def _times(matrices, vectors):
    return (matrices @ vectors[..., None])[..., 0]


def _outer(first, second):
    return first[..., :, None] * second[..., None, :]
