"""The mean of a Gaussian with known covariance, by default strongly correlated.

A record x ~ N(t, S), and t_j ~ N(0, prior_sd^2) independently.

References
----------
Räisä (2021), Differentially Private Metropolis-Hastings Algorithms, section 5.1.
"""

from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.posterior import Posterior

__all__ = [
    "CORRELATED",
    "Information",
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


@dataclass(frozen=True)
class _LogPrior:
    sd: float

    def __call__(self, position):
        return -0.5 * jnp.sum((position / self.sd) ** 2)


def correlated_gaussian(
    data, *, covariance=CORRELATED, prior_sd=100.0, tempering=1.0
) -> Posterior:
    """The posterior of the mean; positions have shape ``(d,)``.

    Parameters
    ----------
    data
        Records, shape ``(n, d)``; d up to a few tens, as components are unrolled.
    covariance
        S, a ``(d, d)`` array of numbers (public, not traced).
    prior_sd
        Standard deviation of the prior, in the units of the data.
    tempering
        Power of the likelihood, in (0, 1].

    Returns
    -------
    Posterior
        Both densities drop their normalising constants.

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
    if not 0 < prior_sd < np.inf:
        raise ValueError(f"prior_sd must be positive, got {prior_sd}")
    whitening = np.linalg.inv(_cholesky(covariance))
    return Posterior(
        _LogPrior(float(prior_sd)),
        _LogLikelihood(_as_tuples(whitening)),
        data,
        tempering,
    )


@dataclass(frozen=True)
class Information:
    """``position -> (d, d)``: T n S^-1 and the prior's precision, everywhere the same.

    `covariance` is S as a tuple of tuples.
    """

    num_records: int
    covariance: tuple[tuple[float, ...], ...] = CORRELATED
    prior_sd: float = 100.0
    tempering: float = 1.0

    def __call__(self, position) -> jax.Array:
        precision = np.linalg.inv(self.covariance)
        precision *= self.tempering * self.num_records
        precision += np.eye(len(self.covariance)) / self.prior_sd**2
        return jnp.asarray(precision, position.dtype)


def simulate(
    rng_key, num_records, dim=2, *, covariance=CORRELATED, dtype=float
) -> jax.Array:
    """Records of shape ``(num_records, dim)`` at theta = (0, 3, 0, ..., 0)."""
    factor = jnp.asarray(_cholesky(_as_tuples(covariance)), dtype)
    mean = jnp.zeros(dim, dtype).at[1].set(3)
    normal = jax.random.normal(rng_key, (num_records, dim), dtype)
    return mean[None] + jnp.matmul(normal, factor.T, precision="highest")


def exact_sample(
    rng_key, data, num_samples, *, covariance=CORRELATED, prior_sd=100.0, tempering=1.0
) -> jax.Array:
    """Independent draws of the posterior, ``(num_samples, d)``; not private.

    The posterior is N(A xbar, A S/(T n)) with A = S0 (S0 + S/(T n))^-1 and
    S0 = prior_sd^2 I.
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
