"""Accept bits with no finite Renyi divergence, composed by total variation.

*One bit.* Where l >= 0 a Metropolis bit rejects with probability 0, and a neighbour's
bit can reject with a positive one. So the bit is (epsilon, 1 - e^-D)-private for every
epsilon, and for no smaller delta: its total variation says everything about it.

A balanced acceptance function has a(l + x) <= e^x a(l) for x >= 0, so a(l + x) - a(l)
<= 1 - e^-x if a grows. Thus the total variation of an `AcceptBit` is at most 1 - e^-D.
That of a `PoissonAcceptBit`, in the notation of `poisson_renyi`, is at most

    max_v E[1 - e^(-s w)] + E[1 - e^(-s |w|)] at v = -H
        = (1 - e^-max v a/b) + (1 - e^-H),

by comparing both bits with the bit of v = 0. With laziness c it is c times that.

*Several bits.* The total variation of T bits is at most 1 - prod (1 - tv_t), however
they are chosen: at each step, couple the two runs as long as they agree. T Metropolis
bits attain it, 1 - e^-(D_1 + ... + D_T), by the event "no rejection".

*Beside other releases.* The total variation of these bits adds to the delta of all
other releases, at any epsilon. To see this, compare both data sets with the run whose
unbounded bits are those of the second data set and whose other releases are those of
the first.
"""

import math
from collections.abc import Iterable

from dpjax.privacy.bits.poisson_renyi import largest_fall
from dpjax.privacy.events import AcceptBit, Event, FixedBatch, PoissonAcceptBit

__all__ = ["compose", "variation"]


def variation(event: Event) -> float | None:
    """Total variation of one bit that has no finite Renyi divergence; None for others.

    Parameters
    ----------
    event
        Any event.

    Returns
    -------
    A number in [0, 1] that includes the failure probability of the bit, or None. If no
    release fails, a fixed batch of B of n records has B/n of the total variation of its
    event, because a record that the batch leaves out changes nothing.
    """
    ideal = _ideal(event)
    return None if ideal is None else min(1.0, ideal + event.failure_prob)


def _ideal(event: Event) -> float | None:
    """As `variation`, of a bit that never fails."""
    match event:
        case FixedBatch():
            whole = _ideal(event.event)
            share = event.batch_size / event.num_records
            return None if whole is None else share * whole
        case AcceptBit() if event.acceptance.family == "metropolis":
            found = -math.expm1(-event.sensitivity)
        case PoissonAcceptBit() if event.acceptance.family != "barker":
            found = -math.expm1(-event.bound) - math.expm1(-largest_fall(event))
        case _:
            return None
    return min(1.0, event.acceptance.laziness * found)


def compose(events: Iterable[tuple[Event, int]]) -> float:
    """Total variation of (event, count) pairs, of those that have a `variation`."""
    log_kept = 0.0
    for event, count in events:
        lost = variation(event)
        if lost is not None:
            log_kept += -math.inf if lost == 1 else count * math.log1p(-lost)
    return -math.expm1(log_kept)
