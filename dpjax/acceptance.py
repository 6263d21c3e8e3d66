"""Acceptance functions a(l) of Metropolis-Hastings steps, and the draw of the bit.

Each is *balanced*, a(l) = e^l a(-l), so a chain that accepts with probability a(l)
of the log Metropolis-Hastings ratio l keeps its target exactly. What a step releases
about the data is one Bernoulli(c a(l)) bit, with c the laziness; `dpjax.privacy`
charges for that bit.
"""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr
from scipy import special

__all__ = [
    "TOTAL_VARIATION",
    "Acceptance",
    "barker",
    "metropolis",
    "penalty",
    "probability",
]

TOTAL_VARIATION = 2e-15
"""Bound on |P(bit = 1) - c a(l)| of `draw` for one bit.

Rounding of a(l) in float64 (tested against 50 digits), of the 63-bit threshold, and
of the log ratio itself, whose relative error of 2^-53 moves a(l) by at most
sup |l a'(l)| 2^-53.
"""


LOUDEST = 64.0
"""Most nats of penalty noise s. The rounding of the log ratio moves the probability by
up to 0.2 s 2^-53, the rest of `TOTAL_VARIATION` does not grow with s."""

FAR = 10.0
"""Arguments of Mills' ratio from which on its continued fraction is used."""


@dataclass(frozen=True)
class Acceptance:
    """An acceptance function c a(l): which a, its noise, and the laziness c.

    Parameters
    ----------
    family
        ``"barker"``, a(l) = 1 / (1 + e^-l); ``"penalty"``, a(l) = Phi(l/s - s/2)
        + e^l Phi(-l/s - s/2), the law of the penalty method's bit; or
        ``"metropolis"``, a(l) = min(1, e^l), for which no privacy is claimed.
    noise_sd
        s in nats, for the penalty family only.
    laziness
        c in (0, 1]: the chance that a step does anything, tossed in secret before
        the data are read.
    """

    family: Literal["barker", "penalty", "metropolis"]
    noise_sd: float = 0.0
    laziness: float = 1.0

    def __post_init__(self):
        if self.family not in ("barker", "penalty", "metropolis"):
            raise ValueError(f"unknown acceptance family {self.family!r}")
        if self.family != "penalty" and self.noise_sd != 0:
            raise ValueError("noise_sd belongs to the penalty family only")
        if self.family == "penalty" and not 0 < self.noise_sd <= LOUDEST:
            raise ValueError(
                f"noise_sd must be positive and at most {LOUDEST} nats, where no move "
                f"is accepted that gains less than 1000 nats, got {self.noise_sd}"
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
                return -np.logaddexp(0.0, -log_ratio)
            case "penalty":
                s = self.noise_sd
                x = log_ratio / s - s / 2
                return np.minimum(
                    np.logaddexp(
                        special.log_ndtr(x), log_ratio + special.log_ndtr(-x - s)
                    ),
                    0.0,
                )

    def log_reject(self, log_ratio: np.ndarray) -> np.ndarray:
        """log(1 - a(l)) in float64 on the host, without the laziness."""
        log_ratio = np.asarray(log_ratio, np.float64)
        match self.family:
            case "metropolis":
                with np.errstate(divide="ignore"):
                    return np.log(-np.expm1(np.minimum(log_ratio, 0.0)))
            case "barker":
                return -np.logaddexp(0.0, log_ratio)
            case "penalty":
                # 1 - a = phi(x) (M(x) - M(x + s)), M Mills' ratio, where x > 0.
                s = self.noise_sd
                x = log_ratio / s - s / 2
                y = np.maximum(x, 0.0) / np.sqrt(2)
                gap = special.erfcx(y) - special.erfcx(y + s / np.sqrt(2))
                with np.errstate(divide="ignore"):
                    upper = np.log(gap / 2) - y**2
                    lower = np.log(
                        -np.expm1(self.log_accept(np.minimum(log_ratio, s**2 / 2)))
                    )
                return np.where(x > 0, upper, lower)


def barker(laziness: float = 1.0) -> Acceptance:
    """Barker's acceptance function 1 / (1 + e^-l); pure differential privacy."""
    return Acceptance("barker", laziness=laziness)


def penalty(noise_sd: float, laziness: float = 1.0) -> Acceptance:
    """The penalty method's: the ratio gets N(-s^2/2, s^2) noise, s = `noise_sd`."""
    return Acceptance("penalty", noise_sd=noise_sd, laziness=laziness)


def metropolis() -> Acceptance:
    """min(1, e^l). Not private: a rejection can be impossible on one data set."""
    return Acceptance("metropolis")


def probability(family: str, log_ratio, noise_sd=0.0) -> jax.Array:
    """a(l), traced, in float64; call it under `jax.enable_x64(True)`."""
    match family:
        case "metropolis":
            return jnp.exp(jnp.minimum(log_ratio, 0.0))
        case "barker":
            return jax.nn.sigmoid(log_ratio)
        case "penalty":
            # Louder noise, of a far proposal: a = 0 is balanced, hence exact, too.
            return jnp.where(noise_sd <= LOUDEST, _penalty(log_ratio, noise_sd), 0.0)
        case _:
            raise ValueError(f"unknown acceptance family {family!r}")


def _penalty(log_ratio, noise_sd):
    """a(l) = Phi(x) + e^l Phi(-y), x = l/s - s/2, y = l/s + s/2, to 1e-15 for any s.

    Where y is large the second term is phi(x) R(y) with Mills' ratio R, as e^l and
    Phi(-y) would lose their last digits.
    """
    # The square of s with all its digits: x may be a small difference.
    high = lax.reduce_precision(jnp.asarray(noise_sd, jnp.float64), 11, 23)
    low = noise_sd - high
    x = ((log_ratio - high**2 / 2) - low * (high + noise_sd) / 2) / noise_sd
    y = x + noise_sd
    # l = (y^2 - x^2) / 2 is below 50 there.
    near = jnp.exp(jnp.minimum(log_ratio, 50.0)) * ndtr(-y)
    far = jnp.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * _mills(jnp.maximum(y, FAR))
    return jnp.minimum(ndtr(x) + jnp.where(y < FAR, near, far), 1.0)


def _mills(y):
    """Phi(-y) / phi(y) for y >= `FAR`, to 2e-17, by Laplace's continued fraction."""
    fraction = y
    for k in range(12, 0, -1):
        fraction = y + k / fraction
    return 1 / fraction
