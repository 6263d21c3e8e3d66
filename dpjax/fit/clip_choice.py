"""The clip norm of scores, from a histogram of their lengths.

It is where clipping and noise together lose least. The lengths are those of the scores
that the records might have had. Where noise may hide a count, the count is at most what
public covariates lead to expect. The clip norm of a robust fit is a constant.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.fit import contrast
from dpjax.fit.frame import Frame
from dpjax.fit.inquiry import Inquiry
from dpjax.fit.noises import Noises

__all__ = ["CLIP_NORMS", "NUM_BINS", "ROBUST_CLIP_NORM", "Choice", "clip_choice"]

LENGTH_EDGES = np.concatenate([[0.0], np.geomspace(0.2, 8.0, 20), [np.inf]])
CLIP_NORMS = np.geomspace(0.3, 5.0, 57)
"""Bins of the lengths of scores, and clip norms to choose from, over the root mean
square length of a record's score."""

NUM_BINS = len(LENGTH_EDGES) - 1

ROBUST_CLIP_NORM = 2.0
"""Of a robust fit. Where the model is wrong, what a fit finds depends on the clip norm:
for overdispersed counts, one chosen from noisy lengths moved the intercept by 3 of its
standard deviations between data sets, which no width allowed for."""


class Choice(NamedTuple):
    """A clip norm, and what it does.

    clip_norm
        Over the root mean square length of a record's score.
    kept
        Share of the slope that clipping leaves.
    variance
        Trace of the score's variance over that of its slope.
    clipped
        Share of records that are clipped.
    """

    clip_norm: jax.Array
    kept: jax.Array
    variance: jax.Array
    clipped: jax.Array


def clip_choice(inquiry: Inquiry, release, noises: Noises, z, axes: Frame) -> Choice:
    """Choose where clipping and noise lose least, or `ROBUST_CLIP_NORM`."""
    unit = inquiry.ratio * inquiry.unit(axes)
    scores = inquiry.scores_at(z, axes, unit)
    edges = jnp.asarray(LENGTH_EDGES[1:-1], inquiry.dtype)

    def histogram(found):
        lengths = contrast.length(found.nodes, found.directions, inquiry.norm)
        bins = jnp.searchsorted(edges, lengths)
        empty = jnp.zeros(NUM_BINS, inquiry.dtype)
        # Its diameter is sqrt(2) if no number is negative. A model may make weights of
        # what a record holds.
        return empty.at[bins].add(jnp.maximum(found.weights, 0))

    def contribution(*record):
        return histogram(scores(*record))

    words = inquiry.take(release, NUM_BINS)[0]
    counts = inquiry.ask(release, words, noises.histogram, contribution)
    # Counts that may be noise are at most what public covariates lead to expect.
    most = jnp.zeros_like(counts)
    expected = inquiry.expected(lambda found: [histogram(found)[None]])
    if expected is not None:
        ((shares,),) = expected(z, inquiry.columns(axes, unit))
        most = inquiry.effective / inquiry.tempering * shares
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
    noise = inquiry.tempering * noise**2 / jnp.maximum(total, 0.3)
    loss = ((variance + noise) / efficiency**2).astype(jnp.float32)
    # JAX 0.10 compiles no wider argmin than this where x64 is off.
    best = jax.lax.argmin(loss, 0, jnp.int32)
    kept, variance = efficiency[best], (variance / efficiency)[best]
    clip_norm = jnp.asarray(choices)[best]
    clipped = jnp.sum(jnp.where(lengths > clip_norm, counts, 0)) / jnp.sum(counts)
    return Choice(clip_norm, kept, variance, clipped)
