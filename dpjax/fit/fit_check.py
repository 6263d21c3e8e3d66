"""A check whether the records vary as the model says, and a warning if they do not.

Under the model, the squares |psi|^2 of the records' clipped scores have known means. A
fit releases the difference between the sum of the squares and the sum of these means.
The *fit ratio* is the sum of the squares over the sum of the means.
"""

import math
from typing import NamedTuple

from dpjax import caller

__all__ = ["FitCheck"]

MAX_DEVIATION = 3.3
"""Largest deviation of the fit ratio from one, in standard errors, without a warning.
If the model holds, there is a warning in less than one of 1000 fits."""


class FitCheck(NamedTuple):
    """How much the scores of the records vary, over how much the model says they do.

    ratio
        The fit ratio, which is about one if the model holds.
    error
        The standard error of the ratio if the model holds.
    """

    ratio: float
    error: float

    @classmethod
    def of(cls, excess, noise_sd, variance, expected) -> "FitCheck":
        """The fit check that follows from what was released.

        Parameters
        ----------
        excess, noise_sd
            The sum of the squares less the sum of their means, as released, and the sd
            of the noise on it.
        variance
            Variance of the excess under the model, without that of the noise.
        expected
            Sum of the means of the squares.
        """
        error = math.sqrt(noise_sd**2 + variance) / expected
        return cls(float(1 + excess / expected), float(error))

    def __str__(self):
        return (
            f"the scores of the records vary {self.ratio:.2f} ({self.error:.2g}) "
            "times as much as the model says"
        )

    @property
    def holds(self) -> bool:
        """Whether noise and chance explain the ratio."""
        return abs(self.ratio - 1) <= MAX_DEVIATION * self.error

    def warn(self) -> None:
        """Warn of the model if noise and chance do not explain the ratio."""
        if self.holds:
            return
        if self.ratio > 1:
            meaning = (
                "The draws are as narrow as if the model held, so their intervals are "
                "too short. A likelihood with heavier tails, overdispersion or the "
                "covariates that are missing would account for it. With robust=True, "
                "dpjax.numpyro.sample gives intervals as wide as the records show"
            )
        else:
            meaning = (
                "The draws are as wide as if the model held, so their intervals are "
                "too long. A likelihood that varies less would account for it"
            )
        caller.warn(
            f"the model does not fit the records: {self}, in brackets its standard "
            "error. If the model held, so much would come of noise and chance in less "
            f"than one of 1000 fits. {meaning}"
        )
