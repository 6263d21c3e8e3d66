"""Privacy events: descriptions of what a step releases, for the accountant.

Every argument named `events` is a list of ``(event, count)`` pairs with positive
integer counts.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

from dp_accounting import NeighboringRelation

from dpjax.acceptance import FAILURE_PROB, Acceptance
from dpjax.privacy.validate import check_count, check_real, check_relation

__all__ = [
    "AcceptBit",
    "BarkerTest",
    "Event",
    "FixedBatch",
    "GaussianRelease",
    "KNormRelease",
    "PoissonAcceptBit",
    "PoissonGaussianRelease",
    "PureRelease",
    "check_events",
    "event_from_json",
    "repeat",
]

MAX_K_NORM_DIM = 1000
"""Largest dimension of K-norm noise. In so many dimensions it is hardly smaller than
Gaussian noise."""

_CLASSES: dict[str, type["Event"]] = {}
"""Every class of events, by its `json_type`."""


class Event:
    """Base of all events, which are frozen dataclasses.

    Every field is checked when an event is made, and is written to JSON.

    Attributes
    ----------
    json_type
        Name of the class in JSON.
    failure_prob
        Probability in [0, 1] with which the release in floating point fails. A release
        that fails may be anything. The other fields describe the ideal release.
    relative_error
        Nats, in [0, 1]. If the release does not fail, the probability of every outcome
        is that of the ideal release, up to a factor between e^-relative_error and
        e^relative_error.
    """

    json_type: ClassVar[str]
    failure_prob: float
    relative_error: float = 0.0

    def __init_subclass__(cls, json_type: str):
        cls.json_type = json_type
        _CLASSES[json_type] = cls

    def __post_init__(self):
        for name in _field_names(self):
            checked = _CHECKS[name](name, getattr(self, name))
            object.__setattr__(self, name, checked)

    @property
    def gaussian(self) -> "GaussianRelease | None":
        """A Gaussian release of which the event is post-processing, or None."""
        return None

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary from which `event_from_json` makes the event again."""
        found: dict[str, Any] = {"type": self.json_type}
        for name in _field_names(self):
            match getattr(self, name):
                case Acceptance(family, noise_sd, laziness):
                    found["family"] = family
                    found["noise_sd"] = float(noise_sd)
                    found["laziness"] = float(laziness)
                case NeighboringRelation() as relation:
                    found[name] = relation.name
                case Event() as event:
                    found[name] = event.to_json()
                case number:
                    found[name] = number
        return found


@dataclass(frozen=True)
class GaussianRelease(Event, json_type="gaussian"):
    """A release with Gaussian noise.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of the noise, divided by the L2 sensitivity, in
        [1e-50, 1e50].
    failure_prob, relative_error
        Error of the release in floating point: see `Event`.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    noise_multiplier: float
    failure_prob: float = 0.0
    relative_error: float = 0.0

    @property
    def gaussian(self) -> "GaussianRelease":
        """The event itself."""
        return self

    def __str__(self):
        return f"Gaussian release with noise multiplier {self.noise_multiplier:g}"


@dataclass(frozen=True)
class KNormRelease(Event, json_type="k_norm"):
    """A release of a vector with noise of a density proportional to e^(-c |x|).

    In few dimensions it has less noise than a Gaussian release of the same privacy:
    about half as much in one dimension, and three quarters in ten. Three things must be
    fixed before the first output is seen: whether the release is made, its dimension
    and its noise.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of the noise in one coordinate, divided by the L2
        sensitivity, in [1e-50, 1e50].
    dim
        r, the number of coordinates that are released, at most 1000.
    failure_prob, relative_error
        Error of the release in floating point: see `Event`.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    noise_multiplier: float
    dim: int
    failure_prob: float = 0.0
    relative_error: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if self.dim > MAX_K_NORM_DIM:
            raise ValueError(
                f"dim must be at most {MAX_K_NORM_DIM}, got {self.dim}; Gaussian noise "
                "is as small in so many dimensions"
            )

    @property
    def rate(self) -> float:
        """c times the sensitivity, sqrt(r + 1) / noise_multiplier.

        The release alone is (rate, 0)-private.
        """
        return math.sqrt(self.dim + 1) / self.noise_multiplier

    def __str__(self):
        return (
            f"K-norm release of {self.dim} numbers with noise multiplier "
            f"{self.noise_multiplier:g}"
        )


