"""Renyi divergence of an accept bit that is computed on a secret batch of fixed size.

*What is bounded.* A batch of B of n records is drawn without replacement, and its bit
is Bernoulli(f) with f a function of the batch. Substituting one of the n records gives
two laws of the bit, and `rdp` bounds the Renyi divergence between them in both
directions. Let q = B/n.

*Worst pairs.* Draw B - 1 records R among the n - 1 that both data sets share. The batch
is R and the record that differs with chance q, and otherwise R and one more shared
record. So given R the bits are Bernoulli((1 - q) a + q b) and Bernoulli((1 - q) a +
q b'), where a is a mean of f over batches that differ from those of b and b' in one
record. All three lie between the least and the largest chance, lo and hi, that f has
when one record of a batch is replaced by any other. Divergences of pairs (P, Q) are
jointly convex. So the mean over R is at most the worst R. They grow when b and b' move
apart, to lo and hi. The pair is then affine in a, so an end of [lo, hi] is worst for a:

    (lo, (1 - q) lo + q hi)    or    (hi, (1 - q) hi + q lo).

With u = log(hi / lo) and v = log((1 - lo) / (1 - hi)), the log odds of the two bits
differ by

    log(1 + q (e^u - 1)) - log(1 - q (1 - e^-v)),
    log(1 + q (e^v - 1)) - log(1 - q (1 - e^-u)).

The second pair is like the first with accept and reject exchanged. `renyi.supremum`
takes bounds on u and v over cells of l, with lo = f at l.

*Accept bits.* With f = c a(l) and D the sensitivity, hi = c a(l + D), and
`renyi_cells.changes` bounds u and v.

*Barker's test.* f = sum_k w_k Phi((l + m_k) / sqrt(2 - V)), with V in [0, .9801]. One
record moves l by D = 1.98 / sqrt(B) at most and V by 4 (.9801) / B at most. Given R let
V' be the largest V. Then N(0, 2 - V) is the sum of N(0, .9801 - V'), which may be given
away because it depends on R alone, and of N(0, s^2 + x) with s^2 = 1.0199 and x in
[0, 4 (.9801) / B]. So l is in an interval of length D, and (l + m) / sqrt(s^2 + x) is
between (l + m) / s and h (l + m) / s, with h = s / sqrt(s^2 + 4 (.9801) / B). The least
and the largest of both are the ends A_k(l) <= B_k(l) of

    lo = sum_k w_k Phi(A_k),    hi = sum_k w_k Phi(B_k).

A_k and B_k grow with l, and B_k - A_k is convex in l, so over a cell of l it is largest
at an end. Phi(t + x) - Phi(t) grows up to t = -x/2 and falls from there. That bounds
hi - lo over a cell, and with it u and v. V_corr and -V_corr have the same law, so the
second pair at l is the first at -l - D, and the first alone is searched.

*Tails.* At the left the bits of both pairs rarely accept, u is at most D and v is
small; `renyi_cells.tails` bounds their divergences by their largest log odds and gap.
Barker's family has the mirror image at the right. For the rest let H =
e^((alpha - 1) divergence), and H' that of the bits lo and hi. As H is jointly convex,
H - 1 <= q (H' - 1). For Barker's test at the left, H' - 1 is at most

    sum_k w_k Phi(B_k)^alpha Phi(A_k)^(1 - alpha)    or    lo + (1 - hi)^(1 - alpha) - 1

in the two directions, because H' is jointly convex too. Both grow with l where all
l + m_k are below -U with U = alpha D / (1 - 2 alpha (1 - h)): the logarithm of a term
of the sum has the derivative (alpha h M(B) - (alpha - 1) M(A)) / s, M = phi / Phi, and
M(B) >= M(A) - (B - A), M(A) >= -A, s (B - A) <= D - (1 - h) (l + m). By symmetry these
bounds hold at the right too.

Source: this project.
"""

import math
from functools import partial

import numpy as np
from scipy.special import log_ndtr

from dpjax.acceptance import (
    MAX_BATCH_VARIANCE,
    TEST_CORRECTION,
    TEST_NOISE_VARIANCE,
)
from dpjax.privacy.bits import renyi, renyi_cells
from dpjax.privacy.bits.renyi_cells import RELATIVE_SLACK, Changes, batch_gap
from dpjax.privacy.events import AcceptBit, BarkerTest, FixedBatch

__all__ = ["rdp"]

MARGIN = 1 + 1e-6
"""Factor on what a record moves in Barker's test, above its rounding in float64."""

MAX_SHIFT = 20.0
"""Largest order times D that is searched; no composition has its best order beyond."""

MAX_DEVIATIONS = 100.0
"""Largest order, less 1, times D over s that is searched for a penalty bit."""

MAX_SPREAD = 0.4
"""Largest order times 1 - h that is searched; at 1/2 the divergence may be infinite."""


