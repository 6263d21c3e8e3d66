"""Acceptance functions a(l) of Metropolis-Hastings steps, and the draw of the bit.

Each acceptance function is *balanced*, a(l) = e^l a(-l). So a chain that accepts with
probability a(l), with l the log Metropolis-Hastings ratio, keeps its target exactly. A
step releases one Bernoulli(c a(l)) bit about the data, with c the laziness, and
`dpjax.privacy` charges for that bit.
"""

import math
import numbers
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr
from scipy import special

__all__ = [
    "FAILURE_PROB",
    "MAX_BATCH_VARIANCE",
    "TEST_CORRECTION",
    "TEST_NOISE_VARIANCE",
    "Acceptance",
    "barker",
    "barker_test",
    "metropolis",
    "penalty",
    "probability",
]

FAILURE_PROB = 4e-15
"""Probability with which `dpjax.release.accept_bit` draws a fair coin in place of the
ideal bit.

Half of it bounds the sum of four errors in the probability of the bit:

- of a(l) in float64, which is tested against 50 digits;
- of the threshold, an integer of 63 bits;
- of the log ratio, whose last rounding changes it by a factor of at most 1 + 2^-53 and
  so moves a(l) by up to sup |l a'(l)| 2^-53;
- of the draw of a minibatch, the total variation between its law and the ideal one.
"""

MAX_NOISE_SD = 64.0
"""Largest standard deviation s of the penalty's noise, nats. The rounding of the log
ratio moves a(l) by up to 0.2 s 2^-53, which `FAILURE_PROB` covers up to this s."""

TEST_NOISE_VARIANCE = 2.0
"""Variance of the Gaussian part of the noise in Barker's test on a batch. The sum of
this part and of V_corr (`TEST_CORRECTION`) is approximately logistic."""

MAX_BATCH_VARIANCE = 0.99**2
"""Largest variance V that an estimate of the log ratio from a batch may have. The test
adds Gaussian noise of variance `TEST_NOISE_VARIANCE` - V only, as the error of the
estimate stands for the rest."""

_HALF = np.array(
    [
        [0.0, 0.857992140612],
        [2.7734, 0.135135889574],
        [5.9050, 0.006642498886],
        [9.4127, 0.000229470928],
    ]
)
"""The points of V_corr that are not negative, and for each the probability of the point
and its mirror image together, ``(4, 2)``."""

TEST_CORRECTION = np.stack(
    [
        np.concatenate([-_HALF[:0:-1, 0], _HALF[:, 0]]),
        np.concatenate([_HALF[:0:-1, 1] / 2, _HALF[:1, 1], _HALF[1:, 1] / 2]),
    ]
)
"""Points and probabilities of the discrete random variable V_corr, ``(2, 7)``.

N(0, 2) + V_corr is within total variation .00385 of Logistic(0, 1)."""

MIN_MILLS_ARGUMENT = 10.0
"""Smallest argument at which Mills' ratio is computed by its continued fraction."""