@dataclass(frozen=True)
class PureRelease(Event, json_type="pure"):
    """A release whose privacy loss is bounded: it is (largest_loss, 0)-private.

    Parameters
    ----------
    largest_loss
        Largest difference between neighbouring data of the log probability of an
        outcome, in nats, in [1e-50, 1e50].
    failure_prob, relative_error
        Error of the release in floating point: see `Event`.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    largest_loss: float
    failure_prob: float = 0.0
    relative_error: float = 0.0

    def __str__(self):
        return f"release with a loss of at most {self.largest_loss:g} nats"


@dataclass(frozen=True)
class AcceptBit(Event, json_type="accept_bit"):
    """The accept bit of one Metropolis-Hastings step, Bernoulli(c a(l)).

    Parameters
    ----------
    acceptance
        The acceptance function a and the laziness c.
    sensitivity
        D, the largest difference of the log ratio l between neighbouring data, in nats,
        in [1e-50, 1e50].

    Raises
    ------
    ValueError
        If a parameter is out of range or of the wrong type.
    """

    acceptance: Acceptance
    sensitivity: float
    failure_prob: ClassVar[float] = FAILURE_PROB

    @property
    def gaussian(self) -> GaussianRelease | None:
        """A Gaussian release of which a penalty bit is post-processing, else None.

        The penalty bit says whether l + N(-s^2/2, s^2) exceeds the logarithm of a
        uniform variate. The coin of a lazy step is independent of the data.
        """
        if self.acceptance.family != "penalty":
            return None
        return GaussianRelease(self.acceptance.noise_sd / self.sensitivity)

    def __str__(self):
        return f"{_name(self.acceptance)}, sensitivity {self.sensitivity:g} nats"


@dataclass(frozen=True)
class PoissonAcceptBit(Event, json_type="poisson_accept_bit"):
    """The accept bit of a step that estimates its log ratio from Poisson counts.

    The neighbouring relation is REPLACE_ONE. A record whose log ratio is v is counted s
    times, with s ~ Poisson(a), and adds s log(b/a) to the estimate, where

        a = (S - v) / 2,    b = (S + v) / 2,    S = H (R + 1) / (R - 1).

    Every record has such a count. The counts are random, and no sample of the records
    is drawn besides.

    Parameters
    ----------
    acceptance
        The acceptance function and the laziness. Only the bit of Barker's family has a
        finite Renyi divergence. The other families are charged by their total
        variation.
    bound
        H, the largest |v|, in nats, in [1e-50, 1e50]. Here v is the clipped log ratio,
        less a public centre if there is one. A substitution moves v by 2 H at most.
    max_odds
        R, the largest b/a, above 1. For `dpjax.fast_mh` it is 1 + n H / lambda, where
        lambda is the `expected_batch_size` and n the number of records. H, R and the
        centre must be public.

    Raises
    ------
    ValueError
        If a parameter is out of range or of the wrong type.
    """

    acceptance: Acceptance
    bound: float
    max_odds: float
    failure_prob: ClassVar[float] = FAILURE_PROB

    @property
    def sensitivity(self) -> float:
        """H + H R, the sensitivity of an `AcceptBit` of Barker's family that costs at
        least as much."""
        return self.bound * (1 + self.max_odds)

    def __str__(self):
        return (
            f"{_name(self.acceptance)} of a Poisson minibatch, log ratios of a record "
            f"within {self.bound:g} nats, odds within {self.max_odds:g}"
        )


@dataclass(frozen=True)
class BarkerTest(Event, json_type="barker_test"):
    """The accept bit of Barker's test on a batch, private by the test's own noise.

    The test accepts if the sum of a normal variate and a correction is positive. A
    substitution in the batch moves the mean of the normal variate by 2 / sqrt(B) at
    most and its variance by 4 / B at most. The variance lies in [1, 2].

    Parameters
    ----------
    batch_size
        B, the number of records in the batch.

    Raises
    ------
    ValueError
        If the batch size is not a positive integer.
    """

    batch_size: int
    failure_prob: ClassVar[float] = FAILURE_PROB

    def __str__(self):
        return f"Barker test on {self.batch_size} records"


@dataclass(frozen=True)
class PoissonGaussianRelease(Event, json_type="poisson_gaussian"):
    """A sum of clipped vectors over a Poisson sample of records, with Gaussian noise.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of the noise, divided by the clip norm of *one* record, in
        [1e-50, 1e50]. `GaussianRelease` divides by the sensitivity instead, which is
        twice the clip norm under substitution.
    sampling_prob
        Probability that a record is in the sample, independently of the others, in
        (0, 1].
    neighboring_relation
        Neighbouring relation under which the event is charged.
    failure_prob, relative_error
        Error of the release in floating point: see `Event`.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    noise_multiplier: float
    sampling_prob: float
    neighboring_relation: NeighboringRelation
    failure_prob: float = 0.0
    relative_error: float = 0.0

    @property
    def gaussian(self) -> GaussianRelease | None:
        """The event as a Gaussian release if every record is sampled, else None."""
        if self.sampling_prob < 1:
            return None
        replace = self.neighboring_relation is NeighboringRelation.REPLACE_ONE
        return GaussianRelease(self.noise_multiplier / (2 if replace else 1))

    def __str__(self):
        return (
            f"Gaussian release with noise sd {self.noise_multiplier:g} clip norms, "
            f"Poisson sample of rate {self.sampling_prob:g}"
        )


