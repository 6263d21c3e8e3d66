"""Losses of K-norm noise, whose density is proportional to e^(-c |x|).

|x| is the Euclidean norm. In units of the sensitivity, neighbouring data move the
vector that is released by a vector v of norm 1 at most, and c is the `rate` of the
event. The noisy vector x has its noise about the origin, or about v on the neighbouring
data. The loss is c (|x - v| - |x|), which lies in [-c, c].

*A shift of norm 1 is worst, and its direction does not matter.* Fix the coordinates
orthogonal to v. On each line along v the density g is log-concave, so g(s) / g(s - |v|)
falls in s and the best test accepts a half-line. The profile is therefore an integral
over these lines of the supremum over a of G(a) - e^epsilon G(a - |v|), where G is the
distribution function on the line. Each of these differences grows with |v|. So the pair
of a shift of norm 1 dominates. The pair is the same in both directions, because
x -> v - x exchanges the two laws.

*The law of the loss.* Let s be the sum of the distances of x from the origin and from
v, and t their difference. The loss is -c t, and |x| = (s + t) / 2. The coordinates
(s, t) are prolate spheroidal. Their volume element in r dimensions is proportional to
(s^2 - t^2) ((s^2 - 1) (1 - t^2))^((r - 3) / 2). Integrating e^(-c (s + t) / 2) times it
over s > 1 gives the density of t in [-1, 1], up to a factor,

    e^(-z t) (1 - t^2)^((r - 3) / 2) (b + 1 - t^2),
    z = c / 2,    b = (r - 1) / z * K_(r/2)(z) / K_(r/2 - 1)(z),

where K is Bessel's function. For the integral of e^(-z s) (s^2 - 1)^((r - 3) / 2) is
proportional to z^(1 - r/2) K_(r/2 - 1)(z), and two derivatives in z bring the factor
s^2. For r = 1 the profile is 1 - e^((epsilon - c) / 2) between -c and c.

*Why the grid gives an upper bound.* delta is the mean of a convex function of y = e^-l,
(1 - e^epsilon y)+, where l is the loss. So by Jensen's inequality, moving the mass of a
cell to its two ends, with the mean of y kept, can only make delta larger. The same
holds for every factor of a composition. The mass and the mean are integrals of entire
functions of arccos t. The error of Gauss's rule on them, in parts as short as in
`_cells`, is below rounding.
"""

import math
from functools import lru_cache

import numpy as np
from scipy import special

from dpjax.privacy.events import KNormRelease
from dpjax.privacy.gaussian.convolution import Losses, connect_dots

__all__ = ["losses", "mean_square", "pure_epsilon", "rdp"]

MAX_RATE = 2000.0
"""Largest rate for which the losses are computed. At a larger rate every loss is
charged as the largest one. Typical losses are above 500 nats then, in any dimension."""

NODES = 12
"""Number of nodes of Gauss's rule in each part of a cell."""

FINE_CELLS = 2048
"""Number of cells of the grid from which moments of the losses are computed."""


def pure_epsilon(event: KNormRelease) -> float:
    """The largest loss in nats, with a margin for the rounding of the noise's scale."""
    return event.rate * (1 + 1e-12)


@lru_cache(maxsize=64)
def losses(event: KNormRelease, interval: float) -> Losses:
    """Losses that dominate those of a release, on a grid of spacing `interval` nats."""
    rate = pure_epsilon(event)
    lower, upper = math.floor(-rate / interval), math.ceil(rate / interval)
    if rate > MAX_RATE:
        return Losses(interval, upper - 1, np.array([0.0, 1.0]), 0.0)
    grid = interval * np.arange(lower, upper + 1)
    if event.dim == 1:
        inside = np.minimum(grid, rate)
        deltas = -np.expm1(np.minimum((inside - rate) / 2, inside))
        return connect_dots(deltas, interval, lower)
    loss, mass = _cells(rate, event.dim, grid)
    mass /= mass.sum()
    above = loss - grid[:-1, None]
    to_upper_end = np.sum(mass * np.expm1(-above), axis=1) / np.expm1(-interval)
    probabilities = np.append(np.sum(mass, axis=1) - to_upper_end, 0.0)
    probabilities[1:] += to_upper_end
    return Losses(interval, lower, np.maximum(probabilities, 0.0), 0.0)


def rdp(event: KNormRelease, orders) -> np.ndarray:
    """Upper bound on the Renyi divergence of a release.

    Parameters
    ----------
    event
        The release.
    orders
        Renyi orders above 1, ``(m,)``.

    Returns
    -------
    Nats, ``(m,)``: the divergence of `losses` on a fine grid. It is an upper bound by
    Jensen's inequality, as delta is. It is cut off at a bound for all releases with
    such a largest loss [Bun and Steinke 2016, Proposition 1.4].
    """
    power = np.asarray(orders, np.float64) - 1
    loss, mass = _fine(event)
    with np.errstate(divide="ignore"):
        exponents = np.multiply.outer(power, loss) + np.log(mass)
    log_moment = np.asarray(special.logsumexp(exponents, axis=1))
    rate = pure_epsilon(event)
    ceiling = np.minimum(rate, (power + 1) * rate**2 / 2)
    # The added term covers rounding.
    return np.minimum((log_moment + 1e-14) / power, ceiling)


def mean_square(event: KNormRelease) -> float:
    """Mean square of the losses, square nats."""
    loss, mass = _fine(event)
    return float(np.sum(mass * loss**2))


def _fine(event: KNormRelease) -> tuple[np.ndarray, np.ndarray]:
    """Values in nats and probabilities of `losses` on a fine grid, ``(m,)`` each."""
    interval, lower, mass, _ = losses(event, 2 * event.rate / FINE_CELLS)
    return interval * (lower + np.arange(mass.size)), mass


def _cells(rate: float, dim: int, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Losses and unnormalised masses of the nodes in each cell of the grid.

    Both are ``(cells, nodes)``; the losses are in nats.
    """
    angles = np.arccos(np.clip(-grid / rate, -1, 1))
    widest = np.max(np.diff(angles))
    parts = math.ceil(4 * widest * math.sqrt(rate + dim))
    nodes, weights = special.roots_legendre(NODES)
    place = ((nodes + 1) / 2 + np.arange(parts)[:, None]).ravel() / parts
    angle = angles[:-1, None] + np.diff(angles)[:, None] * place
    loss = -rate * np.cos(angle)
    sine = np.sin(angle)
    log_mass = (
        loss / 2 + (dim - 2) * np.log(sine) + np.log(_excess(rate, dim) + sine**2)
    )
    mass = np.exp(log_mass - log_mass.max())
    return loss, mass * np.diff(angles)[:, None] * np.tile(weights, parts)


def _excess(rate: float, dim: int) -> float:
    """b of the module docstring, by the recurrence of ratios of Bessel functions.

    The recurrence is K_(v + 1) / K_v = 2 v / z + K_(v - 1) / K_v, where all terms are
    positive.
    """
    is_odd = dim % 2
    ratio = 1.0 if is_odd else float(special.k1e(rate / 2) / special.k0e(rate / 2))
    for twice_order in range(2 - is_odd, dim, 2):
        ratio = 2 * twice_order / rate + 1 / ratio
    return 2 * (dim - 1) / rate * ratio
