"""A posterior from a few released scores and one released slope.

The model says how a record's observations are drawn given its covariates. The law of
the covariates is unknown. Every release is a noisy sum (`dpjax.release`) of what
`dpjax.fit.contrast` makes of a record's scores, in the units of a `dpjax.fit.frame`.
The noise is Gaussian; that of the last score may be K-norm noise.

1. *Search* from the centre of the prior to the bulk of the posterior, and for the frame
   there (`dpjax.fit.search`).
2. *Clip norm* from a histogram of the lengths of scores (`dpjax.fit.clip_choice`).
3. *Slope* J, the sum of the records' expected slopes, at z_1, where the search ended.
4. *Scores* at z_1 to z_4 (`dpjax.fit.newton_scores`). With the slope, all of them count
   where the last step leads. The slope changes on the way there
   (`dpjax.fit.slope_changes`), so each z is moved to where its score would be the same
   with the slope of the end.
5. *Fit check* where these scores lead: by how much the squared lengths of the records'
   clipped scores exceed what the model expects of them. A robust fit also releases V
   there, the sum of psi psi^T over the records' clipped scores psi, and how much of
   their slope is lost as the model clips another share of them than the data do.

`dpjax.fit.released.Released` is what is released; `dpjax.fit.score_draws` draws from
what it implies.
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
from dpjax.fit.newton_scores import newton_scores, root_fn
from dpjax.fit.noises import Noises
from dpjax.fit.released import Released
from dpjax.fit.search import search
from dpjax.fit.slopes import regular
from dpjax.posterior import Posterior
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.k_norm_sum import KNormSum
from dpjax.release.nominal import nominal_size

__all__ = ["FitState", "score_fit"]


class FitState(NamedTuple):
    """Public: the position."""

    position: Any


def score_fit(
    posterior: Posterior,
    model: ScoreModel,
    *,
    noise_multiplier: float,
    last: GaussianSum | KNormSum | None = None,
    robust: bool = False,
    nominal_num_records: int | None = None,
) -> Algorithm:
    """Release what the data say about the parameters, in one step.

    Parameters
    ----------
    posterior
        The prior and the data.
    model
        How records are drawn, and the scale of the prior.
    noise_multiplier
        Sd over clip norm of a Gaussian release that would spend the whole budget.
    last
        How the last score is released, with clip norm one, in place of a Gaussian sum
        of the share that is left: see `dpjax.release.quietest_sum`. Its norm is that in
        which scores are clipped.
    robust
        Whether to release V, and what is lost of the slope, for draws that are as wide
        as the records show and not as the model says: with J^-1 V J^-1 as their
        covariance (Mueller, Econometrica 81, 2013).
    nominal_num_records
        As in `dpjax.sgld`.

    Returns
    -------
    Algorithm
        Of one step, from the centre of the prior. Its info is what it `Released`.

    Notes
    -----
    *Formal guarantees.* The step releases sums over all records of vectors whose norms
    are bounded by one, with Gaussian noise, but for the last score that of `last`, and
    functions of these sums. Their number and their
    noise are fixed. Each vector depends on one record, on earlier releases and on
    random numbers that do not depend on the data.
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
    """How vectors, the histogram and the last score are released."""

    vector: GaussianSum
    histogram: GaussianSum
    last: GaussianSum | KNormSum


def _slope(inquiry: Inquiry, release, noise, z, units: Units):
    """J in units of the frame, and the noise's sd on its diagonal."""
    axes, unit, bound = units
    contrasts = inquiry.contrasts_at(z, units)

    def contribution(*record):
        found = contrasts(*record).slope
        return contrast.packed(found) / bound.astype(inquiry.dtype)

    unit = inquiry.tempering * unit**2 * bound
    words = inquiry.take(release, inquiry.dim * (inquiry.dim + 1) // 2)[0]
    found = unit * inquiry.matrix(release, words, noise, contribution, axes)
    return found, unit * noise


def _scalar(inquiry: Inquiry, release, noise, scalar_fn, z, units: Units):
    """The noisy sum of a number of the records' contrasts at z."""
    contrasts = inquiry.contrasts_at(z, units)

    def contribution(*record):
        return scalar_fn(contrasts(*record))

    return inquiry.ask(release, inquiry.take(release, 1)[0], noise, contribution)


def _variance(inquiry: Inquiry, release, noise, z, units: Units):
    """V at z over the tempering, and the noise's sd on its diagonal."""
    contrasts = inquiry.contrasts_at(z, units)

    def contribution(*record):
        found = contrasts(*record).score
        return contrast.packed(jnp.outer(found, found))

    unit = inquiry.tempering * units.unit**2
    words = inquiry.take(release, inquiry.dim * (inquiry.dim + 1) // 2)[0]
    found = unit * inquiry.matrix(release, words, noise, contribution, units.axes)
    return found, unit * noise


def _released(inquiry: Inquiry, kinds: _Kinds, noises: Noises, z, axes: Frame):
    """All releases but those of the search, from where it has ended."""
    if inquiry.norm is not None:
        axes = axes._replace(turn=sparse_turn(axes.stretch, inquiry.norm))
    choice = clip_choice(inquiry, kinds.histogram, noises, z, axes)
    # A tempered posterior is that of fewer records, but clipping loses as much.
    tempering = inquiry.tempering
    of_records = 0.0 if noises.variance else tempering * choice.variance
    inefficiency = (1 - tempering) * choice.kept + of_records
    unit = choice.clip_norm * inquiry.ratio * inquiry.unit(axes)
    bound = noises.slope_clip / (choice.clip_norm * inquiry.ratio**2)
    units = Units(axes, unit, bound)
    found, slope_noise_sd = _slope(inquiry, kinds.vector, noises.slope, z, units)
    slope = regular(found, slope_noise_sd, axes.is_measured)
    root = root_fn(inquiry, units)
    z, size, places, scores, roots = newton_scores(
        inquiry, kinds.vector, kinds.last, noises.scores, z, units, slope, root
    )
    end = root(z)
    turn = slope_changes.turn(roots[0], end)
    back = jnp.linalg.inv(axes.stretch)
    apart = (places - z[None]).astype(jnp.float64) @ back.T
    places = jax.vmap(lambda other, y: slope_changes.mean_over_first(end, other) @ y)(
        roots, apart
    )
    factors = jnp.linalg.svdvals(jnp.linalg.solve(end, roots[-1])) ** 2
    drift = jnp.exp(jnp.max(jnp.abs(jnp.log(factors))))
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
        variance, variance_noise_sd = _variance(
            inquiry, kinds.vector, noises.variance, z, units
        )
    return Released(
        position=z,
        stretch=axes.stretch,
        data_share=axes.data_share,
        prior_mean=back @ (jnp.asarray(inquiry.model.prior_mean) - z),
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