@dataclass(frozen=True)
class FixedBatch(Event, json_type="fixed_batch"):
    """A release about a secret batch that is drawn without replacement.

    The neighbouring relation is REPLACE_ONE.

    Parameters
    ----------
    event
        The release, given the batch. Its sensitivity is to substitution of one record
        of the batch.
    batch_size, num_records
        Number of records in the batch, and number of records from which it is drawn.
        The first is at most the second.

    Raises
    ------
    ValueError
        If a parameter is out of range or of the wrong type.
    """

    event: AcceptBit | GaussianRelease | BarkerTest
    batch_size: int
    num_records: int

    def __post_init__(self):
        super().__post_init__()
        if self.batch_size > self.num_records:
            raise ValueError(
                f"batch_size {self.batch_size} exceeds num_records {self.num_records}"
            )
        if getattr(self.event, "batch_size", self.batch_size) != self.batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not that of the {self.event}"
            )

    @property
    def failure_prob(self) -> float:
        """Failure probability of the event on the batch."""
        return self.event.failure_prob

    @property
    def relative_error(self) -> float:
        """Relative error of the event on the batch."""
        return self.event.relative_error

    @property
    def gaussian(self) -> GaussianRelease | None:
        """`gaussian` of the event if the batch holds all records, else None."""
        whole = self.batch_size == self.num_records
        return self.event.gaussian if whole else None

    def __str__(self):
        return f"{self.event}, batch of {self.batch_size} of {self.num_records} records"


def _name(acceptance: Acceptance) -> str:
    noise = acceptance.noise_sd
    details = f" with noise sd {noise:g}" if noise else ""
    if acceptance.laziness < 1:
        details += f", laziness {acceptance.laziness:g}"
    return f"{acceptance.family} accept bit{details}"


