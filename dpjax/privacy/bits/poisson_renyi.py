"""Privacy of an accept bit whose log ratio is estimated from Poisson counts.

*What is bounded.* A record whose log ratio is v adds s w to the estimate, where
s ~ Poisson(a), w = log(b/a), a = (S - v) / 2, b = (S + v) / 2, |v| <= H and
S = H (R + 1) / (R - 1). Substituting the record changes this one term. All other terms
add up to a remainder r, and the worst case has a fixed r, because divergences are
quasi-convex. So the bit is Bernoulli(c f(r; v)) with

    f(r; v) = E sigma(r + s w),    sigma(x) = 1 / (1 + e^-x),

and `rdp` bounds the Renyi divergence between two such bits with the same r and any two
v, over all r. Below, k = H / (R - 1), so that a = k R at v = -H and a = k at v = H.

*Shift.* For w >= 0 let T(r; a, w) = logit E sigma(r + s w) - r, which is how far the
term moves the log odds. With X = e^(s w),

    e^T = E[X / (1 + e^r X)] / E[1 / (1 + e^r X)],

a weighted mean of X whose weights move towards small X as r grows. So T falls with r,
from a (e^w - 1) to a (1 - e^-w); and T grows with a and with w. By symmetry
logit f(r; v) = r - T(-r; a, -w) for v < 0.

*Extremes.* The two v that are furthest apart in log odds are found as follows.

- f grows with v as long as b/a <= 1 + sqrt(2). For v <= 0 that is because a and |w|
  fall. For v > 0, df/dv is a mean of 2 a^2 - e^(r + s w) (b^2 - 2 a b - a^2) with
  positive weights.
- f(r; v) >= sigma(r) >= f(r; -v) for v >= 0.

So f is least at v = -H. It is largest at v = H if R <= 1 + sqrt(2), and otherwise at
some w in [log(1 + sqrt(2)), log R]. All other pairs lie between these. That includes
bits whose weight is nearer to zero than w, because T grows with w. So log odds differ
by at most

    G(r) = T(-r; k R, log R) + sup_w T(r; S sigma(-w), w) <= H R + H.

*Cells.* The first term of G grows with r and the second falls, so the values at the two
ends of a cell of r bound G over the cell. The pair of the lower log odds and that gap
is at least as far apart as every genuine pair.

*The supremum over w* is bounded between nodes of w and of r, because log T bends down
by little. Let a = S sigma(-w), A = E sigma(r + s w) / sigma(r) - 1 and B = 1 -
E sigma(-r - s w) / sigma(-r). So T = U + V with U = log(1 + A) and V = -log(1 - B).

- log A and log B are logarithms of sums over s. Such a logarithm has a second
  derivative of at least the mean of those of its terms, weighted by the terms.
- In r the terms' logarithms have first derivatives within [-1, 1] and second ones in
  [-1/4, 0].
- In w the first ones are within 5 S / 4 + 1/w + 1, and the second ones at least
  -(S/10 + (1 + S) / 4 + 1 / w^2 + (1 + S)^2 / 4), in the mean. For the terms of both
  sums are exp(s log a - a) (1 - e^(-s w)) / s! over e^(-s w) + e^r or 1 + e^(-s w - r).
  The weights favour large s the more, the smaller r is. In the limit they are those of
  P(s) (e^(s w) - 1), where the means of s and s^2 are at most 1 + S and (1 + S)^2.
- U and V are at most H, as T is. As a function of log A, log U has a slope in (0, 1]
  and a second derivative of at least -min(1/5, H/2). As a function of log B, log V is
  convex and has a slope of at most (e^H - 1) / H.

So the second derivative of log T is at least -`_bend`. Hence log T is at most its chord
between two nodes at a distance h, plus h^2 / 8 times that bound. A supremum over w of
such functions of r is again such a function.

*Pure privacy.* For v >= 0, (1 - f(r; -H)) / sigma(-r) and sigma(-r) / (1 - f(r; v))
grow with r, to e^(H R) and e^(v a/b), as each term of the means shows. The ratios
f(r; v) / sigma(r) and sigma(r) / f(r; -H) fall, from e^v and e^H. So probabilities
differ by a factor of at most e^(H R + max v a/b).

*Monotone.* At fixed k, a larger R widens every pair: for v = H - t the rate k + t/2
stays and b/a grows. At fixed R, a larger H widens every pair: the rates grow and w
stays. `RdpFilter` rounds k and R up on this ground.

Sources: Zhang, Cooper and De Sa 2020 (TunaMH) for the estimate. The accounting is this
project's.
"""

import math
from functools import lru_cache, partial

