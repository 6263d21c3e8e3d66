"""The circle: a posterior on a ring, whose mean is the origin whatever the data.

A record is a radius r with log-likelihood -a (t1^2 + t2^2 - r^2)^2; the prior is flat.

References
----------
Räisä (2021), Differentially Private Metropolis-Hastings Algorithms, section 5.1. The
exact sampler is not from the thesis.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax.models.shared import Family, check_positive
from dpjax.posterior import Posterior

__all__ = ["CIRCLE", "FisherInformation", "circle", "exact_sample", "simulate"]

SD_ALONG_RING = 0.7
"""Distance along the ring that `FisherInformation` takes for one standard deviation."""


@dataclass(frozen=True)
class _LogLikelihood:
    sharpness: float

    def __call__(self, position, record):
        square = position[0] ** 2 + position[1] ** 2
        return -self.sharpness * (square - record**2) ** 2


def _flat_logprior(position):
    return jnp.zeros((), position.dtype)


def circle(data, *, sharpness=1e-5, tempering=1.0) -> Posterior:
    """The circle posterior; positions have shape ``(2,)``.

    Parameters
    ----------
    data
        Radii, shape ``(n,)``.
    sharpness
        a > 0, in units of ``radius**-4``.
    tempering
        The power T of the likelihood, in (0, 1].

    Raises
    ------
    ValueError
        If `data` is not one-dimensional or `sharpness` is not positive.
    """
    if data.ndim != 1:
        raise ValueError(f"data must have shape (n,), got {data.shape}")
    check_positive(sharpness=sharpness)
    return Posterior(_flat_logprior, _LogLikelihood(float(sharpness)), data, tempering)


@dataclass(frozen=True)
class FisherInformation:
    """``position -> (2, 2)``, which is 8 a T n t t' + I / s^2 at a position t.

    On the ring the first term is minus the Hessian of the log density. It has rank one,
    because the posterior is flat along the ring. The second term, with
    s = `SD_ALONG_RING`, makes the sum invertible.
    """

    num_records: int
    sharpness: float = 1e-5
    tempering: float = 1.0

    def __call__(self, position) -> jax.Array:
        weight = 8 * self.sharpness * self.tempering * self.num_records
        along = jnp.eye(2, dtype=position.dtype) / SD_ALONG_RING**2
        return weight * position[:, None] * position[None, :] + along


def simulate(rng_key, num_records) -> jax.Array:
    """Radii of shape ``(num_records,)``, drawn from N(3, 1)."""
    return 3 + jax.random.normal(rng_key, (num_records,))


def exact_sample(
    rng_key, data, num_samples, *, sharpness=1e-5, tempering=1.0
) -> jax.Array:
    """Independent draws of the posterior, ``(num_samples, 2)``; not private.

    In polar coordinates (rho, phi) the area element is d(rho^2) d(phi) / 2. So rho^2
    follows N(mean(r^2), 1 / (2 a T n)) truncated to the positive half line, and phi is
    uniform.
    """
    radius_key, angle_key = jax.random.split(rng_key)
    centre = jnp.mean(data**2)
    sd = (2 * sharpness * tempering * data.shape[0]) ** -0.5
    normal = jax.random.truncated_normal(
        radius_key, -centre / sd, jnp.inf, (num_samples,), data.dtype
    )
    radius = jnp.sqrt(jnp.maximum(centre + sd * normal, 0))
    angle = jax.random.uniform(angle_key, (num_samples,), data.dtype, 0, 2 * jnp.pi)
    return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=1)


CIRCLE = Family(circle, simulate, exact_sample, FisherInformation)
