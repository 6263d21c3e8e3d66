"""TARP: whether a posterior approximation covers the truth as often as it says.

A *draw* is a triple of true parameters, data that are simulated at these parameters,
and samples from the approximate posterior given these data. Many draws are made. For
draw i, f_i is the share of the samples that are closer to a random reference point than
the true parameters are. If the samples come from the posterior, f is uniform for any
reference point, and the expected coverage

    C(l) = mean_i [f_i < l]

is l at every credibility level l. The error is summarised by the root mean square of
C(l) - l over 21 levels. For exact posteriors it is distributed as `noise_floor`. It is
.5844 if the coverage is zero at every level, or one at every level.

References
----------
Lemos et al. (2023), Sampling-Based Accuracy Testing of Posterior Estimators. Levels and
reference points are those of the noise-aware DPVI code (arXiv 2410.19371).
"""

import numpy as np

__all__ = [
    "LEVELS",
    "coverage",
    "coverage_rmse",
    "noise_floor",
    "rmse_with_error",
    "shares",
    "shares_marginal",
]

LEVELS = 1 - np.array([0.001, *np.linspace(0.05, 0.95, 19), 0.999])
"""Credibility levels, ``(21,)``."""


def shares(rng, samples, truth, center, num_repeats: int = 20) -> np.ndarray:
    """f of every draw, by the Euclidean distance over all components.

    Parameters
    ----------
    rng
        `numpy.random.Generator` for the reference points. Each component of a reference
        point is uniform within 4 standard deviations of the samples around `center`.
    samples
        Posterior samples of every draw, ``(num_draws, num_samples, dim)``.
    truth
        True parameters of every draw, ``(num_draws, dim)``.
    center
        Centre of the reference points of every draw, ``(num_draws, dim)``. It may
        depend on the data but not on the truth.
    num_repeats
        Number of reference points for each draw.

    Returns
    -------
    Array
        f for each reference point and draw, ``(num_repeats, num_draws)``.

    Raises
    ------
    ValueError
        If the shapes do not agree or a number is not finite.
    """
    samples, truth, center = _checked(samples, truth, center)
    spread = 4 * samples.std(axis=1)
    found = []
    for _ in range(num_repeats):
        reference = center + spread * rng.uniform(-1, 1, truth.shape)
        distances = np.sum((samples - reference[:, None]) ** 2, axis=-1)
        of_truth = np.sum((truth - reference) ** 2, axis=-1)
        found.append(np.mean(distances < of_truth[:, None], axis=1))
    return np.stack(found)


def shares_marginal(rng, samples, truth, center) -> np.ndarray:
    """f of every component on its own, ``(dim, num_repeats, num_draws)``.

    Parameters and errors are those of `shares`.
    """
    arrays = _checked(samples, truth, center)
    parts = [np.split(array, array.shape[-1], axis=-1) for array in arrays]
    return np.stack([shares(rng, *part) for part in zip(*parts, strict=True)])


def coverage(shares) -> np.ndarray:
    """The coverage C at `LEVELS`, ``(..., 21)``.

    `shares` are f of the draws, ``(..., num_draws)``.
    """
    below = np.asarray(shares)[..., None] < LEVELS
    return below.mean(axis=-2)


def coverage_rmse(coverage) -> np.ndarray:
    """Root mean square of coverage minus level, over the levels.

    Parameters
    ----------
    coverage
        From the function `coverage`, ``(..., 21)``.

    Returns
    -------
    Array
        ``(...)``. If the leading axis is that of the repeats of `shares`, its entries
        differ in the reference points alone. The entries of `noise_floor` differ in the
        draws as well.
    """
    return np.sqrt(np.mean((np.asarray(coverage) - LEVELS) ** 2, axis=-1))


def noise_floor(rng, num_draws: int, num_repeats: int = 1000) -> np.ndarray:
    """Simulated values of `coverage_rmse` for exact posteriors, ``(num_repeats,)``.

    For an exact posterior f is uniform. With 500 draws the values are .016 on average,
    and 95 % of them are below .030.
    """
    uniform = rng.random((num_repeats, num_draws))
    return coverage_rmse(np.stack([coverage(row) for row in uniform]))


def rmse_with_error(rng, shares, num_resamples: int = 200) -> tuple[float, float]:
    """`coverage_rmse` and its standard deviation over draws.

    Parameters
    ----------
    rng
        `numpy.random.Generator` that resamples the draws with replacement.
    shares
        f, ``(num_repeats, num_draws)``.
    num_resamples
        Number of bootstrap samples of the draws.

    Returns
    -------
    rmse
        `coverage_rmse`, averaged over the repeats.
    sd
        Standard deviation of `rmse` over the bootstrap samples. Near the `noise_floor`,
        the bootstrap samples have a larger `rmse` on average than the draws themselves.
    """
    shares = np.asarray(shares)
    num_draws = shares.shape[1]
    below = np.asarray(shares[..., None] < LEVELS, np.float64)
    times = rng.multinomial(num_draws, np.full(num_draws, 1 / num_draws), num_resamples)
    resampled = np.tensordot(times / num_draws, below, (1, 1))
    rmse = coverage_rmse(coverage(shares)).mean()
    return float(rmse), float(coverage_rmse(resampled).mean(axis=1).std(ddof=1))


def _checked(samples, truth, center):
    samples, truth, center = (
        np.asarray(array, np.float64) for array in (samples, truth, center)
    )
    if not (
        samples.ndim == 3
        and samples.size
        and samples.shape[::2] == truth.shape == center.shape
    ):
        raise ValueError(
            "samples must be (num_draws, num_samples, dim), truth and center "
            f"(num_draws, dim); got {samples.shape}, {truth.shape} and {center.shape}"
        )
    if not all(np.all(np.isfinite(array)) for array in (samples, truth, center)):
        raise ValueError(
            "samples, truth and center must be finite: leave failed runs out, and "
            "report how many"
        )
    return samples, truth, center
