"""A posterior from a few released scores and one released slope.

The model says how a record's observations are drawn given its covariates. It says
nothing of the law of the covariates. Every release is a noisy sum (`dpjax.release`)
over the records of a bounded function of their scores (`dpjax.fit.contrast`), in the
units of a `dpjax.fit.frame`. The noise is Gaussian, but that of the last score may be
K-norm noise. The releases follow one another in this order.

1. *Search*: many scores, each with much noise, lead from the centre of the prior to the
   bulk of the posterior, and releases of the curvature correct the frame there
   (`dpjax.fit.search`). The search ends at a position z_1.
2. *Clip norm*: it is chosen from a histogram of the lengths of scores
   (`dpjax.fit.clip_choice`).
3. *Slope*: J, the sum of the records' expected slopes, is released at z_1.
4. *Scores*: they are released at z_1 to z_4, which follow one another by Newton's
   method (`dpjax.fit.newton_scores`). The last step leads to the final position. A
   score s_k at z_k stands for the score s_k + J T^-1 (z_k - z) at the final position z,
   with T the stretch of the frame, so all of them are used there. The slope changes
   between the z_k and z (`dpjax.fit.slope_changes`). So each z_k is replaced by the
   position that would have the same score if the slope were everywhere that at z.
5. *Fit check*: the amount by which the squared lengths of the records' clipped scores
   exceed their means under the model is released at the final position. A robust fit
   also releases V there, the sum of psi psi^T over the records' clipped scores psi. It
   also releases by how much the slope of the clipped scores falls short of J, because
   another share of them is clipped than the model expects.

`dpjax.fit.released.Released` lists what is released, and `dpjax.fit.score_draws` draws
from the posterior that it implies.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Transition
from dpjax.fit import contrast, slope_changes
from dpjax.fit.clip_choice import NUM_BINS, clip_choice
from dpjax.fit.frame import Frame, sparse_turn
from dpjax.fit.inquiry import KEY_WORDS, Inquiry, ScoreModel, Units
from dpjax.fit.newton_scores import newton_scores
from dpjax.fit.noises import Noises
from dpjax.fit.released import Released
from dpjax.fit.search import search
from dpjax.fit.slopes import regular
from dpjax.posterior import Posterior
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.noisy_sum import NoisySum
from dpjax.release.nominal import nominal_size

__all__ = ["FitState", "score_fit"]


class FitState(NamedTuple):
    """Where the fit begins, or where it has ended. Public.

    position
        A pytree, like a draw of the prior.
    """

    position: Any


def score_fit(
    posterior: Posterior,
    model: ScoreModel,
    *,
    noise_multiplier: float,
    last: NoisySum | None = None,
    robust: bool = False,
    nominal_num_records: int | None = None,
) -> Algorithm:
    """Release what the data say about the parameters, in one step.

    Parameters
    ----------
    posterior
        The prior and the data.
    model
        The scores of a record and what the model expects of them, and a normal law that
        stands for the prior.
    noise_multiplier
        Standard deviation of the noise, divided by the clip norm, of a Gaussian release
        that would spend the whole budget.
    last
        How the last score is released, with clip norm one: see
        `dpjax.release.quietest_sum`. All scores that are released after the search are
        clipped in its norm. None is a Gaussian sum that spends the share of the budget
        that the other releases leave.
    robust
        Whether to release V and the part of the slope that is lost. The draws are then
        as wide as the scores of the records show, not as the model says: their
        covariance is J^-1 V J^-1 (Mueller, Econometrica 81, 2013).
    nominal_num_records
        As in `dpjax.sgld`.

    Returns
    -------
    Algorithm
        An algorithm of one step, which starts at the position of the state, such as the
        centre of the prior. Its info is a `Released`.

    Notes
    -----
    *Formal guarantees.* The step releases sums over all records of vectors whose norms
    are at most one, and functions of these sums. The noise of each sum is Gaussian,
    except that the last score has the noise of `last`. The number of sums and their
    noise multipliers are fixed before the data are read. The vector of a record depends
    on this record, on earlier releases and on random numbers that do not depend on the
    data.
    """
    num_records = nominal_size(posterior, nominal_num_records)
    dim = len(model.prior_mean)
    effective = posterior.tempering * num_records
    noises = Noises.of(dim, effective, noise_multiplier, robust, last)
    if last is None:
        last = GaussianSum(1.0, noises.scores[-1])
    kinds = _Kinds(
        GaussianSum(1.0, None), GaussianSum(1.0, None, diameter=math.sqrt(2)), last
    )
    triangle = dim * (dim + 1) // 2
    releases = [
        *((kinds.vector, dim, noise) for noise in np.concatenate(noises.steps)),
        *((kinds.vector, triangle, noise) for noise in noises.curvatures),
        (kinds.histogram, NUM_BINS, noises.histogram),
        (kinds.vector, triangle, noises.slope),
        (kinds.vector, 1, noises.check),
        *((kinds.vector, triangle, noises.variance) for _ in range(robust)),
        *((kinds.vector, 1, noises.lost) for _ in range(robust)),
        *((kinds.vector, dim, noise) for noise in noises.scores[:-1]),
        (kinds.last, dim, noises.scores[-1]),
    ]
    num_words = sum(
        KEY_WORDS + kind.num_words(size, posterior.num_records)
        for kind, size, _ in releases
    )

    def init(position, rng_key=None):
        return FitState(jax.tree.map(jnp.asarray, position))

    def move(words, state, memory):
        inquiry = Inquiry(
            posterior, model, num_records, words, state.position, last.norm
        )
        with jax.enable_x64(True):
            z, axes = search(inquiry, kinds.vector, noises)
            found = _released(inquiry, kinds, noises, z, axes)
        return FitState(inquiry.unravel(found.position)), found, memory

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        return [
            (kind.event(size, neighboring_relation, float(noise)), num_steps)
            for kind, size, noise in releases
        ]

    def stay(state):
        position, _ = ravel_pytree(state.position)
        with jax.enable_x64(True):
            number, count = jnp.zeros(()), jnp.zeros(len(noises.scores))
            vector, matrix = jnp.zeros(dim), jnp.zeros((dim, dim))
            vectors = jnp.zeros((len(noises.scores), dim))
        nothing = matrix, vector, vector, vectors, vectors, matrix
        nothing += number, count, *5 * [number], matrix, *7 * [number]
        return Released(jnp.zeros_like(position), *nothing)

    transition = Transition(lambda state: num_words, move, stay)
    return Algorithm.of(init, transition, privacy)


class _Kinds(NamedTuple):
    """How the last score, the histogram, and vectors other than these are released."""

    vector: GaussianSum
    histogram: GaussianSum
    last: NoisySum


def _matrix(
    inquiry: Inquiry, release, noise, matrix_fn, z, units: Units, bound: Any = 1.0
):
    """The noisy sum of ``matrix_fn(contrast)``, and the sd of noise on its diagonal.

    The contrasts are those of the records at z. The sum is in units of the frame, times
    the tempering. Matrices are divided by `bound` before their norms are clipped at 1.
    """
    contrasts = inquiry.contrasts_at(z, units)

    def contribution(*record):
        found = matrix_fn(contrasts(*record))
        return contrast.packed(found) / jnp.asarray(bound, inquiry.dtype)

    unit = inquiry.tempering * units.unit**2 * bound
    words = inquiry.take(release, inquiry.dim * (inquiry.dim + 1) // 2)[0]
    found = unit * inquiry.matrix(release, words, noise, contribution, units.axes)
    return found, unit * noise


def _scalar(inquiry: Inquiry, release, noise, scalar_fn, z, units: Units):
    """The noisy sum of ``scalar_fn(contrast)`` over the records' contrasts at z."""
    contrasts = inquiry.contrasts_at(z, units)

    def contribution(*record):
        return scalar_fn(contrasts(*record))

    return inquiry.ask(release, inquiry.take(release, 1)[0], noise, contribution)


