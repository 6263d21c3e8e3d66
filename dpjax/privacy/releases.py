"""The kinds of release: what one step publishes about the data.

Those on a sample of the records are in `sampled_releases`, except `PoissonAcceptBit`,
in which every record takes part.
"""

from dataclasses import dataclass

from dpjax.acceptance import TOTAL_VARIATION, Acceptance
from dpjax.privacy.validate import check_count, check_real

__all__ = [
    "AcceptBit",
    "BarkerTest",
    "GaussianRelease",
    "PoissonAcceptBit",
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
        _check_acceptance(self.acceptance)
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
        return f"{_name(self.acceptance)}, sensitivity {self.sensitivity:g} nats"

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
class PoissonAcceptBit:
    """The bit of a step that estimates its log ratio from Poisson counts; REPLACE_ONE.

    A record whose log ratio is v adds s log(b/a) to the estimate, with s ~ Poisson(a),
    a = (S - v) / 2, b = (S + v) / 2 and S = H (R + 1) / (R - 1).

    Parameters
    ----------
    acceptance
        The acceptance function and the laziness. Only Barker's has a finite Renyi
        divergence; of the others the total variation is charged.
    bound
        H, the most |v| can be, in nats, [1e-50, 1e50]: after clipping, and about a
        public centre if there is one. A substitution moves v by 2 H at most.
    max_odds
        R = max b/a > 1: with n records of the same H, and `lambda` draws a step where
        no record says anything, 1 + n H / lambda. H, R and the centre must be public.
    total_variation
        Distance in [0, 1] between the bit drawn in floating point and the ideal one.

    Raises
    ------
    ValueError
        If a parameter is out of range or of the wrong type.
    """

    acceptance: Acceptance
    bound: float
    max_odds: float
    total_variation: float = TOTAL_VARIATION

    def __post_init__(self):
        _check_acceptance(self.acceptance)
        bound = check_real("bound", self.bound, low=1e-50, high=1e50)
        object.__setattr__(self, "bound", bound)
        odds = check_real("max_odds", self.max_odds, low=1 + 2**-52, high=1e50)
        object.__setattr__(self, "max_odds", odds)
        error = check_real("total_variation", self.total_variation, low=0.0, high=1.0)
        object.__setattr__(self, "total_variation", error)

    @property
    def sensitivity(self) -> float:
        """That of a Barker `AcceptBit` that costs no less than this one if Barker's."""
        return self.bound * (1 + self.max_odds)

    @property
    def gaussian(self) -> None:
        """None: the counts are not Gaussian."""
        return None

    def __str__(self):
        return (
            f"{_name(self.acceptance)} of a Poisson minibatch, log ratios of a record "
            f"within {self.bound:g} nats, odds within {self.max_odds:g}"
        )

    def to_json(self) -> dict:
        """Return a dictionary for `event_from_json`."""
        return {
            "type": "poisson_accept_bit",
            "family": self.acceptance.family,
            "noise_sd": float(self.acceptance.noise_sd),
            "laziness": float(self.acceptance.laziness),
            "bound": self.bound,
            "max_odds": self.max_odds,
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


def _check_acceptance(acceptance) -> None:
    if not isinstance(acceptance, Acceptance):
        raise ValueError(
            f"acceptance must be an Acceptance, got {acceptance!r}; "
            "use dpjax.acceptance.barker() or penalty(noise_sd)"
        )


def _name(acceptance: Acceptance) -> str:
    noise = acceptance.noise_sd
    details = f" with noise sd {noise:g}" if noise else ""
    if acceptance.laziness < 1:
        details += f", laziness {acceptance.laziness:g}"
    return f"{acceptance.family} accept bit{details}"
