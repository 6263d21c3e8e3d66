"""The mean of a Gaussian with known covariance, by default strongly correlated.

A record is x ~ N(t, S). The prior is t_j ~ N(0, prior_sd^2), independently.

References
----------
Räisä (2021), Differentially Private Metropolis-Hastings Algorithms, section 5.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.models.shared import Family, NormalPrior, check_positive
from dpjax.posterior import Posterior

__all__ = [
    "CORRELATED",
    "GAUSSIAN",
    "FisherInformation",
    "correlated_gaussian",
    "exact_sample",
    "simulate",
]

CORRELATED = ((1.0, 0.999), (0.999, 1.0))
"""Covariance of the thesis's correlated Gauss."""


@dataclass(frozen=True)
class _LogLikelihood:
    whitening: tuple[tuple[float, ...], ...]

    def __call__(self, position, record):
        residual = [record[j] - position[j] for j in range(len(self.whitening))]
        square = jnp.zeros((), position.dtype)
        for i, row in enumerate(self.whitening):
            square += sum(row[j] * residual[j] for j in range(i + 1)) ** 2
        return -0.5 * square


def correlated_gaussian(
    data, *, covariance=CORRELATED, prior_sd=100.0, tempering=1.0
) -> Posterior:
    """The posterior of the mean; positions have shape ``(d,)``.

    Parameters
    ----------
    data
        Records, shape ``(n, d)``. The sums over components are unrolled, so d should
        not exceed a few tens.
    covariance
        S, a ``(d, d)`` array of public numbers, not traced.
    prior_sd
        Standard deviation of the prior, in the units of the data.
    tempering
        The power T of the likelihood, in (0, 1].

    Returns
    -------
    Posterior
        Its densities lack their normalising constants.

    Raises
    ------
    ValueError
        If the shapes disagree, S is not positive definite, or `prior_sd` is not
        positive.
    """
    covariance = _as_tuples(covariance)
    if data.ndim != 2 or data.shape[1] != len(covariance):
        raise ValueError(
            f"data must have shape (n, {len(covariance)}), got {data.shape}"
        )
    check_positive(prior_sd=prior_sd)
    logprior = NormalPrior(float(prior_sd))
    whitening = _as_tuples(np.linalg.inv(_cholesky(covariance)))
    return Posterior(logprior, _LogLikelihood(whitening), data, tempering)


@dataclass(frozen=True)
class FisherInformation:
    """``position -> (d, d)``: T n S^-1 + I / prior_sd^2 at every position."""

    num_records: int
    covariance: Sequence[Sequence[float]] = CORRELATED
    prior_sd: float = 100.0
    tempering: float = 1.0

    def __call__(self, position) -> jax.Array:
        precision = np.linalg.inv(np.asarray(self.covariance))
        precision *= self.tempering * self.num_records
        precision += np.eye(len(self.covariance)) / self.prior_sd**2
        return jnp.asarray(precision, position.dtype)


def simulate(rng_key, num_records, *, covariance=CORRELATED) -> jax.Array:
    """Records of shape ``(num_records, d)`` at theta = (0, 3, 0, ..., 0)."""
    factor = jnp.asarray(_cholesky(_as_tuples(covariance)), float)
    mean = jnp.zeros(len(factor)).at[1].set(3)
    normal = jax.random.normal(rng_key, (num_records, len(factor)))
    return mean[None] + jnp.matmul(normal, factor.T, precision="highest")


def exact_sample(
    rng_key, data, num_samples, *, covariance=CORRELATED, prior_sd=100.0, tempering=1.0
) -> jax.Array:
    """Independent draws of the posterior, ``(num_samples, d)``; not private.

    The posterior is N(A xbar, A S/(T n)) with A = S0 (S0 + S/(T n))^-1, S0 the prior
    covariance prior_sd^2 I and xbar the mean of the records.
    """
    num_records, dim = data.shape
    scaled = np.asarray(covariance, np.float64) / (tempering * num_records)
    prior = prior_sd**2 * np.eye(dim)
    shrink = np.linalg.solve(prior + scaled, prior).T
    product = shrink @ scaled
    factor = np.linalg.cholesky((product + product.T) / 2)
    mean = jnp.matmul(
        jnp.asarray(shrink, data.dtype), jnp.mean(data, axis=0), precision="highest"
    )
    normal = jax.random.normal(rng_key, (num_samples, dim), data.dtype)
    spread = jnp.asarray(factor.T, data.dtype)
    return mean[None] + jnp.matmul(normal, spread, precision="highest")


def _as_tuples(matrix):
    return tuple(tuple(float(value) for value in row) for row in matrix)


@lru_cache
def _cholesky(covariance):
    try:
        return np.linalg.cholesky(np.asarray(covariance))
    except np.linalg.LinAlgError as error:
        raise ValueError("covariance must be square and positive definite") from error


GAUSSIAN = Family(correlated_gaussian, simulate, exact_sample, FisherInformation)