def rdp(event: FixedBatch, orders, estimate: bool = False) -> np.ndarray:
    """Certified upper bound on the Renyi divergence of one bit on a secret batch.

    Parameters
    ----------
    event
        A batch of an `AcceptBit` or a `BarkerTest`.
    orders
        Renyi orders in (1, 1e6], ``(m,)``.
    estimate
        Whether an estimate takes the place of the bound: see `renyi.supremum`.

    Returns
    -------
    Nats, ``(m,)``: about 0.1 % above the supremum over all data for an accept bit.
    Infinite where the search over cells is not made, which is at high orders, and for
    the Metropolis family.

    Raises
    ------
    ValueError
        If an order is out of range.
    """
    order = renyi.check_orders(orders)
    share = event.batch_size / event.num_records
    bound = np.full(order.shape, np.inf)
    match event.event:
        case BarkerTest(batch_size):
            test = _Test(batch_size)
            inside = order * test.moved <= MAX_SHIFT
            inside &= order * (1 - test.shrink) <= MAX_SPREAD
            searched, sides = order[inside], (False,)
            edges = test.grid(searched.max(initial=0.0))
            tails = partial(test.tails, share=share)
            changes = test.changes
        case AcceptBit() as bit if bit.acceptance.family != "metropolis":
            bit = renyi.drop_slight_laziness(bit)
            # Further out the divergence of a penalty bit is so large that no
            # composition of bits has its best order there.
            far = bit.acceptance.noise_sd / bit.sensitivity * -math.log(share)
            far = min(max(far, renyi.DEVIATIONS), MAX_DEVIATIONS)
            inside = renyi.is_searched(bit, order, far)
            searched, sides = order[inside], (False, True)
            edges = renyi_cells.grid(bit, searched.max(initial=2.0))
            tails = partial(renyi_cells.tails, bit, share=share)
            changes = partial(renyi_cells.changes, bit)
        case _:
            return bound
    if searched.size:
        describe = [partial(_describe, changes, share, is_upper) for is_upper in sides]
        found = [
            renyi.supremum(searched, edges, tails, each, estimate) for each in describe
        ]
        bound[inside] = np.max(found, axis=0)
    if not np.all(bound >= 0):
        raise ArithmeticError(f"the Renyi divergence of {event!r} is not a number")
    return bound * (1 + 1e-12)


def _describe(changes, share: float, is_upper: bool, edges: np.ndarray):
    """Describe cells of the first or the second pair as `renyi_cells.describe` does."""
    found = changes(edges)
    if is_upper:
        # Accept and reject change places.
        found = Changes(
            -found.high, -found.low, found.fall, found.rise, found.least_fall,
            found.least_rise,
        )  # fmt: skip
    gap = batch_gap(share, found.rise, found.fall) * RELATIVE_SLACK
    least_gap = np.clip(batch_gap(share, found.least_rise, found.least_fall), 0.0, gap)
    return renyi_cells.flat_cells(found.low, gap, least_gap)


class _Test:
    """Barker's test on a batch: D, h, and the cells and tails of l."""

    def __init__(self, batch_size: int):
        variance = TEST_NOISE_VARIANCE - MAX_BATCH_VARIANCE * MARGIN
        self.noise_sd = math.sqrt(variance)
        moved = 4 * MAX_BATCH_VARIANCE * MARGIN / batch_size
        self.moved = math.sqrt(moved)
        self.shrink = 1 / math.sqrt(1 + moved / variance)
        self.points, chances = TEST_CORRECTION
        self.log_chances = np.log(chances)

    def grid(self, max_order: float) -> np.ndarray:
        """Edges of the first cells, increasing, nats; H' - 1 beyond is about e^-72."""
        far = 2 * max_order * self.moved + 12
        far = self.points.max() + far / (1 - 2 * max_order * (1 - self.shrink))
        return np.linspace(-far, far, 193)

    def ends(self, log_ratio: np.ndarray):
        """A_k and B_k, ``(7, ...)`` each."""
        least = np.add.outer(self.points, log_ratio)
        most = least + self.moved
        least = np.where(least > 0, self.shrink * least, least)
        most = np.where(most < 0, self.shrink * most, most)
        return least / self.noise_sd, most / self.noise_sd

    def log_mean(self, log_terms: np.ndarray) -> np.ndarray:
        """Logarithm of a mean over the points, ``(7, ...)`` to ``(...)``."""
        # Several times faster than SciPy's `logsumexp`.
        terms = (self.log_chances + log_terms.T).T
        top = terms.max(axis=0)
        return top + np.log(np.exp(terms - top).sum(axis=0))

    def changes(self, edges: np.ndarray) -> Changes:
        """Describe cells, as `renyi_cells.changes` does."""
        least, most = self.ends(edges)
        lo, not_lo, hi, not_hi = (
            self.log_mean(log_ndtr(t)) for t in (least, -least, most, -most)
        )
        length = np.maximum(*(side(most - least) for side in (_left, _right)))
        start = np.clip(-length / 2, _left(least), _right(least))
        # The interval [start, start + length] or its mirror image, which lies lower.
        end = np.minimum(start + length, -start)
        upper = log_ndtr(end)
        mass = upper + np.log(-np.expm1(log_ndtr(end - length) - upper))
        mass = self.log_mean(mass)
        rise, fall = hi - lo, not_lo - not_hi
        return Changes(
            lo - not_lo,
            hi - not_hi,
            np.logaddexp(0.0, mass - lo[:, :-1]),
            np.logaddexp(0.0, mass - not_hi[:, 1:]),
            np.minimum(rise[:, :-1], rise[:, 1:]),
            np.minimum(fall[:, :-1], fall[:, 1:]),
        )

    def tails(self, order, low: float, high: float, share: float) -> np.ndarray:
        """Bound the divergences of all l < low and l > high = -low, ``(m,)``."""
        least, most = (log_ndtr(end) for end in self.ends(np.array(low)))
        lo, not_hi = self.log_mean(least), np.log1p(-np.exp(self.log_mean(most)))
        exponents = np.multiply.outer(most, order) + np.multiply.outer(least, 1 - order)
        upwards = np.exp(self.log_mean(exponents))
        downwards = np.exp(lo) + np.expm1((1 - order) * not_hi)
        return np.log1p(share * np.maximum(upwards, downwards)) / (order - 1)


def _left(cells):
    return cells[..., :-1]


def _right(cells):
    return cells[..., 1:]
