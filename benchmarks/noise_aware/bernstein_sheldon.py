"""Noisy sufficient statistics and Gibbs sampling, of the three exponential families.

A sufficient statistic is released once with Laplace noise of scale b, and (theta, the
statistic, the noise) are sampled given the release. Given theta the statistic S is
taken for normal (central limit theorem), and Laplace noise is a scale mixture of
normals,

    release ~ N(S, V),    V ~ Exp(mean 2 b^2),
    1/V | S, release ~ InverseGaussian(mean 1 / (b |release - S|), shape 1 / b^2).

Chains start at the theta that explains the release best: from the prior, as in the
released code, some do not get there. Labels are counted, all but the last. Exponential
variables are summed where they are below `UPPER`, which is public; those above follow
from theta.

Two more things of the released code are not done here: one noise value for all counts,
and bounds of the exponential at the quantiles of the true theta.

References: Bernstein and Sheldon, Differentially private Bayesian inference for
exponential families, 2018; arXiv 2410.19371, which compares with it.
"""

import numpy as np
from scipy.stats import truncnorm

__all__ = ["UPPER", "categorical", "exponential"]

UPPER = 2.0 * (0.005 ** (-1 / 8) - 1)
"""What an exponential variable exceeds with chance .005, theta from its prior.

The sum below it tells theta only where it falls with theta, above 1.8 / UPPER: all but
.001 of the prior. With .025, the share of the released code, all but .014.
"""


def categorical(
    rng: np.random.Generator,
    counts: np.ndarray,
    prior: float,
    epsilon: float,
    *,
    num_warmup: int = 500,
    num_samples: int = 1000,
) -> np.ndarray:
    """Log ratios of the probabilities of labels to that of the last.

    Parameters
    ----------
    counts
        Records of each label, ``(num_draws, labels)``.
    prior
        Parameter of the symmetric Dirichlet prior.

    Returns
    -------
    ``(num_draws, num_samples, labels - 1)``

    Notes
    -----
    *Formal guarantees.* Pure epsilon-differential privacy if one record is substituted:
    this moves the counts but the last by 2 in all, or 1 if there are two labels.
    """
    num_draws, labels = counts.shape
    total = counts[0].sum()
    scale = min(labels - 1, 2) / epsilon
    released = counts[:, :-1] + rng.laplace(scale=scale, size=(num_draws, labels - 1))
    left = total - released.sum(axis=1, keepdims=True)
    theta = np.maximum(np.concatenate([released, left], axis=1), 1.0)
    theta = theta / theta.sum(axis=1, keepdims=True)
    variance = rng.exponential(2 * scale**2, released.shape)
    kept = []
    for i in range(num_warmup + num_samples):
        found = _counts(rng, released, variance, theta[:, :-1], total)
        variance = _noise_variance(rng, released - found, scale)
        every = np.concatenate([found, total - found.sum(axis=1, keepdims=True)], 1)
        weights = rng.standard_gamma(prior + np.maximum(every, 0.0))
        theta = weights / weights.sum(axis=1, keepdims=True)
        if i >= num_warmup:
            kept.append(np.log(theta[:, :-1] / theta[:, -1:]))
    return np.stack(kept, axis=1)


def _counts(rng, released, variance, probabilities, total):
    """Component by component, each normal and between zero and what is left.

    Given the components before it, one is normal with the mean and variance of the
    product of N(released, V) and the multinomial's normal, conditioned in turn.
    """
    mean = total * probabilities
    covariance = -total * probabilities[:, :, None] * probabilities[:, None]
    size = probabilities.shape[1]
    diagonal = np.arange(size)
    covariance[:, diagonal, diagonal] += mean
    noisy = covariance.copy()
    noisy[:, diagonal, diagonal] += variance
    gain = np.linalg.solve(noisy, covariance)
    mean = mean + np.einsum("nji,nj->ni", gain, released - mean)
    covariance = covariance - np.einsum("nij,njk->nik", covariance, gain)
    left = np.full(len(released), float(total))
    found = np.empty_like(mean)
    for j in range(size):
        sd = np.sqrt(covariance[:, j, j])
        found[:, j] = _truncated(rng, mean[:, j], sd, 0.0, left)
        left = left - found[:, j]
        slope = covariance[:, :, j] / covariance[:, j, j, None]
        mean = mean + slope * (found[:, j] - mean[:, j])[:, None]
        covariance = covariance - slope[:, :, None] * covariance[:, None, j]
    return found


def exponential(
    rng: np.random.Generator,
    records: np.ndarray,
    prior: tuple[float, float],
    epsilon: float,
    *,
    num_warmup: int = 500,
    num_samples: int = 1000,
) -> np.ndarray:
    """The rate of exponential variables.

    Parameters
    ----------
    records
        ``(num_records, num_draws)``.
    prior
        Shape and rate of the gamma prior.

    Returns
    -------
    ``(num_draws, num_samples)``

    Notes
    -----
    *Formal guarantees.* Pure epsilon-differential privacy if one record is substituted:
    it adds to the sum a number between zero and `UPPER`, before and after.
    """
    total = len(records)
    scale = UPPER / epsilon
    released = np.sum(records, axis=0, where=records < UPPER)
    released = released + rng.laplace(scale=scale, size=released.shape)
    shape, rate = prior
    grid = np.geomspace(1.8 / UPPER, 1e3, 10_000)
    expected = total * (1 - np.exp(-grid * UPPER) * (1 + grid * UPPER)) / grid
    theta = grid[np.argmin(abs(released[:, None] - expected), axis=1)]
    variance = rng.exponential(2 * scale**2, released.shape)
    kept = []
    for i in range(num_warmup + num_samples):
        # Sums below and above UPPER are normal, with the multinomial's covariance.
        beyond = np.exp(-theta * UPPER)
        below = 1 - beyond
        mean_below = 1 / theta - UPPER * beyond / below
        spread_below = theta**-2 - UPPER**2 * beyond / below**2
        mean_beyond = UPPER + 1 / theta
        prior_mean = total * below * mean_below
        prior_variance = total * below * (spread_below + beyond * mean_below**2)
        weight = prior_variance / (prior_variance + variance)
        found = _truncated(
            rng,
            prior_mean + weight * (released - prior_mean),
            np.sqrt(weight * variance),
            0.0,
            total * UPPER,
        )
        variance = _noise_variance(rng, released - found, scale)
        covariance = -total * below * beyond * mean_below * mean_beyond
        slope = covariance / prior_variance
        rest = total * beyond * (theta**-2 + below * mean_beyond**2)
        rest = rest - slope * covariance
        mean = total * beyond * mean_beyond + slope * (found - prior_mean)
        whole = found + _truncated(rng, mean, np.sqrt(rest), 0.0, np.inf)
        theta = rng.standard_gamma(shape + total, theta.shape) / (rate + whole)
        if i >= num_warmup:
            kept.append(theta)
    return np.stack(kept, axis=1)


def _truncated(rng, mean, sd, low, high):
    return truncnorm.rvs(
        (low - mean) / sd, (high - mean) / sd, mean, sd, random_state=rng
    )


def _noise_variance(rng, error, scale):
    return 1 / rng.wald(1 / (scale * np.maximum(abs(error), 1e-9)), scale**-2)
