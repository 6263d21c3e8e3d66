"""Sites: Gaussian factors that stand for the likelihoods of single records.

For a Gaussian N(m, V) and a record with likelihood p(y | w), let

    log Z(m, V) = log E_{w ~ N(m, V)} p(y | w),
    a = d log Z / dm,    A = a a^T - 2 d log Z / dV.

The tilted density p(y | w) N(w; m, V) / Z has the mean m + V a and the covariance
V - V A V. The Gaussian with these moments is N(m, V) times the site of the record. The
natural parameters of the site can be computed without subtracting large numbers:

    L = A (I - V A)^-1,    h = a + L (m + V a).

For independent components V is diagonal and only the diagonal of A is used. For a
likelihood of the linear predictor x^T w, log Z depends on x^T m and x^T V x. Then
A = b x x^T for a scalar b, h is a multiple of x, and L is one of x x^T.

A function ``match(record, mean, covariance) -> (linear, precision)`` returns h and L
for one record, in the form of `dpjax.ep.gaussians`. The covariance is an array of
variances if it has the shape of the mean. If no Gaussian has the tilted moments, the
site is zero or not finite.

References: Minka 2001 (EP and its moments); Hernandez-Lobato and Adams 2015.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import multivariate_normal, norm

from dpjax.ep.gaussians import dot, matmul
from dpjax.privacy.validate import check_positive

__all__ = ["from_log_evidence", "linear", "logistic", "mixture", "probit"]

NODES = 32
"""Number of nodes of the Gauss-Hermite rule of `logistic`."""


def from_log_evidence(log_evidence: Callable) -> Callable:
    """The `match` function of a likelihood, from the derivatives of its log Z.

    Parameters
    ----------
    log_evidence
        ``(record, mean, covariance) -> log Z``, for moments of any family.
    """

    def match(record, mean, covariance):
        slope, by_covariance = jax.grad(log_evidence, (1, 2))(record, mean, covariance)
        if mean.shape == covariance.shape:
            excess = slope**2 - 2 * by_covariance
            shrink = 1 - covariance * excess
            precision = jnp.where(shrink > 0, excess / shrink, 0)
            linear = slope + precision * (mean + covariance * slope)
            return jnp.where(shrink > 0, linear, 0), precision
        outer = slope[..., :, None] * slope[..., None, :]
        excess = outer - by_covariance - by_covariance.mT
        identity = jnp.broadcast_to(jnp.eye(mean.shape[-1]), excess.shape)
        shrink = identity.astype(excess.dtype) - matmul(excess, covariance)
        precision = jnp.linalg.solve(shrink, excess)
        precision = (precision + precision.mT) / 2
        moved = mean + matmul(covariance, slope[..., None])[..., 0]
        return slope + matmul(precision, moved[..., None])[..., 0], precision

    return match


def gauss_hermite(num_nodes: int, dtype) -> tuple[jax.Array, jax.Array]:
    """Nodes and log weights of Gauss-Hermite quadrature for a standard normal variable.

    The weights are not normalised.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return jnp.asarray(nodes, dtype), jnp.asarray(np.log(weights), dtype)


def _predictor(derivatives: Callable) -> Callable:
    """The `match` function of a likelihood of x^T w, for records that are pairs (x, y).

    `derivatives` takes y, and the mean and variance of x^T w. It returns the derivative
    of log Z with respect to this mean, and b.
    """

    def match(record, mean, covariance):
        features, target = record
        is_diagonal = mean.shape == covariance.shape
        multiply = jnp.multiply if is_diagonal else matmul
        centre = dot(features, mean)
        variance = dot(features, multiply(covariance, features))
        slope, excess = derivatives(target, centre, variance)
        if is_diagonal:
            slopes, excesses = slope * features, excess * features**2
            precision = excesses / (1 - covariance * excesses)
            return slopes + precision * (mean + covariance * slopes), precision
        precision = excess / (1 - excess * variance)
        linear = slope + precision * (centre + variance * slope)
        return linear * features, precision * jnp.outer(features, features)

    return match


def linear(noise_sd: float) -> Callable:
    """The `match` function of y ~ N(x^T w, noise_sd^2).

    With full covariances, the site is the likelihood itself.

    Raises
    ------
    ValueError
        If `noise_sd` is not positive.
    """
    check_positive(noise_sd=noise_sd)

    def derivatives(target, centre, variance):
        total = variance + noise_sd**2
        return (target - centre) / total, 1 / total

    return _predictor(derivatives)


@_predictor
def probit(label, centre, variance):
    """The `match` function of P(y = 1 | x) = Phi(x^T w), with labels y in {0, 1}.

    It has a closed form.
    """

    def log_evidence(centre, variance):
        return norm.logcdf((2 * label - 1) * centre / jnp.sqrt(1 + variance))

    slope, by_variance = jax.grad(log_evidence, (0, 1))(centre, variance)
    return slope, slope**2 - 2 * by_variance


@_predictor
def logistic(label, centre, variance):
    """The `match` function of P(y = 1 | x) = 1 / (1 + exp(-x^T w)), y in {0, 1}.

    Expectations under the tilted density are computed by Gauss-Hermite quadrature. Let
    l(u) be the log-likelihood of the predictor u. Then d log Z / d mean = E l' and
    b = -Var l' - E l''.
    """
    nodes, log_weights = gauss_hermite(NODES, centre.dtype)
    sign = 2 * label - 1
    predictor = sign * (centre + jnp.sqrt(variance) * nodes)
    weights = jax.nn.softmax(log_weights + jax.nn.log_sigmoid(predictor))
    missing = jax.nn.sigmoid(-predictor)
    slope = jnp.sum(weights * missing)
    spread = jnp.sum(weights * (missing - slope) ** 2)
    return sign * slope, jnp.sum(weights * missing * (1 - missing)) - spread


def mixture(num_components: int, component_sd: float) -> Callable:
    """The `match` function of x ~ sum_j N(w_j, component_sd^2 I) / J.

    This is a mixture of J Gaussians with equal weights. Moments are those of
    `gaussians.Full` of shape ``(J, d)``, and records x are ``(d,)``. A site may have a
    precision that is not positive definite.

    Raises
    ------
    ValueError
        If a parameter is not positive.
    """
    check_positive(num_components=num_components, component_sd=component_sd)

    def log_density(record, mean, covariance):
        noise = component_sd**2 * jnp.eye(record.size, dtype=mean.dtype)
        return multivariate_normal.logpdf(record, mean, covariance + noise)

    def log_evidence(record, mean, covariance):
        log_densities = jax.vmap(log_density, (None, 0, 0))(record, mean, covariance)
        return jax.nn.logsumexp(log_densities) - math.log(num_components)

    return from_log_evidence(log_evidence)
