"""Draws from the posterior that the releases of a `score_fit` imply.

No data are read, so the draws cost no privacy. Let y = T^-1 (z - position) be the
parameters in the coordinates of the frame. The law of each released score s_k is about

    s_k ~ N(J (y - y_k), rho Q + V + sigma_k^2 I),  sigma_k^2 = nu_k^2 + b_k^2,

with these parts:

- J is the slope of the scores.
- rho Q is the covariance of the records' scores under the model (`dpjax.fit.slopes`).
  In a robust fit V is the larger part of it, as released; otherwise V is zero.
- nu_k is the sd of the noise. K-norm noise is taken to be normal with the same
  covariance.
- b_k = kappa |y - y_k|^2 / sqrt(r n) allows for the curvature of the scores, with y at
  the centre of the posterior. There are r measured directions and n records.

Draws of y come from this likelihood times the prior. Each is made given a draw of J
(`dpjax.fit.slopes`). If the prior is normal, y given J is normal. Otherwise, every draw
is the last state of a short chain of its own. The chain begins at a draw from the
normal law that is closest to the posterior (`dpjax.fit.normal_laws`), and takes
Hamiltonian steps.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.compiled import compiled
from dpjax.fit.fit_check import FitCheck
from dpjax.fit.names import names_of
from dpjax.fit.normal_laws import Laws, PriorLaw, closest, laws_of
from dpjax.fit.released import Released
from dpjax.fit.slopes import Evidence, expected_slope, largest_noise, regular, slopes
from dpjax.posterior import Posterior

__all__ = ["Known", "bend", "draws", "evidence_of", "fit_check_of", "known_of"]

STEP_SIZES, NUM_INTEGRATION_STEPS = np.tile([0.3, 0.1, 0.03], 20), 6
"""The step sizes of the transitions of every draw's chain, in standard deviations of
the posterior with the closest normal prior, and the leapfrog steps of a transition. In
the neck of a funnel, such as that of effects of unknown scale, only small steps are
accepted."""

CURVATURE = 0.3
"""kappa, in the module's docstring."""

NUM_HIDDEN_SDS = 2.0
"""V is raised by so many standard deviations of the noise on its mean eigenvalue."""

MIN_KEPT = 0.25
"""Least share of the slope that is left after the lost share is taken off."""

ARRIVAL = 2.0
"""Sd of the score where the search ends, over the sd of the noise on its last score."""

MAX_DRIFT = 2.0
"""The largest `Released.drift` at which the score is taken to be about linear."""

NUM_SLOPES = 512
"""The most draws of the slope. The draws of the position use them in turn."""


class Known(NamedTuple):
    """How well the draws are determined, in the directions in which records were asked.

    position_error
        Root mean square distance by which noise, clipping and redrawn observations
        (`dpjax.fit.scores`) move the centre of the draws, in posterior standard
        deviations. The parts of clipping and redraws are computed for records that the
        model makes up.
    records, prior, noise
        Shares of the draws' variance that are due to the information of the records, to
        that of the prior, and to noise and clipping. They add to one.
    num_directions
        Number of directions in which records were asked.
    resolution, likely_resolution
        Least eigenvalue of the slope over about the largest eigenvalue of its noise.
        The first is that of the slope as released, the second is the median over draws
        of the slope.
    fit_check
        How much the scores of the records vary, over how much the model says they do.
    clipped
        About the share of records whose score is clipped, if the model holds.
    is_near
        Whether the last score was released so near to where the scores lead that the
        score is about linear between the two.
    is_robust
        Whether the draws are as wide as the records' scores vary, not as the model
        says.
    noisiest, most_noise
        Name of the component of the unconstrained latents in whose variance the share
        of noise and clipping is largest, as in ``"slopes[0, 1]"``, and this share. The
        name is empty if latents are drawn given their effects
        (`dpjax.fit.pinned_draws`).
    vaguest, most_prior
        The same for the share of the prior, also of latents about which no record was
        asked.
    r_hat
        The largest R-hat of the chains that make the draws; None if no chains do.
    """

    position_error: float
    records: float
    prior: float
    noise: float
    num_directions: int
    resolution: float
    likely_resolution: float
    fit_check: FitCheck
    clipped: float
    is_near: bool
    is_robust: bool
    noisiest: str = ""
    most_noise: float = 0.0
    vaguest: str = ""
    most_prior: float = 0.0
    r_hat: float | None = None

    @property
    def where_noise(self) -> str:
        """The largest share of noise and its component, as text in brackets.

        It is empty if that share, in whole per cents, is that of all components.
        """
        return _where(self.most_noise, self.noise, self.noisiest)

    @property
    def where_prior(self) -> str:
        """As `where_noise`, for the share of the prior."""
        return _where(self.most_prior, self.prior, self.vaguest)

    def __str__(self):
        says = "the records show" if self.is_robust else "the model says"
        return (
            f"the records were asked about {self.num_directions} directions of the "
            "latents; noise and clipping move the centre by "
            f"{self.position_error:.2g} posterior sds; of the variance the records "
            f"account for {self.records:.0%}, the prior for {self.prior:.0%}"
            f"{self.where_prior}, noise and clipping for {self.noise:.0%}"
            f"{self.where_noise}; {self.fit_check}; widths are what {says}"
        )


