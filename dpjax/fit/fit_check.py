"""A check whether the records vary as the model says.

Under the model, the squares |psi|^2 of the records' clipped scores have known means. A
fit releases the difference between the sum of the squares and the sum of these means.
The *fit ratio* is the sum of the squares over the sum of the means.
"""

import math
from typing import NamedTuple

__all__ = ["FitCheck"]

MAX_DEVIATION = 3.3
"""Largest deviation of the fit ratio from one, in standard errors, that noise and
chance explain. If the model holds, less than one of 1000 fits deviates by more."""


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
