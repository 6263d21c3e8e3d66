"""Draws from what a `score_fit` released. They read no data and cost nothing.

With y = T^-1 (z - position), each released score s_k is about

    s_k ~ N(J (y - y_k), rho Q + V + sigma_k^2 I),  sigma_k^2 = nu_k^2 + b_k^2,

where J is the slope, rho Q the scatter of the records' scores under the model (see
`dpjax.fit.slopes`), V what a robust fit has in its place, as the records show it, nu_k
the sd of the noise and b_k = kappa |y - y_k|^2 / sqrt(r n) what the scores' curvature
adds. K-norm noise is taken to be normal with the same covariance. Draws of y come from
this likelihood times the prior, each given its own draw of J (`dpjax.fit.slopes`).
Given J they are normal where the prior is. Elsewhere every draw is the end of a short
chain of its own, of Hamiltonian steps from the normal law that is closest to the
posterior (`dpjax.fit.normal_laws`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax import caller
from dpjax.fit.compiled import compiled
from dpjax.fit.fit_check import FitCheck
from dpjax.fit.names import names_of
from dpjax.fit.noises import MIN_RESOLUTION
from dpjax.fit.normal_laws import Laws, PriorLaw, closest, laws_of
from dpjax.fit.released import Released
from dpjax.fit.slopes import Evidence, expected_slope, largest_noise, regular, slopes
from dpjax.posterior import Posterior
from dpjax.privacy.shown import shown

__all__ = ["Known", "bend", "draws", "evidence_of", "fit_check_of", "known_of", "warn"]

STEP_SIZES, NUM_INTEGRATION_STEPS = np.tile([0.3, 0.1, 0.03], 20), 6
"""Of every draw's chain, in standard deviations of the closest normal law. Only small
steps are accepted in the neck of a funnel, such as that of effects of unknown scale."""

CURVATURE = 0.3
"""kappa, in the module docstring."""

NUM_HIDDEN_SDS = 2.0
"""Of the noise on the mean eigenvalue of V, which are added to it."""

MIN_KEPT = 0.25
"""Least share of the slope that a robust fit keeps."""

ARRIVAL = 2.0
"""Sd of the score where the search ends, over that of the noise on its last step."""

MAX_DRIFT = 2.0
"""Of `Released.drift`, beyond which draws are warned of."""

NUM_SLOPES = 512
"""Draws of the slope, which the draws of the position share in turn."""


class Known(NamedTuple):
    """What draws know of the directions in which records were asked.

    position_error
        Root mean square distance, in posterior standard deviations, by which noise and
        clipping move the centre of the draws, and redrawn observations where scores
        are compared with these. What the latter two add is what they would add if the
        records were those that the model makes up there.
    records, prior, noise
        Shares of the draws' variance that go with what the records say, with the prior,
        and with noise and clipping. They add to one.
    num_directions
        Number of these directions.
    resolution, likely_resolution
        Least eigenvalue of the slope over about the largest of its noise: of the slope
        as released, and in the median over draws of the slope.
    fit_check
        How much the scores of the records vary, over how much the model says they do.
    clipped
        About the share of records whose score is clipped, by the model.
    is_near
        Whether the scores were released near where they lead, so that they are about
        linear between.
    is_robust
        Whether the draws are as wide as the records' scores vary, not as the model
        says.
    noisiest, most_noise
        The component of the unconstrained latents of whose variance noise and clipping
        make the largest share, as in ``"slopes[0, 1]"``, and this share. There is no
        name where latents are drawn given their effects (`dpjax.fit.pinned_draws`).
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

    @property
    def most(self) -> str:
        """The noisiest component and its share, if that is above the mean."""
        if self.most_noise <= self.noise:
            return ""
        return f"{self.most_noise:.0%} in {self.noisiest}"

    def __str__(self):
        says = "the records show" if self.is_robust else "the model says"
        most = f", and for {self.most}" * bool(self.most)
        return (
            f"the records were asked about {self.num_directions} directions of the "
            "latents; noise and clipping move the centre by "
            f"{self.position_error:.2g} posterior sds; of the variance the records "
            f"account for {self.records:.0%}, the prior for {self.prior:.0%}, noise "
            f"and clipping for {self.noise:.0%}{most}; {self.fit_check}; widths are "
            f"what {says}"
        )


