"""The choice of a mixed norm, for models in which a record's score is sparse.

A record's score is sparse if few of its components are large. An example is a model
with an effect for each of many groups, where a record belongs to one group.
"""

import numpy as np
from scipy.linalg import solve_triangular

from dpjax.privacy.events import MAX_K_NORM_DIM
from dpjax.release.mixed_norm import MixedNorm

__all__ = ["sparse_norm"]

MAX_SHARE = 0.16
"""A component s_i of the score is single if (E |s_i|)^2 / E s_i^2 is at most this. The
ratio is four times as large for a normal variate."""


def sparse_norm(
    scores: np.ndarray,
    weights: np.ndarray,
    prior_precision: np.ndarray,
    num_records: float,
) -> MixedNorm | None:
    """The mixed norm that suits the scores of made-up records.

    Parameters
    ----------
    scores
        Scores of m records with respect to the parameters, ``(m, d)``.
    weights
        Probabilities of the scores, ``(m,)``.
    prior_precision
        Precision of the prior of the parameters, ``(d, d)``.
    num_records
        n, times the tempering.

    Returns
    -------
    The norm; None if no component is single, if there are too many components for
    K-norm noise, or if the prior is so vague that the information is not positive
    definite.
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
    # The ratio is part of the program of a fit, which another machine may resume. It is
    # rounded so that it is the same there.
    return MixedNorm(norm.single, dim, round(float(ratio), 4))
