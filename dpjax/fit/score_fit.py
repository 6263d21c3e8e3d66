"""A posterior from a few released scores and one released slope.

The model says how a record's observations are drawn given its covariates. The law of
the covariates is unknown. Every release is a noisy sum (`dpjax.release`) of what
`dpjax.fit.contrast` makes of a record's scores, in the units of a `dpjax.fit.frame`.
The noise is Gaussian; that of the last score may be K-norm noise.

1. *Search* from the centre of the prior to the bulk of the posterior, in phases of
   small steps, which grow while they agree. Each phase ends at the mean of the second
   half of its steps. There one release of the curvature corrects the frame: along
   single latents, where it has less noise, and then in the directions that are left.
2. *Clip norm*. A histogram of the lengths of the scores that the records might have had
   gives the clip norm at which clipping and noise together lose least. Where noise may
   hide a count, it is at most what public covariates lead to expect. The clip norm of a
   robust fit is a constant.
3. *Slope* J, the sum of the records' expected slopes, at z_1. Elsewhere it is changed
   as that of public covariates is, where that changes by much.
4. *Scores* at z_1 to z_4. Each next z is a Newton step from the scores so far, less
   what may be noise. With the slope, all of them count where the last step leads. The
   slope changes on the way there, so each z is moved to where its score would be the
   same with the slope of the end.
5. *Fit check* where these scores lead: by how much the squared lengths of the records'
   clipped scores exceed what the model expects of them. A robust fit also releases V
   there, the sum of psi psi^T over the records' clipped scores psi, and how much of
   their slope is lost as the model clips another share of them than the data do.

`Released` is what is released; `dpjax.fit.score_draws` draws from what it implies.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Transition
from dpjax.fit import contrast
from dpjax.fit.frame import Frame, frame, sparse_turn
from dpjax.fit.noises import CURVATURE_REACH, Noises
from dpjax.fit.precision import is_wide
from dpjax.fit.slopes import regular
from dpjax.posterior import Posterior
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.k_norm_sum import KNormSum
from dpjax.release.nominal import nominal_size

__all__ = [
    "FitState",
    "Released",
    "ScoreModel",
    "score_fit",
]

RATE, MAX_STEP, MAX_MOVE = 0.5, 0.25, 0.3
"""Share of Newton's step that the search takes; the longest step, in standard
deviations of the posterior given one record; and the farthest that a step moves a
component, in standard deviations of the prior."""

GROWTH, MAX_REACH, AGREEMENT, NUM_NOISE_SDS = 1.5, 8.0, 0.8, 3.0
"""How the search crosses a vague prior. A step goes on if it is longer than half of the
longest one and than `NUM_NOISE_SDS` sds of its noise, and if its cosine with the step
before is above `AGREEMENT`. Steps that follow one another like this reach farther than
they are long: `GROWTH` times, then `GROWTH`^2 times, at most `MAX_REACH` times."""

LEAST_KEPT, MIN_KEPT, MAX_NOISE = 0.5, 0.05, 1.0
"""How steps of the search allow for clipping, which leaves a share of a score's slope.
Where it leaves less than `LEAST_KEPT`, steps are longer by `LEAST_KEPT` over the share,
but at most by 1 / `MIN_KEPT`, and not so long that their noise is beyond `MAX_NOISE`
posterior standard deviations."""

LENGTH_EDGES = np.concatenate([[0.0], np.geomspace(0.2, 8.0, 20), [np.inf]])
CLIP_NORMS = np.geomspace(0.3, 5.0, 57)
"""Bins of the lengths of scores, and clip norms to choose from, over the root mean
square length of a record's score."""

ROBUST_CLIP_NORM = 2.0
"""Of a robust fit. Where the model is wrong, what a fit finds depends on the clip norm:
for overdispersed counts, one chosen from noisy lengths moved the intercept by 3 of its
standard deviations between data sets, which no width allowed for."""

MIN_LEFT = 0.02
"""Least share of the curvature that clipping is taken to leave."""

NUM_LATENT_SDS = 2.0
"""Of the noise on the curvature along a latent, within which it is as expected."""

SAME_SLOPE, OTHER_SLOPE = 0.1, 0.3
"""Changes of the logarithm of the expected slope, from one place to another, below
which the released slope stays as it is and beyond which it changes as much. The slope
is expected of public covariates. If these are more extreme than those of the records,
as for Adult, it changes by several hundredths where that of the records does not."""

