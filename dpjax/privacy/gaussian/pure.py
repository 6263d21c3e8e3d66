"""Pure releases, of which only the largest loss c is known: they are (c, 0)-private.

Every such release is dominated by randomised response, whose loss is c with probability
1 / (1 + e^-c) and -c otherwise. To see this, let y = e^-l for the loss l. It lies
between e^-c and e^c and has mean one. delta is the mean of a convex function of y,
(1 - e^epsilon y)+, and it remains the mean of a convex function of y beside other
releases. By Jensen's inequality, moving the mass of y to the two ends with the mean
kept can only make delta larger, and what results is randomised response. The same holds
for Renyi divergences of order alpha, which are made of the mean of the convex function
y^(1 - alpha).
"""

import math

import numpy as np

from dpjax.privacy.events import PureRelease
from dpjax.privacy.gaussian.convolution import Losses, connect_dots

__all__ = ["losses", "pure_epsilon", "rdp"]


def pure_epsilon(event: PureRelease) -> float:
    """The largest loss in nats, with a margin for the rounding of the noise's scale."""
    return event.largest_loss * (1 + 1e-12)


def losses(event: PureRelease, interval: float) -> Losses:
    """Losses that dominate those of a release, on a grid of spacing `interval` nats."""
    largest = pure_epsilon(event)
    lower, upper = math.floor(-largest / interval), math.ceil(largest / interval)
    grid = interval * np.arange(lower, upper + 1)
    inside = -np.expm1(np.minimum(grid - largest, 0.0)) / (1 + math.exp(-largest))
    return connect_dots(
        np.where(grid < -largest, -np.expm1(np.minimum(grid, 0.0)), inside),
        interval,
        lower,
    )


def rdp(event: PureRelease, orders) -> np.ndarray:
    """Upper bound on the Renyi divergence of a release.

    Parameters
    ----------
    event
        The release.
    orders
        Renyi orders above 1, ``(m,)``.

    Returns
    -------
    Nats, ``(m,)``: the divergence of randomised response. It is cut off at a bound for
    all releases with such a largest loss [Bun and Steinke 2016, Proposition 1.4].
    """
    power, largest = np.asarray(orders, np.float64) - 1, pure_epsilon(event)
    likely = -np.log1p(math.exp(-largest))
    log_moment = np.logaddexp(
        likely + power * largest, likely - largest - power * largest
    )
    # The added term covers rounding.
    found = (log_moment + 1e-14) / power
    return np.minimum(found, np.minimum(largest, (power + 1) * largest**2 / 2))
