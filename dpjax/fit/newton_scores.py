"""Scores at places that follow one another by Newton's method.

Each next place is a Newton step from the scores so far, less what may be noise. The
slope was released at the first place. Elsewhere it is changed as that of public
covariates is, where that changes by much.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax.fit import contrast, slope_changes
from dpjax.fit.inquiry import Inquiry, Units

__all__ = ["NewtonScores", "newton_scores", "root_fn"]


class NewtonScores(NamedTuple):
    """What the scores are, and where they were released.

    end
        z where they lead, ``(d,)``.
    size
        The last step over the longest one.
    places, scores, roots
        Of every score: z, the score in units of the frame, and the square root of the
        slope that is expected there, ``(number, d)``, ``(number, d)`` and
        ``(number, d, d)``.
    """

    end: jax.Array
    size: jax.Array
    places: jax.Array
    scores: jax.Array
    roots: jax.Array


def root_fn(inquiry: Inquiry, units: Units) -> Callable[[jax.Array], jax.Array]:
    """``z -> M^(1/2)``, with M the slope that is expected at z, ``(d, d)``.

    M is in units of the frame, and public. In directions of which records tell nothing,
    it is the precision of the prior. Where no slopes are known, M is the expected
    information.
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
        found += jnp.diag(1 - axes.data_share)
        return slope_changes.mapped(
            found, lambda values: jnp.sqrt(jnp.maximum(values, 1e-3))
        )

    return root


def newton_scores(
    inquiry: Inquiry, release, last, noise_multipliers, z, units: Units, slope, root_fn
) -> NewtonScores:
    """Release one score after another.

    Parameters
    ----------
    release, last
        How all scores but the last one are released, and the last one.
    noise_multipliers
        Of each score.
    z
        The first place, where the slope was released.
    slope
        The slope in units of the frame, without negative eigenvalues.
    root_fn
        From the function of that name.
    """
    axes, unit, _ = units
    back = jnp.linalg.inv(axes.stretch)
    first, start = z, root_fn(z)

    def next_score(kind, carry, given):
        z, total, score, place = carry
        words, noise = given
        contrasts = inquiry.contrasts_at(z, units)

        def contribution(*record):
            return contrasts(*record).score

        released = axes.turn @ inquiry.ask(kind, words, noise, contribution)
        released = jnp.where(axes.is_measured, inquiry.tempering * unit * released, 0)
        weight = noise**-2.0
        total += weight
        score += weight * released
        place += weight * (back @ z)
        root = root_fn(z)
        turn = slope_changes.turn(start, root)
        here_slope = turn @ slope @ turn.T
        here = score / total + here_slope @ (place / total - back @ z)
        whole = here_slope + jnp.diag(1 - axes.data_share)
        step = jnp.linalg.solve(whole, here + inquiry.prior_score(z, axes))
        # From where the search ended, shrunk as James and Stein do: noise of the first
        # scores may lead farther astray than the search ended.
        so_far = back @ (z - first)
        square = jnp.sum(jnp.where(axes.is_measured, whole @ (so_far + step), 0) ** 2)
        by_noise = jnp.sum(axes.is_measured) * (inquiry.tempering * unit) ** 2 / total
        news = jnp.maximum(0, 1 - by_noise / jnp.maximum(square, 1e-30))
        moved, size = inquiry.moved(z, axes, news * (so_far + step) - so_far)
        return (moved, total, score, place), (z, released, root, size)

    *firsts, noise = noise_multipliers
    words = inquiry.take(release, inquiry.dim, len(firsts))
    zero = jnp.zeros(inquiry.dim)
    carry = z, jnp.zeros(()), zero, zero
    step = functools.partial(next_score, release)
    carry, (*earlier, _) = jax.lax.scan(step, carry, (words, jnp.asarray(firsts)))
    words = inquiry.take(last, inquiry.dim)[0]
    (end, *_), (*latest, size) = next_score(last, carry, (words, noise))
    of_all = (
        jnp.concatenate([leaf, at_last[None]])
        for leaf, at_last in zip(earlier, latest, strict=True)
    )
    return NewtonScores(end, size, *of_all)
