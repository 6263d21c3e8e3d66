"""Cells and tails over the log ratio l that certify `renyi.rdp`.

In the notation of `renyi`, the gap of the log odds is G(l) = u(l) + v(l), where

    u = log a(l + D) - log a(l),    v = log(1 - c a(l)) - log(1 - c a(l + D)).

The bounds over cells and tails rest on these facts:

- u falls with l, and v at c = 1 grows with l. For a and 1 - a of Barker's and of the
  penalty's family are log-concave: each is the distribution function of a sum of
  log-concave variables.
- v grows with c.
- u <= D, because balance makes a(l) e^-l = a(-l) fall with l.
"""

import math
from typing import NamedTuple

import numpy as np

from dpjax.privacy.events import AcceptBit

__all__ = [
    "Changes",
    "batch_gap",
    "changes",
    "describe",
    "flat_cells",
    "gap_bound",
    "grid",
    "lazy_fall",
    "left_tail",
    "log_probabilities",
    "logit",
    "tails",
]

RELATIVE_SLACK = 1 + 1e-9
"""Factor on bounds, far above their rounding errors."""


def gap_bound(order, gap):
    """Bound the divergence of any two bits by the gap of their log odds, nats."""
    return np.minimum(gap, order * gap**2 / 8)


def log_probabilities(event: AcceptBit, log_ratio):
    """log a and log(1 - a) at l, and then both at l + D; without the laziness."""
    accept, shifted = event.acceptance, log_ratio + event.sensitivity
    return (
        accept.log_accept(log_ratio),
        accept.log_reject(log_ratio),
        accept.log_accept(shifted),
        accept.log_reject(shifted),
    )


def batch_gap(share: float, rise, fall):
    """Difference of the log odds of `batch_renyi`'s first pair; q is `share`.

    `rise` and `fall` are u and v. That of the second pair has them exchanged.
    """
    rise = np.minimum(rise, 500.0)
    return np.log1p(share * np.expm1(rise)) - np.log1p(share * np.expm1(-fall))


def grid(event: AcceptBit, max_order: float) -> np.ndarray:
    """Edges of the first cells, increasing, nats, ``(m,)``; the tails weigh little."""
    sensitivity = event.sensitivity
    reach = 15 + math.log(max_order)
    low, high = -reach - sensitivity, reach
    if event.acceptance.family == "barker":
        return np.linspace(low, high, 193)
    s = event.acceptance.noise_sd
    # The bound on the left tail takes D for the gap, so the tail begins where the gap
    # is nearly D.
    low -= min(max_order * sensitivity, 12 * s + s**2 / 2)
    far = 9.0
    if event.acceptance.laziness == 1:
        far += 2 * (max_order - 1) * sensitivity / s
    high = s**2 / 2 + far * s
    core = np.linspace(-8 * s, s**2 / 2 + 8 * s, 97)
    core = core[(core > low) & (core < high)]
    return np.unique(np.concatenate([np.linspace(low, high, 129), core]))


class Changes(NamedTuple):
    """How the bits of neighbouring data differ over cells of l, ``(rows, k)`` each.

    low, high
        Log odds of c a(l) and of c a(l + D) at the edges of the cells, which are one
        more.
    rise, fall
        Upper bounds on u and v over each cell.
    least_rise, least_fall
        Estimates of u and v from below, which steer the search and certify nothing.
    """

    low: np.ndarray
    high: np.ndarray
    rise: np.ndarray
    fall: np.ndarray
    least_rise: np.ndarray
    least_fall: np.ndarray


def changes(event: AcceptBit, edges: np.ndarray) -> Changes:
    """Describe the cells between neighbouring edges of each row of `edges`."""
    acceptance, c = event.acceptance, event.acceptance.laziness
    sensitivity = event.sensitivity
    log_a, log_b, up_a, up_b = log_probabilities(event, edges)
    u = up_a - log_a
    with np.errstate(invalid="ignore"):
        v = np.nan_to_num(log_b - up_b, nan=np.inf, posinf=np.inf)
    size = np.abs(log_a[:, :-1]) + np.minimum(np.abs(up_b[:, 1:]), 1e6)
    slack = 1e-13 + 1e-15 * size
    if acceptance.family == "penalty":
        s = acceptance.noise_sd
        slack += 1e-14 * (1 + np.abs(edges[:, 1:] + sensitivity) / s) / s
    rise = np.minimum(np.maximum(u[:, :-1], 0.0) + slack, sensitivity)
    fall = v[:, 1:] + slack
    least_rise, least_fall = np.maximum(u[:, 1:], 0.0), v[:, :-1]
    if c < 1:
        fall = np.minimum(fall, lazy_fall(c, log_a[:, 1:], rise, up_a[:, 1:]))
        least_fall = lazy_fall(c, log_a[:, :-1], least_rise, up_a[:, :-1])
    low, high = logit(log_a, log_b, c), logit(up_a, up_b, c)
    return Changes(low, high, rise, fall, least_rise, least_fall)


def describe(event: AcceptBit, edges: np.ndarray):
    """Describe the cells between neighbouring edges of each row of `edges`.

    Returns
    -------
    The arrays of `flat_cells`.
    """
    low, _, rise, fall, least_rise, least_fall = changes(event, edges)
    gap = rise + fall
    if event.acceptance.family == "barker":
        # logit(c s(l)) = log c + l - log(1 + (1 - c) e^l) has slope at most 1.
        gap = np.minimum(gap, event.sensitivity)
    gap = gap * RELATIVE_SLACK
    least_gap = np.clip(least_rise + np.minimum(least_fall, fall), 0.0, gap)
    return flat_cells(low, gap, least_gap)


