"""Bits that no noise protects: composition by total variation.

A Metropolis bit rejects with probability 0 at l >= 0 and more on a neighbour, so it is
(epsilon, 1 - e^-D)-private for every epsilon and for no smaller delta: its total
variation is all there is to say. That of T bits is at most 1 - prod (1 - tv_t), however
they are chosen (each step, couple the two runs as long as they agree), and T Metropolis
bits attain it, 1 - e^-(D_1 + ... + D_T), by the event "no rejection".

Beside private releases it adds to their delta at any epsilon: compare both data sets
with the run whose bare bits are the second's and whose other releases are the first's.

A balanced acceptance function has a(l + x) <= e^x a(l) for x >= 0, so a(l + x) - a(l)
<= 1 - e^-x if it grows. Thus the total variation of an `AcceptBit` is at most
1 - e^-D, and that of a `PoissonAcceptBit`, in the notation of `minibatch_bit`, at most

    max_v E[1 - e^(-s w)] + E[1 - e^(-s |w|)] at v = -H
        = (1 - e^-max v a/b) + (1 - e^-H),

by comparing both bits with the one of v = 0; with laziness c it is c times that.
"""

import math

from dpjax.privacy.bits.poisson_renyi import largest_fall
from dpjax.privacy.events import AcceptBit, Event, FixedBatch, PoissonAcceptBit

__all__ = ["compose", "variation"]


def variation(event: Event) -> float | None:
    """Total variation of one bit in floating point; None if it has a Renyi divergence.

    Parameters
    ----------
    event
        Any event.

    Returns
    -------
    In [0, 1]. A record that a fixed batch of B of n leaves out changes nothing, so a
    batch has B/n of it.
    """
    match event:
        case FixedBatch():
            whole = variation(event.event)
            share = event.batch_size / event.num_records
            return None if whole is None else share * whole
        case AcceptBit() if event.acceptance.family == "metropolis":
            ideal = -math.expm1(-event.sensitivity)
        case PoissonAcceptBit() if event.acceptance.family != "barker":
            ideal = -math.expm1(-event.bound) - math.expm1(-largest_fall(event))
        case _:
            return None
    return min(1.0, event.acceptance.laziness * ideal + 2 * event.total_variation)


def compose(events) -> float:
    """Total variation of (event, count) pairs that all have a `variation`."""
    kept = 0.0
    for event, count in events:
        lost = variation(event)
        kept += -math.inf if lost == 1 else count * math.log1p(-lost)
    return -math.expm1(kept)
