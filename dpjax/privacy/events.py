"""Events: what one step releases about the data, as the accountant sees it.

`events` is everywhere a list of ``(event, count)`` pairs with positive integer counts.
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
"""Largest dimension of K-norm noise. It is hardly smaller than Gaussian noise there."""

_CLASSES: dict[str, type["Event"]] = {}
"""Every class of events, by the type that its JSON names."""


class Event:
    """Base of all events: frozen dataclasses, checked and written to JSON by field.

    Attributes
    ----------
    json_type
        Name of the class in JSON.
    failure_prob
        Chance in [0, 1] that what is released in floating point has nothing to do with
        the ideal release that the other fields describe.
    relative_error
        Otherwise the probabilities of what is released are those of the ideal release
        up to factors between e^-relative_error and e^relative_error. Nats, in [0, 1].
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
        """A Gaussian release whose post-processing the event is, if there is one."""
        return None

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for `event_from_json`."""
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
        Noise standard deviation over L2 sensitivity, in [1e-50, 1e50].
    failure_prob, relative_error
        What floating point makes of it: see `Event`.

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

    In few dimensions it has less noise than a Gaussian release of the same privacy: in
    one about half, in ten three quarters. Whether it is made, in how many dimensions
    and with how much noise must be fixed before the first output is seen.

    Parameters
    ----------
    noise_multiplier
        Noise standard deviation of a coordinate over L2 sensitivity, in [1e-50, 1e50].
    dim
        r, the numbers that are released, at most 1000.
    failure_prob, relative_error
        What floating point makes of it: see `Event`.

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
        The most by which the log probability of anything released differs between
        neighbouring data, nats, in [1e-50, 1e50].
    failure_prob, relative_error
        What floating point makes of it: see `Event`.

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
    """The bit of one Metropolis-Hastings step, Bernoulli(c a(l)).

    Parameters
    ----------
    acceptance
        The acceptance function a and the laziness c.
    sensitivity
        How far neighbouring data can move the log ratio l, in nats, [1e-50, 1e50].

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
        """The Gaussian release whose post-processing a penalty bit is, else None.

        The penalty bit compares l + N(-s^2/2, s^2) with a log-uniform, and the lazy
        coin is independent of the data.
        """
        if self.acceptance.family != "penalty":
            return None
        return GaussianRelease(self.acceptance.noise_sd / self.sensitivity)

    def __str__(self):
        return f"{_name(self.acceptance)}, sensitivity {self.sensitivity:g} nats"


@dataclass(frozen=True)
class PoissonAcceptBit(Event, json_type="poisson_accept_bit"):
    """The bit of a step that estimates its log ratio from Poisson counts; REPLACE_ONE.

    A record whose log ratio is v adds s log(b/a) to the estimate, with s ~ Poisson(a),
    a = (S - v) / 2, b = (S + v) / 2 and S = H (R + 1) / (R - 1). Every record takes
    part: the counts are random, not the choice of records.

    Parameters
    ----------
    acceptance
        The acceptance function and the laziness. Only the Barker bit has a finite Renyi
        divergence; the other families are charged by their total variation.
    bound
        H, the most |v| can be, in nats, [1e-50, 1e50]: after clipping, and about a
        public centre if there is one. A substitution moves v by 2 H at most.
    max_odds
        R = max b/a > 1. With n records of the same H, and on average `lambda` draws in
        a step where every v is 0, R is 1 + n H / lambda. H, R and the centre must be
        public.

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
        """Sensitivity of an `AcceptBit` that costs no less, for Barker's family."""
        return self.bound * (1 + self.max_odds)

    def __str__(self):
        return (
            f"{_name(self.acceptance)} of a Poisson minibatch, log ratios of a record "
            f"within {self.bound:g} nats, odds within {self.max_odds:g}"
        )


@dataclass(frozen=True)
class BarkerTest(Event, json_type="barker_test"):
    """Barker's test on a batch of all the records, private by the test's own noise.

    Parameters
    ----------
    batch_size
        B. The test accepts if a normal variate plus a correction is positive. A
        substitution moves the normal's mean by 2 / sqrt(B) at most and its variance by
        4 / B at most; the variance lies in [1, 2].

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
        Noise standard deviation over the clip norm of *one* record, in [1e-50, 1e50].
        `GaussianRelease` divides by the sensitivity instead, which is twice the clip
        norm under substitution.
    sampling_prob
        Chance of each record, independently of the others, in (0, 1].
    neighboring_relation
        Under which the event is charged.
    failure_prob, relative_error
        What floating point makes of it: see `Event`.

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
        """The Gaussian release that the event is if every record is sampled."""
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
    """An event computed on a secret batch drawn without replacement; REPLACE_ONE only.

    Parameters
    ----------
    event
        What is released about the batch. Its sensitivity is that of the statistic of
        the batch, to substitution of one record of the batch.
    batch_size, num_records
        Records in the batch, at most `num_records`, and records that it is drawn from.

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
        """That of the event on the batch."""
        return self.event.failure_prob

    @property
    def relative_error(self) -> float:
        """That of the event on the batch."""
        return self.event.relative_error

    @property
    def gaussian(self) -> GaussianRelease | None:
        """The Gaussian release behind the event if the batch holds every record."""
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
"""What checks and converts each field, whatever event it belongs to."""


def _field_names(dataclass_or_instance) -> list[str]:
    return [field.name for field in fields(dataclass_or_instance)]


def event_from_json(data: dict) -> Event:
    """Rebuild an event from `to_json`.

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
    """Validate a list of (event, count) pairs and merge equal events.

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


def repeat(
    step_events: Iterable[tuple[Event, int]], num_steps: int
) -> list[tuple[Event, int]]:
    """Events of `num_steps` steps that each release the checked `step_events`."""
    return [(event, count * num_steps) for event, count in step_events]
