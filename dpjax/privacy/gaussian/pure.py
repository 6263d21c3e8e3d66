"""Releases of which only the largest loss is known: (c, 0)-private for some c.

No such release tells more than randomised response does, whose loss is c with
probability 1 / (1 + e^-c) and -c otherwise. For y = e^-l of a loss l lies between e^-c
and e^c and has mean one, and delta is a mean of (1 - e^epsilon y)+, also beside other
releases, which is convex in y. Moving y to the two ends, with its mean kept, can only
make it larger, by Jensen's inequality, and leads to randomised response. So it is with
the moments of y^(1 - a) that Renyi divergences are made of.
"""

import math

import numpy as np

from dpjax.privacy.events import PureRelease
from dpjax.privacy.gaussian.convolution import Losses, connect_dots

__all__ = ["losses", "pure_epsilon", "rdp"]


def pure_epsilon(event: PureRelease) -> float:
    """The largest loss, nats, with a margin for the rounding of the noise's scale."""
    return event.largest_loss * (1 + 1e-12)


def losses(event: PureRelease, interval: float) -> Losses:
    """Losses on a grid of this spacing, nats, that dominate those of a release."""
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
    Nats, ``(m,)``: that of randomised response, and at most what any release with such
    a largest loss has [Bun and Steinke 2016, Proposition 1.4].
    """
    power, largest = np.asarray(orders, np.float64) - 1, pure_epsilon(event)
    likely = -np.log1p(math.exp(-largest))
    log_moment = np.logaddexp(
        likely + power * largest, likely - largest - power * largest
    )
    # The added term is for rounding.
    found = (log_moment + 1e-14) / power
    return np.minimum(found, np.minimum(largest, (power + 1) * largest**2 / 2))
