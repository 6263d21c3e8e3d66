"""Public bounds on one record's log ratio v(x) = log p(x | theta') - log p(x | theta).

The bounds hold for every record x of a public domain. They read no data, and they bound
how much a substitution of one record can change. With g = grad_theta log p(x | theta),

    v(x) = integral over s in [0, 1] of g(x, theta + s d) . d,    d = theta' - theta,

so, where g is bounded along the segment from theta to theta',

    |v(x)| <= ||d|| sup ||g(x, .)||                                   (Lipschitz),
    (max_x v - min_x v) / 2 <= ||d|| sup_theta max_{x, x'} ||g(x) - g(x')|| / 2.

The second bound is at most the first one and often half of it. A kernel whose
minibatches are of Poisson size can take the range [min_x v, max_x v] at each proposal
(`dpjax.Range`). It subtracts the centre of the range from every log ratio, and its
accept bit is charged for the half range.

The suprema are upper bounds found by branch and bound. The range at one proposal is
bounded with values on a grid and a bound M on the second derivative: within a cell of
width w, a function with |f''| <= M exceeds the larger of its values at the ends of the
cell by at most M w^2 / 8.

Reference: Zhang and Zhang 2023 (DP-Fast MH), whose constants these bounds replace.
"""

import functools
import itertools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from dpjax.privacy.validate import check_positive

__all__ = ["GaussianMixture", "LogisticRegression"]

CELLS = 64
"""Number of cells of the grids on which ranges are computed."""

TOLERANCE = 1e-3
"""Largest relative error of certified suprema. They are never too small."""


@dataclass(frozen=True)
class LogisticRegression:
    """Bounds for `dpjax.models.logistic_regression`, with labels y in {0, 1}.

    The likelihood of a record (x, y) depends on z = (2 y - 1) x alone, which may be any
    point of the ball ||z|| <= B. Its log ratio is v = f(z . theta) - f(z . theta') with
    f(t) = log(1 + e^-t).

    Parameters
    ----------
    feature_norm
        B, a bound on the Euclidean norm of the features of a record.
    radius
        Bound on the norm of a position; infinity if the support of the prior is
        unbounded.

    Raises
    ------
    ValueError
        If `feature_norm` is not positive and finite, or `radius` not positive.
    """

    feature_norm: float
    radius: float = math.inf

    def __post_init__(self):
        check_positive(feature_norm=self.feature_norm)
        if not self.radius > 0:
            raise ValueError(f"radius must be positive, got {self.radius}")

    @property
    def lipschitz(self) -> float:
        """sup ||g|| = B, because g = z s(-z . theta) with the logistic function s."""
        return float(self.feature_norm)

    @property
    def half_range(self) -> float:
        """Bound on the half range of v per unit of distance; between B / 2 and B.

        Let theta = p d/||d|| + q e, where e is a unit vector orthogonal to d and
        q >= 0. The largest value of s(-z . theta) z . d, and that of its negative, are
        B ||d|| times the maxima of cos(f) s(B (q sin(f) -+ p cos(f))) over angles f in
        [0, pi/2]. Half of the sum of the two maxima is even in p and grows with q. So
        for positions within the radius r, its supremum is found among p in [0, r] with
        q^2 = r^2 - p^2.
        """
        if math.isinf(self.radius):
            return self.lipschitz
        return self.feature_norm * (
            _logistic_half_range(self.feature_norm * self.radius)
            + _logistic_remainder(self.feature_norm * self.radius)
        )

    def __call__(self, position, proposed) -> tuple[jax.Array, jax.Array]:
        """Range of v over all records, ``(low, high)`` in nats, float64 scalars.

        For a given a = z . d > 0, v decreases with c = z . (theta + theta') / 2. Let e
        be the direction of the part of theta that is orthogonal to d. On the arc
        z = B (cos(f) d/||d|| - sin(f) e), f in [0, pi/2], c is smallest for its a, so
        the largest v lies on this arc. There, v = log(1 + (e^a - 1) s(-c - a/2)).

        The grid needs a bound on the second derivative of v with respect to f. Here v
        is the integral of s(-w) a over the segment, where w = z . theta. The following
        bounds hold: |a|, |a'|, |a''| <= B ||d||; |w|, |w'|, |w''| <= W, where W is B
        times the larger norm of the two positions; |s'| <= 1/4; and
        |s''| <= 1 / (6 sqrt(3)). So the second derivative of v is at most
        B ||d|| (1 + 3 W / 4 + W^2 / (6 sqrt(3))).

        The smallest v is minus the largest one for the reversed jump -d.
        """
        with jax.enable_x64(True):
            theta = jnp.asarray(position, jnp.float64)
            other = jnp.asarray(proposed, jnp.float64)
            jump, centre = other - theta, (theta + other) / 2
            distance = jnp.linalg.norm(jump)
            along = jnp.sum(centre * jump) / jnp.maximum(distance, 1e-300)
            across = jnp.sqrt(jnp.maximum(jnp.sum(centre**2) - along**2, 0.0))
            norms = jnp.linalg.norm(jnp.stack([theta, other]), axis=1)
            scale = self.feature_norm * distance
            remainder = _logistic_remainder(self.feature_norm * jnp.max(norms))
            angle = jnp.linspace(0.0, math.pi / 2, CELLS + 1)
            cos, sin = jnp.cos(angle), jnp.sin(angle)

            def largest(along):
                a = scale * cos
                c = self.feature_norm * (along * cos - across * sin)
                value = jnp.log1p(jnp.expm1(a) * jax.nn.sigmoid(-c - a / 2))
                return jnp.minimum(jnp.max(value) + remainder * scale, scale)

            return -largest(-along), largest(along)


