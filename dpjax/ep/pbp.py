"""Probabilistic backpropagation: moments through a network, and sites by gradients.

If the weights are independent Gaussians, the means and variances of the units in each
layer of `dpjax.models.network` follow from those of the layer before. Let the scaled
inputs u of a layer have the means m_u and variances v_u. Let z = max(0, a) with
a ~ N(m, v) and r = m / sqrt v. Then

    E W^T u = m_W^T m_u,    Var W^T u = v_W^T m_u^2 + m_W^2^T v_u + v_W^T v_u,
    E z = m Phi(r) + sqrt v phi(r),    E z^2 = (m^2 + v) Phi(r) + m sqrt v phi(r),

where units are taken as independent and their sums as Gaussian. The last parameter is
s, the logarithm of the noise's sd, which is integrated by quadrature. So log Z(m, V) is
a function of the moments of all weights and of s, and its gradient gives the sites of
both (`dpjax.ep.sites`).

`pbp` makes the published passes, which are assumed-density filtering: in each pass the
approximation q is multiplied by the site of every record once more. So after several
passes every record is counted several times.

Reference: Hernandez-Lobato and Adams 2015.
"""

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from dpjax.ep.gaussians import Diagonal, Moments, dot, matmul
from dpjax.ep.shared_site import SharedSite, passes, start
from dpjax.ep.sites import from_log_evidence, gauss_hermite
from dpjax.models.network import layers
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_count

__all__ = ["network", "pbp", "predictive"]

NODES = 10
"""Number of nodes of the Gauss-Hermite rule that integrates over s."""

MIN_VARIANCE = 1e-12
"""Least variance v of a unit in the ratio r = m / sqrt v."""


def predictive(mean, variance, features) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of the network's output f(x) for one x.

    Parameters
    ----------
    mean, variance
        Means and variances of all weights and of s, flat arrays as
        `dpjax.models.network.layers` takes them.
    features
        x, without the constant input.
    """
    m_hidden, m_output, _ = layers(mean, features.shape[0])
    v_hidden, v_output, _ = layers(variance, features.shape[0])
    inputs = jnp.append(features, 1.0) / (features.shape[0] + 1) ** 0.5
    m, v = matmul(m_hidden, inputs), matmul(v_hidden, inputs**2)
    # The variance of a unit is zero if its weights are certain.
    sd = jnp.sqrt(jnp.maximum(v, MIN_VARIANCE))
    density, below = norm.pdf(m / sd), norm.cdf(m / sd)
    m_active = m * below + sd * density
    square = (m**2 + v) * below + m * sd * density
    v_active = jnp.maximum(square - m_active**2, 0)
    m_active, v_active = jnp.append(m_active, 1.0), jnp.append(v_active, 0.0)
    centre = dot(m_output, m_active)
    spread = matmul(v_output, m_active**2 + v_active) + matmul(m_output**2, v_active)
    return centre / m_active.size**0.5, spread / m_active.size


def _log_evidence(record, mean, variance):
    features, target = record
    centre, spread = predictive(mean, variance, features)
    nodes, log_weights = gauss_hermite(NODES, centre.dtype)
    log_sd = mean[-1] + jnp.sqrt(variance[-1]) * nodes
    total = spread + jnp.exp(2 * log_sd)
    log_density = -0.5 * ((target - centre) ** 2 / total + jnp.log(total))
    return jax.nn.logsumexp(log_weights + log_density)


network = from_log_evidence(_log_evidence)
"""The `match` function of `dpjax.models.bayesian_network`, for `gaussians.Diagonal`."""


def pbp(
    rng_key: jax.Array, posterior: Posterior, *, initial_position, num_epochs: int = 1
) -> Moments:
    """Approximate a network's posterior by assumed-density filtering; not private.

    Parameters
    ----------
    rng_key
        Key for the order of the records.
    posterior
        The posterior that `dpjax.models.bayesian_network` returns.
    initial_position
        Mean of q at the start, a flat array of all weights and s.
    num_epochs
        Number of passes over the records.

    Raises
    ------
    ValueError
        If an argument is out of range, or the prior is not Gaussian.

    Returns
    -------
    Moments
        Means and variances of q.
    """
    check_count("num_epochs", num_epochs)
    return _passes(posterior, rng_key, initial_position, num_epochs)


@jax.jit
def _passes(posterior, rng_key, initial_position, num_epochs):
    family = Diagonal(initial_position.shape)
    model = SharedSite(posterior, family, network)

    def visit(theta, batch):
        (index,) = batch
        record = jax.tree.map(lambda leaf: leaf[index], posterior.data)
        site = family.pack(*network(record, *family.moments(theta)))
        moved = family.floor(theta + site, model.least_precision)
        return jnp.where(jnp.all(jnp.isfinite(site)), moved, theta), None

    theta = start(family, model.prior, initial_position)
    return family.moments(passes(rng_key, num_epochs, model.num_records, visit, theta))
