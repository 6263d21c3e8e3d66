"""The values that a fit by scores (`dpjax.fit.score_fit`) releases."""

from typing import NamedTuple

import jax

__all__ = ["Released"]


class Released(NamedTuple):
    """What a fit released, in the coordinates y = T^-1 (z - position) of its frame.

    All of it is public. Numbers are float64, except `position`.

    position
        The flattened position z to which the last Newton step led, ``(d,)``.
    stretch
        T, ``(d, d)``, whose columns are the directions of the frame.
    data_share
        gamma, ``(d,)``: the share of the expected information along a column of T that
        comes from the records. It is zero in directions in which they were not asked.
    prior_mean
        Mean of y under the normal law that stands for the prior, ``(d,)``. The
        precision of this law is diagonal in these coordinates, with entries 1 - gamma.
    places
        y_k, ``(number of scores, d)``. Score s_k was released about there. The score at
        `position` is s_k + J y_k, which takes into account how the slope changes.
    scores
        The released scores s_k of the likelihood, without the score of the prior,
        ``(number of scores, d)``.
    slope
        J, minus the derivative of the score, ``(d, d)``. It was released where the
        first score was, and then changed as the slope that the model expects changes
        from there to `position`. The noise may leave it with negative eigenvalues.
    drift
        The largest factor, over all directions, by which the slope that the model
        expects differs between the place of the last score and `position`. It is
        infinite if `position` is farther from there than a step may go.
    score_noise_sds
        Sds of the noise on the components of each score, ``(number of scores,)``.
    search_noise_sd
        Sd of the noise on the components of the score at the last step of the search.
    slope_noise_sd
        Sd of the noise on a diagonal entry of `slope`; off the diagonal it is less by
        sqrt(2).
    clip_norm
        The clip norm divided by the root mean square length of a record's score. In a
        mixed norm, this length is taken to be the Euclidean one times
        `dpjax.release.mixed_norm.MixedNorm.ratio`.
    clipped
        About the share of scores that are clipped if the model holds.
    inefficiency
        Trace of the variance of the score over the trace of its slope. It is one
        without clipping. In a robust fit, V is the larger part of the variance, and
        this is the rest of it, which tempering adds.
    variance
        V as released, divided by the tempering, ``(d, d)``: the variance of the score.
        It is zero if the fit is not robust.
    variance_noise_sd
        Sd of the noise on a diagonal entry of `variance`; off the diagonal it is less
        by sqrt(2).
    lost, lost_noise_sd
        Share of the slope's trace that is lost because the model is wrong
        (`dpjax.fit.contrast.contrast`), and the sd of the noise on it. They are zero if
        the fit is not robust.
    num_records
        Number of records, times the tempering.
    excess
        Sum over the records of |psi|^2 less its mean under the model, where psi is the
        clipped score divided by the clip norm.
    excess_noise_sd
        Sd of the noise on `excess`.
    expected_square
        About the sum over the records of the mean of |psi|^2 under the model.
    """

    position: jax.Array
    stretch: jax.Array
    data_share: jax.Array
    prior_mean: jax.Array
    places: jax.Array
    scores: jax.Array
    slope: jax.Array
    drift: jax.Array
    score_noise_sds: jax.Array
    search_noise_sd: jax.Array
    slope_noise_sd: jax.Array
    clip_norm: jax.Array
    clipped: jax.Array
    inefficiency: jax.Array
    variance: jax.Array
    variance_noise_sd: jax.Array
    lost: jax.Array
    lost_noise_sd: jax.Array
    num_records: jax.Array
    excess: jax.Array
    excess_noise_sd: jax.Array
    expected_square: jax.Array
