"""The banana: a Gaussian bent along a parabola, with an exact posterior.

A record x in R^d has independent components x1 ~ N(t1, 20), x2 ~ N(u, 2.5) with
u = t2 + a t1^2, and x_j ~ N(t_j, 1) for j >= 3; the second argument of N is a variance.
The prior is N(0, 1/tau0) on each of t1, u, t3, ..., td. With a = 0 the model is the
high-dimensional Gauss of the thesis. A position is (t1, ..., td).

References
----------
Räisä (2021), Differentially Private Metropolis-Hastings Algorithms, section 5.1 and
theorem 5.2.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.models.shared import Family, check_positive
from dpjax.posterior import Posterior

__all__ = ["BANANA", "FisherInformation", "banana", "exact_sample", "simulate"]

_PRECISION_1, _PRECISION_2 = 0.05, 0.4
"""tau_1 and tau_2, the precisions of x1 and x2; tau_j = 1 for j >= 3."""


@dataclass(frozen=True)
class _LogLikelihood:
    curvature: float

    def __call__(self, position, record):
        # XLA fuses operations on scalars into one pass over records and chains. A sum
        # over the short axis of components takes half as long again.
        ridge = position[1] + self.curvature * position[0] ** 2
        square = _PRECISION_1 * (record[0] - position[0]) ** 2
        square += _PRECISION_2 * (record[1] - ridge) ** 2
        for j in range(2, record.shape[0]):
            square += (record[j] - position[j]) ** 2
        return -0.5 * square


@dataclass(frozen=True)
class _LogPrior:
    curvature: float
    precision: float

    def __call__(self, position):
        ridge = position[1] + self.curvature * position[0] ** 2
        square = position[0] ** 2 + ridge**2 + jnp.sum(position[2:] ** 2)
        return -0.5 * self.precision * square


def banana(data, *, curvature=20.0, prior_precision=0.001, tempering=1.0) -> Posterior:
    """The banana posterior; positions have shape ``(d,)``.

    Parameters
    ----------
    data
        Records, shape ``(n, d)`` with d >= 2.
    curvature
        a in units of ``x2 / x1**2``; 0 gives the high-dimensional Gauss.
    prior_precision
        tau0 > 0, in units of ``1 / x**2``.
    tempering
        The power T of the likelihood, in (0, 1].

    Returns
    -------
    Posterior
        Its densities lack their normalising constants.

    Raises
    ------
    ValueError
        If `data` is not ``(n, d)`` with d >= 2, or the prior is improper.
    """
    if data.ndim != 2 or data.shape[1] < 2:
        raise ValueError(f"data must have shape (n, d >= 2), got {data.shape}")
    check_positive(prior_precision=prior_precision)
    logprior = _LogPrior(float(curvature), float(prior_precision))
    return Posterior(logprior, _LogLikelihood(float(curvature)), data, tempering)


@dataclass(frozen=True)
class FisherInformation:
    """``position -> (d, d)``: expected information of all records, plus the prior's.

    With respect to (t1, u, t3, ...) it is diagonal and constant, with the entries
    T n tau_j + tau0. The change of variables to (t1, t2, t3, ...) mixes the first two
    components, because u has the derivative 2 a t1 with respect to t1.
    """

    num_records: int
    curvature: float = 20.0
    prior_precision: float = 0.001
    tempering: float = 1.0

    def __call__(self, position) -> jax.Array:
        dim = position.shape[0]
        weight = self.tempering * self.num_records
        precision = weight * _sd(dim, position.dtype) ** -2 + self.prior_precision
        slope = 2 * self.curvature * position[0]
        jacobian = jnp.eye(dim, dtype=position.dtype).at[1, 0].set(slope)
        return jnp.matmul(
            jacobian.T, precision[:, None] * jacobian, precision="highest"
        )


def simulate(rng_key, num_records, dim) -> jax.Array:
    """Records of shape ``(num_records, dim)`` at theta = (0, 3, 0, ..., 0).

    As t1 = 0 there, the distribution of the records is the same for every curvature.
    """
    mean = jnp.zeros(dim).at[1].set(3)
    normal = _normal(rng_key, num_records, dim, float)
    return mean[None] + normal * _sd(dim, float)[None]


def exact_sample(
    rng_key, data, num_samples, *, curvature=20.0, prior_precision=0.001, tempering=1.0
) -> jax.Array:
    """Independent draws of the posterior, ``(num_samples, d)``; not private.

    Given the data, t1, u, t3, ..., td are independent and Gaussian. The j-th of them
    has the precision T n tau_j + tau0, and its mean is T n tau_j xbar_j divided by that
    precision, where xbar is the mean of the records (theorem 5.2).
    """
    num_records, dim = data.shape
    record_precision = tempering * num_records * _sd(dim, data.dtype) ** -2
    precision = record_precision + prior_precision
    mean = record_precision * jnp.mean(data, axis=0) / precision
    normal = _normal(rng_key, num_samples, dim, data.dtype)
    straight = mean[None] + normal * (precision**-0.5)[None]
    return straight.at[:, 1].add(-curvature * straight[:, 0] ** 2)


def _sd(dim, dtype):
    precision = np.ones(dim)
    precision[:2] = _PRECISION_1, _PRECISION_2
    return jnp.asarray(precision**-0.5, dtype)


def _normal(rng_key, num_rows, dim, dtype):
    keys, widths = jax.random.split(rng_key, 3), (1, 1, dim - 2)
    columns = [
        jax.random.normal(key, (num_rows, width), dtype)
        for key, width in zip(keys, widths, strict=True)
    ]
    return jnp.concatenate(columns, axis=1)


BANANA = Family(banana, simulate, exact_sample, FisherInformation)
