"""Draws from what a `score_fit` released. They read no data and cost nothing.

With y = T^-1 (z - position), what was released is about

    score ~ N(J y, Sigma),
    Sigma = rho J + s_J^2 / 2 (|v|^2 I + v v^T) + nu^2 I,

where rho J is the scatter of the records' scores, nu the sd of the noise on the score,
and s_J that of the noise on the slope J, which acts through the distance v over which
scores were carried. The posterior is this likelihood times the prior. It is normal
where the prior is. Elsewhere every draw is the end of a short chain of its own, of
Hamiltonian steps from the normal law that fits best.
"""

from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.fit.score_fit import Released
from dpjax.posterior import Posterior

__all__ = ["Known", "draws"]

NUM_STEPS, STEP_SIZE, NUM_INTEGRATION_STEPS = 20, 0.3, 6
"""Of every draw's chain, in standard deviations of the normal law it starts from."""

NEWTON_STEPS, MAX_NEWTON_STEP = 30, 3.0
"""For the normal law: steps, and how far one moves a component in the frame."""

MIN_PRECISION = 0.1
"""Least precision of the normal law in the frame, where the expected one is one."""


class Known(NamedTuple):
    """What draws know of the directions in which records were asked.

    position_error
        Root mean square distance, in posterior standard deviations, by which noise
        moves the centre of the draws.
    records, prior, noise
        Shares of the draws' variance that go with what the records say, with the prior
        and with noise. They add to one.
    num_directions
        Number of these directions.
    """

    position_error: float
    records: float
    prior: float
    noise: float
    num_directions: int

    def __str__(self):
        return (
            f"{self.num_directions} directions were asked; noise moves the centre by "
            f"{self.position_error:.2g} posterior sds; of the width the records "
            f"account for {self.records:.0%}, the prior for {self.prior:.0%}, noise "
            f"for {self.noise:.0%}"
        )


class _Likelihood(NamedTuple):
    """Of y: precision ``(d, d)``, and centre ``(d,)``. Float64.

    Where records were not asked the precision is zero.
    """

    precision: np.ndarray
    centre: np.ndarray


class _Normal(NamedTuple):
    """Mean ``(d,)`` and covariance ``(d, d)`` of y, and the prior's precision there."""

    mean: np.ndarray
    covariance: np.ndarray
    prior: np.ndarray


def draws(
    posterior: Posterior, released: Released, rng_key: jax.Array, num_draws: int, like
) -> tuple[Any, Known]:
    """Independent draws from the posterior that a fit implies.

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

    Returns
    -------
    Positions with leaves ``(num_draws, ...)``, and what they know.
    """
    flat, unravel = ravel_pytree(like)
    stretch = jnp.asarray(released.stretch, flat.dtype)

    def logprior(y):
        return posterior.logprior_fn(unravel(released.position + stretch @ y))

    likelihood = _likelihood(released, _noise(released))
    law = _normal(likelihood, logprior)
    root = np.linalg.cholesky(law.covariance)
    values, vectors = np.linalg.eigh(likelihood.precision)
    rows = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
    apart = law.mean - likelihood.centre
    mean, root, rows, offset = (
        jnp.asarray(part, flat.dtype)
        for part in (law.mean, root, rows @ root, rows @ apart)
    )

    def logdensity(x):
        return logprior(mean + root @ x) - jnp.sum((offset + rows @ x) ** 2) / 2

    kernel: Any = blackjax.hmc(
        logdensity, STEP_SIZE, jnp.ones_like(mean), NUM_INTEGRATION_STEPS
    )

    @jax.jit
    @jax.vmap
    def draw(rng_key):
        first, second = jax.random.split(rng_key)

        def step(state, key):
            return kernel.step(key, state)[0], None

        start = jax.random.normal(first, mean.shape, mean.dtype)
        state, _ = jax.lax.scan(
            step, kernel.init(start), jax.random.split(second, NUM_STEPS)
        )
        return unravel(released.position + stretch @ (mean + root @ state.position))

    return draw(jax.random.split(rng_key, num_draws)), _known(released, law)


def _noise(released: Released) -> np.ndarray:
    """Covariance of what noise adds to the score."""
    shift = np.asarray(released.shift)
    eye = np.eye(len(shift))
    far = shift @ shift * eye + np.outer(shift, shift)
    of_slope = np.square(released.slope_noise_sd) / 2 * far
    return of_slope + np.square(released.score_noise_sd) * eye


def _likelihood(released: Released, noise: np.ndarray) -> _Likelihood:
    """The likelihood of y, given the covariance of what noise adds to the score."""
    asked = np.ix_(released.is_measured, released.is_measured)
    slope = released.slope[asked]
    inner = slope @ np.linalg.solve(released.inefficiency * slope + noise[asked], slope)
    precision, centre = np.zeros_like(released.slope), np.zeros_like(released.score)
    precision[asked] = (inner + inner.T) / 2
    score = released.score[released.is_measured]
    centre[released.is_measured] = np.linalg.solve(slope, score)
    return _Likelihood(precision, centre)


def _normal(likelihood: _Likelihood, logprior) -> _Normal:
    """The normal law that fits the posterior best, found by Newton's method."""
    hessian = jax.jit(jax.hessian(lambda y: -logprior(y)))
    gradient = jax.jit(jax.grad(logprior))
    mean = np.zeros_like(likelihood.centre)
    for _ in range(NEWTON_STEPS):
        at = jnp.asarray(mean, jnp.result_type(float))
        prior = np.asarray(hessian(at), np.float64)
        values, vectors = np.linalg.eigh(likelihood.precision + (prior + prior.T) / 2)
        covariance = (vectors / np.maximum(values, MIN_PRECISION)) @ vectors.T
        score = likelihood.precision @ (likelihood.centre - mean)
        step = covariance @ (score + np.asarray(gradient(at), np.float64))
        mean = mean + step / max(1.0, np.abs(step).max() / MAX_NEWTON_STEP)
    return _Normal(mean, covariance, np.linalg.inv(covariance) - likelihood.precision)


def _known(released: Released, law: _Normal) -> Known:
    asked = np.ix_(released.is_measured, released.is_measured)
    count = int(np.sum(released.is_measured))
    noise = _noise(released)
    exact = _likelihood(released, 0 * noise).precision
    without = np.linalg.inv(exact + law.prior)[asked]
    share = np.trace(np.linalg.solve(law.covariance[asked], without)) / count
    of_prior = np.trace(law.prior[asked] @ without) / count
    slope, noise = released.slope[asked], noise[asked]
    total = released.inefficiency * slope + noise
    moves = law.covariance[asked] @ slope @ np.linalg.inv(total)
    error = np.trace(np.linalg.solve(without, moves @ noise @ moves.T)) / count
    return Known(
        position_error=float(np.sqrt(error)),
        records=float(share * (1 - of_prior)),
        prior=float(share * of_prior),
        noise=float(1 - share),
        num_directions=count,
    )
