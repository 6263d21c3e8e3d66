"""Privacy of an accept bit whose log ratio is estimated from Poisson counts.

Substituting a record changes one term s w of the log ratio r + s w: s ~ Poisson(a),
w = log(b/a), a = (S - v) / 2, b = (S + v) / 2, |v| <= H, S = H (R + 1) / (R - 1). So
the bit is Bernoulli(c f(r; v)), f(r; v) = E sigma(r + s w), sigma(x) = 1 / (1 + e^-x),
and the worst case has a fixed remainder r, as divergences are quasi-convex. Let
k = H / (R - 1).

*Shift.* For w >= 0 let T(r; a, w) = logit E sigma(r + s w) - r. With X = e^(s w),
e^T = E[X / (1 + e^r X)] / E[1 / (1 + e^r X)], a mean of X that leans more to small X
the larger r. So T falls with r, from a (e^w - 1) to a (1 - e^-w), and grows with a and
w. By symmetry logit f(r; v) = r - T(-r; a, -w) for v < 0.

*Extremes.* f grows with v up to b/a = 1 + sqrt(2): for v <= 0 as a and |w| fall, and
beyond as df/dv is a mean of 2 a^2 - e^(r + s w) (b^2 - 2 a b - a^2) with positive
weights. For v >= 0, f(r; v) >= sigma(r) >= f(r; -v). So the lowest f is that of v = -H;
the highest is that of v = H if R <= 1 + sqrt(2), and otherwise of some w in
[log(1 + sqrt(2)), log R]. All other pairs lie between, also with weights nearer to zero
than w, as T grows with w, and log odds differ by at most

    G(r) = T(-r; k R, log R) + sup_w T(r; S sigma(-w), w) <= H R + H.

*Cells.* The first term of G grows with r and the second falls, which bounds G over a
cell of r; the pair of the lower log odds and that gap holds every genuine one.

*Pure.* For v >= 0, (1 - f(r; -H)) / sigma(-r) and sigma(-r) / (1 - f(r; v)) grow with
r to e^(H R) and e^(v a/b), as each term of the means shows; f(r; v) / sigma(r) and
sigma(r) / f(r; -H) fall from e^v and e^H. So probabilities differ by a factor of at
most e^(H R + max v a/b).

*Monotone.* At fixed k, growing R widens every pair: for v = H - t the rate k + t/2
stays and b/a grows. At fixed R, growing H does: the rates grow and w stays.

Sources: Zhang, Cooper and De Sa 2020 (TunaMH, the estimate); the accounting is this
project's.
"""

import math
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
from scipy import special

from dpjax.privacy.bits import renyi
from dpjax.privacy.bits.renyi_cells import lazy_fall, left_tail, logit
from dpjax.privacy.events import AcceptBit, PoissonAcceptBit

__all__ = ["largest_fall", "pure_epsilon", "rdp"]

TURN = 1 + math.sqrt(2)
TOLERANCE = 2e-3
SPLIT = 8
LEVELS = 4
MAX_RATE = 300
"""The largest k for which counts are summed."""
RELATIVE_SLACK = 1 + 1e-9


def pure_epsilon(event: PoissonAcceptBit) -> float:
    """The epsilon of pure differential privacy of one bit, nats.

    Exact without laziness, an upper bound with it; infinite unless the acceptance
    function is Barker's.
    """
    if event.acceptance.family != "barker":
        return math.inf
    return event.bound * event.max_odds + largest_fall(event)


def largest_fall(event: PoissonAcceptBit) -> float:
    """The maximum of v a/b over the v that the event allows, nats."""
    bound, odds = event.bound, event.max_odds
    if odds <= TURN:
        return bound / odds
    return bound * (odds + 1) / (odds - 1) * (3 - 2 * math.sqrt(2))


def rdp(event: PoissonAcceptBit, orders) -> np.ndarray:
    """Certified upper bound on the Renyi divergence of one Poisson minibatch's bit.

    Parameters
    ----------
    event
        The bit.
    orders
        Renyi orders in (1, 1e6], ``(m,)``.

    Returns
    -------
    Nats, ``(m,)`` float64: at least the supremum over the remainder and over what the
    two records say, and about 0.1 % above it, or 0.5 % if R > 1 + sqrt(2). That of a
    Barker bit of sensitivity H + H R where the estimate has many draws or says much.
    Infinite unless the acceptance function is Barker's.

    Raises
    ------
    ValueError
        If an order is out of range.
    """
    return np.array(_cached_rdp(event, renyi.check_orders(orders)))


@lru_cache(maxsize=256)
def _cached_rdp(event: PoissonAcceptBit, orders: tuple) -> tuple[float, ...]:
    acceptance = event.acceptance
    if acceptance.family != "barker":
        return (math.inf,) * len(orders)
    if event.bound > MAX_RATE * (event.max_odds - 1) or event.sensitivity > 10:
        bound = renyi.rdp(AcceptBit(acceptance, event.sensitivity), orders)
    else:
        bound = _certified(event, np.array(orders))
    # The last factor covers the rounding of the closed forms.
    return tuple((np.minimum(bound, pure_epsilon(event)) * (1 + 1e-12)).tolist())


def _certified(event: PoissonAcceptBit, order: np.ndarray) -> np.ndarray:
    if event.acceptance.laziness > 1 - renyi.NEARLY_SURE:
        # As in `accept_bit`: the lazy bit is post-processing.
        event = replace(event, acceptance=replace(event.acceptance, laziness=1.0))
    reach = 15 + math.log(order.max()) + event.sensitivity
    return renyi.supremum(
        order,
        np.linspace(-reach, reach, 193),
        _tails(event, order, reach),
        partial(_describe, event),
        tolerance=5e-4 if event.max_odds <= TURN else TOLERANCE,
    )


