"""The kinds of release that are computed on a secret sample of the records."""

from dataclasses import dataclass

from dp_accounting import NeighboringRelation

from dpjax.privacy.releases import AcceptBit, BarkerTest, GaussianRelease
from dpjax.privacy.validate import check_count, check_real

__all__ = ["FixedBatch", "PoissonGaussianRelease"]


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
