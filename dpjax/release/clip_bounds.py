"""Bounds on one record's log ratio, and the sensitivity of a sum clipped at them.

A record's log ratio is log p(x | proposed) - log p(x | position) of one record x. A
Metropolis-Hastings kernel takes its `clip_bound` as a number, a `Lipschitz` or a
`Range`. `of` makes a `ClipBound` of any of these, and the kernel asks the bound what it
needs to know:

- `ClipBound.at`, the bound for a move over a known distance;
- `ClipBound.largest`, one bound that holds for every move of a proposal; None if the
  distance of the moves varies and the bound grows with it;
- `ClipBound.limits`, the interval that log ratios are clipped to;
- `ClipBound.is_constant`, whether the bound is the same for all moves.

`sensitivity` and `log_ratio_sensitivity` then say how far neighbouring data can move a
sum of clipped terms.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from dp_accounting import NeighboringRelation
from jax.core import Tracer

from dpjax.privacy.validate import check_kept_size

__all__ = [
    "MAX_RECORDS",
    "ClipBound",
    "Constant",
    "Lipschitz",
    "Range",
    "log_ratio_sensitivity",
    "of",
    "sensitivity",
]

MAX_RECORDS = 2**30
"""The most records for which `log_ratio_sensitivity` covers the rounding of a sum."""


class ClipBound:
    """Base of `Constant`, `Lipschitz` and `Range`. Bounds are in nats, untempered.

    is_constant
        Whether the bound is the same for all moves.
    number
        The number that the user chose: nats, or nats per unit of distance.
    """

    is_constant: ClassVar[bool] = False
    number: Any

    def at(self, distance) -> Any:
        """The bound for a move over `distance`, which may be traced.

        A proposal of the user may state a negative distance; its sign does not count.
        """
        return self.number * abs(distance)

    def largest(self, distance: float | None) -> Any:
        """One bound that holds for all moves of a proposal; None if there is none.

        Parameters
        ----------
        distance
            How far every move of the proposal goes; None if the distance varies.
        """
        if distance is None and not self.is_constant:
            return None
        return self.at(distance)

    def limits(self, position, move) -> tuple:
        """The interval ``(low, high)`` to which log ratios are clipped.

        It is that of a `dpjax.proposals.Move` from `position`.
        """
        bound = self.at(move.distance)
        return -bound, bound


@dataclass(frozen=True)
class Constant(ClipBound):
    """A bound in nats that is the same for all moves; plain numbers become this."""

    number: Any
    is_constant = True

    def at(self, distance) -> Any:
        return self.number


@dataclass(frozen=True)
class Lipschitz(ClipBound):
    """A clip bound on the log ratio that grows with the distance moved.

    Parameters
    ----------
    constant
        Bound per unit of Euclidean distance between the two positions. If every
        log-likelihood has this Lipschitz constant, no record is ever clipped.
    """

    constant: float

    @property
    def number(self):
        return self.constant


@dataclass(frozen=True)
class Range(ClipBound):
    """A public interval that holds the log ratio of every record that there could be.

    Only kernels with minibatches of Poisson size take a range. What they bound is how
    far a log ratio is from the centre of the interval, so `at` and `largest` are bounds
    on half of the interval's width.

    Parameters
    ----------
    bounds_fn
        ``(position, proposed) -> (low, high)``, an interval that contains the log ratio
        log p(x | proposed) - log p(x | position), without tempering, of every record x
        of the public domain. A record outside the interval is clipped to it. The
        function must not read the data, and exchanging the positions must give
        ``(-high, -low)``. `dpjax.bounds` has some.
    half_range
        Bound on (high - low) / 2 per unit of the distance of a move. A step is charged
        for this bound. An interval that is wider is narrowed to it about its centre. If
        low is above high, all log ratios are clipped to the centre.
    """

    bounds_fn: Callable[[Any, Any], tuple]
    half_range: float

    def __post_init__(self):
        if not callable(self.bounds_fn):
            raise ValueError(
                "Range takes a function (position, proposed) -> (low, high), and then "
                f"half_range; the first is of type {type(self.bounds_fn).__name__}"
            )

    @property
    def number(self):
        return self.half_range

    def limits(self, position, move) -> tuple:
        return self.bounds_fn(position, move.position)


def of(clip_bound, *, has_centre: bool = False) -> ClipBound:
    """The `ClipBound` that a kernel's argument stands for.

    Parameters
    ----------
    clip_bound
        A number of nats, which may be traced, or a `ClipBound`.
    has_centre
        Whether the kernel can clip log ratios about a centre other than zero.

    Raises
    ------
    ValueError
        If the bound is not positive, which cannot be checked of a traced number, or if
        it is a `Range` and the kernel has no centre.
    """
    # A subclass could answer otherwise in a step than where the step is charged.
    if type(clip_bound) not in (Constant, Lipschitz, Range):
        clip_bound = Constant(clip_bound)
    if isinstance(clip_bound, Range) and not has_centre:
        raise ValueError(
            "this kernel clips log ratios about zero and has no centre for a Range: "
            "clip_bound must be a number or Lipschitz"
        )
    number = clip_bound.number
    if isinstance(number, Tracer):
        return clip_bound
    if np.ndim(number) or not np.issubdtype(np.asarray(number).dtype, np.number):
        raise ValueError(
            "clip_bound must be a number of nats, Lipschitz(number) or "
            f"Range(bounds_fn, number), got {number!r} for the number"
        )
    if not number > 0:
        raise ValueError(
            f"clip_bound must be positive, got {number}: it bounds, in nats, what one "
            "record adds to the log ratio"
        )
    # What is computed from an array or a NumPy scalar is rounded to its precision, the
    # charge too.
    name = dataclasses.fields(clip_bound)[-1].name
    return dataclasses.replace(clip_bound, **{name: float(number)})


def sensitivity(clip_bound: float, neighboring_relation: NeighboringRelation) -> float:
    """How far neighbouring data can move a sum of terms clipped at `clip_bound`.

    Raises
    ------
    ValueError
        If the clip bound is not positive; or as `check_kept_size`.
    """
    if not clip_bound > 0:
        raise ValueError(f"the clip bound must be positive, got {clip_bound}")
    relation = check_kept_size("neighboring_relation", neighboring_relation)
    replaces = relation is NeighboringRelation.REPLACE_ONE
    return 2.0 * clip_bound if replaces else float(clip_bound)


def log_ratio_sensitivity(
    clip_bound: float, neighboring_relation: NeighboringRelation
) -> float:
    """How far neighbouring data can move a log ratio of all records, nats.

    Parameters
    ----------
    clip_bound
        b, the bound on the tempered log ratio of one record, in nats.

    Raises
    ------
    ValueError
        As for `sensitivity`.

    Notes
    -----
    The sum of n clipped ratios, in cells of the grid, is an exact integer. It is
    multiplied by the size of a cell and by the tempering to make it a log ratio, and
    each product rounds by 2^-53 n b at most. So the log ratios of neighbouring data
    differ by at most 2^-51 n b more than the exact ones. The charge takes n to be
    `MAX_RECORDS`, so that it is the same for all n.
    """
    rounding = MAX_RECORDS * 2.0**-51 * clip_bound
    return sensitivity(clip_bound, neighboring_relation) + rounding
