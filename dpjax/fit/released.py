"""What a fit by scores (`dpjax.fit.score_fit`) lets out, all of it public."""

from typing import NamedTuple

import jax

__all__ = ["Released"]


class Released(NamedTuple):
    """What a fit released, in the coordinates y = T^-1 (z - position) of its frame.

    position
        Where the scores lead, flattened, ``(d,)``.
    stretch
        T, ``(d, d)``.
    data_share
        gamma, ``(d,)``: the share of the expected information along a column of T that
        is the records'. It is zero where they were not asked.
    prior_mean
        Of the normal law that stands for the prior, ``(d,)``; its precision is diagonal
        here, 1 - gamma.
    places
        y_k, ``(number of scores, d)``: about where the scores s_k were released. At
        `position` the score is s_k + J y_k.
    scores
        The released scores, without the prior's, ``(number of scores, d)``.
    slope
        J as released, ``(d, d)``: minus the derivative of the score. Noise may leave it
        with negative eigenvalues. It was released before the scores, and changed as the
        slope of public covariates changes from there to `position`.
    drift
        By what factor the slope of public covariates changes at most, in some
        direction, from where the scores were released last to where they lead. It is
        infinite if they lead farther than a step may go.
    score_noise_sds
        Sds of the noise on the components of each score, ``(number of scores,)``.
    search_noise_sd
        Of the noise on the components of the score at the last step of the search.
    slope_noise_sd
        Sd of the noise on a diagonal entry of `slope`; off the diagonal it is less by
        sqrt(2).
    clip_norm
        The clip norm over the root mean square length of a record's score; see also
        `dpjax.release.mixed_norm.MixedNorm.ratio`.
    clipped
        About the share of records whose score is longer, as the model says.
    inefficiency
        Trace of the score's variance over that of its slope: one without clipping. In a
        robust fit, of the part that V does not hold, which is what tempering adds.
    variance
        V as released over the tempering, ``(d, d)``: the variance of the score. It is
        zero if the fit is not robust.
    variance_noise_sd
        As `slope_noise_sd`, of `variance`.
    lost, lost_noise_sd
        Share of the slope's trace that is lost where the model is wrong, and the sd of
        the noise on it. They are zero if the fit is not robust.
    num_records
        Number of records, times the tempering.
    excess
        Sum over the records of |psi|^2 less its mean under the model, with psi the
        clipped score over the clip norm.
    excess_noise_sd
        Sd of the noise on `excess`.
    expected_square
        About the sum of the means.
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