def _logistic_remainder(largest_logit):
    """M w^2 / 8 divided by B ||d||, where W is `largest_logit`."""
    curvature = 1 + 0.75 * largest_logit + largest_logit**2 / (6 * math.sqrt(3))
    return curvature * (math.pi / 2 / CELLS) ** 2 / 8


@functools.cache
def _logistic_half_range(logit: float) -> float:
    """Supremum of the half range divided by B ||d||, for `logit` = B r."""

    def upper(low, high):
        (p, f, g), (p_high, f_high, g_high) = low, high
        q = np.sqrt(np.maximum(logit**2 - p**2, 0))
        one = np.cos(f) * expit(q * np.sin(f_high) - p * np.cos(f_high))
        other = np.cos(g) * expit(q * np.sin(g_high) + p_high * np.cos(g))
        return (one + other) / 2

    quarter = math.pi / 2
    return _supremum(upper, [0, 0, 0], [logit, quarter, quarter])


@dataclass(frozen=True)
class GaussianMixture:
    """Bounds for `dpjax.models.gaussian_mixture`, for positions in a box.

    Records x are in an interval.

    The density is p(x | theta) = (N(x; theta_1, V) + N(x; theta_1 + theta_2, V)) / 2.
    Let q = theta_2, a = x - theta_1, and p the probability that x comes from the second
    component. Then

        g = (a - p q, p (a - q)) / V,    p = s(q (2 a - q) / (2 V)),

    where s is the logistic function.

    Parameters
    ----------
    half_width
        b, the bound on |theta_j| for both components of a position.
    truncation
        X, the bound on |x| for a record.
    variance
        V, the variance of both components of the mixture.

    Raises
    ------
    ValueError
        If a parameter is not positive and finite.
    """

    half_width: float = 3.0
    truncation: float = 3.0
    variance: float = 2.0

    def __post_init__(self):
        check_positive(**vars(self))

    @property
    def lipschitz(self) -> float:
        """Certified bound on ||g|| over the box and the interval.

        It is 3.578 for the defaults.

        g is affine in each of a, q and p, so its norm is convex in each of them and is
        largest at a corner of their ranges. The range of p in a cell follows from that
        of q (2 a - q), which is affine in a and concave in q.
        """
        return _mixture_lipschitz(self.half_width, self.truncation, self.variance)

    @property
    def half_range(self) -> float:
        """Bound on the half range of v per unit of distance; 1.90 for the defaults.

        It is found as `lipschitz` is, because g(x) - g(x') is affine in each of x, x',
        theta_1, q, p and p'.
        """
        widest = _mixture_diameter(self.half_width, self.truncation, self.variance)
        return widest / 2 + self._remainder

    @property
    def _remainder(self) -> float:
        """M w^2 / 8 divided by ||d||; see `__call__`."""
        b, reach = self.half_width, self.truncation + 2 * self.half_width
        slope = b**2 * math.hypot(b, reach) / (6 * math.sqrt(3) * self.variance) + b / 2
        width = 2 * self.truncation / CELLS
        return slope / self.variance**2 * width**2 / 8

    def __call__(self, position, proposed) -> tuple[jax.Array, jax.Array]:
        """Range of v over all records, ``(low, high)`` in nats, float64 scalars.

        The second derivative v'' in x is the difference of k(x, theta) / V^2 between
        theta' and theta, where k = p (1 - p) q^2, so

            |v''| <= ||d|| sup ||grad k|| / V^2.

        The logistic function s has |s''| <= 1 / (6 sqrt(3)), which bounds the slope of
        p (1 - p) as well. With |q| <= b and |a - q| <= X + 2 b,

            ||grad k|| <= b^2 ||(b, X + 2 b)|| / (6 sqrt(3) V) + b / 2.
        """
        with jax.enable_x64(True):
            theta = jnp.asarray(position, jnp.float64)
            other = jnp.asarray(proposed, jnp.float64)
            x = jnp.linspace(-self.truncation, self.truncation, CELLS + 1)
            value = self._log_density(other, x) - self._log_density(theta, x)
            remainder = self._remainder * jnp.linalg.norm(other - theta)
            return jnp.min(value) - remainder, jnp.max(value) + remainder

    def _log_density(self, theta, x):
        one, two = (x - theta[0]) ** 2, (x - theta[0] - theta[1]) ** 2
        return jnp.logaddexp(-one / (2 * self.variance), -two / (2 * self.variance))


