"""Cells and tails over the log ratio l that certify `renyi.rdp`.

Notation of `accept_bit`. The gap of the log odds is G(l) = u(l) + v(l) with
u = log a(l + D) - log a(l), v = log(1 - c a(l)) - log(1 - c a(l + D)). Barker's and the
penalty's a and 1 - a are log-concave (each is the distribution function of a sum of
log-concave variables), so u falls with l, v at c = 1 grows with l, and v grows with c.
Balance makes a(l) e^-l = a(-l) fall with l, so u <= D.
"""

import math

import numpy as np

from dpjax.privacy.events import AcceptBit

__all__ = ["describe", "grid", "lazy_fall", "left_tail", "logit", "tails"]

RELATIVE_SLACK = 1 + 1e-9


def grid(event: AcceptBit, max_order: float) -> np.ndarray:
    """Edges of the first cells, increasing, nats, ``(m,)``."""
    sensitivity = event.sensitivity
    reach = 15 + math.log(max_order)
    low, high = -reach - sensitivity, reach
    if event.acceptance.family == "barker":
        return np.linspace(low, high, 193)
    s = event.acceptance.noise_sd
    # Leave nothing to the tail bounds where the gap is still below D.
    low -= min(max_order * sensitivity, 12 * s + s**2 / 2)
    far = 9.0
    if event.acceptance.laziness == 1:
        far += 2 * (max_order - 1) * sensitivity / s
    high = s**2 / 2 + far * s
    core = np.linspace(-8 * s, s**2 / 2 + 8 * s, 97)
    core = core[(core > low) & (core < high)]
    return np.unique(np.concatenate([np.linspace(low, high, 129), core]))


def describe(event: AcceptBit, edges: np.ndarray):
    """Describe the cells between neighbouring edges of each row of `edges`.

    Returns
    -------
    middle, width
        Of the range of the logit y over each cell; all four are flat, row by row.
    gap
        Upper bound on G over each cell.
    least_gap
        Estimate of G from below, which steers the search and certifies nothing.
    """
    acceptance, c = event.acceptance, event.acceptance.laziness
    sensitivity = event.sensitivity
    log_a, log_b = acceptance.log_accept(edges), acceptance.log_reject(edges)
    up_a = acceptance.log_accept(edges + sensitivity)
    up_b = acceptance.log_reject(edges + sensitivity)
    y = logit(log_a, log_b, c)
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
    least_fall = v[:, :-1]
    if c < 1:
        fall = np.minimum(fall, lazy_fall(c, log_a[:, 1:], rise, up_a[:, 1:]))
        least_fall = lazy_fall(
            c, log_a[:, :-1], np.maximum(u[:, 1:], 0.0), up_a[:, :-1]
        )
    gap = rise + fall
    if acceptance.family == "barker":
        # logit(c s(l)) = log c + l - log(1 + (1 - c) e^l) has slope at most 1.
        gap = np.minimum(gap, sensitivity)
    gap = gap * RELATIVE_SLACK
    least_gap = np.clip(u[:, 1:] + np.minimum(least_fall, fall), 0.0, gap)
    middle = (y[:, :-1] + y[:, 1:]) / 2
    width = np.maximum(np.diff(y, axis=1), 0.0) + 1e-9
    return middle.ravel(), width.ravel(), gap.ravel(), least_gap.ravel()


def tails(event: AcceptBit, order: np.ndarray, low: float, high: float) -> np.ndarray:
    """Bound the divergences of all l < low and l > high, ``(m,)``.

    Infinite where no bound is available.
    """
    c = event.acceptance.laziness
    right = _right_tail(event, order, high)
    if c < 1:
        # The lazy bit is post-processing of the bit, so the bound at c = 1 holds too.
        log_a, up_a = event.acceptance.log_accept(
            np.array([high, high + event.sensitivity])
        )
        rise = np.minimum(max(up_a - log_a, 0.0) + 1e-13, event.sensitivity)
        gap = (rise + lazy_fall(c, 0.0, rise, 0.0)) * RELATIVE_SLACK
        right = np.minimum(right, np.minimum(gap, order * gap**2 / 8))
    return np.maximum(_left_tail(event, order, low), right)


def _left_tail(event, order, low):
    """l < low."""
    c, sensitivity = event.acceptance.laziness, event.sensitivity
    log_a, up_a = event.acceptance.log_accept(np.array([low, low + sensitivity]))
    # log a(l) <= l; the rounding of log_a moves y by far less than 1e-9.
    fall = lazy_fall(c, log_a, sensitivity, up_a)
    gap = (sensitivity + fall) * RELATIVE_SLACK
    y = math.log(c) + log_a - math.log1p(-c * math.exp(log_a)) + 1e-9
    return left_tail(y, gap, order)


def left_tail(y: float, gap: float, order: np.ndarray) -> np.ndarray:
    """Bound the divergences of all pairs with logits below `y` and gaps up to `gap`.

    A increases and A''(t) <= e^t.
    """
    forward = np.minimum(
        np.logaddexp(0.0, y + order * gap) / (order - 1) + math.exp(y),
        order / 2 * gap**2 * np.exp(np.minimum(y + order * gap, 500.0)),
    )
    back = order / 2 * gap**2 * math.exp(y + gap)
    return np.minimum(np.maximum(forward, back), gap)


def _right_tail(event, order, high):
    """l > high at c = 1."""
    acceptance, sensitivity = event.acceptance, event.sensitivity
    if acceptance.family == "barker":
        # Mirror image of the left tail: G = D, and the bits say reject.
        return left_tail(-high - sensitivity, sensitivity, order) * RELATIVE_SLACK
    # h = log(1 - a) is concave with h'' >= -1/s^2 (a Gaussian of variance s^2 is
    # convolved in). Forward, p^alpha q^(1 - alpha) <= 1, and the exponent below falls
    # with l once -h' >= (alpha - 1) D / s^2. Backward, the divergence is at most
    # u + (1 - a) / (alpha - 1). Both are largest at `high`.
    s = acceptance.noise_sd
    step = 0.01 * s
    h = acceptance.log_reject(np.array([high - step, high, high + sensitivity]))
    slope = (h[0] - h[1]) / step
    exponent = h[1] + (order - 1) * (h[1] - h[2] + 1e-12 * abs(h[2])) + 1e-9
    forward = np.logaddexp(0.0, exponent) / (order - 1)
    covered = slope >= (order - 1) * sensitivity / s**2 * (1 + 1e-6)
    # u <= log(1 / a(high)).
    rise = -math.log1p(-math.exp(h[1]))
    back = rise + math.exp(h[1]) / (order - 1)
    bound = np.maximum(forward, back) * RELATIVE_SLACK
    return np.where(covered & np.isfinite(bound), bound, np.inf)


def lazy_fall(c, log_a, rise, up_a):
    """Bound on v: c a(l) <= c e^log_a, u <= rise and a(l + D) <= e^up_a."""
    return np.log1p(c * np.exp(log_a) * np.expm1(rise) / -np.expm1(up_a + math.log(c)))


def logit(log_a, log_b, c):
    """logit(c a) from log a and log(1 - a)."""
    if c == 1:
        return log_a - log_b
    return math.log(c) + log_a - np.log1p(-c * np.exp(log_a))
