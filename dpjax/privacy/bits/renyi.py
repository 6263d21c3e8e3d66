"""Privacy of one accept bit: certified Renyi divergence, exact one-bit profile.

*What is bounded.* Neighbouring data give the bits Bernoulli(c a(l)) and
Bernoulli(c a(l + D)) for some log ratio l, with D the sensitivity and c the laziness.
`rdp` bounds the Renyi divergence of order alpha between them, in both directions, over
all l. Let y = logit(c a(l)) be the log odds of the first bit, G = logit(c a(l + D)) - y
their gap, and A(t) = log(1 + e^t). Then the two divergences are

    [A(y + alpha G) - alpha A(y + G) + (alpha - 1) A(y)] / (alpha - 1),
    [A(y - (alpha - 1) G) - alpha A(y) + (alpha - 1) A(y + G)] / (alpha - 1).

*The bound.* Cut the line of l into cells and two tails. On a cell whose log odds y span
an interval of width W, the divergences are at most e^(W/2) times those at the middle of
the interval, with the largest gap of the cell for G. Cells that could hold the supremum
are split until the bound is tight.

*Why.* Both divergences grow with G, by quasi-convexity, and are at most G. Each equals
(alpha / 2) G^2 times a weighted mean of A'' between the outer two of its three nodes.
As |A'''| <= A'' <= 1/4, the logarithms of the divergences are 1-Lipschitz in y.

Source: this project.
"""

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from dpjax.privacy.bits import renyi_cells
from dpjax.privacy.events import AcceptBit
from dpjax.privacy.validate import check_real

__all__ = [
    "check_orders",
    "closed_form",
    "drop_slight_laziness",
    "is_searched",
    "one_bit_delta",
    "rdp",
    "supremum",
]

MAX_ORDER = 1e6
"""Largest Renyi order."""

TOLERANCE = 5e-4
"""A cell is not split if its bound exceeds the largest divergence attained by at most
this relative amount."""

DEVIATIONS = 12.0
"""Largest order, less 1, times D over s that is searched for a penalty bit that is not
lazy. At orders further out no composition of bits has its best order."""

MIN_LAZY_CHANCE = 1e-6
"""Chance 1 - c that a step is lazy, below which c is taken for 1."""

SPLIT_INTO = 4
"""Cells that a cell is split into."""

MAX_PAIRS = 1_000_000
"""Pairs of an order and a cell at one time, which bounds the memory."""

MAX_LEVELS = 12
"""How many times cells are split, at most."""


def rdp(event: AcceptBit, orders, estimate: bool = False) -> np.ndarray:
    """Certified upper bound on the Renyi divergence of one accept bit.

    Parameters
    ----------
    event
        The bit.
    orders
        Renyi orders in (1, 1e6], ``(m,)``.
    estimate
        Whether an estimate takes the place of the bound: see `supremum`.

    Returns
    -------
    Nats, ``(m,)`` float64: at least the supremum over l and both directions, and about
    0.1 % above it. Infinite for the Metropolis family. For the penalty family it is at
    most alpha D^2 / (2 s^2), and equal to that where the search over cells is not made:
    where (alpha - 1) D > 12 s, or D or s is extreme.

    Raises
    ------
    ValueError
        If an order is out of range.
    """
    order, event = check_orders(orders), drop_slight_laziness(event)
    bound = closed_form(event, order)
    if event.acceptance.family == "metropolis":
        return bound
    inside = is_searched(event, order)
    searched = order[inside]
    if searched.size:
        edges = renyi_cells.grid(event, searched.max())
        tails = partial(renyi_cells.tails, event)
        describe = partial(renyi_cells.describe, event)
        found = supremum(searched, edges, tails, describe, estimate)
        bound[inside] = np.minimum(found, bound[inside])
    if not np.all(bound >= 0):
        raise ArithmeticError(f"the Renyi divergence of {event!r} is not a number")
    # The factor covers the rounding of the closed forms.
    return bound * (1 + 1e-12)


