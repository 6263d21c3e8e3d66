"""A prediction of how wide the draws of a fit will be, from simulated records.

A fit releases a noisy sum of clipped scores, and draws from the posterior that the sum
implies. At a public position, let g be the score of a record that is simulated from the
model there. It is in the units of a `dpjax.fit.frame`, in which the records' expected
information and the prior's precision P add up to the identity. Let psi = clip_C(g), and
A the regression of psi on g. With n records, the tempering T and noise of sd nu,

    J = T n E[psi g^T],
    Sigma = T n A E[g g^T] A^T + T^2 n (E[psi psi^T] - A E[g g^T] A^T) + nu^2 I.

Given the parameters, y away from the position, the sum is about N(J y, Sigma), so the
draws have the covariance (J^T Sigma^-1 J + P)^-1. The second term of Sigma is due to
clipping. The clip norm C is the one at which clipping and noise lose least. If J is
released as well, the covariance is averaged over the noise on J.

If draws are w times as wide as those of the exact posterior, their centre is off by
sqrt(w^2 - 1) standard deviations of the exact posterior. For the variance given a
release is the expected variance given the records plus the variance of the mean given
the records.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.compiled import evaluated
from dpjax.fit.clip_choice import CLIP_NORMS
from dpjax.fit.frame import frame, sparse_turn
from dpjax.fit.precision import is_wide
from dpjax.fit.record_model import RecordModel
from dpjax.fit.slopes import MIN_EIGENVALUE
from dpjax.release.mixed_norm import MixedNorm

__all__ = ["MadeUp", "Noise", "made_up"]

NUM_SIMULATED = 2000
"""Number of records that are simulated at a position."""

NUM_SLOPES = 32
"""Number of draws of the noise on J."""


class Noise(NamedTuple):
    """Noise multipliers of a fit.

    scores
        Noise multiplier of one release of scores that tells as much as all releases of
        scores together.
    slope
        Noise multiplier of J times the clip norm of a record's slope. Zero if J is
        computed without data.
    norm
        The norm in which scores are clipped; None is the Euclidean norm. With a mixed
        norm, the caller multiplies `scores` by `MixedNorm.ratio`.
    """

    scores: float
    slope: float = 0.0
    norm: MixedNorm | None = None


NO_NOISE = Noise(1e-3)
"""So little noise that it does not matter. Without any, covariances may be singular."""


class MadeUp(NamedTuple):
    """Scores of records that a model makes up at a public position, and the prior.

    scores
        Scores of m simulated records, ``(m, d)``.
    prior_precision
        The prior's precision P, ``(d, d)``.
    tempering
        T.
    kept
        The share of a record's information that is left if its score is compared with
        those of redrawn observations (`dpjax.fit.scores.NUM_REDRAWS`). J and the
        covariance of psi are multiplied by it.
    """

    scores: np.ndarray
    prior_precision: np.ndarray
    tempering: float
    kept: float = 1.0

    def widths(self, num_records: float, noise: Noise) -> np.ndarray:
        """Sds of the draws, divided by those of the exact posterior, ``(d,)``."""
        draws, exact = self.covariances(num_records, noise)
        return np.sqrt(np.diag(draws) / np.diag(exact))

    def lost(
        self, num_records: float, clip_norm: float, norm: MixedNorm | None = None
    ) -> float:
        """How much variance clipping and redraws add.

        It is in variances of the exact posterior, and summed over all directions. The
        clip norm is in units of the root mean square length of a record's score.
        """
        noise = NO_NOISE._replace(norm=norm)
        draws, exact = self.covariances(num_records, noise, clip_norm)
        return float(np.trace(np.linalg.solve(exact, draws)) - len(exact))

    def covariances(
        self, num_records: float, noise: Noise, clip_norm: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Covariances of the draws and of the exact posterior, ``(d, d)``.

        If `clip_norm` is None, it is the one at which clipping and noise lose least.
        """
        count, dim = self.scores.shape
        effective = self.tempering * num_records
        information = effective / count * _gram(self.scores, self.scores)
        with jax.enable_x64(True):
            axes = _frame(information, self.prior_precision, np.eye(dim))
        axes = jax.tree.map(np.asarray, axes)
        unit = np.sqrt(max(axes.data_share.sum(), 1.0) / effective)
        scores = self.scores @ np.where(axes.is_measured, axes.stretch, 0) / unit
        lengths = np.maximum(_lengths(scores, axes, noise.norm), 1e-30)
        if clip_norm is None:
            clip_norm = self._clip_norm(lengths, unit, noise.scores)
        clipped = scores * np.minimum(1, clip_norm / lengths)[:, None]
        product = _gram(clipped, scores) / count
        whole = _gram(scores, scores) / count
        known = product @ np.linalg.pinv(whole, hermitian=True) @ product.T
        lost = _gram(clipped, clipped) / count - known
        effective *= self.kept
        scatter = effective * unit**2 * (known + self.tempering * lost)
        unit_of_noise = self.tempering * clip_norm * unit
        scatter += (unit_of_noise * noise.scores) ** 2 * np.eye(dim)
        slope = effective * unit**2 * product
        noise_sd = unit_of_noise * unit / clip_norm * noise.slope
        seen = _seen(slope, noise_sd, axes.is_measured)
        precision = np.swapaxes(seen, 1, 2) @ np.linalg.solve(scatter[None], seen)
        covariance = np.linalg.inv(precision + np.diag(1 - axes.data_share)).mean(0)
        draws = axes.stretch @ covariance @ axes.stretch.T
        return draws, axes.stretch @ axes.stretch.T

    def _clip_norm(self, lengths, unit, noise_multiplier) -> float:
        """The clip norm as in `dpjax.fit.clip_choice`, but with all lengths known."""
        kept = np.minimum(1, CLIP_NORMS[:, None] / lengths)
        squares = lengths**2 / np.sum(lengths**2)
        noise = self.tempering * (CLIP_NORMS * unit * noise_multiplier) ** 2
        noise /= np.mean(lengths**2)
        loss = (kept**2 @ squares + noise) / (kept @ squares) ** 2
        return CLIP_NORMS[np.argmin(loss)]


