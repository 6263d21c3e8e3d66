"""The kinds of release: what one step publishes about the data."""

from dataclasses import dataclass

from dp_accounting import NeighboringRelation

from dpjax.acceptance import TOTAL_VARIATION, Acceptance
from dpjax.privacy.validate import check_count, check_real

__all__ = [
    "AcceptBit",
    "BarkerTest",
    "FixedBatch",
    "GaussianRelease",
    "PoissonGaussianRelease",
]


@dataclass(frozen=True)
class GaussianRelease:
    """A release with Gaussian noise.

    Parameters
    ----------
    noise_multiplier
        Noise standard deviation over L2 sensitivity, in [1e-50, 1e50].
    total_variation
        Distance in [0, 1] between what is released in floating point and the ideal.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    noise_multiplier: float
    total_variation: float = 0.0

    def __post_init__(self):
        value = check_real(
            "noise_multiplier", self.noise_multiplier, low=1e-50, high=1e50
        )
        object.__setattr__(self, "noise_multiplier", value)
        error = check_real("total_variation", self.total_variation, low=0.0, high=1.0)
        object.__setattr__(self, "total_variation", error)

    @property
    def gaussian(self) -> "GaussianRelease":
        """Itself: what it can be accounted as, as for `AcceptBit`."""
        return self

    def __str__(self):
        return f"Gaussian release with noise multiplier {self.noise_multiplier:g}"

    def to_json(self) -> dict:
        """Return a dictionary for `event_from_json`."""
        return {
            "type": "gaussian",
            "noise_multiplier": self.noise_multiplier,
            "total_variation": self.total_variation,
        }


@dataclass(frozen=True)
class AcceptBit:
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

    def __post_init__(self):
        if not isinstance(self.acceptance, Acceptance):
            raise ValueError(
                f"acceptance must be an Acceptance, got {self.acceptance!r}; "
                "use dpjax.acceptance.barker() or penalty(noise_sd)"
            )
        value = check_real("sensitivity", self.sensitivity, low=1e-50, high=1e50)
        object.__setattr__(self, "sensitivity", value)

    @property
    def total_variation(self) -> float:
        """Distance between the bit drawn in floating point and the ideal one."""
        return TOTAL_VARIATION

    @property
    def gaussian(self) -> GaussianRelease | None:
        """The Gaussian release whose post-processing the bit is; None if not penalty.

        The penalty bit compares l + N(-s^2/2, s^2) with a log-uniform, and the lazy
        coin is independent of the data.
        """
        if self.acceptance.family != "penalty":
            return None
        return GaussianRelease(self.acceptance.noise_sd / self.sensitivity)

    def __str__(self):
        noise = self.acceptance.noise_sd
        details = f" with noise sd {noise:g}" if noise else ""
        if self.acceptance.laziness < 1:
            details += f", laziness {self.acceptance.laziness:g}"
        return (
            f"{self.acceptance.family} accept bit{details}, sensitivity "
            f"{self.sensitivity:g} nats"
        )

    def to_json(self) -> dict:
        """Return a dictionary for `event_from_json`."""
        return {
            "type": "accept_bit",
            "family": self.acceptance.family,
            "noise_sd": float(self.acceptance.noise_sd),
            "laziness": float(self.acceptance.laziness),
            "sensitivity": self.sensitivity,
        }


@dataclass(frozen=True)
class PoissonGaussianRelease:
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
        ADD_OR_REMOVE_ONE or REPLACE_ONE.
    total_variation
        Distance in [0, 1] between what is released in floating point and the ideal.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    noise_multiplier: float
    sampling_prob: float
    neighboring_relation: NeighboringRelation
    total_variation: float = 0.0

    def __post_init__(self):
        value = check_real(
            "noise_multiplier", self.noise_multiplier, low=1e-50, high=1e50
        )
        object.__setattr__(self, "noise_multiplier", value)
        chance = check_real("sampling_prob", self.sampling_prob, low=1e-50, high=1.0)
        object.__setattr__(self, "sampling_prob", chance)
        if self.neighboring_relation not in (
            NeighboringRelation.ADD_OR_REMOVE_ONE,
            NeighboringRelation.REPLACE_ONE,
        ):
            raise ValueError(
                "neighboring_relation must be ADD_OR_REMOVE_ONE or REPLACE_ONE of "
                f"NeighboringRelation, got {self.neighboring_relation!r}"
            )
        error = check_real("total_variation", self.total_variation, low=0.0, high=1.0)
        object.__setattr__(self, "total_variation", error)

    @property
    def gaussian(self) -> GaussianRelease | None:
        """The Gaussian release that it is if every record is sampled."""
        if self.sampling_prob < 1:
            return None
        replace = self.neighboring_relation is NeighboringRelation.REPLACE_ONE
        return GaussianRelease(self.noise_multiplier / (2 if replace else 1))

    def __str__(self):
        return (
            f"Gaussian release with noise sd {self.noise_multiplier:g} clip norms, "
            f"Poisson sample of rate {self.sampling_prob:g}"
        )

    def to_json(self) -> dict:
        """Return a dictionary for `event_from_json`."""
        return {
            "type": "poisson_gaussian",
            "noise_multiplier": self.noise_multiplier,
            "sampling_prob": self.sampling_prob,
            "neighboring_relation": self.neighboring_relation.name,
            "total_variation": self.total_variation,
        }


@dataclass(frozen=True)
class BarkerTest:
    """Barker's test on a batch of all the records, private by the test's own noise.

    Parameters
    ----------
    batch_size
        B. A substitution moves the normal's mean by 2 / sqrt(B) at most, its variance
        by 4 / B at most; the variance is 1 to 2.

    Raises
    ------
    ValueError
        If the batch size is not a positive integer.
    """

    batch_size: int

    def __post_init__(self):
        size = check_count("batch_size", self.batch_size)
        object.__setattr__(self, "batch_size", size)

    @property
    def total_variation(self) -> float:
        """Distance between the bit drawn in floating point and the ideal one."""
        return TOTAL_VARIATION

    @property
    def gaussian(self) -> None:
        """None: the variance of the normal depends on the data."""
        return None

    def __str__(self):
        return f"Barker test on {self.batch_size} records"

    def to_json(self) -> dict:
        """Return a dictionary for `event_from_json`."""
        return {"type": "barker_test", "batch_size": self.batch_size}


@dataclass(frozen=True)
class FixedBatch:
    """An event computed on a secret batch drawn without replacement; REPLACE_ONE only.

    Parameters
    ----------
    event
        What is released of the batch: its sensitivity is that of the statistic of the
        batch, to substitution of one record of the batch.
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
        if not isinstance(self.event, (AcceptBit, GaussianRelease, BarkerTest)):
            raise ValueError(
                "event must be an AcceptBit, a GaussianRelease or a BarkerTest, got "
                f"{self.event!r}"
            )
        for name in ("batch_size", "num_records"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        if self.batch_size > self.num_records:
            raise ValueError(
                f"batch_size {self.batch_size} exceeds num_records {self.num_records}"
            )
        if getattr(self.event, "batch_size", self.batch_size) != self.batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not that of the {self.event}"
            )

    @property
    def total_variation(self) -> float:
        """Distance between what is released in floating point and the ideal."""
        return self.event.total_variation

    @property
    def gaussian(self) -> GaussianRelease | None:
        """That of the event if the batch holds every record."""
        whole = self.batch_size == self.num_records
        return self.event.gaussian if whole else None

    def __str__(self):
        return f"{self.event}, batch of {self.batch_size} of {self.num_records} records"

    def to_json(self) -> dict:
        """Return a dictionary for `event_from_json`."""
        return {
            "type": "fixed_batch",
            "event": self.event.to_json(),
            "batch_size": self.batch_size,
            "num_records": self.num_records,
        }