def flat_cells(y, gap, least_gap):
    """Describe cells by the log odds y at their edges, ``(rows, k)``, and their gaps.

    Returns
    -------
    middle, width
        Middle and width of the range of y over each cell. These and the gaps are
        flattened row by row, ``(rows (k - 1),)``.
    gap
        Upper bound on G over each cell.
    least_gap
        Estimate of G from below, which steers the search and certifies nothing.
    """
    middle = (y[:, :-1] + y[:, 1:]) / 2
    width = np.maximum(np.diff(y, axis=1), 0.0) + 1e-9
    return middle.ravel(), width.ravel(), gap.ravel(), least_gap.ravel()


def tails(
    event: AcceptBit, order: np.ndarray, low: float, high: float, share: float = 1.0
) -> np.ndarray:
    """Bound the divergences of all l < low and l > high, ``(m,)``.

    With a `share` below 1 they are those of both pairs of `batch_renyi`. Infinite where
    no bound is available.
    """
    c, sensitivity = event.acceptance.laziness, event.sensitivity
    if event.acceptance.family == "barker":
        # The mirror image of the left tail, with accept and reject exchanged.
        right = _left_tail(event, 1.0, order, -high - sensitivity, share)
    else:
        right = _right_tail(event, order, high)
        # H of `batch_renyi` is jointly convex.
        with np.errstate(over="ignore"):
            excess = share * np.expm1((order - 1) * right)
        right = np.minimum(right, np.log1p(excess) / (order - 1) * RELATIVE_SLACK)
    if c < 1:
        # The bound at c = 1 holds too, as the lazy bit is post-processing of that bit.
        log_a, _, up_a, _ = log_probabilities(event, high)
        rise = min(max(up_a - log_a, 0.0) + 1e-13, sensitivity)
        fall = lazy_fall(c, 0.0, rise, 0.0)
        gap = max(batch_gap(share, rise, fall), batch_gap(share, fall, rise))
        right = np.minimum(right, gap_bound(order, gap * RELATIVE_SLACK))
    return np.maximum(_left_tail(event, c, order, low, share), right)


def _left_tail(event, c: float, order, low: float, share: float):
    """Bound the divergences of all l < low at laziness c."""
    log_a, _, up_a, _ = log_probabilities(event, low)
    fall = lazy_fall(c, log_a, event.sensitivity, up_a)
    bound = np.zeros_like(order)
    pairs = (log_a, event.sensitivity, fall), (up_a, fall, event.sensitivity)
    for log_accept, *changes in pairs:
        # As log a(l) <= l, its rounding moves y by far less than 1e-9.
        y = math.log(c) + log_accept - math.log1p(-c * math.exp(log_accept)) + 1e-9
        gap = batch_gap(share, *changes) * RELATIVE_SLACK
        bound = np.maximum(bound, left_tail(y, gap, order))
    return bound


def left_tail(y, gap, order: np.ndarray) -> np.ndarray:
    """Bound the divergences of all pairs with log odds below `y`, gaps up to `gap`.

    The bound uses that A increases and that A''(t) <= e^t.
    """
    forward = np.minimum(
        np.logaddexp(0.0, y + order * gap) / (order - 1) + math.exp(y),
        order / 2 * gap**2 * np.exp(np.minimum(y + order * gap, 500.0)),
    )
    back = order / 2 * gap**2 * math.exp(y + gap)
    return np.minimum(np.maximum(forward, back), gap)


def _right_tail(event, order, high):
    """Bound the divergences of penalty bits of all l > high at c = 1."""
    acceptance, sensitivity = event.acceptance, event.sensitivity
    # h = log(1 - a) is concave, and h'' >= -1/s^2 because 1 - a is a convolution with
    # a Gaussian of variance s^2. In the forward direction the outcome "accept" adds
    # p^alpha q^(1 - alpha) <= 1. The outcome "reject" adds e^exponent, and the exponent
    # falls with l once -h' >= (alpha - 1) D / s^2. In the backward direction the
    # divergence is at most u + (1 - a) / (alpha - 1). Both are largest at `high`.
    s = acceptance.noise_sd
    step = 0.01 * s
    h = acceptance.log_reject(np.array([high - step, high, high + sensitivity]))
    slope = (h[0] - h[1]) / step
    exponent = h[1] + (order - 1) * (h[1] - h[2] + 1e-12 * abs(h[2])) + 1e-9
    forward = np.logaddexp(0.0, exponent) / (order - 1)
    is_falling = slope >= (order - 1) * sensitivity / s**2 * (1 + 1e-6)
    # u <= -log a(high).
    rise = -math.log1p(-math.exp(h[1]))
    back = rise + math.exp(h[1]) / (order - 1)
    bound = np.maximum(forward, back) * RELATIVE_SLACK
    return np.where(is_falling & np.isfinite(bound), bound, np.inf)


def lazy_fall(c, log_a, rise, up_a):
    """Bound v where a(l) <= e^log_a, u <= rise and a(l + D) <= e^up_a."""
    return np.log1p(c * np.exp(log_a) * np.expm1(rise) / -np.expm1(up_a + math.log(c)))


def logit(log_a, log_b, c):
    """Return logit(c a), given log a and log(1 - a)."""
    if c == 1:
        return log_a - log_b
    return math.log(c) + log_a - np.log1p(-c * np.exp(log_a))