_frame = jax.jit(frame)


def _lengths(scores, axes, norm: MixedNorm | None) -> np.ndarray:
    """Lengths of scores in units of the frame, in a norm divided by its ratio."""
    if norm is None:
        return np.linalg.norm(scores, axis=1)
    with jax.enable_x64(True):
        turned = scores @ sparse_turn(axes.stretch, norm)
        return np.asarray(norm(turned)) / norm.ratio


def _gram(left, right) -> np.ndarray:
    """left^T right, without BLAS, whose threads wait for each other on busy cores."""
    return np.einsum("ni,nj->ij", left, right)


def _seen(slope, noise_sd, is_measured) -> np.ndarray:
    """The slope as it may be released, for several draws of the noise.

    The result has shape ``(draws, d, d)``. With noise, only the block of the measured
    directions is not zero, and small or negative eigenvalues are raised. Without noise,
    it is the slope itself, ``(1, d, d)``.
    """
    if not noise_sd or not is_measured.any():
        return slope[None]
    block = np.ix_(is_measured, is_measured)
    true = slope[block]
    noise = np.random.default_rng(0).normal(size=(NUM_SLOPES, *true.shape))
    found = (true + true.T + noise_sd * (noise + np.swapaxes(noise, 1, 2))) / 2
    values, vectors = np.linalg.eigh(found)
    values = np.maximum(values, MIN_EIGENVALUE * np.trace(true) / len(true))
    seen = np.zeros((NUM_SLOPES, *slope.shape))
    seen[:, *block] = vectors * values[:, None] @ np.swapaxes(vectors, 1, 2)
    return seen


def made_up(
    loglikelihood_fn: Callable,
    simulate_fn: Callable[[jax.Array, Any], Any],
    prior_precision: np.ndarray,
    tempering: float,
    positions: Any,
    kept: float = 1.0,
) -> list[MadeUp]:
    """`MadeUp` of a model at each of several public positions.

    Parameters
    ----------
    loglikelihood_fn, tempering
        As in `dpjax.Posterior`.
    simulate_fn
        ``(rng_key, position) -> record``, a draw from the model.
    prior_precision
        The prior's precision of the flattened position, ``(d, d)``.
    positions
        Leaves ``(number of positions, ...)``.
    kept
        As in `MadeUp`.

    Notes
    -----
    *Formal guarantees.* No data are read: the records are simulated. Scores that are
    not finite are zero, as in a release.
    """
    first = jax.tree.map(lambda leaf: leaf[0], positions)
    model = RecordModel.of(loglikelihood_fn, simulate_fn, first, is_wide())
    flat = jax.vmap(lambda position: ravel_pytree(position)[0])(positions)

    def scores_at(flat):
        def one(position):
            return model.scores(position, model.simulate(position, NUM_SIMULATED))

        return jax.lax.map(one, flat)

    with jax.enable_x64(True):
        scores = np.asarray(evaluated(scores_at, flat), np.float64)
    is_finite = np.all(np.isfinite(scores), axis=-1, keepdims=True)
    scores = np.where(is_finite, scores, 0.0)
    return [MadeUp(each, prior_precision, tempering, kept) for each in scores]