def _describe(event: PoissonAcceptBit, edges: np.ndarray):
    """As `renyi_cells.describe`; edges are of r."""
    fall, rise = _shifts(event, edges)
    odds = edges - fall
    gap = (rise[:, :-1] + fall[:, 1:]) * RELATIVE_SLACK
    least_gap = rise[:, 1:] + fall[:, :-1]
    c = event.acceptance.laziness
    if c < 1:
        gap = _lazy_gap(c, odds[:, :-1], odds[:, 1:], gap)
        least_gap = _lazy_gap(c, odds[:, 1:], odds[:, :-1], least_gap)
        log_f = -np.logaddexp(0.0, -odds)
        odds = logit(log_f, log_f - odds, c)
    middle = (odds[:, :-1] + odds[:, 1:]) / 2
    width = np.maximum(np.diff(odds, axis=1), 0.0) + 1e-9
    return middle.ravel(), width.ravel(), gap.ravel(), least_gap.ravel()


def _lazy_gap(c: float, low, high, gap):
    """Bound on the gap of the lazy bits, from the log odds in [low, high] and theirs.

    The gap of log(c f) falls with the log odds and that of log(1 - c f) grows with c.
    """
    rise = np.log1p(np.expm1(gap) / (1 + np.exp(low + gap)))
    sure_fall = np.log1p(np.expm1(gap) * special.expit(high))
    log_f, log_up = -np.logaddexp(0.0, -high), -np.logaddexp(0.0, -high - gap)
    fall = np.minimum(sure_fall, lazy_fall(c, log_f, rise, log_up))
    return np.minimum(rise + fall, gap) * RELATIVE_SLACK


def _tails(event: PoissonAcceptBit, order: np.ndarray, reach: float) -> np.ndarray:
    """Bound the divergences of all |r| > reach, ``(m,)``."""
    fall, rise = _shifts(event, np.array([[-reach, reach]]))
    left_gap = (event.bound + fall[0, 0]) * RELATIVE_SLACK
    right_gap = (rise[0, 1] + event.bound * event.max_odds) * RELATIVE_SLACK
    left = left_tail(-reach, left_gap, order)
    # The bits say reject; its higher log odds are at most -r.
    right = left_tail(-reach, right_gap, order)
    c = event.acceptance.laziness
    if c < 1:
        # The lazy bit is post-processing of the bit, so the bounds at c = 1 hold too.
        gap = _lazy_gap(c, reach - event.bound * event.max_odds, math.inf, right_gap)
        right = np.minimum(right, np.minimum(gap, order * gap**2 / 8))
    return np.maximum(left, right) * RELATIVE_SLACK


def _shifts(event: PoissonAcceptBit, r: np.ndarray):
    """T(-r; k R, log R), and a bound on sup_w T(r; S sigma(-w), w)."""
    odds, kappa = event.max_odds, event.bound / (event.max_odds - 1)
    largest = math.log(odds)
    fall = _shift(-r, kappa * odds, largest)
    if odds <= TURN:
        return fall, _shift(r, kappa, largest)
    return fall, _highest(r, kappa * (odds + 1), math.log(TURN), largest)


def _highest(r: np.ndarray, total: float, low: float, high: float) -> np.ndarray:
    """Bound sup T(r; S sigma(-w), w) over w in [low, high], for each r.

    The rate falls with w, so a cell of w has its rate on the left and its step on the
    right. Cells that could hold the supremum are split.
    """
    points = r.ravel()
    bound, attained = np.zeros_like(points), np.zeros_like(points)
    row, cell = np.indices((points.size, SPLIT)).reshape(2, -1)
    width = (high - low) / SPLIT
    left = low + width * cell
    for level in range(LEVELS):
        rate = total * special.expit(-left)
        np.maximum.at(attained, row, _shift(points[row], rate, left))
        upper = _shift(points[row], rate, left + width)
        keep = (upper > (1 + TOLERANCE) * attained[row]) & (level < LEVELS - 1)
        np.maximum.at(bound, row[~keep], upper[~keep])
        row = np.repeat(row[keep], SPLIT)
        width /= SPLIT
        left = (left[keep, None] + width * np.arange(SPLIT)).ravel()
    return bound.reshape(r.shape)


def _shift(r: np.ndarray, rate, step) -> np.ndarray:
    """T(r; a, w): all terms are positive, so none of its digits are lost."""
    accept, reject = np.zeros_like(r), np.zeros_like(r)
    grow, shrink = np.exp(r), np.exp(-r)
    chance, still, once = np.exp(-rate), 1.0, np.exp(-step)
    for count in range(1, _num_terms(rate, step) + 1):
        chance = chance * (rate / count)
        still = still * once
        gain = chance * -np.expm1(-count * step)
        accept += gain / (still + grow)
        reject += gain / (1 + still * shrink)
    return np.log1p(accept) - np.log1p(-reject)


def _num_terms(rate, step) -> int:
    """Counts of which the rest adds less than 1e-12 to both sums of `_shift`.

    The weights of P(s) in them lean most to large s as r falls, to e^(s w) - 1; and
    e^(s w) P(s) is Poisson(a e^w) up to a constant.
    """
    if np.size(rate) == 0:
        return 0
    weighted = np.max(rate * np.exp(step))
    least = 1e-12 * -np.expm1(-np.min(rate * np.expm1(step)))
    count = 4
    while special.pdtrc(count, weighted) > least:
        count += 1 + count // 8
    return count
