"""Finitely many pairs of bits that dominate every pair an accept bit can give.

Neighbouring data give Bernoulli(p) and Bernoulli(q), p = c a(l) and q = c a(l + D), in
either order, for some l. For W convex and falling, W(z) = W(inf) + int (k - z)_+
kappa(dk) with kappa >= 0, the order (p, q) has

    E_P W(w Q/P) = W(inf) + int max((k - w)_+, k (1 - p) - w (1 - q)) kappa(dk),

and the order (q, p) has k q - w p in place of the last term. So one pair dominates
another, for all such W and w, if its line is the higher where the other's exceeds
(k - w)_+, which is where k/w lies between the pair's two likelihood ratios. It does so
too if it is the wider, as W is convex; hence l may move by less than D.

*Cells.* On a cell of width omega both lines are at most a mixture of those at its ends
plus omega^2 / 8 times a bound on their second derivative in l. With g a bound on the
log-likelihood ratios, u one on log(q/p), that derivative is at most

    w |(k/w) p'' - q''| <= w m,    m = (e^g - 1) sup |c a''| + D sup |c a'''|,

and m e^u on top of q adds at least m w to both lines. It is also at most
k |p''| + w |q''|, which |p''| off p and |q''| on top of q add. So the pairs at the
ends, moved by omega^2 / 8 times either, dominate the cell. The first is of second order
in D, like the information itself; the second is better where e^g is large.

*Tails.* a(l) e^-l = a(-l) falls with l, hence q <= e^D p, and l < L is dominated by
(p, e^D p), p at L. As a grows, l > L is dominated by (p, c), p at L.

Source: this project.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from dpjax.acceptance import Acceptance
from dpjax.privacy.bits.renyi import divergence
from dpjax.privacy.events import AcceptBit

__all__ = ["Pairs", "dominating_pairs"]

TOLERANCE = 2e-3
TILTS = np.array([0.05, 0.25, 1.0])
STEEPEST = 10.0
REACH = 15.0
DEVIATIONS = 11.5
FIRST_CELLS = 16
MAX_CELLS = 4000


class Pairs(NamedTuple):
    """Bernoulli(low) and Bernoulli(low + gap), in both orders; each ``(m,)``.

    `one_minus_low` keeps its digits where `low` is close to 1, and is at least `gap`.
    """

    low: np.ndarray
    one_minus_low: np.ndarray
    gap: np.ndarray

    def log_ratios(self):
        """Logs of (low + gap) / low and of (1 - low) / (1 - low - gap), nats."""
        with np.errstate(divide="ignore"):
            rise = np.log1p(self.gap / self.low)
            fall = -np.log1p(-self.gap / self.one_minus_low)
        return rise, fall

    def deviation(self) -> float:
        """Largest root mean square of a pair's log-likelihood ratio, nats."""
        rise, fall = self.log_ratios()
        fall = np.where(np.isfinite(fall), fall, 0.0)
        return math.sqrt(np.max(self.low * rise**2 + self.one_minus_low * fall**2))


def dominating_pairs(event: AcceptBit, num_bits: int) -> Pairs:
    """Pairs of bits that dominate those of `event`, tight to about 0.2 %.

    Parameters
    ----------
    event
        The bit.
    num_bits
        How many bits will be composed. Cells are halved until the total variation of
        their pairs, and their Renyi divergences at orders that matter in so many, are
        close to the largest attained. This steers; any cells are sound.

    Raises
    ------
    ValueError
        For the Metropolis family, for which no privacy is claimed, and for bits that
        give away too much to be worth composing.
    """
    acceptance, sensitivity = event.acceptance, event.sensitivity
    if acceptance.family == "metropolis":
        raise ValueError(
            "the Metropolis bit has no profile worth composing because a rejection can "
            "be impossible on one data set; use Barker's or the penalty acceptance"
        )
    s = acceptance.noise_sd
    far = REACH if acceptance.family == "barker" else s**2 / 2 + DEVIATIONS * s
    edges = np.linspace(-REACH - sensitivity, far, FIRST_CELLS + 1)
    while edges.size <= MAX_CELLS:
        ends, (lower, upper) = _ends(event, edges), _moves(event, edges)
        steepest = STEEPEST / (ends.deviation() * math.sqrt(num_bits))
        orders = 1 + steepest * TILTS[:, None]
        attained = _divergences(ends, orders).max(axis=1, keepdims=True)
        wide = np.zeros(lower.size, bool)
        for side in (slice(None, -1), slice(1, None)):
            pairs = _move(Pairs(*(part[side] for part in ends)), lower, upper)
            # A wide cell can ask for probabilities outside (0, 1).
            wide |= (pairs.low <= 0) | (pairs.gap >= pairs.one_minus_low)
            cost = _divergences(pairs, orders)
            wide |= ~(cost <= (1 + TOLERANCE) * attained).all(axis=0)
        if not wide.any():
            nodes = _move(ends, _larger_side(lower), _larger_side(upper))
            parts = zip(nodes, _tails(event, edges, ends), strict=True)
            return Pairs(*(np.append(*part) for part in parts))
        middle = (edges[:-1] + edges[1:])[wide] / 2
        edges = np.sort(np.append(edges, middle))
    raise ValueError(
        f"one {event} gives away too much for exact composition; use another method"
    )


