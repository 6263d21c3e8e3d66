"""The division of the budget of a fit among its releases, before the data are read.

For each release of `dpjax.fit.score_fit` there is a noise that is small enough for its
purpose. The release takes the share of the budget which that noise costs, up to a
largest share. The last score takes the share that is left. A release with the share f
has a noise multiplier 1 / sqrt(f) times that of a release which spends the whole
budget.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpjax.fit.slopes import expected_slope, largest_noise
from dpjax.release.gaussian import MAX_NOISE_MULTIPLIER
from dpjax.release.noisy_sum import NoisySum

__all__ = ["MIN_RESOLUTION", "Noises", "expected_resolution"]

PHASES = (
    (20, 0.1, 0.0002, 0.2, 0.02),
    (8, 0.05, 0.0005, 0.15, 0.02),
    (6, 0.03, 0.001, 0.15, 0.03),
)
"""The phases of the search, each with five numbers:

- the number of its steps;
- the noise that is wanted of a step, in standard deviations that the posterior would
  have if there were only one record;
- the least share of the budget of a step, as clipping may leave little of the
  information about a rare outcome;
- the noise that is wanted of the eigenvalues of the curvature, in units of the frame;
- the largest share of the budget of the curvature.
"""

SLOPE_NOISE, PLACE_NOISE = 0.05, 0.35
"""The noise that is wanted of the slope's eigenvalues, over their mean; and that of the
place where the last score is released, in standard deviations of the posterior."""

MAX_STEP_SHARE, MAX_SLOPE_SHARE = 0.004, 0.1
"""The largest shares of the budget of a step of the search, and of the slope."""

HISTOGRAM_SHARE = 0.003
"""Share of the budget of the histogram of lengths."""

FIRST_SCORES, LEAST_FIRST, MAX_FIRST = (0.1, 0.25, 0.65), 0.1, 0.4
"""How the scores before the last one divide their share of the budget, and the least
and the largest value of this share, over the budget that the other releases leave to
all scores. Between these bounds, `PLACE_NOISE` determines it. The last score takes the
rest, because K-norm noise is smallest if one release has a large share."""

THRIFT = 0.5
"""Factor by which the shares of the search and of the first scores are multiplied if
the last score has noise of a mixed norm. That noise is inversely proportional to the
epsilon which the other releases leave, and not to the root of a share. The slope keeps
its share, because noise on it hides how much the records say."""

CHECK_SHARE = 0.01
"""Share of the budget of the fit check. It makes the noise of the scores half a per
cent larger. At epsilon 1 and delta 1e-6 and with 20,000 records, the noise on the fit
check is 3 % of the sum of the mean squares."""

VARIANCE_SHARE, LOST_SHARE = 0.05, 0.01
"""Shares of the budget of V and of the slope that is lost, in a robust fit."""

SLOPE_CLIPS, CURVATURE_CLIPS = (1.0, 2.0), (3.0, 7.0)
"""The least and the largest clip norm of a record's slope, and of its curvature, in
units of about their typical size. With a large clip norm, heavy tails and rare
covariates are visible. The clip norm of the slope is the largest in this range with
which `MAX_SLOPE_SHARE` of the budget gives the slope at most twice the noise that is
wanted. The clip norm of the curvature is the largest with which `CURVATURE_CLIP_SHARE`
of the budget gives the curvature the noise that is wanted at the end of the search."""

CURVATURE_CLIP_SHARE = 0.01

CURVATURE_REACH = 2 / 3
"""The reach of `dpjax.fit.contrast.curvature` over the clip norm of the curvature. The
length of the scores is in units of its root mean square."""

MIN_RESOLUTION = 0.5
"""A bound on the resolution: the least eigenvalue of the slope over about the largest
eigenvalue of its noise. Below the bound, noise may hide directions in which the records
say little."""


class Noises(NamedTuple):
    """Noise multipliers of all releases, fixed before the data are read.

    steps
        Those of the steps of the search, an array for each phase.
    curvatures, curvature_clip
        Those of the curvatures, one for each phase of the search, and the clip norm of
        all curvatures.
    slope, slope_clip
        That of the slope J, and its clip norm.
    histogram, check
        Those of the histogram of lengths and of the fit check.
    variance, lost
        Those of V and of the slope that is lost; None if the fit is not robust.
    scores
        Those of the scores in the order of their release.
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
        last: NoisySum | None = None,
    ) -> "Noises":
        """The noise multipliers of a fit.

        Parameters
        ----------
        dim
            Number of parameters.
        effective
            T n, the number of records times the tempering.
        noise_multiplier, robust, last
            As in `dpjax.fit.score_fit.score_fit`.
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
            noise(2 * HISTOGRAM_SHARE),  # A histogram has the diameter sqrt(2), not 2.
            noise(CHECK_SHARE),
            noise(VARIANCE_SHARE) if robust else None,
            noise(LOST_SHARE) if robust else None,
            scores,
        )

    @property
    def pooled_scores(self) -> float:
        """Noise multiplier of one release that tells as much as all scores together."""
        return float(np.sum(np.power(self.scores, -2.0)) ** -0.5)


def expected_resolution(dim: int, num_records: float, noise_multiplier: float) -> float:
    """A prediction of `dpjax.fit.score_draws.Known.resolution` from public numbers.

    It assumes that the clip norm is the root mean square length of a record's score,
    and that the public covariates are like those of the data. If they are not, the
    resolution is smaller.

    Parameters
    ----------
    dim
        Number of parameters.
    num_records
        Number of records, times the tempering.
    noise_multiplier
        As in `dpjax.fit.score_fit.score_fit`.
    """
    share, clip = _slope(dim, num_records, noise_multiplier)
    noise = clip * dim / num_records * noise_multiplier / math.sqrt(share)
    return expected_slope(1.0) / largest_noise(noise, dim)


def _slope(dim: int, effective: float, noise_multiplier: float):
    """Share of the budget of the slope, and its clip norm.

    The arguments are those of `Noises.of`.
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
        Noise multiplier of a release that spends the whole budget.
    most
        The largest share. The smallest share is the one with `MAX_NOISE_MULTIPLIER`,
        the largest noise multiplier that a release can have.
    thrift
        Factor by which the share is multiplied.
    """
    least = (noise_multiplier / MAX_NOISE_MULTIPLIER) ** 2
    share = thrift * np.minimum((unit * noise_multiplier) ** 2, most)
    return np.maximum(share, least)