def _where(most: float, share: float, name: str) -> str:
    return f" ({most:.0%} in {name})" if round(most, 2) > round(share, 2) else ""


def draws(
    posterior: Posterior,
    released: Released,
    rng_key: jax.Array,
    num_draws: int,
    like: Any,
    lost_fn: Callable[[Released], float],
) -> tuple[Any, Known]:
    """Draws from the posterior that a fit implies.

    The draws are independent given the draws of the slope, of which there are at most
    `NUM_SLOPES`.

    Parameters
    ----------
    posterior
        The posterior. Its prior and its tempering are used.
    released
        What `score_fit` released.
    rng_key
        A JAX key. It need not be secret.
    num_draws
        Number of draws.
    like
        A position, for its structure.
    lost_fn
        ``released -> float``: how much variance clipping and redraws add, as in
        `dpjax.fit.foretold.MadeUp.lost`.

    Returns
    -------
    positions
        Leaves ``(num_draws, ...)``.
    known
        How well they are determined.
    """
    flat, unravel = ravel_pytree(like)
    origin = (
        jnp.asarray(released.position),
        jnp.asarray(released.stretch, flat.dtype),
    )

    @jax.jit
    def logprior(y, origin):
        position, stretch = origin
        return posterior.logprior_fn(unravel(position + stretch @ y))

    data_share = np.asarray(released.data_share)
    is_measured = data_share > 0
    evidence = evidence_of(released, is_measured, posterior.tempering)
    first, rng_key = jax.random.split(rng_key)
    near = closest(evidence, logprior, origin, data_share, first)
    bends = bend(evidence, near.mean[is_measured], released.num_records)
    evidence = evidence._replace(score_sds=np.hypot(evidence.score_sds, bends))
    first, second = jax.random.split(rng_key)
    found = slopes(
        evidence,
        np.asarray(released.prior_mean)[is_measured],
        first,
        min(num_draws, NUM_SLOPES),
    )
    laws = laws_of(evidence, near.prior, is_measured, found)
    back = np.linalg.inv(laws.root)
    parts = back @ near.mean, back @ near.root
    parts += laws.root, laws.rows @ laws.root, laws.target
    parts = tuple(jnp.asarray(part, flat.dtype) for part in parts)

    def run(rng_key, origin, parts):
        means, spreads, roots, rows, targets = parts
        index = jnp.arange(num_draws) % len(means)

        def logdensity(x, index):
            square = jnp.sum((rows[index] @ x - targets[index]) ** 2)
            return logprior(roots[index] @ x, origin) - square / 2

        def move(rng_key, state, index, step_size):
            kernel: Any = blackjax.hmc(
                lambda x: logdensity(x, index),
                step_size,
                jnp.ones_like(flat),
                NUM_INTEGRATION_STEPS,
            )
            return kernel.step(rng_key, state)[0]

        def step(states, given):
            rng_key, step_size = given
            keys = jax.random.split(rng_key, num_draws)
            moved = jax.vmap(move, (0, 0, 0, None))(keys, states, index, step_size)
            return moved, None

        def start(x, index):
            return blackjax.mcmc.hmc.init(x, lambda x: logdensity(x, index))

        first, second = jax.random.split(rng_key)
        x = jax.random.normal(first, (num_draws, flat.size), flat.dtype)
        x = means[index] + jnp.einsum("nij,nj->ni", spreads[index], x)
        states = jax.vmap(start)(x, index)
        step_sizes = jnp.asarray(STEP_SIZES, flat.dtype)
        keys = jax.random.split(second, len(step_sizes))
        states, _ = jax.lax.scan(step, states, (keys, step_sizes))
        y = jnp.einsum("nij,nj->ni", roots[index], states.position)
        position, stretch = origin
        return jax.vmap(unravel)(position[None] + y @ stretch.T)

    given = second, origin, parts
    positions = compiled(run, *given)(*given)
    fit_check = functools.partial(fit_check_of, released, posterior.tempering)
    known = _known(
        evidence,
        near.prior,
        laws,
        is_measured,
        found,
        fit_check,
        released,
        lost_fn(released),
        like,
    )
    return positions, known


