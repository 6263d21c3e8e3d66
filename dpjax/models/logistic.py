"""Bayesian logistic regression with a Gaussian prior."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from dpjax.models.shared import check_pairs, check_positive
from dpjax.posterior import Posterior

__all__ = ["logistic_regression"]


@dataclass(frozen=True)
class _LogPrior:
    sd: float
    radius: float

    def __call__(self, position):
        inside = jnp.sum(position**2) <= self.radius**2
        return jnp.where(inside, -0.5 * jnp.sum((position / self.sd) ** 2), -jnp.inf)


def _loglikelihood(position, record):
    features, label = record
    # Without "highest", XLA may round the factors to fewer bits than float32 on a GPU.
    logit = jnp.dot(position, features, precision="highest")
    # The softplus of the logit. The derivative of `jax.nn.softplus` takes two
    # exponentials and a logarithm, and log1p takes longer than log. The error of the
    # tail is at most one rounding of the number one.
    is_positive = logit > 0
    tail = jnp.log(1 + jnp.exp(jnp.where(is_positive, -logit, logit)))
    return label * logit - (jnp.where(is_positive, logit, 0) + tail)


def logistic_regression(
    features, labels, *, prior_sd=1.0, radius=np.inf, tempering=1.0
) -> Posterior:
    """Posterior of the coefficients b of P(y = 1 | x) = 1 / (1 + exp(-x.b)).

    A record is a pair (x, y). Its log-likelihood l(b) = y x.b - log(1 + e^(x.b)) obeys
    ``|l(b) - l(b')| <= ||x|| ||b - b'||`` and ``||grad l(b)|| <= ||x||``. So a clip
    bound of ``||b - b'||`` on log ratios clips no record whose features have norm at
    most 1. If `radius` is finite, `dpjax.bounds.LogisticRegression` has tighter bounds.

    Parameters
    ----------
    features
        x, shape ``(n, d)``. The model has no intercept unless a column is constant.
    labels
        y in {0, 1}, shape ``(n,)``, of any real dtype. Their values are not checked.
    prior_sd
        Standard deviation of each coefficient's N(0, prior_sd^2) prior.
    radius
        Bound on ||b||; the prior density is zero beyond it.
    tempering
        The power T of the likelihood, in (0, 1].

    Returns
    -------
    Posterior
        Positions have shape ``(d,)``.

    Raises
    ------
    ValueError
        If the shapes disagree, or `prior_sd` or `radius` is not positive.
    """
    check_pairs(features, labels)
    check_positive(prior_sd=prior_sd)
    if not radius > 0:
        raise ValueError(f"radius must be positive, got {radius}")
    data = (features, labels.astype(features.dtype))
    logprior = _LogPrior(float(prior_sd), float(radius))
    return Posterior(logprior, _loglikelihood, data, tempering)
