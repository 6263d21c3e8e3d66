"""What one step releases about the data, as the accountant sees it.

`events` is everywhere a list of ``(event, count)`` pairs with positive integer counts.
"""

from collections.abc import Iterable

from dp_accounting import NeighboringRelation

from dpjax.acceptance import Acceptance
from dpjax.privacy.releases import (
    AcceptBit,
    BarkerTest,
    GaussianRelease,
    PoissonAcceptBit,
)
from dpjax.privacy.sampled_releases import FixedBatch, PoissonGaussianRelease
from dpjax.privacy.validate import check_count

__all__ = [
    "AcceptBit",
    "BarkerTest",
    "Event",
    "FixedBatch",
    "GaussianRelease",
    "PoissonAcceptBit",
    "PoissonGaussianRelease",
    "check_events",
    "event_from_json",
]

Event = (
    AcceptBit
    | PoissonAcceptBit
    | GaussianRelease
    | PoissonGaussianRelease
    | BarkerTest
    | FixedBatch
)


def event_from_json(data: dict) -> Event:
    """Rebuild an event from `to_json`.

    Raises
    ------
    ValueError
        If the type is unknown, a field is missing or extra, or a value is invalid.
    """
    if not isinstance(data, dict):
        raise ValueError(f"an event must be a JSON object, got {data!r}")
    fields = dict(data)
    kind = fields.pop("type", None)
    try:
        if kind == "gaussian":
            return GaussianRelease(**fields)
        if kind in ("accept_bit", "poisson_accept_bit"):
            names = ("family", "noise_sd", "laziness")
            acceptance = Acceptance(**{name: fields.pop(name) for name in names})
            bit = AcceptBit if kind == "accept_bit" else PoissonAcceptBit
            return bit(acceptance, **fields)
        if kind == "poisson_gaussian":
            relation = NeighboringRelation[fields.pop("neighboring_relation")]
            return PoissonGaussianRelease(neighboring_relation=relation, **fields)
        if kind == "barker_test":
            return BarkerTest(**fields)
        if kind == "fixed_batch":
            return FixedBatch(event_from_json(fields.pop("event")), **fields)
    except (TypeError, KeyError) as error:
        raise ValueError(f"cannot read the event {data!r}: {error}") from None
    raise ValueError(
        f"unknown event type {kind!r}; use 'gaussian', 'accept_bit', "
        "'poisson_accept_bit', 'poisson_gaussian', 'barker_test' or 'fixed_batch'"
    )


def check_events(events: Iterable[tuple[Event, int]]) -> tuple[tuple[Event, int], ...]:
    """Validate a list of (event, count) pairs and merge equal events.

    Raises
    ------
    ValueError
        If the list is empty, is a lone event, or holds anything but such pairs.
    """
    if isinstance(events, Event):
        raise ValueError(
            "events must be a list of (event, count) pairs, got a lone event; "
            "write [(event, 1)]"
        )
    try:
        pairs = list(events)
    except TypeError:
        raise ValueError(
            f"events must be a list of (event, count) pairs, got {events!r}"
        ) from None
    counts: dict[Event, int] = {}
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise ValueError(
                f"events must hold (event, count) pairs, got {pair!r}; "
                "write [(event, 1)]"
            )
        event, count = pair
        if not isinstance(event, Event):
            raise ValueError(f"{event!r} is not an event; use one of dpjax.privacy")
        counts[event] = counts.get(event, 0) + check_count("count", count)
    if not counts:
        raise ValueError(
            "events must not be empty; a step that releases nothing needs no accountant"
        )
    return tuple(counts.items())