KEY_WORDS = 2
"""Random words of the key from which the records get keys of their own."""


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


class FitState(NamedTuple):
    """Public: the position."""

    position: Any


@dataclass(frozen=True)
class ScoreModel:
    """What a fit asks of a model. All of it is public but the scores.

    scores_fn
        ``(position, record, rng_key) -> Scores``; see `dpjax.fit.scores`.
    search_scores_fn
        As `scores_fn`, for the search: of fewer nodes if they are drawn, or the same.
    expected
        ``expected(function, has_pairs=False)`` is ``(position, columns) -> means`` over
        public covariates of the matrices that ``function(scores)`` returns for one
        record, whose directions are multiplied by `columns`, ``(d, d)``. `has_pairs`
        says that it makes numbers of every pair of nodes. None if the nodes are drawn.
    information
        ``position -> (d, d)``: the expected Fisher information of all records, as
        `dpjax.fisher.fisher_information` gives it.
    prior_mean, prior_precision
        Of the normal law that stands for the prior of the flattened position, ``(d,)``
        and ``(d, d)``. It only decides where the records are asked, and in what units.
    """

    scores_fn: Callable
    search_scores_fn: Callable
    expected: Callable | None
    information: Callable[[Any], jax.Array]
    prior_mean: np.ndarray
    prior_precision: np.ndarray


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
    triangle, num_bins = dim * (dim + 1) // 2, len(LENGTH_EDGES) - 1
    releases = [
        *((kinds.vector, dim, noise) for noise in np.concatenate(noises.steps)),
        *((kinds.vector, triangle, noise) for noise in noises.curvatures),
        (kinds.histogram, num_bins, noises.histogram),
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
        fit = _Fit(posterior, model, num_records, words, state.position, last.norm)
        with jax.enable_x64(True):
            z, axes = fit.search(kinds.vector, noises)
            found = fit.release(kinds, noises, z, axes)
        return FitState(fit.unravel(found.position)), found, memory

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


class _Fit:
    """The releases of one fit, in turn, and what is computed between them."""

    def __init__(self, posterior, model, num_records, words, position, norm):
        self.posterior, self.model, self.words = posterior, model, words
        self.norm = norm
        # How much longer a record's score is in this norm than in the Euclidean one.
        self.ratio = norm.ratio if norm else 1.0
        self.start, self.unravel = ravel_pytree(position)
        self.dim, self.dtype = self.start.size, self.start.dtype
        self.tempering = posterior.tempering
        self.is_wide = is_wide()
        self.effective = posterior.tempering * num_records
        # Functions of the model are traced once, wherever they are called.
        self.scores_fn = jax.jit(model.scores_fn)
        self.search_scores_fn = jax.jit(model.search_scores_fn)
        self.information = jax.jit(self._information)
        self.search_slopes = self.expected(contrast.expected_slopes, True)
        covariance = np.linalg.inv(model.prior_precision)
        self.prior_sd = np.sqrt(np.diag(covariance))

    def take(self, release, size, count=1):
        """The words of the next `count` releases, ``(count, words)``."""
        length = KEY_WORDS + release.num_words(size, self.posterior.num_records)
        taken, self.words = jnp.split(self.words, [count * length])
        return taken.reshape(count, length)

    def ask(self, release, words, noise, contribution_fn):
        """Release the noisy sum of what each record contributes."""
        key = jax.random.wrap_key_data(words[:KEY_WORDS], impl="threefry2x32")
        return release(
            words[KEY_WORDS:],
            self.posterior,
            contribution_fn,
            noise_multiplier=jnp.asarray(noise),
            rng_key=key,
        )

    def _information(self, z):
        with self.precision():
            information = self.model.information(self.unravel(z))
        return information.astype(jnp.float64)

    def expected(self, function, *options):
        """``(z, columns) -> `` means over public covariates, float64; traced once.

        See `ScoreModel.expected`. It is None where that is.
        """
        if self.model.expected is None:
            return None
        of_columns = self.model.expected(function, *options)

        def mean(z, columns):
            with self.precision():
                found = of_columns(self.unravel(z), columns)
            return [leaf.astype(jnp.float64) for leaf in found]

        return jax.jit(mean)

    def frame(self, information, correction) -> Frame:
        return frame(information, jnp.asarray(self.model.prior_precision), correction)

    def precision(self):
        """The context in which functions of the model are called: the user's own."""
        return jax.enable_x64(self.is_wide)

    def unit(self, axes: Frame):
        """Root mean square length of one record's score in this frame."""
        return jnp.sqrt(axes.effective_dim / self.effective)

    def columns(self, axes: Frame, unit):
        """The measured directions of the frame, turned, over `unit`, ``(d, d)``."""
        columns = jnp.where(axes.is_measured, axes.stretch / unit, 0) @ axes.turn
        return columns.astype(self.dtype)

    def scores_at(self, z, axes: Frame, unit, scores_fn=None):
        """``(record, key) -> Scores`` in the measured directions, over `unit`."""
        scores_fn = scores_fn or self.scores_fn
        position, columns = self.unravel(z), self.columns(axes, unit)

        def scores(record, rng_key):
            with self.precision():
                found = scores_fn(position, record, rng_key)
            found = jax.lax.optimization_barrier(found)
            return found._replace(directions=found.directions @ columns)

        return scores

    def prior_score(self, z, axes: Frame):
        below = jnp.asarray(self.model.prior_mean) - z
        return axes.stretch.T @ (jnp.asarray(self.model.prior_precision) @ below)

    def moved(self, z, axes: Frame, step, reach=1.0):
        """z after `reach` times a step in units of the frame, within a step's limits.

        Also the step over the longest one.
        """
        size = jnp.linalg.norm(step) / (MAX_STEP * math.sqrt(self.effective))
        jump = reach * axes.stretch @ (step / jnp.maximum(1.0, size))
        limit = MAX_MOVE * self.prior_sd
        return (z + jnp.clip(jump, -limit, limit)).astype(self.dtype), size

    def root_fn(self, axes: Frame, unit, bound):
        """``z -> M^(1/2)``, with M the slope that is expected at z, ``(d, d)``.

        M is in units of the frame, and public. In directions of which records tell
        nothing, it is the precision of the prior. Where no slopes are known, M is the
        expected information.
        """
        slopes = self.expected(
            lambda scores: [
                contrast.contrast(scores, bound.astype(self.dtype), self.norm).slope
            ]
        )

        def root(z):
            if slopes is None:
                found = axes.stretch.T @ self.information(z) @ axes.stretch
            else:
                (found,) = slopes(z, self.columns(axes, unit))
                found = self.effective * unit**2 * axes.turn @ found @ axes.turn.T
            found += jnp.diag(1 - axes.data_share)
            return _mapped(found, lambda values: jnp.sqrt(jnp.maximum(values, 1e-3)))

        return root

    def newton(self, score, noise_sd, z, axes: Frame, unit):
        """Newton's step for a score of the search, whose slope clipping makes less."""
        if self.search_slopes is None:
            return score
        kept, whole = self.search_slopes(z, self.columns(axes, unit))
        least = jnp.maximum(MIN_KEPT, jnp.minimum(1, RATE * noise_sd / MAX_NOISE))
        kept = _mapped(
            _kept(kept, whole), lambda values: jnp.clip(values / LEAST_KEPT, least, 1)
        )
        share = jnp.sqrt(axes.data_share)
        kept = share[:, None] * kept * share[None]
        return jnp.linalg.solve(kept + jnp.diag(1 - axes.data_share), score)

    def search(self, release, noises: Noises):
        """Where the bulk is, and the frame there."""
        counts = jnp.asarray([len(steps) for steps in noises.steps])
        words = self.take(release, self.dim, sum(map(len, noises.steps)))

        def phase(carry, given):
            first, count, noise, curvature_words, curvature_noise = given
            z, correction = carry

            def step(i, carry):
                total, walker = carry
                walker = self.step(release, words[first + i], noise, walker, correction)
                return total + jnp.where(2 * i >= count, walker[0], 0), walker

            start = z, jnp.zeros(self.dim), jnp.ones(())
            start = jnp.zeros_like(z), start
            total, (z, _, reach) = jax.lax.fori_loop(0, count, step, start)
            mean = (total / (count - (count + 1) // 2)).astype(self.dtype)
            z = jnp.where(reach > 1, z, mean)
            information = self.information(z)
            axes = self.frame(information, correction)
            correction = self.curvature(
                release,
                curvature_words,
                curvature_noise,
                z,
                axes,
                noises.curvature_clip,
            )
            return (z, correction), information

        given = (
            jnp.cumsum(counts) - counts,
            counts,
            jnp.asarray([steps[0] for steps in noises.steps]),
            self.take(release, self.dim * (self.dim + 1) // 2, len(counts)),
            jnp.asarray(noises.curvatures),
        )
        start = self.start, jnp.eye(self.dim)
        (z, correction), information = jax.lax.scan(phase, start, given)
        return z, self.frame(information[-1], correction)

    def step(self, release, words, noise, walker, correction):
        """The walker after a step of the search.

        A walker is z, the last step in units of the parameters, and the reach of the
        next step, by which it is multiplied.
        """
        z, before, reach = walker
        axes = self.frame(self.information(z), correction)
        unit = self.unit(axes)
        scores = self.scores_at(z, axes, unit, self.search_scores_fn)

        def contribution(*record):
            return contrast.difference(scores(*record))

        score = self.ask(release, words, noise, contribution)
        score = self.tempering * unit * score + self.prior_score(z, axes)
        noise_sd = self.tempering * unit * noise
        step = RATE * self.newton(score, noise_sd, z, axes, unit)
        z, size = self.moved(z, axes, step, reach)
        noise_size = RATE * noise_sd * math.sqrt(self.dim / self.effective) / MAX_STEP
        is_far = size > jnp.maximum(0.5, NUM_NOISE_SDS * noise_size)
        before = jnp.linalg.solve(axes.stretch, before)
        lengths = jnp.linalg.norm(step) * jnp.linalg.norm(before)
        goes_on = is_far & (step @ before > AGREEMENT * lengths)
        reach = jnp.where(goes_on, jnp.minimum(GROWTH * reach, MAX_REACH), 1.0)
        return z, axes.stretch @ step, reach

    def curvature(self, release, words, noise, z, axes: Frame, clip_norm):
        """The correction of the frame at z, where noise does not explain it."""
        scores = self.scores_at(z, axes, self.unit(axes), self.search_scores_fn)
        reach = CURVATURE_REACH * clip_norm

        def contribution(*record):
            found = contrast.curvature(scores(*record), reach, clip_norm, 0.2)
            return contrast.packed(found) / clip_norm

        found = self.matrix(release, words, noise, contribution, axes)
        unit = self.tempering * clip_norm * self.unit(axes) ** 2
        measured = jnp.outer(axes.is_measured, axes.is_measured)
        whole = jnp.diag(axes.data_share)
        rest = jnp.eye(self.dim) - whole
        found = jnp.where(measured, unit * found, 0) + rest
        kept = self.kept_curvature(z, axes, reach, clip_norm)

        def factors(directions, kept, whole, num_sds):
            """By which the information along the columns is not what is expected."""
            along, left, expected = (
                jnp.sum(directions * (matrix @ directions), axis=0)
                for matrix in (found, kept + rest, whole + rest)
            )
            asked = jnp.where(axes.is_measured[:, None], directions, 0)
            sds = num_sds * unit * noise * jnp.sum(asked**2, axis=0)
            # Clipping shortens rare records, so that they look as if there were fewer.
            # Between all of the expected curvature and what clipping leaves of it,
            # nothing is known to be wrong.
            less = jnp.maximum(along, jnp.minimum(sds, left)) / left
            less = jnp.where(along < left - sds, less, 1)
            return jnp.where(along > expected + sds, along / expected, less)

        # Along a latent there is less noise than in the direction with most of it.
        back = jnp.linalg.inv(axes.stretch)
        along = jnp.sqrt(factors(back, kept, whole, NUM_LATENT_SDS))
        change = axes.stretch.T @ (along[:, None] * back.T)
        kept, whole = (change @ matrix @ change.T for matrix in (kept, whole))
        root = _mapped(kept + rest, jax.lax.rsqrt)
        _, turn = jnp.linalg.eigh(root @ found @ root)
        num_sds = jnp.sqrt(2.0 * jnp.sum(axes.is_measured)) + 1
        changes = factors(root @ turn, kept, whole, num_sds)
        root = _mapped(whole + rest, jnp.sqrt) @ turn
        return axes.corrected((root * changes[None]) @ root.T)

    def kept_curvature(self, z, axes: Frame, *bounds):
        """What clipping leaves of the curvature where the design is the public one.

        It is in units of the frame, ``(d, d)``, and without the prior's.
        """
        kept = jnp.eye(self.dim)
        curvatures = self.expected(
            lambda scores: [
                contrast.curvature(scores, *bounds),
                contrast.curvature(scores, jnp.inf, jnp.inf),
            ]
        )
        if curvatures is not None:
            kept = _kept(*curvatures(z, self.columns(axes, self.unit(axes))))
            kept = axes.turn @ kept @ axes.turn.T
            kept = _mapped(kept, lambda values: jnp.clip(values, MIN_LEFT, 1))
        share = jnp.sqrt(axes.data_share)
        return share[:, None] * kept * share[None]

    def matrix(self, release, words, noise, contribution_fn, axes: Frame):
        """The noisy sum of symmetric matrices that come turned and `packed`."""
        found = self.ask(release, words, noise, contribution_fn)
        return axes.turn @ contrast.unpacked(found, self.dim) @ axes.turn.T

    def clip_norm(self, release, noises: Noises, z, axes: Frame):
        """The clip norm over `ratio` times `unit`, and the share of the slope it keeps.

        It is where clipping and noise lose least, or `ROBUST_CLIP_NORM`. The third
        number is the trace of the score's variance over that of its slope, the fourth
        the share of records that are clipped.
        """
        unit = self.ratio * self.unit(axes)
        scores = self.scores_at(z, axes, unit)
        edges = jnp.asarray(LENGTH_EDGES[1:-1], self.dtype)

        def histogram(found):
            lengths = contrast.length(found.nodes, found.directions, self.norm)
            bins = jnp.searchsorted(edges, lengths)
            empty = jnp.zeros(len(LENGTH_EDGES) - 1, self.dtype)
            # Its diameter is sqrt(2) if no number is negative. A model may make weights
            # of what a record holds.
            return empty.at[bins].add(jnp.maximum(found.weights, 0))

        def contribution(*record):
            return histogram(scores(*record))

        words = self.take(release, len(LENGTH_EDGES) - 1)[0]
        counts = self.ask(release, words, noises.histogram, contribution)
        # Counts that may be noise are at most what public covariates lead to expect.
        most = jnp.zeros_like(counts)
        expected = self.expected(lambda found: [histogram(found)[None]])
        if expected is not None:
            ((shares,),) = expected(z, self.columns(axes, unit))
            most = self.effective / self.tempering * shares
        most = jnp.where(counts > 2 * noises.histogram, jnp.inf, most)
        counts = jnp.clip(counts, 0, most)
        inner = np.sqrt(LENGTH_EDGES[1:-2] * LENGTH_EDGES[2:-1])
        lengths = np.concatenate([LENGTH_EDGES[1:2] / 2, inner, LENGTH_EDGES[-2:-1]])
        # Where noise hides all counts, lengths are taken to be about one.
        typical = jnp.arange(len(lengths)) == int(np.argmin(np.abs(lengths - 1)))
        counts = jnp.where(jnp.any(counts > 0), counts, typical)
        squares = counts / jnp.sum(counts) * lengths**2
        total = jnp.sum(squares)
        choices = np.array([ROBUST_CLIP_NORM]) if noises.variance else CLIP_NORMS
        kept = jnp.asarray(np.minimum(1, choices[:, None] / lengths))
        efficiency, variance = kept @ squares / total, kept**2 @ squares / total
        noise = choices * unit * noises.pooled_scores
        noise = self.tempering * noise**2 / jnp.maximum(total, 0.3)
        loss = ((variance + noise) / efficiency**2).astype(jnp.float32)
        # JAX 0.10 compiles no wider argmin than this where x64 is off.
        best = jax.lax.argmin(loss, 0, jnp.int32)
        kept, variance = efficiency[best], (variance / efficiency)[best]
        clip_norm = jnp.asarray(choices)[best]
        clipped = jnp.sum(jnp.where(lengths > clip_norm, counts, 0)) / jnp.sum(counts)
        return clip_norm, kept, variance, clipped

    def contrasts_at(self, z, axes: Frame, unit, bound):
        """``(record, key) -> Contrast`` at z."""
        scores, bound = self.scores_at(z, axes, unit), bound.astype(self.dtype)
        return lambda *record: contrast.contrast(scores(*record), bound, self.norm)

    def slope(self, release, noise, z, axes: Frame, unit, bound):
        """J in units of the frame, and the noise's sd on its diagonal."""
        contrasts = self.contrasts_at(z, axes, unit, bound)

        def contribution(*record):
            found = contrasts(*record).slope
            return contrast.packed(found) / bound.astype(self.dtype)

        unit = self.tempering * unit**2 * bound
        words = self.take(release, self.dim * (self.dim + 1) // 2)[0]
        found = unit * self.matrix(release, words, noise, contribution, axes)
        return found, unit * noise

    def scalar(self, release, noise, scalar_fn, z, axes: Frame, unit, bound):
        """The noisy sum of a number of the records' contrasts at z."""
        contrasts = self.contrasts_at(z, axes, unit, bound)

        def contribution(*record):
            return scalar_fn(contrasts(*record))

        return self.ask(release, self.take(release, 1)[0], noise, contribution)

    def variance(self, release, noise, z, axes: Frame, unit, bound):
        """V at z over the tempering, and the noise's sd on its diagonal."""
        contrasts = self.contrasts_at(z, axes, unit, bound)

        def contribution(*record):
            found = contrasts(*record).score
            return contrast.packed(jnp.outer(found, found))

        unit = self.tempering * unit**2
        words = self.take(release, self.dim * (self.dim + 1) // 2)[0]
        found = unit * self.matrix(release, words, noise, contribution, axes)
        return found, unit * noise

    def release(self, kinds: _Kinds, noises: Noises, z, axes: Frame) -> Released:
        """All releases but those of the search, from where it has ended."""
        if self.norm is not None:
            axes = axes._replace(turn=sparse_turn(axes.stretch, self.norm))
        found = self.clip_norm(kinds.histogram, noises, z, axes)
        clip_norm, kept, variance, clipped = found
        # A tempered posterior is that of fewer records, but clipping loses as much.
        of_records = 0.0 if noises.variance else self.tempering * variance
        inefficiency = (1 - self.tempering) * kept + of_records
        unit = clip_norm * self.ratio * self.unit(axes)
        bound = noises.slope_clip / (clip_norm * self.ratio**2)
        found, slope_noise_sd = self.slope(
            kinds.vector, noises.slope, z, axes, unit, bound
        )
        slope = regular(found, slope_noise_sd, axes.is_measured)
        back = jnp.linalg.inv(axes.stretch)
        root_fn = self.root_fn(axes, unit, bound)
        first, start = z, root_fn(z)

        def next_score(kind, carry, given):
            z, total, score, place = carry
            words, noise = given
            contrasts = self.contrasts_at(z, axes, unit, bound)

            def contribution(*record):
                return contrasts(*record).score

            released = axes.turn @ self.ask(kind, words, noise, contribution)
            released = jnp.where(axes.is_measured, self.tempering * unit * released, 0)
            weight = noise**-2.0
            total += weight
            score += weight * released
            place += weight * (back @ z)
            root = root_fn(z)
            turn = _turn(start, root)
            here_slope = turn @ slope @ turn.T
            here = score / total + here_slope @ (place / total - back @ z)
            whole = here_slope + jnp.diag(1 - axes.data_share)
            step = jnp.linalg.solve(whole, here + self.prior_score(z, axes))
            # From where the search ended, shrunk as James and Stein do: noise of the
            # first scores may lead farther astray than the search ended.
            so_far = back @ (z - first)
            square = jnp.sum(
                jnp.where(axes.is_measured, whole @ (so_far + step), 0) ** 2
            )
            by_noise = jnp.sum(axes.is_measured) * (self.tempering * unit) ** 2 / total
            news = jnp.maximum(0, 1 - by_noise / jnp.maximum(square, 1e-30))
            moved, size = self.moved(z, axes, news * (so_far + step) - so_far)
            return (moved, total, score, place), (z, released, root, size)

        *firsts, last = noises.scores
        words = self.take(kinds.vector, self.dim, len(firsts))
        zero = jnp.zeros(self.dim)
        carry = z, jnp.zeros(()), zero, zero
        step = functools.partial(next_score, kinds.vector)
        carry, (*earlier, _) = jax.lax.scan(step, carry, (words, jnp.asarray(firsts)))
        words = self.take(kinds.last, self.dim)[0]
        (z, *_), (*latest, size) = next_score(kinds.last, carry, (words, last))
        places, scores, roots = (
            jnp.concatenate([leaf, end[None]])
            for leaf, end in zip(earlier, latest, strict=True)
        )
        root = root_fn(z)
        turn = _turn(start, root)
        apart = (places - z[None]).astype(jnp.float64) @ back.T
        places = jax.vmap(lambda other, y: _mean_over_first(root, other) @ y)(
            roots, apart
        )
        factors = jnp.linalg.svdvals(jnp.linalg.solve(root, roots[-1])) ** 2
        drift = jnp.exp(jnp.max(jnp.abs(jnp.log(factors))))
        drift = jnp.where(size <= 1, drift, jnp.inf)
        there = z, axes, unit, bound
        excess = self.scalar(
            kinds.vector, noises.check, lambda found: found.excess, *there
        )
        slope = turn @ slope @ turn.T
        whole = jnp.trace(slope) / (self.tempering * unit**2)
        number = jnp.zeros(())
        observed = jnp.zeros((self.dim, self.dim)), number, number, number
        if noises.variance and noises.lost:
            lost = self.scalar(
                kinds.vector, noises.lost, lambda found: found.lost, *there
            )
            observed = (
                *self.variance(kinds.vector, noises.variance, *there),
                lost / whole,
                noises.lost / whole,
            )
        return Released(
            z,
            axes.stretch,
            axes.data_share,
            back @ (jnp.asarray(self.model.prior_mean) - z),
            places,
            scores,
            turn @ found @ turn.T,
            drift,
            self.tempering * unit * jnp.asarray(noises.scores),
            self.tempering * self.unit(axes) * jnp.asarray(noises.steps[-1][-1]),
            slope_noise_sd * jnp.sum(turn**2) / self.dim,
            clip_norm,
            clipped,
            inefficiency,
            *observed,
            jnp.array(self.effective, jnp.float64),
            excess,
            jnp.asarray(noises.check),
            variance * whole,
        )


def _kept(clipped, whole):
    """W^(-1/2) C W^(-1/2), the share of a matrix W that clipping it to C leaves."""
    # Directions that public covariates leave out lose nothing.
    ridge = (1e-3 * jnp.trace(whole) / len(whole) + 1e-30) * jnp.eye(len(whole))
    root = _mapped(whole + ridge, jax.lax.rsqrt)
    return root @ (clipped + ridge) @ root


def _mapped(matrix, function):
    """The symmetric matrix with a function of its eigenvalues in their place."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * function(values)[None]) @ vectors.T


def _turn(first, second):
    """S, where S M S^T is N, but for small changes; see `_changed`."""
    return _changed(first, second, lambda changes: jnp.exp(changes / 2)).T


def _mean_over_first(first, second):
    """M^-1 P, by which M times a displacement becomes the change of the score.

    P is the mean slope along the displacement, on which the slope changes exponentially
    from M to N, but for small changes; see `_changed`.
    """

    def mean(changes):
        safe = jnp.where(changes == 0, 1.0, changes)
        return jnp.where(changes == 0, 1.0, jnp.expm1(safe) / safe)

    return _changed(first, second, mean)


def _changed(first, second, function):
    """M^(-1/2) f(C) M^(1/2), with C the logarithm of M^(-1/2) N M^(-1/2).

    Eigenvalues of C below `SAME_SLOPE` count as zero, and those up to `OTHER_SLOPE` in
    part.

    Parameters
    ----------
    first, second
        M^(1/2) and N^(1/2), ``(d, d)``.
    function
        f, of the eigenvalues.
    """
    # The eigenvalues of M^(-1/2) N M^(-1/2) are the squares of these. The least may be
    # 1e-16 of the largest, and negative if that product is rounded.
    vectors, values, _ = jnp.linalg.svd(jnp.linalg.solve(first, second))
    changes = 2 * jnp.log(values)
    excess = jnp.abs(changes) - SAME_SLOPE
    excess = jnp.clip(excess / (OTHER_SLOPE - SAME_SLOPE), 0, 1)
    factors = function(excess * changes)
    return jnp.linalg.solve(first, (vectors * factors[None]) @ vectors.T @ first)