def bend(evidence: Evidence, mean, num_records) -> np.ndarray:
    """b_k for every score, if y has this mean in the measured directions; ``(K,)``."""
    apart = np.sum((mean - evidence.places) ** 2, axis=1)
    return CURVATURE * apart / np.sqrt(len(mean) * num_records)


def evidence_of(released: Released, is_measured, tempering) -> Evidence:
    """What was released, in the measured directions.

    The share of the slope that a robust fit finds to be lost is taken off the slope.
    Before that, the share is shrunk by the part of it that may be noise.
    """
    slope, share, stretch, places, scores, score_sds = (
        np.asarray(leaf, np.float64)
        for leaf in (
            released.slope,
            released.data_share,
            released.stretch,
            released.places,
            released.scores,
            released.score_noise_sds,
        )
    )
    asked = np.ix_(is_measured, is_measured)
    lost, noise_sd = float(released.lost), float(released.lost_noise_sd)
    lost *= max(0.0, 1 - noise_sd**2 / max(lost**2, 1e-30))
    kept = max(MIN_KEPT, 1 - lost)
    slope, slope_noise_sd = kept * slope, kept * float(released.slope_noise_sd)
    with jax.enable_x64(True):
        estimate = np.asarray(jax.jit(regular)(slope, slope_noise_sd, is_measured))
    return Evidence(
        slope=slope[asked],
        slope_noise_sd=slope_noise_sd,
        regular=estimate[asked],
        data_share=share[is_measured],
        stretch=stretch[:, is_measured],
        back=np.linalg.inv(stretch)[is_measured],
        level=kept * float(expected_slope(released.clip_norm)),
        places=places[:, is_measured],
        scores=scores[:, is_measured],
        score_sds=score_sds,
        arrival_sd=ARRIVAL * float(released.search_noise_sd),
        inefficiency=float(released.inefficiency),
        variance=tempering * _variance(released, is_measured)[asked],
    )


def _variance(released: Released, is_measured) -> np.ndarray:
    """V over the tempering, raised by as much as noise may hide of its eigenvalues."""
    noise_sd = float(released.variance_noise_sd)
    if not noise_sd:
        return np.zeros(released.variance.shape)
    with jax.enable_x64(True):
        matrix = np.asarray(released.variance, np.float64)
        found = np.asarray(jax.jit(regular)(matrix, noise_sd, is_measured))
    hidden = NUM_HIDDEN_SDS * noise_sd / np.sqrt(np.sum(is_measured))
    return found + hidden * np.diag(is_measured)


