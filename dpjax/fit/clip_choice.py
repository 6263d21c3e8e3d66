"""The choice of the clip norm of scores, from a released histogram of their lengths.

The clip norm is the one at which clipping and noise together lose least information.
The histogram counts the lengths of the scores that the records might have had (the
nodes of `dpjax.fit.scores.Scores`). If a count may be noise, it is limited to the count
that the model expects of public covariates. The clip norm of a robust fit is a
constant.
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
"""Edges of the bins of the histogram, and the clip norms to choose from. Both are in
units of the root mean square length of a record's score."""

NUM_BINS = len(LENGTH_EDGES) - 1

ROBUST_CLIP_NORM = 2.0
"""The clip norm of a robust fit. If the model is wrong, the result of a fit depends on
the clip norm. For overdispersed counts, a clip norm that was chosen from noisy lengths
moved the intercept by 3 of its standard deviations between data sets, which the width
of the draws did not allow for."""


class Choice(NamedTuple):
    """A clip norm and its effects, as estimated from the histogram.

    clip_norm
        The clip norm divided by the root mean square length of a record's score.
    kept
        The share of the slope of the scores that clipping leaves.
    variance
        Trace of the variance of the clipped scores over the trace of their slope.
    clipped
        The share of scores that are clipped.
    """

    clip_norm: jax.Array
    kept: jax.Array
    variance: jax.Array
    clipped: jax.Array


def clip_choice(inquiry: Inquiry, release, noises: Noises, z, axes: Frame) -> Choice:
    """Release the histogram at z, and choose the clip norm.

    A robust fit, with ``noises.variance``, gets `ROBUST_CLIP_NORM`, and its effects.
    """
    unit = inquiry.ratio * inquiry.unit(axes)
    scores = inquiry.scores_at(z, axes, unit)
    edges = jnp.asarray(LENGTH_EDGES[1:-1], inquiry.dtype)

    def histogram(found):
        lengths = contrast.length(found.nodes, found.directions, inquiry.norm)
        bins = jnp.searchsorted(edges, lengths, method="compare_all")
        is_in = bins[:, None] == jnp.arange(NUM_BINS)[None]
        # The weights of a model may depend on the record and be negative. Without
        # negative numbers, two histograms are at most sqrt(2) apart, as is charged.
        return jnp.sum(jnp.where(is_in, jnp.maximum(found.weights, 0)[:, None], 0), 0)

    def contribution(*record):
        return histogram(scores(*record))

    words = inquiry.take(release, NUM_BINS)[0]
    counts = inquiry.ask(release, words, noises.histogram, contribution)
    # A count of at most two sds of the noise is limited to the expected count.
    most = jnp.zeros_like(counts)
    expected = inquiry.expected(lambda found: [histogram(found)[None]])
    if expected is not None:
        ((shares,),) = expected(z, inquiry.columns(axes, unit))
        most = inquiry.effective / inquiry.tempering * shares
    most = jnp.where(counts > 2 * noises.histogram, jnp.inf, most)
    counts = jnp.clip(counts, 0, most)
    inner = np.sqrt(LENGTH_EDGES[1:-2] * LENGTH_EDGES[2:-1])
    lengths = np.concatenate([LENGTH_EDGES[1:2] / 2, inner, LENGTH_EDGES[-2:-1]])
    # If no count is positive, all lengths are taken to be about one.
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
    # JAX cannot compile an argmin of float64 if x64 is off by default.
    best = jax.lax.argmin(loss, 0, jnp.int32)
    kept, variance = efficiency[best], (variance / efficiency)[best]
    clip_norm = jnp.asarray(choices)[best]
    clipped = jnp.sum(jnp.where(lengths > clip_norm, counts, 0)) / jnp.sum(counts)
    return Choice(clip_norm, kept, variance, clipped)
