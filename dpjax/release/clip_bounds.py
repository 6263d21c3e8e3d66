"""Bounds on what one record adds, and the sensitivity of a clipped sum."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dp_accounting import NeighboringRelation

__all__ = ["Lipschitz", "Range", "sensitivity"]


@dataclass(frozen=True)
class Lipschitz:
    """A clip bound on the log ratio that grows with the distance moved.

    Parameters
    ----------
    constant
        Bound per unit of Euclidean distance between the two positions. If every
        log-likelihood has this Lipschitz constant, no record is ever clipped.
    """

    constant: float


@dataclass(frozen=True)
class Range:
    """A public range of the log ratio of all records that there could be.

    Parameters
    ----------
    bounds_fn
        ``(position, proposed) -> (low, high)``: no record of the public domain has
        a log ratio log p(x | proposed) - log p(x | position), without tempering,
        outside; one that has is clipped. It reads no data, and exchanging the positions
        must give ``(-high, -low)``. `dpjax.bounds` has some.
    half_range
        Bound on (high - low) / 2 per unit of the proposal's distance, for what a step
        costs: a wider range is clipped to it about its centre.
    """

    bounds_fn: Callable[[Any, Any], tuple]
    half_range: float


def sensitivity(clip_bound: float, neighboring_relation: NeighboringRelation) -> float:
    """How far neighbouring data can move a sum clipped at `clip_bound`."""
    if math.isnan(clip_bound) or clip_bound <= 0:
        raise ValueError(f"the clip bound must be positive, got {clip_bound}")
    replaces = neighboring_relation == NeighboringRelation.REPLACE_ONE
    return 2.0 * clip_bound if replaces else float(clip_bound)
