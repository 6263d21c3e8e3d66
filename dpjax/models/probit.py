"""Bayesian probit regression with a Gaussian prior."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax.scipy.stats import norm

from dpjax.posterior import Posterior

__all__ = ["probit_regression"]


@dataclass(frozen=True)
class _LogPrior:
    sd: float

    def __call__(self, position):
        return -0.5 * jnp.sum((position / self.sd) ** 2)


def _loglikelihood(position, record):
    features, label = record
    predictor = jnp.dot(position, features, precision="highest")
    return norm.logcdf((2 * label - 1) * predictor)


def probit_regression(features, labels, *, prior_sd=1.0) -> Posterior:
    """Posterior of the coefficients b of P(y = 1 | x) = Phi(x.b), Phi the normal cdf.

    Parameters
    ----------
    features
        x, shape ``(n, d)``.
    labels
        y in {0, 1}, shape ``(n,)``, of any real dtype. Values are not looked at.
    prior_sd
        Standard deviation of each coefficient's N(0, prior_sd^2) prior.

    Returns
    -------
    Posterior
        Positions have shape ``(d,)``.

    Raises
    ------
    ValueError
        If the shapes disagree or `prior_sd` is not positive.
    """
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(
            "features must have shape (n, d) and labels (n,), got "
            f"{features.shape} and {labels.shape}"
        )
    if not 0 < prior_sd < math.inf:
        raise ValueError(f"prior_sd must be positive, got {prior_sd}")
    data = (features, labels.astype(features.dtype))
    return Posterior(_LogPrior(float(prior_sd)), _loglikelihood, data)