def fit_check_of(released: Released, tempering, distance) -> FitCheck:
    """The fit check of a `score_fit`.

    `distance` is the squared distance by which noise moves the centre of the draws, in
    variances of draws without noise.

    Each |psi|^2 is at most one, so the variance of the sum of |psi|^2 is at most its
    mean. At the maximum of the likelihood the variance is smaller, by the square of the
    correlation of the sum with the scores. Parameters away from the maximum add to the
    variance through this correlation and the distance.
    """
    expected = float(released.expected_square)
    return FitCheck.of(
        float(released.excess),
        float(released.excess_noise_sd),
        expected * (1 + distance / tempering),
        expected,
    )


def _known(
    evidence: Evidence,
    prior: PriorLaw,
    laws: Laws,
    is_measured,
    found,
    check,
    released,
    lost: float,
    like,
) -> Known:
    asked = np.ix_(is_measured, is_measured)
    _, _, noise_sd = evidence.pooled
    precision = prior.precision.copy()
    slope = found.mean(0)
    precision[asked] += slope @ np.linalg.solve(evidence.scatter(slope, 0.0), slope)
    exact = np.linalg.inv(precision)
    without = exact[asked]
    transposed = np.swapaxes(laws.root, 1, 2)
    given_slope = laws.root @ transposed
    scatter = evidence.scatter(found, noise_sd)
    moves = given_slope[:, is_measured][:, :, is_measured] @ found
    moves = noise_sd * moves @ np.linalg.inv(scatter)
    of_slope = np.cov(laws.mean.T).reshape(given_slope[0].shape)
    whole = given_slope.mean(0) + of_slope
    covariance, of_slope = whole[asked], of_slope[asked]
    error = (moves @ np.swapaxes(moves, 1, 2)).mean(0) + of_slope
    stretch = np.asarray(released.stretch, np.float64)
    covariances = np.stack([exact, whole, np.linalg.inv(prior.precision)])
    # Of each latent: without noise, as drawn, and in the prior.
    exact, whole, vague = np.einsum("ij,kjl,il->ki", stretch, covariances, stretch)
    of_noise, of_prior = 1 - exact / whole, exact / whole * exact / vague
    known = known_of(
        evidence,
        found,
        covariance,
        without,
        prior.precision[asked],
        np.trace(np.linalg.solve(without, error)),
        check,
        released,
        lost,
    )
    names = names_of(like)
    return known._replace(
        noisiest=names[np.argmax(of_noise)],
        most_noise=float(np.max(of_noise)),
        vaguest=names[np.argmax(of_prior)],
        most_prior=float(np.max(of_prior)),
    )


def known_of(
    evidence: Evidence,
    found,
    covariance,
    without,
    prior_precision,
    distance: float,
    check: Callable[[float], FitCheck],
    released: Released,
    lost: float,
) -> Known:
    """`Known` of draws, from their law in the r measured directions.

    Parameters
    ----------
    evidence, released
        What was released.
    found
        Draws of the slope, ``(count, r, r)``.
    covariance
        Covariance of the draws, ``(r, r)``.
    without
        The covariance that draws would have without noise, ``(r, r)``.
    prior_precision
        Precision of the prior, ``(r, r)``.
    distance
        Squared distance by which noise moves the centre, in variances of draws without
        noise, summed over the r directions.
    check
        ``distance -> FitCheck``.
    lost
        The result of `lost_fn` of `draws`.
    """
    count = len(found[0])
    added = max(lost, 0.0) / count
    share = np.trace(np.linalg.solve(covariance, without)) / count / (1 + added)
    share = min(share, 1.0)
    of_prior = max(0.0, np.trace(prior_precision @ without) / count)
    least = np.linalg.eigvalsh(evidence.slope)[0]
    likely = np.median(np.linalg.eigvalsh(found)[:, 0])
    noise = largest_noise(evidence.slope_noise_sd, count)
    return Known(
        position_error=float(np.sqrt(distance / count + added)),
        records=float(share * (1 - of_prior)),
        prior=float(share * of_prior),
        noise=float(1 - share),
        num_directions=count,
        resolution=float(least / noise),
        likely_resolution=float(likely / noise),
        fit_check=check(distance),
        clipped=float(released.clipped),
        is_near=bool(released.drift <= MAX_DRIFT),
        is_robust=bool(np.any(evidence.variance)),
    )
