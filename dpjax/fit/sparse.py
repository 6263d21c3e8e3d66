"""Whether few components of a record's score are large, as where it is of one group."""

import numpy as np
from scipy.linalg import solve_triangular

from dpjax.privacy.events import MAX_K_NORM_DIM
from dpjax.release.mixed_norm import MixedNorm

__all__ = ["sparse_norm"]

MAX_SHARE = 0.16
"""Most that (E |s_i|)^2 is of E s_i^2 where a component is single: a fourth of what it
is of a normal variate."""


def sparse_norm(
    scores: np.ndarray,
    weights: np.ndarray,
    prior_precision: np.ndarray,
    num_records: float,
) -> MixedNorm | None:
    """A norm for the scores of made-up records.

    It is None if no component is single, if there are too many for K-norm noise, or if
    the prior is too vague to make the information positive.

    Parameters
    ----------
    scores
        Along the parameters, ``(m, d)``.
    weights
        Their probabilities, ``(m,)``.
    prior_precision
        Of the parameters, ``(d, d)``.
    num_records
        n, times the tempering.
    """
    dim = scores.shape[1]
    if dim > MAX_K_NORM_DIM:
        return None
    squares = weights @ scores**2
    share = (weights @ np.abs(scores)) ** 2 / np.maximum(squares, 1e-300)
    single = np.flatnonzero(share <= MAX_SHARE)
    if not single.size:
        return None
    norm = MixedNorm(tuple(single.tolist()), dim)
    order = np.array([*norm.single, *norm.others])
    information = np.einsum("i,ij,ik->jk", weights, scores, scores)
    information = num_records * information + prior_precision
    try:
        root = np.linalg.cholesky(information[np.ix_(order, order)])
    except np.linalg.LinAlgError:
        return None
    turned = np.empty(scores.shape)
    turned[:, order] = solve_triangular(root, scores[:, order].T, lower=True).T
    mean_square = weights @ np.asarray(norm(turned)) ** 2
    ratio = np.sqrt(mean_square / (weights @ np.sum(turned**2, axis=1)))
    # Rounded, as it is part of the program of a fit, which may go on elsewhere.
    return MixedNorm(norm.single, dim, round(float(ratio), 4))