import numpy as np
from scipy import special

from dpjax.privacy.bits import renyi
from dpjax.privacy.bits import renyi_cells as cells
from dpjax.privacy.bits.renyi_cells import RELATIVE_SLACK
from dpjax.privacy.events import AcceptBit, PoissonAcceptBit

__all__ = ["largest_fall", "pure_epsilon", "rdp"]

MAX_MONOTONE_ODDS = 1 + math.sqrt(2)
"""Odds b/a up to which the chance of acceptance grows with v."""

TOLERANCE = 2.5e-4
"""Relative excess over T between neighbouring nodes of w, and of r."""

MAX_RATE = 300
"""Largest k for which the counts are summed."""

MAX_SENSITIVITY = 10.0
"""Largest H + H R for which the counts are summed."""


def pure_epsilon(event: PoissonAcceptBit) -> float:
    """The epsilon of pure differential privacy of one bit, nats.

    It is exact without laziness and an upper bound with it. It is infinite unless the
    acceptance function is Barker's.
    """
    if event.acceptance.family != "barker":
        return math.inf
    return event.bound * event.max_odds + largest_fall(event)


def largest_fall(event: PoissonAcceptBit) -> float:
    """The maximum of v a/b over the v that the event allows, nats."""
    bound, odds = event.bound, event.max_odds
    if odds <= MAX_MONOTONE_ODDS:
        return bound / odds
    return bound * (odds + 1) / (odds - 1) * (3 - 2 * math.sqrt(2))


def rdp(event: PoissonAcceptBit, orders, estimate: bool = False) -> np.ndarray:
    """Certified upper bound on the Renyi divergence of one Poisson minibatch's bit.

    Parameters
    ----------
    event
        The bit.
    orders
        Renyi orders in (1, 1e6], ``(m,)``.
    estimate
        Whether an estimate takes the place of the bound: see `renyi.supremum`.

    Returns
    -------
    Nats, ``(m,)`` float64: at least the supremum over the remainder and over the log
    ratios of the two records, and about 0.1 % above it, or 0.2 % if R > 1 + sqrt(2).
    Where k > 300 or H + H R > 10, it is the bound on a Barker `AcceptBit` of
    sensitivity H + H R. Infinite unless the acceptance function is Barker's.

    Raises
    ------
    ValueError
        If an order is out of range.
    """
    order, event = renyi.check_orders(orders), renyi.drop_slight_laziness(event)
    if event.acceptance.family != "barker":
        return np.full(order.shape, np.inf)
    too_many = event.bound > MAX_RATE * (event.max_odds - 1)
    if too_many or event.sensitivity > MAX_SENSITIVITY:
        full = AcceptBit(event.acceptance, event.sensitivity)
        bound = renyi.rdp(full, order, estimate)
    else:
        reach = _reach(order.max(), event.sensitivity)
        bound = renyi.supremum(
            order,
            np.linspace(-reach, reach, 193),
            lambda order, _, reach: _tails(event, order, reach),
            partial(
                _describe, event, tolerance=16 * TOLERANCE if estimate else TOLERANCE
            ),
            estimate,
        )
    # The factor covers the rounding of the closed forms.
    return np.minimum(bound, pure_epsilon(event)) * (1 + 1e-12)


def _reach(order: float, sensitivity: float) -> float:
    """Where the tails of r begin."""
    return 15 + math.log(order) + sensitivity


def _describe(event: PoissonAcceptBit, edges: np.ndarray, tolerance: float = TOLERANCE):
    """Describe cells between edges of r, as `renyi_cells.describe` does those of l."""
    fall, rise = _shifts(event, edges, tolerance)
    odds = edges - fall
    gap = (rise[:, :-1] + fall[:, 1:]) * RELATIVE_SLACK
    least_gap = rise[:, 1:] + fall[:, :-1]
    c = event.acceptance.laziness
    if c < 1:
        gap = _lazy_gap(c, odds[:, :-1], odds[:, 1:], gap)
        least_gap = _lazy_gap(c, odds[:, 1:], odds[:, :-1], least_gap)
        log_f = -np.logaddexp(0.0, -odds)
        odds = cells.logit(log_f, log_f - odds, c)
    return cells.flat_cells(odds, gap, least_gap)


def _lazy_gap(c: float, low, high, gap):
    """Bound the gap of the lazy bits.

    Without laziness the gap is at most `gap` and the lower log odds are in [low, high].
    The difference of log(c f) falls with the log odds, and that of log(1 - c f) grows
    with c.
    """
    rise = np.log1p(np.expm1(gap) / (1 + np.exp(low + gap)))
    sure_fall = np.log1p(np.expm1(gap) * special.expit(high))
    log_f, log_up = -np.logaddexp(0.0, -high), -np.logaddexp(0.0, -high - gap)
    fall = np.minimum(sure_fall, cells.lazy_fall(c, log_f, rise, log_up))
    return np.minimum(rise + fall, gap) * RELATIVE_SLACK


