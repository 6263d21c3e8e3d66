"""TARP: whether a posterior approximation covers the truth as often as it says.

Truth, data and posterior samples are drawn many times. For draw i, f_i is the share of
the samples that are closer to a random reference point than the truth is. If the
samples come from the posterior, f is uniform for any reference point, and the expected
coverage

    C(l) = mean_i [f_i < l]

is l at every credibility level l. The root mean square of C(l) - l over 21 levels
summarises the error. Exact posteriors score `noise_floor`; a coverage of zero at every
level, or of one, scores .5844.

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
        `numpy.random.Generator` of the reference points. Each of their components is
        uniform within 4 standard deviations of the samples around `center`.
    samples
        Posterior samples of every draw, ``(num_draws, num_samples, dim)``.
    truth
        ``(num_draws, dim)``.
    center
        ``(num_draws, dim)``; may depend on the data but not on the truth.
    num_repeats
        How often the reference points are drawn.

    Returns
    -------
    Array
        ``(num_repeats, num_draws)``.

    Raises
    ------
    ValueError
        If the shapes do not fit or a number is not finite.
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
    """C at `LEVELS`, ``(..., 21)``, from f of the draws, ``(..., num_draws)``."""
    below = np.asarray(shares)[..., None] < LEVELS
    return below.mean(axis=-2)


def coverage_rmse(coverage) -> np.ndarray:
    """Root mean square over the levels of coverage minus level.

    Parameters
    ----------
    coverage
        ``(..., 21)``, from `coverage`.

    Returns
    -------
    Array
        ``(...)``. Over repeats it varies with the reference points alone; `noise_floor`
        also varies with the draws.
    """
    return np.sqrt(np.mean((np.asarray(coverage) - LEVELS) ** 2, axis=-1))


def noise_floor(rng, num_draws: int, num_repeats: int = 1000) -> np.ndarray:
    """`coverage_rmse` of exact posteriors, for which f is uniform, ``(num_repeats,)``.

    For 500 draws it is .016 on average, and below .030 in 95 % of the cases.
    """
    uniform = rng.random((num_repeats, num_draws))
    return coverage_rmse(np.stack([coverage(row) for row in uniform]))


def rmse_with_error(rng, shares, num_resamples: int = 200) -> tuple[float, float]:
    """`coverage_rmse` and its sd, which includes that of the draws.

    Parameters
    ----------
    rng
        `numpy.random.Generator` that resamples the draws with replacement.
    shares
        f, ``(num_repeats, num_draws)``.

    Returns
    -------
    rmse
        Mean over the repeats.
    sd
        Standard deviation of that mean over resampled draws. Near the `noise_floor`,
        resampled draws score higher on average than the draws themselves.
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
