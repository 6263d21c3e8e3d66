"""Gibbs-SS-Noisy: linear regression from noisy sufficient statistics.

With features x, the last of which is one, and

    y = theta . x + N(0, sigma^2),
    sigma^2 ~ InverseGamma(a_0, b_0),    theta | sigma^2 ~ N(m_0, sigma^2 L_0^-1),

the statistics sum x x^T, sum x y and sum y^2 are released with Laplace noise, and so
are the fourth moments of x, a half of epsilon each. The sampler takes the statistics
for normal given theta and sigma^2 (central limit theorem), with the mean and the
covariance that the released moments give, and Laplace noise for a scale mixture of
normals, as in `bernstein_sheldon`.

Three things of the released code are not done here: the moments that reach the sampler
are the noisy ones and averages over the records; the noise follows from public bounds,
to which records are clipped, and not from the range of the data; and it is scaled for
the substitution of one record.

Reference: Bernstein and Sheldon, Differentially private Bayesian linear regression,
2019, whose code noise-aware DPVI (arXiv 2410.19371) compares with.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

__all__ = ["Prior", "Statistics", "release", "sample"]


class Prior(NamedTuple):
    """m_0 ``(dim,)``, L_0 ``(dim, dim)``, a_0 and b_0."""

    mean: np.ndarray
    precision: np.ndarray
    shape: float
    scale: float


class Statistics(NamedTuple):
    """What is released.

    squares, products, response
        Noisy sums of x x^T ``(dim, dim)``, x y ``(dim,)`` and y^2.
    moments
        Noisy means of x_i x_j x_k x_l, ``(dim, dim, dim, dim)``.
    num_records
        Public under substitution.
    noise_scale
        Of the Laplace noise on the sums; that of x_dim^2 has none.
    """

    squares: np.ndarray
    products: np.ndarray
    response: float
    moments: np.ndarray
    num_records: int
    noise_scale: float


def release(
    rng: np.random.Generator,
    features: np.ndarray,
    response: np.ndarray,
    *,
    feature_bound: np.ndarray,
    response_bound: float,
    epsilon: float,
) -> Statistics:
    """Noisy statistics of records clipped to public bounds.

    Parameters
    ----------
    features
        Without the one, ``(num_records, dim - 1)``.
    feature_bound, response_bound
        Of absolute values, ``(dim - 1,)`` and a number.

    Notes
    -----
    *Formal guarantees.* Pure epsilon-differential privacy if one record is substituted.
    A product of powers moves by its bound if all powers are even, else by twice that;
    the noise has the scale of the sum of these over epsilon / 2.
    """
    features = np.clip(features, -feature_bound, feature_bound)
    response = np.clip(response, -response_bound, response_bound)
    num_records = len(response)
    x = np.concatenate([features, np.ones((num_records, 1))], axis=1)
    bounds = np.append(feature_bound, 1.0)
    dim = len(bounds)
    pairs = list(itertools.combinations_with_replacement(range(dim), 2))
    everything = np.append(bounds, response_bound)
    # The last pair is the number of records.
    released = [*pairs[:-1], *((i, dim) for i in range(dim)), (dim, dim)]
    scale = sum(_range(everything, pair, dim - 1) for pair in released) / (epsilon / 2)
    squares = x.T @ x
    for i, j in pairs[:-1]:
        squares[i, j] += rng.laplace(scale=scale)
        squares[j, i] = squares[i, j]
    products = x.T @ response + rng.laplace(scale=scale, size=dim)
    noisy = response @ response + rng.laplace(scale=scale)
    fours = list(itertools.combinations_with_replacement(range(dim), 4))[:-1]
    scale_fours = sum(_range(bounds, four, dim - 1) for four in fours) / (epsilon / 2)
    outer = (x[:, :, None] * x[:, None]).reshape(num_records, -1)
    moments = (outer.T @ outer).reshape((dim,) * 4)
    for four in fours:
        value = moments[four] + rng.laplace(scale=scale_fours)
        for place in set(itertools.permutations(four)):
            moments[place] = value
    moments = moments / num_records
    return Statistics(squares, products, noisy, moments, num_records, scale)


def _range(bounds, factors, one):
    """Of a product of `factors`, where that of number `one` is the constant one."""
    powers = [factors.count(i) for i in set(factors) - {one}]
    even = all(power % 2 == 0 for power in powers)
    return (1 if even else 2) * math.prod(bounds[i] for i in factors)


def sample(
    rng: np.random.Generator,
    statistics: Statistics,
    prior: Prior,
    *,
    num_warmup: int = 2000,
    num_samples: int = 5000,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of theta ``(num_samples, dim)`` and of sigma^2 ``(num_samples,)``."""
    num_records, scale = statistics.num_records, statistics.noise_scale
    dim = len(statistics.products)
    rows, columns = (part[:-1] for part in np.triu_indices(dim))
    second = _nonnegative(statistics.moments[:, :, -1, -1])
    fourth = statistics.moments - np.multiply.outer(second, second)
    fourth = _nonnegative(fourth.reshape(dim**2, -1)).reshape((dim,) * 4)
    released = np.concatenate(
        [
            statistics.squares[rows, columns],
            statistics.products,
            [statistics.response],
        ]
    )
    noise_variance = rng.exponential(2 * scale**2, released.shape)
    sigma2 = prior.scale / rng.standard_gamma(prior.shape)
    theta = _normal(rng, prior.mean, np.linalg.inv(prior.precision) * sigma2)
    kept = []
    for i in range(num_warmup + num_samples):
        mean, covariance = _central_limit(second, fourth, theta, sigma2, rows, columns)
        mean, covariance = num_records * mean, num_records * covariance
        gain = np.linalg.solve(covariance + np.diag(noise_variance), covariance).T
        mean = mean + gain @ (released - mean)
        covariance = gain * noise_variance
        for _ in range(10):
            found = _normal(rng, mean, (covariance + covariance.T) / 2)
            whole = _whole(found, rows, columns, dim, num_records)
            updated = _conjugate(whole, prior, num_records)
            if whole[0, 0] > 0 and whole[-1, -1] > 0 and updated[-1] > 0.1:
                break
        whole = _nonnegative(whole)
        found = np.concatenate([whole[rows, columns], whole[:dim, -1], whole[-1:, -1]])
        center, precision, shape, rate = _conjugate(whole, prior, num_records)
        sigma2 = max(rate, 1e-9) / rng.standard_gamma(shape)
        theta = _normal(rng, center, np.linalg.inv(precision) * sigma2)
        error = np.maximum(abs(released - found), 1e-9 * scale)
        noise_variance = 1 / rng.wald(1 / (scale * error), scale**-2)
        if i >= num_warmup:
            kept.append(np.append(theta, sigma2))
    kept = np.stack(kept)
    return kept[:, :-1], kept[:, -1]