@functools.cache
def _mixture_lipschitz(half_width, truncation, variance) -> float:
    def square(a, q, p):
        return ((a - p * q) ** 2 + (p * (a - q)) ** 2) / variance**2

    def upper(low, high):
        a, q = zip(low, high, strict=True)
        return np.sqrt(_at_corners(square, a, q, _chance(a, q, variance)))

    reach = truncation + half_width
    return _supremum(upper, [-reach, -half_width], [reach, half_width])


@functools.cache
def _mixture_diameter(half_width, truncation, variance) -> float:
    def square(x, y, t, q, p, r):
        first = x - y - (p - r) * q
        return (first**2 + (p * (x - t - q) - r * (y - t - q)) ** 2) / variance**2

    def upper(low, high):
        x, y, t, q = zip(low, high, strict=True)
        p, r = (_chance((s[0] - t[1], s[1] - t[0]), q, variance) for s in (x, y))
        return np.sqrt(_at_corners(square, x, y, t, q, p, r))

    ends = np.array([truncation, truncation, half_width, half_width])
    return _supremum(upper, -ends, ends)


def _chance(a, q, variance):
    """Range of the probability p over cells.

    `a` and `q` are pairs ``(low, high)``, the ranges of a and q in each cell.
    """
    best = [(s, np.clip(s, *q)) for s in a]
    least = np.minimum.reduce([u * (2 * s - u) for s in a for u in q])
    most = np.maximum.reduce([u * (2 * s - u) for s, u in best])
    return expit(least / (2 * variance)), expit(most / (2 * variance))


def _at_corners(function, *ranges):
    """Largest value at the corners of cells, for a function convex in each argument."""
    return np.maximum.reduce([function(*c) for c in itertools.product(*ranges)])


def _supremum(upper, low, high) -> float:
    """Upper bound on the supremum of a positive function over a box.

    The relative error of the bound is at most `TOLERANCE`.

    Parameters
    ----------
    upper
        ``(low, high) -> (cells,)``: an upper bound of the function over each of several
        cells. `low` and `high` are the lower and upper corners of the cells,
        ``(variables, cells)``. Where the two are equal, the bound is the value of the
        function.
    low, high
        The lower and upper corners of the box, ``(variables,)``.
    """
    low, high = (np.asarray(ends, np.float64)[:, None] for ends in (low, high))
    attained, bound = 0.0, 0.0
    while low.size:
        found = upper(low, high)
        middle = (low + high) / 2
        attained = max(attained, upper(middle, middle).max())
        keep = found > (1 + TOLERANCE) * attained
        bound = max(bound, found[~keep].max(initial=0.0))
        low, middle, high = low[:, keep], middle[:, keep], high[:, keep]
        longest = np.argmax(high - low, axis=0) == np.arange(len(low))[:, None]
        low, high = (
            np.concatenate([low, np.where(longest, middle, low)], axis=1),
            np.concatenate([np.where(longest, middle, high), high], axis=1),
        )
    # The last factor is larger than the rounding errors of `upper`.
    return float(bound * (1 + 1e-9))
