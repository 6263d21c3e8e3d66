"""Bayesian logistic regression with a Gaussian prior."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

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
    # XLA may round the factors of a float32 product to fewer bits on a GPU.
    logit = jnp.dot(position, features, precision="highest")
    return label * logit - jax.nn.softplus(logit)


def logistic_regression(
    features, labels, *, prior_sd=1.0, radius=np.inf, tempering=1.0
) -> Posterior:
    """Posterior of the coefficients b of P(y = 1 | x) = 1 / (1 + exp(-x.b)).

    A record is a pair (x, y). Its log-likelihood y x.b - log(1 + e^(x.b)) obeys
    ``|l(b) - l(b')| <= ||x|| ||b - b'||`` and ``||grad l(b)|| <= ||x||``, so with rows
    of norm at most 1 a clip bound of ``||b - b'||`` on the log-ratio never clips. For a
    bounded `radius` there is a tighter bound, `dpjax.bounds.LogisticRegression`.

    Parameters
    ----------
    features
        x, shape ``(n, d)``. There is no hidden intercept: put a column of ones in.
    labels
        y in {0, 1}, shape ``(n,)``, of any real dtype. Values are not looked at.
    prior_sd
        Standard deviation of each coefficient's N(0, prior_sd^2) prior.
    radius
        The prior is zero where ||b|| is larger.
    tempering
        Power of the likelihood, in (0, 1].

    Returns
    -------
    Posterior
        Positions have shape ``(d,)``.

    Raises
    ------
    ValueError
        If the shapes disagree, or `prior_sd` or `radius` is not positive.
    """
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(
            "features must have shape (n, d) and labels (n,), got "
            f"{features.shape} and {labels.shape}"
        )
    if not 0 < prior_sd < np.inf:
        raise ValueError(f"prior_sd must be positive, got {prior_sd}")
    if not radius > 0:
        raise ValueError(f"radius must be positive, got {radius}")
    data = (features, labels.astype(features.dtype))
    logprior = _LogPrior(float(prior_sd), float(radius))
    return Posterior(logprior, _loglikelihood, data, tempering)
