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
    statistics: list[Statistics],
    prior: Prior,
    *,
    num_warmup: int = 2000,
    num_samples: int = 5000,
) -> tuple[np.ndarray, np.ndarray]:
    """A chain for each of the data sets, of equal sizes and noise.

    Returns
    -------
    theta
        ``(num_data_sets, num_samples, dim)``.
    sigma^2
        ``(num_data_sets, num_samples)``.
    """
    num_records, scale = statistics[0].num_records, statistics[0].noise_scale
    dim = len(prior.mean)
    upper = tuple(part[:-1] for part in np.triu_indices(dim))
    released = np.stack(
        [
            np.concatenate([s.squares[upper], s.products, [s.response]])
            for s in statistics
        ]
    )
    moments = np.stack([s.moments for s in statistics])
    second = _nonnegative(moments[..., -1, -1])
    fourth = moments - second[..., None, None] * second[:, None, None]
    flat = fourth.reshape(len(fourth), dim**2, dim**2)
    # Symmetric in each pair: no more roots than pairs.
    fourth_root = _root(flat)[..., -dim * (dim + 1) // 2 :]
    fourth_root = fourth_root.reshape(len(fourth), dim, dim, -1)
    second_root = _root(second)
    noise_variance = rng.exponential(2 * scale**2, released.shape)
    sigma2 = prior.scale / rng.standard_gamma(prior.shape, len(released))
    theta = _normal(rng, prior.mean, prior.precision, sigma2)
    whole = np.empty((len(released), dim + 1, dim + 1))
    kept = np.empty((len(released), num_samples, dim + 1))
    for i in range(num_warmup + num_samples):
        mean = num_records * _mean(second, theta, sigma2, upper)
        root = _covariance_root(fourth_root, second_root, theta, sigma2, upper)
        root = num_records**0.5 * root
        again = np.arange(len(released))
        for _ in range(10):
            sums = _given(
                rng, mean[again], root[again], released[again], noise_variance[again]
            )
            whole[again] = _whole(sums, upper, dim, num_records)
            rate = _conjugate(whole[again], prior, num_records)[-1]
            fits = (whole[again, 0, 0] > 0) & (whole[again, -1, -1] > 0) & (rate > 0.1)
            again = again[~fits]
            if not len(again):
                break
        whole = _nonnegative(whole)
        found = np.concatenate(
            [whole[:, *upper], whole[:, :dim, -1], whole[:, -1:, -1]], axis=1
        )
        center, precision, shape, rate = _conjugate(whole, prior, num_records)
        sigma2 = np.maximum(rate, 1e-9) / rng.standard_gamma(shape, len(rate))
        theta = _normal(rng, center, precision, sigma2)
        error = np.maximum(abs(released - found), 1e-9 * scale)
        noise_variance = 1 / rng.wald(1 / (scale * error), scale**-2)
        if i >= num_warmup:
            kept[:, i - num_warmup] = np.column_stack([theta, sigma2])
    return kept[..., :-1], kept[..., -1]


def _mean(second, theta, sigma2, upper):
    """Of (x x^T, x y, y^2) of one record."""
    explained = _apply(second, theta)
    energy = sigma2 + np.sum(theta * explained, axis=1)
    return np.concatenate([second[:, *upper], explained, energy[:, None]], axis=1)


def _covariance_root(fourth_root, second_root, theta, sigma2, upper):
    """R such that R R^T is the covariance of (x x^T, x y, y^2) of one record.

    With F F^T the covariance of x x^T and G G^T = E x x^T, the rows of R are
    (F, 0, 0), (F theta, sigma G, 0) and (theta F theta, 2 sigma theta G,
    sqrt(2) sigma^2).
    """
    sd = sigma2[:, None] ** 0.5
    once = np.einsum("nijr,nj->nir", fourth_root, theta)
    twice = np.einsum("nir,ni->nr", once, theta)
    num, dim, rank = once.shape
    pairs = len(upper[0])
    root = np.zeros((num, pairs + dim + 1, rank + dim + 1))
    root[:, :pairs, :rank] = fourth_root[:, *upper]
    root[:, pairs:-1, :rank] = once
    root[:, pairs:-1, rank:-1] = sd[..., None] * second_root
    root[:, -1, :rank] = twice
    root[:, -1, rank:-1] = 2 * sd * np.einsum("nir,ni->nr", second_root, theta)
    root[:, -1, -1] = 2**0.5 * sigma2
    return root


def _given(rng, mean, root, released, noise_variance):
    """A draw of N(mean, R R^T), of which `released` is the sum with normal noise.

    A draw of both, moved by the regression on what was released.
    """
    draw = mean + _apply(root, rng.standard_normal((len(root), root.shape[-1])))
    noisy = draw + noise_variance**0.5 * rng.standard_normal(mean.shape)
    total = root @ root.mT
    diagonal = np.arange(mean.shape[1])
    total[:, diagonal, diagonal] += noise_variance
    pull = np.linalg.solve(total, (released - noisy)[..., None])
    return draw + (root @ (root.mT @ pull))[..., 0]


def _whole(found, upper, dim, num_records):
    """Sums of products of (x, y), ``(..., dim + 1, dim + 1)``."""
    whole = np.zeros((len(found), dim + 1, dim + 1))
    pairs = len(upper[0])
    whole[:, *upper] = found[:, :pairs]
    whole[:, dim - 1, dim - 1] = num_records
    whole[:, :, dim] = found[:, pairs:]
    return whole + np.triu(whole, 1).mT


def _conjugate(whole, prior, num_records):
    """Mean, precision over that of the noise, shape and rate."""
    precision = whole[:, :-1, :-1] + prior.precision
    pull = whole[:, :-1, -1] + prior.precision @ prior.mean
    mean = np.linalg.solve(precision, pull[..., None])[..., 0]
    rest = whole[:, -1, -1] + prior.mean @ prior.precision @ prior.mean
    rest = rest - np.sum(mean * pull, axis=1)
    return mean, precision, prior.shape + num_records / 2, prior.scale + rest / 2


def _nonnegative(matrix):
    """The nearest symmetric matrix without negative eigenvalues."""
    root = _root((matrix + matrix.mT) / 2)
    return root @ root.mT


def _root(matrix):
    """R with R R^T the matrix without its negative eigenvalues, small columns first."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]


def _normal(rng, mean, precision, sigma2):
    """Draws about `mean`, of covariance sigma2 / precision."""
    normals = rng.standard_normal((len(sigma2), precision.shape[-1], 1))
    root = np.linalg.cholesky(precision)
    spread = np.linalg.solve(root.mT, normals)[..., 0]
    return mean + sigma2[:, None] ** 0.5 * spread


def _apply(matrix, vector):
    return (matrix @ vector[..., None])[..., 0]