def _released(inquiry: Inquiry, kinds: _Kinds, noises: Noises, z, axes: Frame):
    """Make all releases that follow the search, which ended at z with this frame."""
    if inquiry.norm is not None:
        axes = axes._replace(turn=sparse_turn(axes.back, inquiry.norm))
    choice = clip_choice(inquiry, kinds.histogram, noises, z, axes)
    # The score is T times a sum over n records. The part of it that is linear in the
    # exact scores counts with variance T n, as in the tempered posterior. The rest,
    # which clipping adds, has variance T^2 n, as tempering does not change clipping.
    tempering = inquiry.tempering
    of_records = 0.0 if noises.variance else tempering * choice.variance
    inefficiency = (1 - tempering) * choice.kept + of_records
    unit = choice.clip_norm * inquiry.ratio * inquiry.unit(axes)
    bound = noises.slope_clip / (choice.clip_norm * inquiry.ratio**2)
    units = Units(axes, unit, bound)
    found, slope_noise_sd = _matrix(
        inquiry, kinds.vector, noises.slope, lambda found: found.slope, z, units, bound
    )
    slope = regular(found, slope_noise_sd, axes.is_measured)
    z, root, size, places, scores, roots = newton_scores(
        inquiry, kinds.vector, kinds.last, noises.scores, z, units, slope
    )
    changes = jax.vmap(slope_changes.between, (None, 0))(root, roots)
    turn = jax.tree.map(lambda leaf: leaf[0], changes).turn_back
    apart = (places - z[None]).astype(jnp.float64) @ axes.back.T
    places = jax.vmap(lambda change, y: change.mean_over_first @ y)(changes, apart)
    drift = jnp.exp(jnp.max(jnp.abs(changes.logarithms[-1])))
    excess = _scalar(
        inquiry, kinds.vector, noises.check, lambda found: found.excess, z, units
    )
    slope = turn @ slope @ turn.T
    whole = jnp.trace(slope) / (tempering * unit**2)
    variance, number = jnp.zeros((inquiry.dim, inquiry.dim)), jnp.zeros(())
    variance_noise_sd, lost, lost_noise_sd = number, number, number
    if noises.variance and noises.lost:
        lost = _scalar(
            inquiry, kinds.vector, noises.lost, lambda found: found.lost, z, units
        )
        lost, lost_noise_sd = lost / whole, noises.lost / whole
        variance, variance_noise_sd = _matrix(
            inquiry,
            kinds.vector,
            noises.variance,
            lambda found: jnp.outer(found.score, found.score),
            z,
            units,
        )
    return Released(
        position=z,
        stretch=axes.stretch,
        data_share=axes.data_share,
        prior_mean=axes.back @ (jnp.asarray(inquiry.model.prior_mean) - z),
        places=places,
        scores=scores,
        slope=turn @ found @ turn.T,
        drift=jnp.where(size <= 1, drift, jnp.inf),
        score_noise_sds=tempering * unit * jnp.asarray(noises.scores),
        search_noise_sd=tempering * inquiry.unit(axes) * noises.steps[-1][-1],
        slope_noise_sd=slope_noise_sd * jnp.sum(turn**2) / inquiry.dim,
        clip_norm=choice.clip_norm,
        clipped=choice.clipped,
        inefficiency=inefficiency,
        variance=variance,
        variance_noise_sd=variance_noise_sd,
        lost=lost,
        lost_noise_sd=lost_noise_sd,
        num_records=jnp.array(inquiry.effective, jnp.float64),
        excess=excess,
        excess_noise_sd=jnp.asarray(noises.check),
        expected_square=choice.variance * whole,
    )
