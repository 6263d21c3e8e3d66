"""Regression by a Bayesian neural network with one hidden layer of rectifiers.

With H hidden units and d features, u = (x, 1) and all weights N(0, 1) a priori,

    z_h = max(0, W_h^T u / sqrt(d + 1)),    f(x) = v^T (z, 1) / sqrt(H + 1),
    y ~ N(f(x), exp(2 s)),    s ~ N(-1, 1).

A position is one vector: W row by row, then v, then s. Dividing by the square root of
the number of inputs keeps the outputs of every layer of the order of one, whatever its
width.

References
----------
Hernandez-Lobato and Adams (2015), Probabilistic Backpropagation for Scalable Learning
of Bayesian Neural Networks. There the precision of the noise has a Gamma prior.
"""

import jax
import jax.numpy as jnp

from dpjax.models.shared import check_pairs
from dpjax.posterior import Posterior

__all__ = ["bayesian_network", "layers", "num_parameters", "predict", "start"]

LOG_NOISE_SD_MEAN = -1.0
"""Prior mean of s. A noise of sd e^-1 = 0.37 suits targets of the order of one."""


def num_parameters(num_features: int, num_hidden: int) -> int:
    """Length of the vector that is a position."""
    return num_hidden * (num_features + 1) + num_hidden + 1 + 1


def layers(position: jax.Array, num_features: int):
    """The parts W ``(H, d + 1)``, v ``(H + 1,)`` and s ``()`` of a position.

    `position` may also be a vector of the means, or of the variances, of the components
    of a position.
    """
    num_hidden = (position.shape[0] - 2) // (num_features + 2)
    hidden, output, noise = jnp.split(
        position, [num_hidden * (num_features + 1), position.shape[0] - 1]
    )
    return hidden.reshape(num_hidden, num_features + 1), output, noise[0]


def predict(position: jax.Array, features: jax.Array) -> jax.Array:
    """f(x) for one x ``(d,)``."""
    hidden, output, _ = layers(position, features.shape[0])
    inputs = jnp.append(features, 1.0) / (features.shape[0] + 1) ** 0.5
    active = jax.nn.relu(jnp.matmul(hidden, inputs, precision="highest"))
    scale = (active.shape[0] + 1) ** 0.5
    return jnp.dot(output, jnp.append(active, 1.0), precision="highest") / scale


def start(rng_key: jax.Array, num_features: int, num_hidden: int) -> jax.Array:
    """A position to start at: weights drawn from the prior, and s at its prior mean.

    It reads no data.
    """
    size = num_parameters(num_features, num_hidden)
    return jax.random.normal(rng_key, (size,)).at[-1].set(LOG_NOISE_SD_MEAN)


def _logprior(position):
    centred = position.at[-1].add(-LOG_NOISE_SD_MEAN)
    return -0.5 * jnp.sum(centred**2)


def _loglikelihood(position, record):
    features, target = record
    log_sd = position[-1]
    gap = (target - predict(position, features)) * jnp.exp(-log_sd)
    return -0.5 * gap**2 - log_sd


def bayesian_network(features, targets) -> Posterior:
    """Posterior of the weights and the noise; records are pairs (x, y).

    Parameters
    ----------
    features
        x, shape ``(n, d)``, with entries of the order of one.
    targets
        y, shape ``(n,)``, of the order of one.

    Returns
    -------
    Posterior
        Positions are vectors of `num_parameters` numbers. Their length determines the
        number of hidden units.

    Raises
    ------
    ValueError
        If the shapes disagree.
    """
    check_pairs(features, targets)
    return Posterior(_logprior, _loglikelihood, (features, targets))
