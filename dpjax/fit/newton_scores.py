"""Scores that are released at places which follow one another by Newton's method.

A Newton step from all scores so far leads to the next place. The displacement from the
first place is then shrunk by the share of it that may be noise. The slope was released
at the first place only. At another place it is changed like the slope that the model
expects of public covariates, if that changes by much (`dpjax.fit.slope_changes`).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax.fit import contrast, slope_changes
from dpjax.fit.inquiry import KEY_WORDS, Inquiry, Units, record_key
from dpjax.release import vector_sums

__all__ = ["NewtonScores", "newton_scores"]


class NewtonScores(NamedTuple):
    """The released scores, and where they were released.

    end, end_root
        The position z to which the last Newton step leads, ``(d,)``, and
        `slope_changes.root` of the slope that is expected there, ``(d, d)``.
    size
        Length of the last step, before it is limited, over the longest allowed.
    places
        The z where each score was released, ``(number, d)``.
    scores
        The scores in units of the frame, without the prior's, ``(number, d)``.
    roots
        As `end_root`, at each of the places, ``(number, d, d)``.
    """

    end: jax.Array
    end_root: jax.Array
    size: jax.Array
    places: jax.Array
    scores: jax.Array
    roots: jax.Array


def _root_fn(inquiry: Inquiry, units: Units) -> Callable[[jax.Array], jax.Array]:
    """A function that gives `slope_changes.root` of the slope M expected at z.

    M is the slope of the clipped scores that the model expects of public covariates,
    plus the precision of the prior, in units of the frame. If the model has no
    `ScoreModel.expected`, the expected Fisher information stands for that slope. M is
    public.
    """
    axes, unit, bound = units
    slopes = inquiry.expected(
        lambda scores: [
            contrast.contrast(scores, bound.astype(inquiry.dtype), inquiry.norm).slope
        ]
    )

    def root(z):
        if slopes is None:
            found = axes.stretch.T @ inquiry.information(z) @ axes.stretch
        else:
            (found,) = slopes(z, inquiry.columns(axes, unit))
            found = inquiry.effective * unit**2 * axes.turn @ found @ axes.turn.T
        return slope_changes.root(found + jnp.diag(1 - axes.data_share))

    return root


def newton_scores(
    inquiry: Inquiry, release, last, noise_multipliers, z, units: Units, slope
) -> NewtonScores:
    """Release one score after another, each where the scores before it lead.

    Parameters
    ----------
    release, last
        How the scores are released: `last` is for the last one, `release` for the
        others. The clip norm of both is one.
    noise_multipliers
        The noise multiplier of each score.
    z
        The first place, where the slope was released.
    units
        The frame and the clip norm of the scores.
    slope
        The slope in units of the frame, without negative eigenvalues.
    """
    axes, unit, _ = units
    root_fn = _root_fn(inquiry, units)
    back, first, start = axes.back, z, root_fn(z)

    words = inquiry.take(release, inquiry.dim, len(noise_multipliers) - 1)
    last_words = inquiry.take(last, inquiry.dim)[0]
    keys = jnp.concatenate([words[:, :KEY_WORDS], last_words[None, :KEY_WORDS]])

    def with_noise(index, exact, noise):
        return jax.lax.cond(
            index < len(words),
            lambda: release.with_noise(words[index, KEY_WORDS:], exact, noise),
            lambda: last.with_noise(last_words[KEY_WORDS:], exact, noise),
        )

    def next_score(carry, given):
        z, root, total, score, place = carry
        index, key, noise = given
        contrasts = inquiry.contrasts_at(z, units)
        # All scores are sums of one program, and only their noise is of two kinds. The
        # norm of the last one is at least as large as the Euclidean norm of the others.
        exact = vector_sums.vector_sum(
            inquiry.posterior,
            lambda *record: contrasts(*record).score,
            1.0,
            rng_key=record_key(key),
            norm=last.norm,
        )
        found = axes.turn @ with_noise(index, exact, noise).astype(inquiry.dtype)
        released: jax.Array = inquiry.tempering * unit * found
        released = jnp.where(axes.is_measured, released, 0)
        weight = noise**-2.0
        total += weight
        score += weight * released
        place += weight * (back @ z)
        turn = slope_changes.between(start, root).turn
        here_slope = turn @ slope @ turn.T
        here = score / total + here_slope @ (place / total - back @ z)
        whole = here_slope + jnp.diag(1 - axes.data_share)
        step = jnp.linalg.solve(whole, here + inquiry.prior_score(z, axes))
        # The displacement from where the search ended is shrunk, as by James and Stein.
        # Noise on the first scores could otherwise lead farther from the mode than the
        # search ended.
        so_far = back @ (z - first)
        led: jax.Array = whole @ (so_far + step)
        square = jnp.sum(jnp.where(axes.is_measured, led, 0) ** 2)
        by_noise = jnp.sum(axes.is_measured) * (inquiry.tempering * unit) ** 2 / total
        news = jnp.maximum(0, 1 - by_noise / jnp.maximum(square, 1e-30))
        moved, size = inquiry.moved(z, axes, news * (so_far + step) - so_far)
        carry = moved, root_fn(moved), total, score, place
        return carry, (z, released, root, size)

    zero = jnp.zeros(inquiry.dim)
    carry = z, start, jnp.zeros(()), zero, zero
    given = jnp.arange(len(keys)), keys, jnp.asarray(noise_multipliers)
    (end, end_root, *_), (*of_all, sizes) = jax.lax.scan(next_score, carry, given)
    return NewtonScores(end, end_root, sizes[-1], *of_all)