def closed_form(event: AcceptBit, order: np.ndarray) -> np.ndarray:
    """Simple bound on the divergences, up to rounding, nats, ``(m,)``."""
    match event.acceptance.family:
        case "barker":
            return renyi_cells.gap_bound(order, event.sensitivity)
        case "penalty":
            return order * (event.sensitivity / event.acceptance.noise_sd) ** 2 / 2
    return np.full(order.shape, np.inf)


def is_searched(
    event: AcceptBit, order: np.ndarray, deviations: float = DEVIATIONS
) -> np.ndarray:
    """At which orders the search over cells is made, ``(m,)`` booleans.

    `deviations` takes the place of `DEVIATIONS`.
    """
    s, sensitivity = event.acceptance.noise_sd, event.sensitivity
    if not (sensitivity <= 50 and s <= 50):
        return np.zeros(order.shape, bool)
    if event.acceptance.family == "penalty" and event.acceptance.laziness == 1:
        near = s >= 1e-3 and sensitivity <= 20 * s
        return ((order - 1) * sensitivity <= deviations * s) & near
    return np.ones(order.shape, bool)


def check_orders(orders) -> np.ndarray:
    """Return Renyi orders as floats in (1, `MAX_ORDER`], ``(m,)``."""
    orders = np.array(orders, np.float64, ndmin=1)
    for end in (orders.min(), orders.max()):
        check_real("order", float(end), low=1 + 1e-6, high=MAX_ORDER)
    return orders


def drop_slight_laziness(event):
    """Return the bit with c = 1 if c is so close to 1 that log(1 - c a) loses digits.

    What bounds that bit bounds the lazy one, which is post-processing of it.
    """
    if event.acceptance.laziness > 1 - MIN_LAZY_CHANCE:
        return replace(event, acceptance=replace(event.acceptance, laziness=1.0))
    return event


def supremum(order, edges, tails, describe, estimate: bool = False):
    """Bound the supremum of the divergences over all cells and both tails.

    For each order, every cell has an upper bound on the divergence and an estimate from
    below of what it attains. A cell is split only while its upper bound exceeds both
    the largest divergence attained, by more than `TOLERANCE`, and the largest upper
    bound of a cell that is not split any more. The result is that largest upper bound,
    so it is sound whichever cells are left unsplit.

    Parameters
    ----------
    order
        Renyi orders, ``(m,)``.
    edges
        Edges of the first cells, increasing, ``(k,)``.
    tails
        ``(order, first edge, last edge) -> (m,)``, bounds on the divergences beyond.
    describe
        ``edges -> (middle, width, gap, least_gap)``, as `renyi_cells.describe` does.
    estimate
        Whether the largest divergence at the middles of the first cells takes the place
        of the bound. It is an estimate that takes a fraction of the time. It may say
        where to look for the best order or value, and certifies nothing.

    Returns
    -------
    Nats, ``(m,)``.
    """
    if estimate:
        middle, _, gap, least_gap = describe(edges[None])
        typical = np.sqrt(least_gap * np.minimum(gap, 2 * least_gap))
        pairs = np.broadcast_arrays(middle, typical, order[:, None])
        return divergence(*pairs).max(axis=1)
    bound = tails(order, edges[0], edges[-1])
    attained = np.zeros_like(bound)
    edges = edges[None]
    row, column = np.indices((order.size, edges.size - 1)).reshape(2, -1)
    for level in range(MAX_LEVELS):
        middle, width, gap, least_gap = describe(edges)
        value = divergence(middle[column], gap[column], order[row])
        # A very wide cell has the bound inf or, times 0, none at all.
        with np.errstate(over="ignore", invalid="ignore"):
            upper = np.exp(width / 2)[column] * value
        upper = np.fmin(upper, renyi_cells.gap_bound(order[row], gap[column]))
        lost = (width / 2)[column] + order[row] * (gap - least_gap)[column]
        lower = value * np.exp(-lost) * ((least_gap / gap) ** 2)[column]
        np.maximum.at(attained, row, lower)
        threshold = np.maximum((1 + TOLERANCE) * attained, bound)
        keep = upper > threshold[row]
        if level == MAX_LEVELS - 1 or np.count_nonzero(keep) * SPLIT_INTO > MAX_PAIRS:
            keep[:] = False
        np.maximum.at(bound, row[~keep], upper[~keep])
        if not keep.any():
            return bound
        left, right = edges[:, :-1].ravel(), edges[:, 1:].ravel()
        used, column = np.unique(column[keep], return_inverse=True)
        row = np.repeat(row[keep], SPLIT_INTO)
        column = (column[:, None] * SPLIT_INTO + np.arange(SPLIT_INTO)).ravel()
        edges = np.linspace(left[used], right[used], SPLIT_INTO + 1, axis=-1)
    return bound


