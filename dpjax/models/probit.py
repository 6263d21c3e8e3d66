"""Bayesian probit regression with a Gaussian prior."""

import jax.numpy as jnp
from jax.scipy.stats import norm

from dpjax.models.shared import NormalPrior, check_pairs, check_positive
from dpjax.posterior import Posterior

__all__ = ["probit_regression"]


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
        y in {0, 1}, shape ``(n,)``, of any real dtype. Their values are not checked.
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
    check_pairs(features, labels)
    check_positive(prior_sd=prior_sd)
    data = (features, labels.astype(features.dtype))
    return Posterior(NormalPrior(float(prior_sd)), _loglikelihood, data)