def _tails(event: PoissonAcceptBit, order: np.ndarray, reach: float) -> np.ndarray:
    """Bound the divergences of all |r| > reach, ``(m,)``."""
    ends = np.array([[-reach, reach]])
    fall, rise = _shifts(event, ends, TOLERANCE)
    left_gap = (event.bound + fall[0, 0]) * RELATIVE_SLACK
    right_gap = (rise[0, 1] + event.bound * event.max_odds) * RELATIVE_SLACK
    left = cells.left_tail(-reach, left_gap, order)
    # With accept and reject exchanged, the higher log odds are at most -r.
    right = cells.left_tail(-reach, right_gap, order)
    c = event.acceptance.laziness
    if c < 1:
        # The bounds at c = 1 hold too, as the lazy bit is post-processing of that bit.
        gap = _lazy_gap(c, reach - event.bound * event.max_odds, math.inf, right_gap)
        right = np.minimum(right, cells.gap_bound(order, gap))
    return np.maximum(left, right) * RELATIVE_SLACK


def _shifts(event: PoissonAcceptBit, r: np.ndarray, tolerance: float):
    """Return the two terms of G: T(-r; k R, log R), and a bound on sup_w T(r; ., w)."""
    odds, kappa = event.max_odds, event.bound / (event.max_odds - 1)
    largest = math.log(odds)
    fall = _shift(-r, kappa * odds, largest)
    if odds <= MAX_MONOTONE_ODDS:
        return fall, _shift(r, kappa, largest)
    nodes, log_highest = _highest(event.bound, odds, tolerance)
    return fall, np.exp(np.interp(r, nodes, log_highest))


@lru_cache(maxsize=256)
def _highest(
    bound: float, odds: float, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of r, and the logarithm there of a bound on sup_w T(r; S sigma(-w), w).

    The nodes hold every r of a search. Chords between them are bounds as well. A larger
    `tolerance` than `TOLERANCE` gives looser ones.
    """
    total = bound * (odds + 1) / (odds - 1)
    low, high = math.log(MAX_MONOTONE_ODDS), math.log(odds)
    curvature = total / 10 + (1 + total) / 4 + 1 / low**2 + (1 + total) ** 2 / 4
    bend = _bend(bound, 5 * total / 4 + 1 / low + 1, curvature)
    step = np.linspace(low, high, _num_nodes(high - low, bend, tolerance))
    reach = _reach(renyi.MAX_ORDER, MAX_SENSITIVITY)
    bend = _bend(bound, 1.0, 0.25)
    nodes = np.linspace(-reach, reach, _num_nodes(2 * reach, bend, tolerance))
    found = _shift(nodes[:, None], total * special.expit(-step), step)
    return nodes, np.log(found.max(axis=1)) + 2 * tolerance


def _bend(bound: float, slope: float, curvature: float) -> float:
    """Bound on minus the second derivative of log T.

    `slope` bounds the first derivatives of log A and log B of the module docstring, and
    -`curvature` is at most their second derivatives.
    """
    return max(
        curvature + min(0.2, bound / 2) * slope**2,
        curvature * math.expm1(bound) / bound,
    )


def _num_nodes(length: float, bend: float, tolerance: float) -> int:
    return 2 + int(length * math.sqrt(bend / (8 * tolerance)))


def _shift(r: np.ndarray, rate, step) -> np.ndarray:
    """T(r; a, w), with a = `rate` and w = `step`.

    T = log(1 + accept) - log(1 - reject), where accept = E sigma(r + s w) / sigma(r)
    - 1 and reject = 1 - E sigma(-r - s w) / sigma(-r). Both are sums over s >= 1 of
    positive terms, so no digits are lost however small T is.
    """
    accept, reject = 0.0, 0.0
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
    """How many counts to sum, such that the rest adds less than 1e-12 to both sums.

    The terms of the sums are P(s) times a weight. The weights favour large s the more,
    the smaller r is; in the limit they are e^(s w) - 1. And e^(s w) P(s) is the
    probability of s under Poisson(a e^w), up to a constant.
    """
    weighted = np.max(rate * np.exp(step))
    least = 1e-12 * -np.expm1(-np.min(rate * np.expm1(step)))
    count = 4
    while special.pdtrc(count, weighted) > least:
        count += 1 + count // 8
    return count
