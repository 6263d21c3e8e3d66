"""How a fit divides its budget among its releases, before the data are read.

A release of `dpjax.fit.score_fit` takes what the noise that is wanted of it costs, up
to a share of the budget. The last score takes what is left.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpjax.fit.slopes import expected_slope, largest_noise
from dpjax.release.gaussian import MAX_NOISE_MULTIPLIER
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.k_norm_sum import KNormSum

__all__ = ["MIN_RESOLUTION", "Noises", "expected_resolution"]

PHASES = (
    (20, 0.1, 0.0002, 0.2, 0.02),
    (8, 0.05, 0.0005, 0.15, 0.02),
    (6, 0.03, 0.001, 0.15, 0.03),
)
"""Of the search: number of steps; noise of a step, in standard deviations of the
posterior given one record; the share of the budget that a step takes at least, because
clipping may leave little of what the records say of a rare outcome; noise of the
curvature's eigenvalues, in units of the frame; and the share of the budget that the
curvature takes at most for it."""

SLOPE_NOISE, PLACE_NOISE = 0.05, 0.35
"""Noise of the slope's eigenvalues over their mean; and noise of the place where the
last score is released, in standard deviations of the posterior."""

MAX_STEP_SHARE, MAX_SLOPE_SHARE = 0.004, 0.1
"""Shares of the budget that a release takes at most for these noises."""

HISTOGRAM_SHARE = 0.003
"""Of the histogram of lengths."""

FIRST_SCORES, LEAST_FIRST, MAX_FIRST = (0.1, 0.25, 0.65), 0.1, 0.4
"""How the scores before the last one divide their share, and bounds on this share of
what the other releases leave. Between them it is what `PLACE_NOISE` asks for. The last
score takes the rest, as K-norm noise is least on one large share."""

THRIFT = 0.5
"""What the search and the first scores take of their shares where the last score has
noise of a mixed norm, which falls with the epsilon that they leave, not with its root.
The slope keeps its share, as noise on it hides what the records say."""

CHECK_SHARE = 0.01
"""Of the fit check. It makes the noise of the scores half a per cent larger. At epsilon
1 and delta 1e-6, its own noise is that of the mean square of 20,000 records to 3 %."""

VARIANCE_SHARE, LOST_SHARE = 0.05, 0.01
"""Of V and of the slope that is lost, in a robust fit."""

SLOPE_CLIPS, CURVATURE_CLIPS = (1.0, 2.0), (3.0, 7.0)
"""The least and the largest clip norm of a record's slope and of its curvature, over
about what these are. A large one shows heavy tails and rare covariates. It is taken if
the slope's noise is then at most twice what is wanted, and if `CURVATURE_CLIP_SHARE` of
the budget gives the curvature the noise that is wanted at the end of the search."""

CURVATURE_CLIP_SHARE = 0.01

CURVATURE_REACH = 2 / 3
"""The curvature of a record grows as the square of the length of its score, over the
root mean square length, up to this times the clip norm, and beyond it as the length."""

MIN_RESOLUTION = 0.5
"""Least eigenvalue of the slope over about the largest of its noise, below which noise
may hide directions in which the records say little."""


class Noises(NamedTuple):
    """Noise multipliers of all releases, fixed before the data are read.

    steps
        Of the steps of the search, an array for each of its phases.
    curvatures, curvature_clip
        Of the release at the end of each phase, and its clip norm.
    slope, slope_clip
        Of J, and its clip norm.
    histogram, check
        Of the lengths of scores, and of the fit check.
    variance, lost
        Of V and of the slope that is lost; None if the fit is not robust.
    scores
        Of the scores, the last one at the end.
    """

    steps: list[np.ndarray]
    curvatures: np.ndarray
    curvature_clip: float
    slope: float
    slope_clip: float
    histogram: float
    check: float
    variance: float | None
    lost: float | None
    scores: Sequence[float]

    @classmethod
    def of(
        cls,
        dim: int,
        effective: float,
        noise_multiplier: float,
        robust: bool = False,
        last: GaussianSum | KNormSum | None = None,
    ) -> "Noises":
        """The noise for `effective` = T n records, and the last release if it is given.

        A release of the share f of the budget has noise 1 / sqrt(f) times that of a
        release which spends all of it.
        """
        is_mixed = last is not None and last.norm is not None
        thrift = THRIFT if is_mixed else 1.0
        counts, step_noise, least, eigenvalue_noise, most = np.transpose(PHASES)
        step = dim / effective / step_noise
        steps = _share(step, noise_multiplier, MAX_STEP_SHARE, thrift)
        steps = np.maximum(steps, thrift * least)
        curvature = largest_noise(dim / effective, dim) / eigenvalue_noise
        clip = np.sqrt(CURVATURE_CLIP_SHARE) / (curvature[-1] * noise_multiplier)
        clip = float(np.clip(clip, *CURVATURE_CLIPS))
        curvature = clip * curvature
        curvatures = _share(curvature, noise_multiplier, most, thrift)
        slope, slope_clip = _slope(dim, effective, noise_multiplier)
        rest = 1 - counts @ steps - sum(curvatures)
        rest -= HISTOGRAM_SHARE + slope + CHECK_SHARE
        rest -= robust * (VARIANCE_SHARE + LOST_SHARE)

        def noise(share):
            return noise_multiplier / np.sqrt(share)

        first = dim / effective * (noise_multiplier / PLACE_NOISE) ** 2
        first = thrift * np.clip(first, LEAST_FIRST * rest, MAX_FIRST * rest)
        scores = noise([*(first * np.array(FIRST_SCORES)), rest - first])
        if last is not None:
            assert last.noise_multiplier is not None
            scores[-1] = last.noise_multiplier
        return cls(
            [np.full(int(n), noise(f)) for n, f in zip(counts, steps, strict=True)],
            noise(curvatures),
            clip,
            noise(slope),
            slope_clip,
            noise(2 * HISTOGRAM_SHARE),  # Its diameter is smaller by sqrt(2).
            noise(CHECK_SHARE),
            noise(VARIANCE_SHARE) if robust else None,
            noise(LOST_SHARE) if robust else None,
            scores,
        )

    @property
    def pooled_scores(self) -> float:
        """Of one release that tells as much as all releases of scores."""
        return float(np.sum(np.power(self.scores, -2.0)) ** -0.5)


def expected_resolution(dim: int, num_records: float, noise_multiplier: float) -> float:
    """What `dpjax.fit.score_draws.Known.resolution` will be, from public numbers.

    The clip norm is taken to be the root mean square length of a record's score, and
    the public design to be like the data; if it is not, less is resolved.

    Parameters
    ----------
    dim
        Number of parameters.
    num_records
        Number of records, times the tempering.
    noise_multiplier
        As in `score_fit`.
    """
    share, clip = _slope(dim, num_records, noise_multiplier)
    noise = clip * dim / num_records * noise_multiplier / math.sqrt(share)
    return expected_slope(1.0) / largest_noise(noise, dim)


def _slope(dim: int, effective: float, noise_multiplier: float):
    """Share of the budget that the slope takes, and its clip norm.

    Arguments are as in `Noises.of`.
    """
    unit = largest_noise(dim / effective, dim) / SLOPE_NOISE
    clip = 2 * math.sqrt(MAX_SLOPE_SHARE) / (unit * noise_multiplier)
    clip = float(np.clip(clip, *SLOPE_CLIPS))
    return _share(clip * unit, noise_multiplier, MAX_SLOPE_SHARE), clip


def _share(unit, noise_multiplier: float, most, thrift: float = 1.0):
    """Share of the budget with which a release has the noise that is wanted of it.

    Parameters
    ----------
    unit
        The noise that a noise multiplier of one causes, over the noise that is wanted.
    noise_multiplier
        Of a release that spends the whole budget.
    most
        The largest share. The smallest one has the largest noise multiplier that a
        release can have.
    thrift
        By which the share is multiplied.
    """
    least = (noise_multiplier / MAX_NOISE_MULTIPLIER) ** 2
    share = thrift * np.minimum((unit * noise_multiplier) ** 2, most)
    return np.maximum(share, least)
