"""Finitely many pairs of bits that dominate every pair an accept bit can give.

*What is bounded.* Neighbouring data give Bernoulli(p) and Bernoulli(q) in either order,
with p = c a(l) and q = c a(l + D) for some l. One pair dominates another if, for every
W that is convex and falling, and every w, it makes E_P W(w Q/P) no smaller.

*When one pair dominates another.* Such a W has W(z) = W(inf) + int (k - z)_+ kappa(dk)
with kappa >= 0, so for the order (p, q)

    E_P W(w Q/P) = W(inf) + int max((k - w)_+, k (1 - p) - w (1 - q)) kappa(dk),

and the order (q, p) has k q - w p in place of the last term. Call this last term the
pair's line. A pair dominates another one if its line is the higher wherever the line of
the other exceeds (k - w)_+. That is where k/w lies between the two likelihood ratios of
the other. A pair also dominates one that is narrower, because W is convex. So l may
also move by less than D.

*Cells.* On a cell of l of width omega, both lines are at most a mixture of those at the
two ends, plus omega^2 / 8 times a bound on their second derivative in l. Let g bound
the log-likelihood ratios and u bound log(q/p). There are two bounds on the derivative:

- w |(k/w) p'' - q''| <= w m with m = (e^g - 1) sup |c a''| + D sup |c a'''|. Adding
  m e^u to q adds at least m w to both lines.
- k |p''| + w |q''|. Taking |p''| off p and adding |q''| to q adds that to both lines.

So the pairs at the two ends, moved by omega^2 / 8 times either, dominate the cell. The
first bound is of second order in D, as the information is; the second is better where
e^g is large.

*Tails.* a(l) e^-l = a(-l) falls with l, hence q <= e^D p. So l < L is dominated by
(p, e^D p) with p at L. As a grows, l > L is dominated by (p, c) with p at L.

Source: this project.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from dpjax.acceptance import Acceptance
from dpjax.privacy.bits.renyi import divergence
from dpjax.privacy.bits.renyi_cells import log_probabilities
from dpjax.privacy.events import AcceptBit

__all__ = ["Pairs", "dominating_pairs"]

TOLERANCE = 2e-3
"""Relative excess of a cell's divergences over those attained, above which the cell is
halved."""

MAX_TILT = 10.0
"""The largest Renyi order that is compared is 1 + MAX_TILT / s, where s is the root
mean square of the sum of all losses, but at least half the sensitivity. One loss of a
lazy bit can be as large as that however small the root mean square is."""

TILTS = np.array([0.05, 0.25, 1.0])
"""Renyi orders that are compared, less 1, over the largest, less 1."""

TAIL_LOG_RATIO = 15.0
"""The left tail begins at l = -15 - D or further in, and with Barker's family the right
tail at l = 15 or further in."""

TAIL_DEVIATIONS = 11.5
"""With the penalty's family the right tail begins at s^2 / 2 + 11.5 s,
or further in."""

FIRST_CELLS = 16
MAX_CELLS = 4000


class Pairs(NamedTuple):
    """Bernoulli(low) and Bernoulli(low + gap), in both orders; all fields ``(m,)``.

    `one_minus_low` keeps its digits where `low` is close to 1, and is at least `gap`.
    """

    low: np.ndarray
    one_minus_low: np.ndarray
    gap: np.ndarray

    def log_ratios(self):
        """Logarithms of (low + gap) / low and (1 - low) / (1 - low - gap), nats."""
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
        their pairs is close to the largest attained, and so are their Renyi divergences
        at the orders that decide the composition of so many bits. Any choice of cells
        is sound; a good one is tight.

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
    s, far = acceptance.noise_sd, TAIL_LOG_RATIO
    if acceptance.family == "penalty":
        far = s**2 / 2 + TAIL_DEVIATIONS * s
    edges = np.linspace(-TAIL_LOG_RATIO - sensitivity, far, FIRST_CELLS + 1)
    while edges.size <= MAX_CELLS:
        ends, (lower, upper) = _ends(event, edges), _moves(event, edges)
        scale = max(ends.deviation() * math.sqrt(num_bits), sensitivity / 2)
        largest = MAX_TILT / scale
        orders = 1 + largest * TILTS[:, None]
        attained = _divergences(ends, orders).max(axis=1, keepdims=True)
        wide = np.zeros(lower.size, bool)
        for side in (slice(None, -1), slice(1, None)):
            pairs = _move(_part(ends, side), lower, upper)
            # A wide cell can ask for probabilities outside (0, 1).
            wide |= (pairs.low <= 0) | (pairs.gap >= pairs.one_minus_low)
            cost = _divergences(pairs, orders)
            wide |= ~(cost <= (1 + TOLERANCE) * attained).all(axis=0)
        if not wide.any():
            nodes = _move(ends, _larger_side(lower), _larger_side(upper))
            # Tails that begin further in spare cells, if they cost no more than these.
            limit = (1 + TOLERANCE) * attained
            left, right = _tails(event, edges, ends)
            first, last = (
                np.flatnonzero((_divergences(tail, orders) <= limit).all(axis=0))
                for tail in (left, right)
            )
            first, last = first.max(initial=0), last.min(initial=edges.size - 1)
            kept = zip(
                _part(left, [first]),
                _part(nodes, slice(first, last + 1)),
                _part(right, [last]),
                strict=True,
            )
            return Pairs(*(np.concatenate(parts) for parts in kept))
        middle = (edges[:-1] + edges[1:])[wide] / 2
        edges = np.sort(np.append(edges, middle))
    raise ValueError(
        f"one {event} gives away too much for exact composition; use another method"
    )


def _ends(event: AcceptBit, edges: np.ndarray) -> Pairs:
    """The pairs at `edges`, with the gap rounded up."""
    c = event.acceptance.laziness
    log_a, log_b, up_a, up_b = log_probabilities(event, edges)
    a, b = np.exp(log_a), np.exp(log_b)
    # The outcome with the smaller probability keeps the digits of the difference.
    gap = np.where(
        log_a < log_b, a * np.expm1(up_a - log_a), -b * np.expm1(up_b - log_b)
    )
    error = 1e-14 * np.minimum(a * (1 - log_a), b * (1 - log_b))
    gap = np.minimum(gap * (1 + 1e-9) + error, b)
    return Pairs(c * a, (1 - c) + c * b, c * gap)


def _part(pairs: Pairs, where) -> Pairs:
    return Pairs(*(field[where] for field in pairs))


def _move(pairs: Pairs, lower: np.ndarray, upper: np.ndarray) -> Pairs:
    """Take `lower` off p and add `upper` to q."""
    low, one_minus_low, gap = pairs
    return Pairs(low - lower, one_minus_low + lower, gap + (lower + upper))


def _larger_side(cells: np.ndarray) -> np.ndarray:
    """At each edge, the larger of the values of the two cells that meet there."""
    return np.maximum(np.append(cells, 0.0), np.append(0.0, cells))


def _moves(event: AcceptBit, edges: np.ndarray):
    """How far the pairs at a cell's ends move, p down and q up; each ``(m - 1,)``."""
    acceptance, c = event.acceptance, event.acceptance.laziness
    sensitivity = event.sensitivity
    left, right = edges[:-1], edges[1:]
    # `rise` and `fall` bound the log-likelihood ratios of "accept" and "reject" over a
    # cell. By log-concavity (see `renyi_cells`) that of "accept" falls with l. That of
    # "reject" grows with c, and at c = 1 it grows with l.
    rise = acceptance.log_accept(left + sensitivity) - acceptance.log_accept(left)
    rise = rise * (1 + 1e-9) + 1e-12
    log_a, log_b, _, up_b = log_probabilities(event, right)
    most = c * np.exp(log_a) * np.expm1(rise)
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
    """Bounds on |a''| and |a'''| over [left, right], from their values at the middle.

    With Barker's family a' = a (1 - a) = t. So a'' = t (1 - 2 a), a''' = t (1 - 6 t)
    and a'''' = a'' (1 - 12 t), with |1 - 12 t| <= 2.

    With the penalty's family, x = l/s - s/2 and phi the normal density, a' =
    e^l Phi(-x - s), a'' = a' - phi/s, a''' = a'' + x phi/s^2 and a'''' = a''' +
    (1 - x^2) phi/s^3.
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
    # By Gronwall's inequality, as y = a''' solves y' = y + (1 - x^2) phi/s^3.
    with np.errstate(over="ignore"):
        bound = np.exp(half) * (np.abs(third) + half * drive)
    return np.abs(second) + half * bound, bound


def _tails(event: AcceptBit, edges: np.ndarray, ends: Pairs) -> tuple[Pairs, Pairs]:
    """At each edge, the pair that dominates all l below it, and that for all above."""
    c, sensitivity = event.acceptance.laziness, event.sensitivity
    low, one_minus_low, _ = ends
    right = c * np.exp(event.acceptance.log_reject(edges))
    if event.acceptance.family == "barker":
        # 1 - p <= e^D (1 - q), as q <= e^D p for the outcome "accept".
        right = np.minimum(right, one_minus_low * -math.expm1(-sensitivity))
    left = Pairs(low, one_minus_low, low * math.expm1(sensitivity))
    return left, Pairs(low, one_minus_low, right)


def _divergences(pairs: Pairs, orders: np.ndarray) -> np.ndarray:
    """Renyi divergences and total variation of each pair, ``(orders + 1, m)``.

    NaN where a pair has probabilities outside (0, 1).
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        rise, fall = pairs.log_ratios()
        logit = np.log(pairs.low) - np.log(pairs.one_minus_low)
        renyi = divergence(*np.broadcast_arrays(logit, rise + fall, orders))
    return np.vstack([renyi, pairs.gap])
