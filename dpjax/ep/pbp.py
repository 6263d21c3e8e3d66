"""Probabilistic backpropagation: moments through a network, sites by their gradient.

For independent Gaussian weights the mean and variance of every layer of
`dpjax.models.network` follow from those of the one before. With u scaled inputs of
means m_u and variances v_u, and z = max(0, a), a ~ N(m, v), r = m / sqrt v,

    E W^T u = m_W^T m_u,    Var W^T u = v_W^T m_u^2 + m_W^2^T v_u + v_W^T v_u,
    E z = m Phi(r) + sqrt v phi(r),    E z^2 = (m^2 + v) Phi(r) + m sqrt v phi(r),

taking the units as independent and their sum as Gaussian. The noise's s is integrated
by quadrature, so that log Z(m, V) is a function of all the moments and its gradient
gives the sites of weights and noise alike (`dpjax.ep.sites`).

`pbp` makes the published passes: every record's site multiplies q again in each pass,
which is assumed-density filtering and counts the data as many times.

Reference: Hernandez-Lobato and Adams 2015.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from dpjax.ep.gaussians import Diagonal, Moments
from dpjax.ep.shared_site import Tied
from dpjax.ep.sites import from_log_evidence
from dpjax.models.network import layers
from dpjax.posterior import Posterior

__all__ = ["network", "pbp", "predictive"]

NODES = 10
"""Of the Gauss-Hermite rule for the noise."""


def predictive(mean, variance, features) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of f(x) for one x, weights of these moments."""
    m_hidden, m_output, _ = layers(mean, features.shape[0])
    v_hidden, v_output, _ = layers(variance, features.shape[0])
    inputs = jnp.append(features, 1.0) / (features.shape[0] + 1) ** 0.5
    m = _matmul(m_hidden, inputs)
    v = _matmul(v_hidden, inputs**2)
    # A unit whose weights are certain has no ratio.
    sd = jnp.sqrt(jnp.maximum(v, 1e-12))
    density, below = norm.pdf(m / sd), norm.cdf(m / sd)
    m_active = m * below + sd * density
    square = (m**2 + v) * below + m * sd * density
    v_active = jnp.maximum(square - m_active**2, 0)
    m_active, v_active = jnp.append(m_active, 1.0), jnp.append(v_active, 0.0)
    centre = jnp.dot(m_output, m_active, precision="highest")
    spread = _matmul(v_output, m_active**2 + v_active) + _matmul(m_output**2, v_active)
    return centre / m_active.size**0.5, spread / m_active.size


def _matmul(left, right):
    return jnp.matmul(left, right, precision="highest")


def _log_evidence(record, mean, variance):
    features, target = record
    centre, spread = predictive(mean, variance, features)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    nodes, log_weights = (
        jnp.asarray(values, centre.dtype) for values in (nodes, np.log(weights))
    )
    log_sd = mean[-1] + jnp.sqrt(variance[-1]) * nodes
    total = spread + jnp.exp(2 * log_sd)
    log_density = -0.5 * ((target - centre) ** 2 / total + jnp.log(total))
    return jax.nn.logsumexp(log_weights + log_density)


network = from_log_evidence(_log_evidence)
"""Match for `dpjax.models.bayesian_network` and `gaussians.Diagonal`."""


def pbp(
    rng_key: jax.Array,
    posterior: Posterior,
    match: Callable = network,
    *,
    initial_position,
    num_epochs: int = 1,
) -> Moments:
    """Gaussian approximation by passes of assumed-density filtering; not private.

    Parameters
    ----------
    rng_key
        For the order of the records.
    posterior, match, initial_position
        As in `dpjax.comparisons.ep.ep`, for independent components.
    num_epochs
        Passes over the records.

    Raises
    ------
    ValueError
        If an argument is out of range, or the prior is not Gaussian.

    Returns
    -------
    Moments
        Of q.
    """
    if not (isinstance(num_epochs, int) and num_epochs >= 1):
        raise ValueError(f"num_epochs must be a positive integer, got {num_epochs}")
    return _passes(posterior, match, rng_key, initial_position, num_epochs)


@functools.partial(jax.jit, static_argnums=1)
def _passes(posterior, match, rng_key, initial_position, num_epochs):
    family = Diagonal(initial_position.shape)
    model = Tied.of(posterior, family, match)

    def visit(theta, index):
        record = jax.tree.map(lambda leaf: leaf[index], posterior.data)
        site = family.pack(*match(record, *family.moments(theta)))
        moved = family.floor(theta + site, model.least)
        return jnp.where(jnp.all(jnp.isfinite(site)), moved, theta), None

    def epoch(i, theta):
        key = jax.random.fold_in(rng_key, i)
        return jax.lax.scan(
            visit, theta, jax.random.permutation(key, model.num_records)
        )[0]

    start = model.start(initial_position)
    return family.moments(jax.lax.fori_loop(0, num_epochs, epoch, start))