def _ends(event: AcceptBit, edges: np.ndarray) -> Pairs:
    """The pairs at `edges`, the gap rounded up."""
    acceptance, c = event.acceptance, event.acceptance.laziness
    log_a, log_b = acceptance.log_accept(edges), acceptance.log_reject(edges)
    up_a = acceptance.log_accept(edges + event.sensitivity)
    up_b = acceptance.log_reject(edges + event.sensitivity)
    a, b = np.exp(log_a), np.exp(log_b)
    # The side whose probability is small keeps the digits of the difference.
    gap = np.where(
        log_a < log_b, a * np.expm1(up_a - log_a), -b * np.expm1(up_b - log_b)
    )
    error = 1e-14 * np.minimum(a * (1 - log_a), b * (1 - log_b))
    gap = np.minimum(gap * (1 + 1e-9) + error, b)
    return Pairs(c * a, (1 - c) + c * b, c * gap)


def _move(pairs: Pairs, lower: np.ndarray, upper: np.ndarray) -> Pairs:
    """Take `lower` off p and add `upper` to q."""
    low, one_minus_low, gap = pairs
    return Pairs(low - lower, one_minus_low + lower, gap + (lower + upper))


def _larger_side(cells: np.ndarray) -> np.ndarray:
    """At each edge, the larger value of the cells that meet there."""
    return np.maximum(np.append(cells, 0.0), np.append(0.0, cells))


def _moves(event: AcceptBit, edges: np.ndarray):
    """How far the pairs at a cell's ends move, p down and q up; each ``(m - 1,)``."""
    acceptance, c = event.acceptance, event.acceptance.laziness
    sensitivity = event.sensitivity
    left, right = edges[:-1], edges[1:]
    # a and 1 - a are log-concave: log a(l + D) - log a(l) falls with l; on the reject
    # side the difference at c = 1 grows with l, and it grows with c.
    rise = acceptance.log_accept(left + sensitivity) - acceptance.log_accept(left)
    rise = rise * (1 + 1e-9) + 1e-12
    log_b = acceptance.log_reject(right)
    up_b = acceptance.log_reject(right + sensitivity)
    most = c * np.exp(acceptance.log_accept(right)) * np.expm1(rise)
    with np.errstate(divide="ignore", over="ignore"):
        fall = np.log1p(most / ((1 - c) + c * np.exp(up_b)))
    fall = np.minimum(fall, log_b - up_b)
    fall = fall * (1 + 1e-9) + 1e-12
    second, third = _derivatives(acceptance, left, right + sensitivity)
    with np.errstate(over="ignore"):
        together = np.expm1(np.maximum(rise, fall)) * second + sensitivity * third
        together *= np.exp(rise)
    lower, _ = _derivatives(acceptance, left, right)
    upper, _ = _derivatives(acceptance, left + sensitivity, right + sensitivity)
    near = together < lower + upper
    scale = c * (right - left) ** 2 / 8 * (1 + 1e-9)
    return scale * np.where(near, 0.0, lower), scale * np.where(near, together, upper)


def _derivatives(acceptance: Acceptance, left: np.ndarray, right: np.ndarray):
    """Bounds on |a''| and |a'''| over [left, right], from those at the middle.

    Barker's a' = a (1 - a) = t gives a'' = t (1 - 2 a), a''' = t (1 - 6 t) and
    a'''' = a'' (1 - 12 t), |1 - 12 t| <= 2. The penalty's, with x = l/s - s/2 and phi
    the normal density, are a' = e^l Phi(-x - s), a'' = a' - phi/s,
    a''' = a'' + x phi/s^2 and a'''' = a''' + (1 - x^2) phi/s^3.
    """
    middle, half = (left + right) / 2, (right - left) / 2
    if acceptance.family == "barker":
        t = special.expit(middle) * special.expit(-middle)
        second, third = t * np.tanh(-middle / 2), t * (1 - 6 * t)
        near = np.clip(0.0, left, right)
        steepest = special.expit(near) * special.expit(-near)
        far = np.maximum(np.abs(left), np.abs(right))
        bound = np.abs(third) + half * 2 * steepest * np.tanh(far / 2)
        return np.abs(second) + half * bound, bound
    s = acceptance.noise_sd
    x, low, high = (l / s - s / 2 for l in (middle, left, right))  # noqa: E741
    near, far = np.clip(0.0, low, high), np.maximum(np.abs(low), np.abs(high))
    density, peak = (np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) for z in (x, near))
    second = np.exp(middle + special.log_ndtr(-x - s)) - density / s
    third = second + x * density / s**2
    drive = peak * np.maximum(np.abs(1 - near**2), np.abs(1 - far**2)) / s**3
    # Gronwall, as y' = y + (1 - x^2) phi/s^3 for y = a'''.
    with np.errstate(over="ignore"):
        bound = np.exp(half) * (np.abs(third) + half * drive)
    return np.abs(second) + half * bound, bound


def _tails(event: AcceptBit, edges: np.ndarray, ends: Pairs) -> Pairs:
    """The pairs that dominate l below the first and above the last edge."""
    c, sensitivity = event.acceptance.laziness, event.sensitivity
    low, one_minus_low = ends.low[[0, -1]], ends.one_minus_low[[0, -1]]
    right = c * np.exp(event.acceptance.log_reject(edges[-1]))
    if event.acceptance.family == "barker":
        # 1 - p <= e^D (1 - q), as for the accept side.
        right = min(right, one_minus_low[1] * -math.expm1(-sensitivity))
    return Pairs(
        low, one_minus_low, np.array([low[0] * math.expm1(sensitivity), right])
    )


def _divergences(pairs: Pairs, orders: np.ndarray) -> np.ndarray:
    """Renyi divergences and total variation, ``(orders + 1, m)``; NaN if not bits."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        rise, fall = pairs.log_ratios()
        logit = np.log(pairs.low) - np.log(pairs.one_minus_low)
        renyi = divergence(*np.broadcast_arrays(logit, rise + fall, orders))
    return np.vstack([renyi, pairs.gap])
