"""From the centre of the prior to the bulk of the posterior.

The search goes in phases of small steps, which grow while they agree. Each phase ends
at the mean of the second half of its steps. There one release of the curvature corrects
the frame: along single latents, where it has less noise, and then in the directions
that are left.
"""

import math

import jax
import jax.numpy as jnp

from dpjax.fit import contrast
from dpjax.fit.frame import Frame
from dpjax.fit.inquiry import MAX_STEP, Inquiry
from dpjax.fit.noises import CURVATURE_REACH, Noises
from dpjax.fit.slope_changes import mapped

__all__ = ["correction_at", "search", "walked"]

RATE = 0.5
"""Share of Newton's step that the search takes."""

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

MIN_LEFT = 0.02
"""Least share of the curvature that clipping is taken to leave."""

NUM_LATENT_SDS = 2.0
"""Of the noise on the curvature along a latent, within which it is as expected."""


def search(inquiry: Inquiry, release, noises: Noises) -> tuple[jax.Array, Frame]:
    """Where the bulk is, and the frame there."""
    dim = inquiry.dim
    counts = jnp.asarray([len(steps) for steps in noises.steps])
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
        jnp.cumsum(counts) - counts,
        counts,
        jnp.asarray([steps[0] for steps in noises.steps]),
        inquiry.take(release, dim * (dim + 1) // 2, len(counts)),
        jnp.asarray(noises.curvatures),
    )
    start = inquiry.start, jnp.eye(dim)
    (z, correction), information = jax.lax.scan(phase, start, given)
    return z, inquiry.frame(information[-1], correction)


def walked(inquiry: Inquiry, release, words, noise, walker, correction, slopes):
    """The walker after a step of the search.

    Parameters
    ----------
    walker
        z, the last step in units of the parameters, and the reach of the next step, by
        which it is multiplied.
    correction
        Of the frame.
    slopes
        ``inquiry.expected(contrast.expected_slopes, True)``.
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
    before = jnp.linalg.solve(axes.stretch, before)
    lengths = jnp.linalg.norm(step) * jnp.linalg.norm(before)
    goes_on = is_far & (step @ before > AGREEMENT * lengths)
    reach = jnp.where(goes_on, jnp.minimum(GROWTH * reach, MAX_REACH), 1.0)
    return z, axes.stretch @ step, reach


def _longer(score, noise_sd, kept, axes: Frame):
    """Newton's step for a score, of whose slope clipping leaves a share."""
    least = jnp.maximum(MIN_KEPT, jnp.minimum(1, RATE * noise_sd / MAX_NOISE))
    kept = mapped(kept, lambda values: jnp.clip(values / LEAST_KEPT, least, 1))
    share = jnp.sqrt(axes.data_share)
    kept = share[:, None] * kept * share[None]
    return jnp.linalg.solve(kept + jnp.diag(1 - axes.data_share), score)


def correction_at(
    inquiry: Inquiry, release, words, noise, z, axes: Frame, clip_norm
) -> jax.Array:
    """The correction of the frame at z, where noise does not explain it."""
    dim = inquiry.dim
    scores = inquiry.scores_at(z, axes, inquiry.unit(axes), inquiry.search_scores_fn)
    reach = CURVATURE_REACH * clip_norm

    def contribution(*record):
        found = contrast.curvature(scores(*record), reach, clip_norm, 0.2)
        return contrast.packed(found) / clip_norm

    found = inquiry.matrix(release, words, noise, contribution, axes)
    unit = inquiry.tempering * clip_norm * inquiry.unit(axes) ** 2
    measured = jnp.outer(axes.is_measured, axes.is_measured)
    whole = jnp.diag(axes.data_share)
    rest = jnp.eye(dim) - whole
    found = jnp.where(measured, unit * found, 0) + rest
    kept = _kept_curvature(inquiry, z, axes, reach, clip_norm)

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
    root = mapped(kept + rest, jax.lax.rsqrt)
    _, turn = jnp.linalg.eigh(root @ found @ root)
    num_sds = jnp.sqrt(2.0 * jnp.sum(axes.is_measured)) + 1
    changes = factors(root @ turn, kept, whole, num_sds)
    root = mapped(whole + rest, jnp.sqrt) @ turn
    return axes.corrected((root * changes[None]) @ root.T)


def _kept_curvature(inquiry: Inquiry, z, axes: Frame, *bounds):
    """What clipping leaves of the curvature where the design is the public one.

    It is in units of the frame, ``(d, d)``, and without the prior's.
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
    """W^(-1/2) C W^(-1/2), the share of a matrix W that clipping it to C leaves."""
    # Directions that public covariates leave out lose nothing.
    ridge = (1e-3 * jnp.trace(whole) / len(whole) + 1e-30) * jnp.eye(len(whole))
    root = mapped(whole + ridge, jax.lax.rsqrt)
    return root @ (clipped + ridge) @ root
