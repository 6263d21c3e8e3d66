"""Privacy of one accept bit: certified Renyi divergence, exact one-bit profile.

Neighbouring data give Bernoulli(c a(l)) and Bernoulli(c a(l + D)) for some l. With
y = logit(c a(l)), G = logit(c a(l + D)) - y and A(t) = log(1 + e^t), the divergences
of order alpha in the two directions are

    [A(y + alpha G) - alpha A(y + G) + (alpha - 1) A(y)] / (alpha - 1),
    [A(y - (alpha - 1) G) - alpha A(y) + (alpha - 1) A(y + G)] / (alpha - 1).

Both grow with G (quasi-convexity), are at most G, and equal (alpha / 2) G^2 times a
weighted mean of A'' between the outer nodes. As |A'''| <= A'' <= 1/4, their logarithms
are 1-Lipschitz in y: on a cell of logit width W the supremum is at most e^(W/2) times
the value at the middle. `rdp` applies that bound to cells that cover the line, and
splits the cells that could hold the maximum. Source: this project.
"""

import math
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from dpjax.privacy.bits import renyi_cells
from dpjax.privacy.events import AcceptBit
from dpjax.privacy.validate import check_real

__all__ = ["NEARLY_SURE", "check_orders", "one_bit_delta", "rdp", "supremum"]

TOLERANCE = 5e-4
NEARLY_SURE = 1e-6
SPLIT = 4
MAX_PAIRS = 1_000_000
MAX_LEVELS = 12


def rdp(event: AcceptBit, orders) -> np.ndarray:
    """Certified upper bound on the Renyi divergence of one accept bit.

    Parameters
    ----------
    event
        The bit.
    orders
        Renyi orders in (1, 1e6], ``(m,)``.

    Returns
    -------
    Nats, ``(m,)`` float64: at least the supremum over l and both directions, and about
    0.1 % above it. Infinite for the Metropolis family. For the penalty family never
    above alpha D^2 / (2 s^2), and that value where the certificate does not reach
    ((alpha - 1) D > 12 s, or extreme D or s).

    Raises
    ------
    ValueError
        If `event` is not an `AcceptBit` or an order is out of range.
    """
    if not isinstance(event, AcceptBit):
        raise ValueError(f"rdp needs an AcceptBit, got {event!r}")
    return np.array(_cached_rdp(event, check_orders(orders)))


def check_orders(orders) -> tuple[float, ...]:
    """Return Renyi orders as floats in (1, 1e6]."""
    return tuple(
        check_real("order", float(order), low=1 + 1e-6, high=1e6)
        for order in np.atleast_1d(orders)
    )


@lru_cache(maxsize=256)
def _cached_rdp(event: AcceptBit, orders: tuple[float, ...]) -> tuple[float, ...]:
    order = np.array(orders)
    acceptance, sensitivity = event.acceptance, event.sensitivity
    if 1 - NEARLY_SURE < acceptance.laziness < 1:
        # log(1 - c a) would lose its digits; the lazy bit is post-processing.
        event = replace(event, acceptance=replace(acceptance, laziness=1.0))
        return _cached_rdp(event, orders)
    if acceptance.family == "metropolis":
        return (math.inf,) * len(orders)
    if acceptance.family == "barker":
        ceiling = np.minimum(order * sensitivity**2 / 8, sensitivity)
        certifiable = np.full(order.shape, sensitivity <= 50)
    else:
        s = acceptance.noise_sd
        ceiling = order * sensitivity**2 / (2 * s**2)
        certifiable = np.full(order.shape, sensitivity <= 50 and s <= 50)
        if acceptance.laziness == 1:
            # Further out no composition of bits has its best order.
            certifiable &= s >= 1e-3 and sensitivity <= 20 * s
            certifiable &= (order - 1) * sensitivity <= 12 * s
    bound = ceiling
    if certifiable.any():
        certified = order[certifiable]
        edges = renyi_cells.grid(event, certified.max())
        tails = renyi_cells.tails(event, certified, edges[0], edges[-1])
        describe = partial(renyi_cells.describe, event)
        bound[certifiable] = np.minimum(
            supremum(certified, edges, tails, describe), ceiling[certifiable]
        )
    # The last factor covers the rounding of the closed forms.
    bound = bound * (1 + 1e-12)
    if not np.all(bound >= 0):
        raise ArithmeticError(f"the Renyi divergence of {event!r} is not a number")
    return tuple(bound.tolist())


