"""Symmetric Kullback-Leibler divergence of histograms on a box.

References
----------
Zhang and Zhang (2023), DP-Fast Metropolis-Hastings, section 6.1 and the accompanying
code: 99 x 99 bins, probabilities clamped to 1e-13.
"""

import numpy as np

__all__ = ["histogram", "symmetric_kl"]


def histogram(draws, low, high, num_bins=99) -> np.ndarray:
    """Share of the draws in each bin of a box; the sum over bins is at most 1.

    Parameters
    ----------
    draws
        Shape ``(num_draws, dim)``. A draw outside the box is in no bin.
    low, high
        Ends of the box, the same for every component.
    num_bins
        Number of bins of equal width along every axis.

    Returns
    -------
    Array
        ``(num_bins,) * dim`` float64.

    Raises
    ------
    ValueError
        If `draws` is not a non-empty matrix.
    """
    draws = np.asarray(draws, np.float64)
    if draws.ndim != 2 or not draws.size:
        raise ValueError(f"draws must have shape (num_draws, dim), got {draws.shape}")
    edges = [np.linspace(low, high, num_bins + 1)] * draws.shape[1]
    return np.histogramdd(draws, edges)[0] / len(draws)


def symmetric_kl(shares, reference, floor=1e-13) -> float:
    """KL(p, q) + KL(q, p) = sum (p - q) log(p / q), with p and q at least `floor`.

    If a bin is empty in which the reference has the mass m, it adds about
    m log(m / floor). So the divergence of exact draws falls as their number grows.
    Compare the divergence of draws with that of as many independent exact draws.

    Parameters
    ----------
    shares, reference
        Probabilities of the same bins, any shape.
    floor
        Positive number to which smaller probabilities are raised.

    Raises
    ------
    ValueError
        If the shapes disagree or `floor` is not positive.
    """
    if np.shape(shares) != np.shape(reference):
        raise ValueError(
            f"the histograms have shapes {np.shape(shares)} and {np.shape(reference)}"
        )
    if not floor > 0:
        raise ValueError(f"floor must be positive, got {floor}")
    p, q = np.maximum(shares, floor), np.maximum(reference, floor)
    return float(np.sum((p - q) * np.log(p / q)))
