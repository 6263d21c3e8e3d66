"""A mixture of two Gaussians, with a bimodal posterior that is computed on a grid.

The likelihood is p(x | t) = (N(x; t1, V) + N(x; t1 + t2, V)) / 2 for x in [-X, X], and
the prior is flat on the box |t_j| <= b. As both x and t are bounded, the log-likelihood
is Lipschitz in t with a public constant: `dpjax.bounds.GaussianMixture`.

References
----------
Welling and Teh (2011), Bayesian Learning via Stochastic Gradient Langevin Dynamics.
Zhang and Zhang (2023), DP-Fast Metropolis-Hastings, section 6.1: n = 50000, V = 2,
T = 1/500, X = 3. The grid posterior is not from the papers.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import chebyshev

from dpjax.models.shared import Family, check_positive
from dpjax.posterior import Posterior

__all__ = ["MIXTURE", "exact_sample", "gaussian_mixture", "grid_posterior", "simulate"]

GRID_CELLS = 300
"""Number of cells along each side of the box in the grid of `exact_sample`."""

POINTS_PER_CELL = 4
"""Number of points along each side of a cell at which its integral is evaluated."""


@dataclass(frozen=True)
class _LogPrior:
    half_width: float

    def __call__(self, position):
        inside = jnp.all(jnp.abs(position) <= self.half_width)
        return jnp.where(inside, 0.0, -jnp.inf).astype(position.dtype)


@dataclass(frozen=True)
class _LogLikelihood:
    truncation: float
    variance: float

    def __call__(self, position, record):
        x = jnp.clip(record, -self.truncation, self.truncation)
        first, second = position[0], position[0] + position[1]
        scale = -0.5 / self.variance
        return jnp.logaddexp(scale * (x - first) ** 2, scale * (x - second) ** 2)


def gaussian_mixture(
    data, *, half_width=3.0, truncation=3.0, variance=2.0, tempering=1.0
) -> Posterior:
    """The mixture posterior; positions have shape ``(2,)``.

    Parameters
    ----------
    data
        x, shape ``(n,)``. A record outside [-X, X] counts as the nearest end of that
        interval, which is a public transformation of each record alone.
    half_width
        b, half the width of the prior's box.
    truncation
        X, half the width of the interval of the records.
    variance
        V, the variance of both components.
    tempering
        The power T of the likelihood, in (0, 1].

    Raises
    ------
    ValueError
        If `data` is not one-dimensional or a constant is not positive and finite.
    """
    if data.ndim != 1:
        raise ValueError(f"data must have shape (n,), got {data.shape}")
    check_positive(half_width=half_width, truncation=truncation, variance=variance)
    loglikelihood = _LogLikelihood(float(truncation), float(variance))
    return Posterior(_LogPrior(float(half_width)), loglikelihood, data, tempering)


def simulate(rng_key, num_records) -> jax.Array:
    """Records of shape ``(num_records,)``, drawn from the mixture at theta = (0, 1).

    The variance of both components is 2. No record is clipped.
    """
    noise_key, component_key = jax.random.split(rng_key)
    noise = jax.random.normal(noise_key, (num_records,))
    second = jax.random.bernoulli(component_key, shape=(num_records,))
    return math.sqrt(2) * noise + second.astype(noise.dtype)


def grid_posterior(
    data, num_cells, *, half_width=3.0, truncation=3.0, variance=2.0, tempering=1.0
) -> np.ndarray:
    """Posterior probabilities of equal square cells of the box; not private.

    The density is integrated over every cell by the midpoint rule on 4 x 4 points.

    Parameters
    ----------
    data, half_width, truncation, variance, tempering
        As in `gaussian_mixture`.
    num_cells
        Number of cells along each side of the box.

    Returns
    -------
    Array
        ``(num_cells, num_cells)`` float64, the first axis for t1; the sum is 1.

    Notes
    -----
    The log-likelihood as a function of x is analytic within i pi V / |t2| of the real
    line. Its interpolation at m Chebyshev nodes on [-X, X] therefore has an error of
    the order r^-m, with s = pi V / (b X) and r = s + sqrt(1 + s^2). Interpolation turns
    the sum over records into a weighted sum over nodes, whose weights do not depend on
    t. The number m of nodes is chosen so that r^-m < 1e-17.
    """
    slope = math.pi * variance / (half_width * truncation)
    size = math.ceil(40 / math.asinh(slope))
    records = np.clip(np.asarray(data, np.float64) / truncation, -1, 1)
    moments = sum(
        chebyshev.chebvander(block, size - 1).sum(axis=0)
        for block in np.array_split(records, math.ceil(records.size / 2**17))
    )
    nodes = chebyshev.chebpts1(size)
    weights = np.linalg.solve(chebyshev.chebvander(nodes, size - 1).T, moments)
    num_points = num_cells * POINTS_PER_CELL
    points = (np.arange(num_points) + 0.5) / num_points
    points = half_width * (2 * points - 1)
    first, second = points[:, None], points[:, None] + points[None, :]
    log_density = np.zeros(second.shape)
    for x, weight in zip(truncation * nodes, weights, strict=True):
        one, two = ((x - mean) ** 2 / (-2 * variance) for mean in (first, second))
        log_density += weight * np.logaddexp(one, two)
    density = np.exp(tempering * (log_density - log_density.max()))
    cells = density.reshape(2 * (num_cells, POINTS_PER_CELL)).sum((1, 3))
    return cells / cells.sum()


def exact_sample(rng_key, data, num_samples, **constants) -> jax.Array:
    """Independent draws of the posterior, ``(num_samples, 2)``; not private.

    A draw is uniform within its cell of `grid_posterior`, which is b / 150 wide.

    Parameters
    ----------
    constants
        The keyword arguments of `gaussian_mixture`.
    """
    half_width = constants.get("half_width", 3.0)
    chances = grid_posterior(data, GRID_CELLS, **constants)
    with jax.enable_x64(True):
        uniform = np.asarray(jax.random.uniform(rng_key, (num_samples, 3), float))
    cumulative = np.cumsum(chances)
    cell = np.searchsorted(cumulative / cumulative[-1], uniform[:, 0], side="right")
    place = np.stack(np.divmod(cell, GRID_CELLS), axis=1) + uniform[:, 1:]
    return jnp.asarray(half_width * (2 * place / GRID_CELLS - 1), data.dtype)


MIXTURE = Family(gaussian_mixture, simulate, exact_sample)