def supremum(order, edges, tails, describe, tolerance: float = TOLERANCE):
    """Supremum over cells and tails; sound whatever cells are dropped early.

    A cell is dropped once its upper bound is within `tolerance` of a divergence found
    elsewhere; its upper bound still counts. A pair is one (order, cell).

    Parameters
    ----------
    order
        Renyi orders, ``(m,)``.
    edges
        Of the first cells, increasing, ``(k,)``.
    tails
        Bounds on the divergences beyond the first and the last edge, ``(m,)``.
    describe
        ``edges -> (middle, width, gap, least_gap)``, as `renyi_cells.describe` does.
    tolerance
        Relative; finer takes longer.

    Returns
    -------
    Nats, ``(m,)``.
    """
    bound = tails.copy()
    attained = np.zeros_like(bound)
    edges = edges[None]
    row, column = np.indices((order.size, edges.size - 1)).reshape(2, -1)
    for level in range(MAX_LEVELS):
        middle, width, gap, least_gap = describe(edges)
        value = divergence(middle[column], gap[column], order[row])
        upper = np.exp(width[column] / 2) * value
        upper = np.minimum(upper, gap[column])
        upper = np.minimum(upper, order[row] * gap[column] ** 2 / 8)
        lower = value * np.exp(-width / 2)[column] * ((least_gap / gap) ** 2)[column]
        np.maximum.at(attained, row, lower)
        threshold = np.maximum((1 + tolerance) * attained, bound)
        keep = upper > threshold[row]
        if level == MAX_LEVELS - 1 or np.count_nonzero(keep) * SPLIT > MAX_PAIRS:
            keep[:] = False
        np.maximum.at(bound, row[~keep], upper[~keep])
        if not keep.any():
            return bound
        left, right = edges[:, :-1].ravel(), edges[:, 1:].ravel()
        used, column = np.unique(column[keep], return_inverse=True)
        row = np.repeat(row[keep], SPLIT)
        column = (column[:, None] * SPLIT + np.arange(SPLIT)).ravel()
        edges = np.linspace(left[used], right[used], SPLIT + 1, axis=-1)
    return bound


def divergence(logit, gap, order) -> np.ndarray:
    """Upper bound, up to rounding exact, on the divergence of a pair of bits.

    Parameters
    ----------
    logit, gap, order
        y, G >= 0 and alpha > 1 of the module docstring, broadcast together.

    Returns
    -------
    The larger of the two directions, nats.
    """
    # Where alpha G is small the second difference cancels, and A'' is constant.
    quadratic = (order / 2) * gap**2
    quadratic *= np.exp(np.minimum(order * gap - np.abs(logit), 500.0))
    quadratic /= (1 + np.exp(-np.abs(logit))) ** 2
    forward = _second_difference(logit, logit + gap, logit + order * gap, order)
    back = _second_difference(logit + gap, logit, logit - (order - 1) * gap, order)
    return np.minimum(np.maximum(forward, back), quadratic)


def _second_difference(near, middle, far, order):
    """[A(far) - alpha A(middle) + (alpha - 1) A(near)] / (alpha - 1), rounded up.

    A(t) - A(-t) is linear, so all nodes may change sign; A is small at negative nodes.
    """
    sign = np.where(middle > 0, -1.0, 1.0)
    total = np.zeros_like(sign)
    error = np.zeros_like(sign)
    for node, weight in ((far, 1.0), (near, order - 1), (middle, -order)):
        node = sign * node
        value = weight * np.logaddexp(0.0, node)
        total += value
        error += np.abs(value) * (1 + np.maximum(-node, 0.0))
    return (np.maximum(total, 0.0) + 1e-15 * error) / (order - 1)


def one_bit_delta(event: AcceptBit, epsilon: float) -> float:
    """Exact hockey-stick profile delta(epsilon) of one Barker bit, lazy or not.

    Parameters
    ----------
    event
        The bit.
    epsilon
        Nats, in [0, 500].

    Returns
    -------
    sup over l and both directions of the hockey-stick divergence; 1, which bounds
    everything, for the other families, which have no closed form here.

    Notes
    -----
    P(e) = sup_l a(l + D) - e^e a(l) is (e^(D/2) - e^(e/2))^2 / (e^D - 1) inside
    [-D, D], 0 above and 1 - e^e below. The event "accept" gives c P(epsilon), the
    event "reject" 1 - e^epsilon + c e^epsilon P(-epsilon).
    """
    epsilon = check_real("epsilon", epsilon, low=0.0, high=500.0)
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