def _check_acceptance(name: str, value) -> Acceptance:
    if not isinstance(value, Acceptance):
        raise ValueError(
            f"{name} must be an Acceptance, got {value!r}; "
            "use dpjax.acceptance.barker() or penalty(noise_sd)"
        )
    return value


def _check_batch_event(name: str, value) -> Event:
    if not isinstance(value, (AcceptBit, GaussianRelease, BarkerTest)):
        raise ValueError(
            f"{name} must be an AcceptBit, a GaussianRelease or a BarkerTest, got "
            f"{value!r}"
        )
    return value


_CHECKS = {
    "acceptance": _check_acceptance,
    "batch_size": check_count,
    "bound": partial(check_real, low=1e-50, high=1e50),
    "dim": check_count,
    "event": _check_batch_event,
    "failure_prob": partial(check_real, low=0.0, high=1.0),
    "largest_loss": partial(check_real, low=1e-50, high=1e50),
    "max_odds": partial(check_real, low=1 + 2**-52, high=1e50),
    "neighboring_relation": check_relation,
    "noise_multiplier": partial(check_real, low=1e-50, high=1e50),
    "num_records": check_count,
    "relative_error": partial(check_real, low=0.0, high=1.0),
    "sampling_prob": partial(check_real, low=1e-50, high=1.0),
    "sensitivity": partial(check_real, low=1e-50, high=1e50),
}
"""By the name of a field, the function that checks and converts its value. Fields of
the same name in different events are checked alike."""


def _field_names(dataclass_or_instance) -> list[str]:
    return [field.name for field in fields(dataclass_or_instance)]


def event_from_json(data: dict) -> Event:
    """Make an event from the dictionary that `Event.to_json` returned.

    Raises
    ------
    ValueError
        If the type is unknown, a field is missing or extra, or a value is invalid.
    """
    if not isinstance(data, dict):
        raise ValueError(f"an event must be a JSON object, got {data!r}")
    rest = dict(data)
    kind = rest.pop("type", None)
    if kind not in list(_CLASSES):
        raise ValueError(
            f"unknown event type {kind!r}; use one of {', '.join(map(repr, _CLASSES))}"
        )
    built: dict[str, Any] = {}
    try:
        if "acceptance" in _field_names(_CLASSES[kind]):
            values = {name: rest.pop(name) for name in _field_names(Acceptance)}
            built["acceptance"] = Acceptance(**values)
        if "neighboring_relation" in rest:
            name = rest.pop("neighboring_relation")
            built["neighboring_relation"] = NeighboringRelation[name]
        if "event" in rest:
            built["event"] = event_from_json(rest.pop("event"))
        return _CLASSES[kind](**built, **rest)
    except (TypeError, KeyError) as error:
        raise ValueError(f"cannot read the event {data!r}: {error}") from None


def check_events(events: Iterable[tuple[Event, int]]) -> tuple[tuple[Event, int], ...]:
    """Check a list of (event, count) pairs, and add the counts of equal events.

    Raises
    ------
    ValueError
        If the list is empty, is a lone event, or holds anything but such pairs.
    """
    try:
        pairs = list(events)
    except TypeError:
        raise ValueError(
            f"events must be a list of (event, count) pairs, got {events!r}; "
            "write [(event, 1)]"
        ) from None
    counts: dict[Event, int] = {}
    for pair in pairs:
        match pair:
            case (Event() as event, count):
                counts[event] = counts.get(event, 0) + check_count("count", count)
            case _:
                raise ValueError(
                    "events must hold (event, count) pairs with events of "
                    f"dpjax.privacy, got {pair!r}; write [(event, 1)]"
                )
    if not counts:
        raise ValueError(
            "events must not be empty; a step that releases nothing needs no accountant"
        )
    return tuple(counts.items())


def repeat(events: Iterable[tuple[Event, int]], times: int) -> list[tuple[Event, int]]:
    """`events` so many times: those of several steps, or of several chains."""
    return [(event, count * times) for event, count in events]