def _central_limit(second, fourth, theta, sigma2, rows, columns):
    """Mean and covariance of (x x^T, x y, y^2) of one record."""
    one = fourth @ theta
    two = one @ theta
    mixed = np.einsum("ikjl,k,l->ij", fourth, theta, theta)
    explained = second @ theta
    energy = theta @ explained
    three = two @ theta
    mean = np.concatenate([second[rows, columns], explained, [sigma2 + energy]])
    squares = fourth[rows, columns][:, rows, columns]
    of_products = one[rows, columns]
    of_response = two[rows, columns][:, None]
    products = sigma2 * second + mixed
    across = (2 * sigma2 * explained + three)[:, None]
    response = 2 * sigma2**2 + 4 * sigma2 * energy + three @ theta
    covariance = np.block(
        [
            [squares, of_products, of_response],
            [of_products.T, products, across],
            [of_response.T, across.T, np.array([[response]])],
        ]
    )
    return mean, covariance


def _whole(found, rows, columns, dim, num_records):
    """Sums of products of (x, y), ``(dim + 1, dim + 1)``."""
    whole = np.zeros((dim + 1, dim + 1))
    whole[rows, columns] = found[: len(rows)]
    whole[dim - 1, dim - 1] = num_records
    whole[: dim + 1, dim] = found[len(rows) :]
    return whole + np.triu(whole, 1).T


def _conjugate(whole, prior, num_records):
    """Mean, precision over that of the noise, shape and rate."""
    precision = whole[:-1, :-1] + prior.precision
    pull = whole[:-1, -1] + prior.precision @ prior.mean
    mean = np.linalg.solve(precision, pull)
    rest = whole[-1, -1] + prior.mean @ prior.precision @ prior.mean - mean @ pull
    return mean, precision, prior.shape + num_records / 2, prior.scale + rest / 2


def _nonnegative(matrix):
    """The nearest symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T


def _normal(rng, mean, covariance):
    values, vectors = np.linalg.eigh(covariance)
    spread = np.sqrt(np.maximum(values, 0.0))
    return mean + vectors @ (spread * rng.standard_normal(len(mean)))