@dataclass(frozen=True)
class Acceptance:
    """An acceptance function c a(l): the family of a, its noise, and the laziness c.

    Parameters
    ----------
    family
        ``"barker"`` is a(l) = 1 / (1 + e^-l). ``"penalty"`` is
        a(l) = Phi(l/s - s/2) + e^l Phi(-l/s - s/2), the probability that the penalty
        method accepts. ``"metropolis"`` is a(l) = min(1, e^l), for which no privacy is
        claimed.
    noise_sd
        s in (0, 64] nats, for the penalty family only.
    laziness
        c in (0, 1], the probability that a step does anything. The coin is tossed in
        secret, before the data are read.

    Raises
    ------
    ValueError
        If the family is unknown, or a number is a boolean or out of range. Real numbers
        of other types become Python floats, so that the accountant never computes in
        float32.
    """

    family: Literal["barker", "penalty", "metropolis"]
    noise_sd: float = 0.0
    laziness: float = 1.0

    def __post_init__(self):
        if self.family not in ("barker", "penalty", "metropolis"):
            raise ValueError(f"unknown acceptance family {self.family!r}")
        for name in ("noise_sd", "laziness"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise ValueError(
                    f"{name} must be a real number, got {value!r}; pass a Python float"
                )
            object.__setattr__(self, name, float(value))
        if self.family != "penalty" and self.noise_sd != 0:
            raise ValueError("noise_sd belongs to the penalty family only")
        if self.family == "penalty" and not 0 < self.noise_sd <= MAX_NOISE_SD:
            raise ValueError(
                "noise_sd, the noise of the accept test, must be in (0, "
                f"{MAX_NOISE_SD}] nats, got {self.noise_sd}; with more noise hardly "
                "any move is accepted: lower test_noise_multiplier, clip_bound or "
                "step_size"
            )
        if not 0 < self.laziness <= 1:
            raise ValueError(f"laziness must be in (0, 1], got {self.laziness}")

    def log_accept(self, log_ratio: np.ndarray) -> np.ndarray:
        """log a(l) in float64 on the host, without the laziness."""
        log_ratio = np.asarray(log_ratio, np.float64)
        match self.family:
            case "metropolis":
                return np.minimum(log_ratio, 0.0)
            case "barker":
                return -_log1p_exp(-log_ratio)
            case "penalty":
                s = self.noise_sd
                x = log_ratio / s - s / 2
                other = log_ratio + special.log_ndtr(-x - s)
                return np.minimum(np.logaddexp(special.log_ndtr(x), other), 0.0)

    def log_reject(self, log_ratio: np.ndarray) -> np.ndarray:
        """log(1 - a(l)) in float64 on the host, without the laziness."""
        log_ratio = np.asarray(log_ratio, np.float64)
        match self.family:
            case "metropolis":
                with np.errstate(divide="ignore"):
                    return np.log(-np.expm1(np.minimum(log_ratio, 0.0)))
            case "barker":
                return -_log1p_exp(log_ratio)
            case "penalty":
                # For x > 0, 1 - a = phi(x) (M(x) - M(x + s)), where M is Mills' ratio.
                s = self.noise_sd
                x = log_ratio / s - s / 2
                y = np.maximum(x, 0.0) / np.sqrt(2)
                gap = special.erfcx(y) - special.erfcx(y + s / np.sqrt(2))
                log_a = self.log_accept(np.minimum(log_ratio, s**2 / 2))
                with np.errstate(divide="ignore"):
                    upper = np.log(gap / 2) - y**2
                    lower = np.log(-np.expm1(log_a))
                return np.where(x > 0, upper, lower)


def _log1p_exp(x: np.ndarray) -> np.ndarray:
    """log(1 + e^x) to two units in the last place, much faster than `np.logaddexp`."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def barker(laziness: float = 1.0) -> Acceptance:
    """Barker's acceptance function 1 / (1 + e^-l).

    The ideal bit is purely private: it is (D, 0)-differentially private if neighbouring
    data move l by at most D.
    """
    return Acceptance("barker", laziness=laziness)


def penalty(noise_sd: float, laziness: float = 1.0) -> Acceptance:
    """The penalty method's acceptance function.

    It is the probability that Metropolis's test accepts after noise N(-s^2/2, s^2) was
    added to the log ratio, with s = `noise_sd`.
    """
    return Acceptance("penalty", noise_sd=noise_sd, laziness=laziness)


def metropolis() -> Acceptance:
    """Metropolis's acceptance function min(1, e^l).

    It is not private, because a rejection can be impossible on one data set and
    possible on a neighbouring one.
    """
    return Acceptance("metropolis")


def probability(family: str, log_ratio, noise_sd=0.0) -> jax.Array:
    """a(l), without the laziness, in traced float64.

    Call it under `jax.enable_x64(True)`.

    Parameters
    ----------
    family
        As in `Acceptance`.
    log_ratio
        l in nats.
    noise_sd
        s in nats, which may be traced. Where it is above `MAX_NOISE_SD` the probability
        is 0.

    Raises
    ------
    ValueError
        If the family is unknown.
    """
    match family:
        case "metropolis":
            return jnp.exp(jnp.minimum(log_ratio, 0.0))
        case "barker":
            return jax.nn.sigmoid(log_ratio)
        case "penalty":
            # Noise above the bound belongs to a proposal far away, which is rejected.
            # The chain keeps its target exactly, because a = 0 is balanced too.
            allowed = noise_sd <= MAX_NOISE_SD
            return jnp.where(allowed, _penalty(log_ratio, noise_sd), 0.0)
        case _:
            raise ValueError(f"unknown acceptance family {family!r}")


def barker_test(log_ratio, variance) -> jax.Array:
    """Probability that Barker's test on a batch accepts, in traced float64.

    It is P(l + N(0, 2 - V) + V_corr > 0). Call it under `jax.enable_x64(True)`.

    Parameters
    ----------
    log_ratio, variance
        l and V: the estimate of the log ratio from the batch, in nats, and the variance
        of this estimate.
    """
    noise_sd = jnp.sqrt(TEST_NOISE_VARIANCE - variance)
    terms = [
        chance * ndtr((log_ratio + point) / noise_sd)
        for point, chance in TEST_CORRECTION.T.tolist()
    ]
    return jnp.minimum(sum(terms), 1.0)


def _penalty(log_ratio, noise_sd):
    """a(l) = Phi(x) + e^l Phi(-y), x = l/s - s/2, y = l/s + s/2, to 1e-15 for any s.

    Where y is large, the second term is computed as phi(x) M(y) with Mills' ratio M,
    because the product of e^l and Phi(-y) would lose their last digits.
    """
    # x may be a small difference of l/s and s/2, so s^2 is needed with all its digits.
    # It is computed from s = high + low, where high^2 is exact.
    high = lax.reduce_precision(jnp.asarray(noise_sd, jnp.float64), 11, 23)
    low = noise_sd - high
    x = ((log_ratio - high**2 / 2) - low * (high + noise_sd) / 2) / noise_sd
    y = x + noise_sd
    # l = (y^2 - x^2) / 2 is below 50 where `near` is used.
    near = jnp.exp(jnp.minimum(log_ratio, 50.0)) * ndtr(-y)
    mills = _mills_tail(jnp.maximum(y, MIN_MILLS_ARGUMENT))
    far = jnp.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * mills
    return jnp.minimum(ndtr(x) + jnp.where(y < MIN_MILLS_ARGUMENT, near, far), 1.0)


def _mills_tail(y):
    """Mills' ratio Phi(-y) / phi(y) to 2e-17, for y >= `MIN_MILLS_ARGUMENT`.

    It is computed by Laplace's continued fraction.
    """
    fraction = y
    for k in range(12, 0, -1):
        fraction = y + k / fraction
    return 1 / fraction
