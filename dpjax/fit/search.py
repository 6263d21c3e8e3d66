"""The search of a fit, from the centre of the prior to the bulk of the posterior.

The search consists of phases, and a phase of small steps. Every step releases a score
with much noise. The steps get longer while they agree in direction. A phase ends at the
mean position of the second half of its steps, or at the last position if the steps
still agree then. There the curvature is released, and corrects the frame. The frame is
first corrected along single latents, where the curvature has less noise, and then along
the principal directions of the difference that is left.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.fit import contrast
from dpjax.fit.frame import Frame
from dpjax.fit.inquiry import MAX_STEP, Inquiry
from dpjax.fit.noises import CURVATURE_REACH, Noises
from dpjax.fit.slope_changes import mapped

__all__ = ["correction_at", "search", "walked"]

RATE = 0.5
"""The share of a Newton step that a step of the search takes."""

GROWTH, MAX_REACH, AGREEMENT, NUM_NOISE_SDS = 1.5, 8.0, 0.8, 3.0
"""How the search crosses a vague prior. The reach is the factor by which a step is
multiplied. It grows by the factor `GROWTH`, up to `MAX_REACH`, after a step with two
properties. The step is longer than half of the longest one and longer than
`NUM_NOISE_SDS` standard deviations of its noise. And the cosine of the angle between it
and the step before is above `AGREEMENT`. After any other step the reach is one."""

LEAST_KEPT, MIN_KEPT, MAX_NOISE = 0.5, 0.05, 1.0
"""How steps of the search allow for clipping, which leaves only a share of the slope of
a score. If this share is less than `LEAST_KEPT`, the step is longer by the factor
`LEAST_KEPT` over the share. This factor is at most 1 / `MIN_KEPT`, and is limited so
that the noise of the step is at most `MAX_NOISE` posterior standard deviations."""

MIN_LEFT = 0.02
"""Least share of the expected curvature that clipping is taken to leave."""

NUM_LATENT_SDS = 2.0
"""The curvature along a latent is taken to be as expected if it differs by at most so
many standard deviations of its noise."""


def search(inquiry: Inquiry, release, noises: Noises) -> tuple[jax.Array, Frame]:
    """Make all releases of the search.

    Returns
    -------
    The position z where the search has ended, ``(d,)``, and the frame there.
    """
    dim = inquiry.dim
    counts = np.array([len(steps) for steps in noises.steps])
    words = inquiry.take(release, dim, sum(map(len, noises.steps)))
    slopes = inquiry.expected(contrast.expected_slopes, True)

    def phase(carry, given):
        first, count, noise, curvature_words, curvature_noise = given
        z, correction = carry

        def step(i, carry):
            total, walker = carry
            walker = walked(
                inquiry, release, words[first + i], noise, walker, correction, slopes
            )
            return total + jnp.where(2 * i >= count, walker[0], 0), walker

        start = z, jnp.zeros(dim), jnp.ones(())
        start = jnp.zeros_like(z), start
        total, (z, _, reach) = jax.lax.fori_loop(0, count, step, start)
        mean = (total / (count - (count + 1) // 2)).astype(inquiry.dtype)
        z = jnp.where(reach > 1, z, mean)
        information = inquiry.information(z)
        axes = inquiry.frame(information, correction)
        correction = correction_at(
            inquiry,
            release,
            curvature_words,
            curvature_noise,
            z,
            axes,
            noises.curvature_clip,
        )
        return (z, correction), information

    given = (
        jnp.asarray(np.cumsum(counts) - counts),
        jnp.asarray(counts),
        jnp.asarray([steps[0] for steps in noises.steps]),
        inquiry.take(release, dim * (dim + 1) // 2, len(counts)),
        jnp.asarray(noises.curvatures),
    )
    start = inquiry.start, jnp.eye(dim)
    (z, correction), information = jax.lax.scan(phase, start, given)
    return z, inquiry.frame(information[-1], correction)


def walked(inquiry: Inquiry, release, words, noise, walker, correction, slopes):
    """Release a score and take a step of the search.

    Parameters
    ----------
    release, words, noise
        How the score is released, the random words and the noise multiplier.
    walker
        The position z, the last step in units of the parameters, and the reach: the
        factor by which the next step is multiplied.
    correction
        R, the correction of the frame, ``(d, d)``.
    slopes
        ``inquiry.expected(contrast.expected_slopes, True)``.

    Returns
    -------
    The walker after the step.
    """
    z, before, reach = walker
    axes = inquiry.frame(inquiry.information(z), correction)
    unit = inquiry.unit(axes)
    scores = inquiry.scores_at(z, axes, unit, inquiry.search_scores_fn)

    def contribution(*record):
        return contrast.difference(scores(*record))

    score = inquiry.ask(release, words, noise, contribution)
    score = inquiry.tempering * unit * score + inquiry.prior_score(z, axes)
    noise_sd = inquiry.tempering * unit * noise
    if slopes is not None:
        kept, whole = slopes(z, inquiry.columns(axes, unit))
        score = _longer(score, noise_sd, _kept(kept, whole), axes)
    step = RATE * score
    z, size = inquiry.moved(z, axes, step, reach)
    noise_size = RATE * noise_sd * math.sqrt(inquiry.dim / inquiry.effective) / MAX_STEP
    is_far = size > jnp.maximum(0.5, NUM_NOISE_SDS * noise_size)
    before = axes.back @ before
    lengths = jnp.linalg.norm(step) * jnp.linalg.norm(before)
    goes_on = is_far & (step @ before > AGREEMENT * lengths)
    reach = jnp.where(goes_on, jnp.minimum(GROWTH * reach, MAX_REACH), 1.0)
    return z, axes.stretch @ step, reach


def _longer(score, noise_sd, kept, axes: Frame):
    """Newton's step for a score whose slope clipping has made smaller.

    `kept` is the share of the expected slope that clipping leaves, ``(d, d)``.
    """
    least = jnp.maximum(MIN_KEPT, jnp.minimum(1, RATE * noise_sd / MAX_NOISE))
    kept = mapped(kept, lambda values: jnp.clip(values / LEAST_KEPT, least, 1))
    share = jnp.sqrt(axes.data_share)
    kept = share[:, None] * kept * share[None]
    return jnp.linalg.solve(kept + jnp.diag(1 - axes.data_share), score)


def correction_at(
    inquiry: Inquiry, release, words, noise, z, axes: Frame, clip_norm
) -> jax.Array:
    """Release the curvature at z, and return the correction of the frame, ``(d, d)``.

    The frame is corrected only where noise and clipping do not explain that the
    curvature differs from the expected one.
    """
    dim = inquiry.dim
    scores = inquiry.scores_at(z, axes, inquiry.unit(axes), inquiry.search_scores_fn)
    reach = CURVATURE_REACH * clip_norm

    def contribution(*record):
        found = contrast.curvature(scores(*record), reach, clip_norm, 0.2)
        return contrast.packed(found) / clip_norm

    found = inquiry.matrix(release, words, noise, contribution, axes)
    unit: jax.Array = inquiry.tempering * clip_norm * inquiry.unit(axes) ** 2
    measured = jnp.outer(axes.is_measured, axes.is_measured)
    whole = jnp.diag(axes.data_share)
    rest = jnp.eye(dim) - whole
    found = jnp.where(measured, unit * found, 0) + rest
    kept = _kept_curvature(inquiry, z, axes, reach, clip_norm)

    def factors(directions: jax.Array, kept, whole, num_sds):
        """The released over the expected information along each of the columns.

        It is one where clipping, or noise of `num_sds` standard deviations, explains
        the difference.
        """
        along, left, expected = (
            jnp.sum(directions * (matrix @ directions), axis=0)
            for matrix in (found, kept + rest, whole + rest)
        )
        asked = jnp.where(axes.is_measured[:, None], directions, 0)
        sds = num_sds * unit * noise * jnp.sum(asked**2, axis=0)
        # Clipping makes rare records count less, as if there were fewer of them. So a
        # curvature between the expected one and what clipping leaves of that is no
        # sign of an error.
        less = jnp.maximum(along, jnp.minimum(sds, left)) / left
        less = jnp.where(along < left - sds, less, 1)
        return jnp.where(along > expected + sds, along / expected, less)

    # Along a single latent the noise is less than along the noisiest direction. If the
    # values of a covariate are on another scale than expected, its products with others
    # change by the root of the ratio. If it is zero for another number of records, as
    # the indicator of a level is, they change by the ratio.
    ratios = factors(axes.back, kept, whole, NUM_LATENT_SDS)

    def scaled(root):
        """The expected matrix after such a change, and how far the released one is."""
        expected = axes.back.T @ axes.back
        diagonal = jnp.diag(ratios * jnp.diag(expected))
        changed = expected * jnp.outer(root, root)
        changed += diagonal - jnp.diag(jnp.diag(changed))
        changed = axes.stretch.T @ changed @ axes.stretch
        changed = mapped(changed, lambda values: jnp.maximum(values, MIN_LEFT))
        return changed, jnp.sum((found - changed) ** 2)

    by_scale, misfit = scaled(jnp.sqrt(ratios))
    by_number, other_misfit = scaled(ratios)
    change = jnp.where(other_misfit < misfit, by_number, by_scale)
    change = mapped(change, jnp.sqrt)
    kept, whole = (change @ matrix @ change.T for matrix in (kept, whole))
    root = mapped(kept + rest, jax.lax.rsqrt)
    _, turn = jnp.linalg.eigh(root @ found @ root)
    num_sds = jnp.sqrt(2.0 * jnp.sum(axes.is_measured)) + 1
    changes = factors(root @ turn, kept, whole, num_sds)
    root = mapped(whole + rest, jnp.sqrt) @ turn
    return axes.corrected((root * changes[None]) @ root.T)


def _kept_curvature(inquiry: Inquiry, z, axes: Frame, *bounds):
    """The expected curvature after clipping, if covariates are like the public ones.

    It is in units of the frame, ``(d, d)``, and does not include the prior's curvature.
    `bounds` are the reach and the bound of `contrast.curvature`.
    """
    kept = jnp.eye(inquiry.dim)
    curvatures = inquiry.expected(
        lambda scores: [
            contrast.curvature(scores, *bounds),
            contrast.curvature(scores, jnp.inf, jnp.inf),
        ]
    )
    if curvatures is not None:
        kept = _kept(*curvatures(z, inquiry.columns(axes, inquiry.unit(axes))))
        kept = axes.turn @ kept @ axes.turn.T
        kept = mapped(kept, lambda values: jnp.clip(values, MIN_LEFT, 1))
    share = jnp.sqrt(axes.data_share)
    return share[:, None] * kept * share[None]


def _kept(clipped, whole):
    """W^-1/2 C W^-1/2, the share of a matrix W that is left if clipping makes it C."""
    # The ridge makes the share one in directions that no public covariates have.
    ridge = (1e-3 * jnp.trace(whole) / len(whole) + 1e-30) * jnp.eye(len(whole))
    root = mapped(whole + ridge, jax.lax.rsqrt)
    return root @ (clipped + ridge) @ root