def draws(
    posterior: Posterior,
    released: Released,
    rng_key: jax.Array,
    num_draws: int,
    like: Any,
    lost_fn: Callable[[Released], float],
) -> tuple[Any, Known]:
    """Draws from the posterior that a fit implies.

    They are independent given the slopes, of which there are at most `NUM_SLOPES`.

    Parameters
    ----------
    posterior
        Its prior is used.
    released
        What `score_fit` released.
    num_draws
        Number of draws.
    like
        A position, for its structure.
    lost_fn
        How much variance clipping and redraws add: `dpjax.fit.foretold.MadeUp.lost`.

    Returns
    -------
    Positions with leaves ``(num_draws, ...)``, and what they know.

    Warns
    -----
    UserWarning
        If noise hides the slope in some direction, if the scores were released far from
        where they lead, or if the model does not fit and the fit is not robust.
    """
    flat, unravel = ravel_pytree(like)
    origin = (
        jnp.asarray(released.position),
        jnp.asarray(released.stretch, flat.dtype),
    )

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
    warn(known)
    return positions, known


def bend(evidence: Evidence, mean, num_records) -> np.ndarray:
    """b_k, where the draws have this mean in the measured directions."""
    apart = np.sum((mean - evidence.places) ** 2, axis=1)
    return CURVATURE * apart / np.sqrt(len(mean) * num_records)


def evidence_of(released: Released, is_measured, tempering) -> Evidence:
    """What was released in the measured directions.

    The share of the slope that is lost is shrunk by as much of it as may be noise.
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
    """V over the tempering, raised by what noise may hide of its mean eigenvalue."""
    noise_sd = float(released.variance_noise_sd)
    if not noise_sd:
        return np.zeros(released.variance.shape)
    with jax.enable_x64(True):
        matrix = np.asarray(released.variance, np.float64)
        found = np.asarray(jax.jit(regular)(matrix, noise_sd, is_measured))
    hidden = NUM_HIDDEN_SDS * noise_sd / np.sqrt(np.sum(is_measured))
    return found + hidden * np.diag(is_measured)


def fit_check_of(released: Released, tempering, distance) -> FitCheck:
    """The fit check at a squared distance from the centre, in variances of the draws.

    No |psi|^2 is above one, so the variance of their sum is at most its mean. Where the
    parameters are at the maximum, it is less, by the square of its correlation with the
    scores. This correlation and the distance are what the wrong parameters add.
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
    variances = np.einsum("ij,kjl,il->ki", stretch, np.stack([exact, whole]), stretch)
    shares = 1 - variances[0] / variances[1]
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
    noisiest = names_of(like)[np.argmax(shares)]
    return known._replace(noisiest=noisiest, most_noise=float(np.max(shares)))


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
    """What draws know, from their law in the r measured directions.

    Parameters
    ----------
    evidence, released
        What was released.
    found
        Draws of the slope, ``(count, r, r)``.
    covariance, without
        Of the draws, and what it would be without noise, ``(r, r)``.
    prior_precision
        Of the prior, ``(r, r)``.
    distance
        Squared distance by which noise moves the centre, in variances `without` it.
    check
        The fit check at a distance.
    lost
        As `lost_fn` of `draws` returns it.
    """
    count = len(found[0])
    added = max(lost, 0.0) / count
    share = np.trace(np.linalg.solve(covariance, without)) / count / (1 + added)
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


def warn(known: Known) -> None:
    """Warn of draws that may be off by more than their width, or are very wide.

    The warnings are those of `draws`.
    """
    if known.resolution < MIN_RESOLUTION:
        caller.warn(_hidden(known))
    if not known.is_near:
        caller.warn(
            "the scores of the records lead far from where they were released, to "
            "where the records tell more or less of the latents, so that the draws may "
            "be off by much more than their width. More records, a larger epsilon, or "
            "a prior that is narrower and nearer to the answer bring the fit there"
        )
    if not known.is_robust:
        known.fit_check.warn()


def _hidden(known: Known) -> str:
    factor = max(2.0, MIN_RESOLUTION / known.likely_resolution)
    return (
        "the releases do not tell how much the records say in each of the "
        f"{known.num_directions} directions that the records were asked about: the "
        "noise of the slope is as large as the slope. The draws allow for every slope "
        "that noise may have hidden, so they are wide, in some directions perhaps as "
        f"wide as the prior. About {shown(factor)} times as many records or as large "
        "an epsilon, a more informative prior, fewer parameters, or an example= that "
        "is more like the data would resolve the slope"
    )