def divergence(logit, gap, order) -> np.ndarray:
    """Upper bound on the divergence of a pair of bits, exact up to rounding.

    Parameters
    ----------
    logit, gap, order
        y, G >= 0 and alpha > 1 of the module docstring, broadcast together.

    Returns
    -------
    The larger of the two directions, nats.
    """
    # Where alpha G is small, the second difference below loses its digits. There A'' is
    # almost constant between the nodes, and G^2 times a bound on it is tight.
    quadratic = (order / 2) * gap**2
    quadratic *= np.exp(np.minimum(order * gap - np.abs(logit), 500.0))
    quadratic /= (1 + np.exp(-np.abs(logit))) ** 2
    near, middle = _Node.of(logit), _Node.of(logit + gap)
    forward = _second_difference(near, middle, _Node.of(logit + order * gap), order)
    far = _Node.of(logit - (order - 1) * gap)
    back = _second_difference(middle, near, far, order)
    return np.minimum(np.maximum(forward, back), quadratic)


class _Node(NamedTuple):
    """A place t and log(1 + exp(-|t|)), from which A(t) and A(-t) follow."""

    place: np.ndarray
    log1p_exp: np.ndarray

    @classmethod
    def of(cls, place) -> "_Node":
        """To two units in the last place, much faster than `np.logaddexp`."""
        return cls(place, np.log1p(np.exp(-np.abs(place))))


def _second_difference(near: _Node, middle: _Node, far: _Node, order):
    """[A(far) - alpha A(middle) + (alpha - 1) A(near)] / (alpha - 1), rounded up.

    The difference is the same with the signs of all three nodes changed, because
    A(t) - A(-t) is linear in t. The signs are chosen such that the middle node is not
    positive: A is small at negative nodes, so less is lost to cancellation.
    """
    sign = np.where(middle.place > 0, -1.0, 1.0)
    total = np.zeros_like(sign)
    error = np.zeros_like(sign)
    for node, weight in ((far, 1.0), (near, order - 1), (middle, -order)):
        place = sign * node.place
        value = weight * (np.maximum(place, 0.0) + node.log1p_exp)
        total += value
        error += np.abs(value) * (1 + np.maximum(-place, 0.0))
    return (np.maximum(total, 0.0) + 1e-15 * error) / (order - 1)


def one_bit_delta(event: AcceptBit, epsilon: float) -> float:
    """Exact hockey-stick profile delta(epsilon) of one Barker bit, lazy or not.

    Parameters
    ----------
    event
        The bit.
    epsilon
        Nats, at least 0.

    Returns
    -------
    The supremum of the hockey-stick divergence over l and both directions. For the
    other families, which have no closed form here, it is 1, which bounds everything.

    Notes
    -----
    P(e) = sup_l a(l + D) - e^e a(l) is (e^(D/2) - e^(e/2))^2 / (e^D - 1) inside
    [-D, D], 0 above and 1 - e^e below. The event "accept" gives c P(epsilon), the
    event "reject" 1 - e^epsilon + c e^epsilon P(-epsilon).
    """
    if event.acceptance.family != "barker":
        return 1.0
    sensitivity, c = event.sensitivity, event.acceptance.laziness

    def profile(e: float) -> float:
        if abs(e) > sensitivity:
            return 0.0 if e > 0 else -math.expm1(e)
        return math.expm1((e - sensitivity) / 2) ** 2 / -math.expm1(-sensitivity)

    accept = c * profile(epsilon)
    reject = c * math.exp(epsilon) * profile(-epsilon) - math.expm1(epsilon)
    return max(0.0, accept, reject)
