"""Public bounds on one record's log ratio v(x) = log p(x | theta') - log p(x | theta).

They hold for every record of a public domain, so they bound what a substitution can do
and read no data. With U(theta) = -log p(x | theta) and g = grad log p(x | theta),

    v(x) = integral over s in [0, 1] of g(x, theta + s d) . d,    d = theta' - theta,

hence, where g is bounded along the segment,

    |v(x)| <= ||d|| sup ||g(x, .)||                                   (Lipschitz),
    (max_x v - min_x v) / 2 <= ||d|| sup_theta max_{x, x'} ||g(x) - g(x')|| / 2.

The second is at most the first and often half of it. A minibatch step that knows the
range [min_x v, max_x v] of the proposal at hand centres the records in it
(`Range`); what its accept bit costs is the half range.

Suprema are certified by branch and bound; ranges at one proposal by a grid of values
and the largest second derivative between them: a function with |f''| <= M exceeds the
larger of its values at the ends of a cell of width w by at most M w^2 / 8.

References: Zhang and Zhang 2023 (DP-Fast MH), whose constants these replace.
"""

import functools
import itertools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["GaussianMixture", "LogisticRegression"]

CELLS = 64
"""Cells of the grids that ranges are computed on."""


@dataclass(frozen=True)
class LogisticRegression:
    """Bounds for `models.logistic_regression`, labels in {0, 1}.

    A record enters through z = (2 y - 1) x, anywhere in the ball ||z|| <= B, and
    v = f(z . theta) - f(z . theta') with f(t) = log(1 + e^-t).

    Parameters
    ----------
    feature_norm
        B: no row of features has a larger Euclidean norm.
    radius
        Largest norm of a position; infinity if the prior's support is unbounded.

    Raises
    ------
    ValueError
        If `feature_norm` is not positive and finite, or `radius` not positive.
    """

    feature_norm: float
    radius: float = math.inf

    def __post_init__(self):
        _check_positive(feature_norm=self.feature_norm)
        if not self.radius > 0:
            raise ValueError(f"radius must be positive, got {self.radius}")

    @property
    def lipschitz(self) -> float:
        """sup ||g|| = B, as g = z s(-z . theta) with s the logistic function."""
        return float(self.feature_norm)

    @property
    def half_range(self) -> float:
        """Bound on the half range of v over the distance moved; B / 2 to B.

        With theta = p d/||d|| + q e, e a unit vector orthogonal to d, the extremes of
        s(-z . theta) z . d are B ||d|| times max cos(f) s(B (q sin(f) -+ p cos(f)))
        over angles f in [0, pi/2]. Half their sum is even in p and grows with q, so p
        in [0, r] and q^2 = r^2 - p^2 are left.
        """
        if math.isinf(self.radius):
            return self.lipschitz
        return self.feature_norm * (
            _logistic_half_range(self.feature_norm * self.radius)
            + _logistic_remainder(self.feature_norm * self.radius)
        )

    def __call__(self, position, proposed) -> tuple[jax.Array, jax.Array]:
        """Range of v over all records, ``(low, high)`` in nats, float64 scalars.

        At fixed a = z . d > 0, v falls with c = z . (theta + theta') / 2, so the
        largest v lies on the arc z = B (cos(f) d/||d|| - sin(f) e) on which c is
        smallest, f in [0, pi/2], e the direction of theta orthogonal to d. There
        v = log(1 + (e^a - 1) s(-c - a/2)), the integral of s(-w) a with w = z . theta
        on the segment; as |a|, |a'|, |a''| <= B ||d||, |w|, |w'|, |w''| <= W = B max
        norm, |s'| <= 1/4 and |s''| <= 1 / (6 sqrt(3)), its second derivative in f is
        at most B ||d|| (1 + 3 W / 4 + W^2 / (6 sqrt(3))). The smallest v is the
        largest of the reversed d, negated.
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
    """M w^2 / 8 over B ||d||, W = `largest_logit`."""
    curvature = 1 + 0.75 * largest_logit + largest_logit**2 / (6 * math.sqrt(3))
    return curvature * (math.pi / 2 / CELLS) ** 2 / 8


@functools.cache
def _logistic_half_range(logit: float) -> float:
    """sup of the half range over B ||d||, for `logit` = B r."""

    def value(p, f, g):
        q = np.sqrt(np.maximum(logit**2 - p**2, 0))
        one = np.cos(f) * _sigmoid(q * np.sin(f) - p * np.cos(f))
        other = np.cos(g) * _sigmoid(q * np.sin(g) + p * np.cos(g))
        return (one + other) / 2

    def upper(low, high):
        (p, f, g), (p_high, f_high, g_high) = low, high
        q = np.sqrt(np.maximum(logit**2 - p**2, 0))
        one = np.cos(f) * _sigmoid(q * np.sin(f_high) - p * np.cos(f_high))
        other = np.cos(g) * _sigmoid(q * np.sin(g_high) + p_high * np.cos(g))
        return (one + other) / 2

    quarter = math.pi / 2
    return _supremum(upper, value, [0, 0, 0], [logit, quarter, quarter])


@dataclass(frozen=True)
class GaussianMixture:
    """Bounds for `models.gaussian_mixture`, theta in a box, records in an interval.

    p(x | theta) = (N(x; theta_1, V) + N(x; theta_1 + theta_2, V)) / 2. With the chance
    p of the second component, q = theta_2 and a = x - theta_1,

        g = (a - p q, p (a - q)) / V,    p = s(q (2 a - q) / (2 V)).

    Parameters
    ----------
    half_width
        b: |theta_j| <= b.
    truncation
        X: |x| <= X.
    variance
        V.

    Raises
    ------
    ValueError
        If a parameter is not positive and finite.
    """

    half_width: float = 3.0
    truncation: float = 3.0
    variance: float = 2.0

    def __post_init__(self):
        _check_positive(
            half_width=self.half_width,
            truncation=self.truncation,
            variance=self.variance,
        )

    @property
    def lipschitz(self) -> float:
        """sup ||g|| over box and interval, certified; 3.578 for the defaults.

        Given a range of p, g is affine in each of a, q and p, so its norm is convex in
        each of them and largest at a corner of their ranges. p grows with
        q (2 a - q), which is affine in a and concave in q.
        """
        return _mixture_lipschitz(self.half_width, self.truncation, self.variance)

    @property
    def half_range(self) -> float:
        """Bound on the half range of v over the distance moved; 1.90 for the defaults.

        g(x) - g(x') is affine in each of x, x', theta_1, q, p and p' too.
        """
        widest = _mixture_diameter(self.half_width, self.truncation, self.variance)
        return widest / 2 + self._remainder

    @property
    def _remainder(self) -> float:
        """M w^2 / 8 over ||d||; see `__call__`."""
        b, reach = self.half_width, self.truncation + 2 * self.half_width
        slope = b**2 * math.hypot(b, reach) / (6 * math.sqrt(3) * self.variance) + b / 2
        width = 2 * self.truncation / CELLS
        return slope / self.variance**2 * width**2 / 8

    def __call__(self, position, proposed) -> tuple[jax.Array, jax.Array]:
        """Range of v over all records, ``(low, high)`` in nats, float64 scalars.

        v'' is the difference of k(x, theta) / V^2 at theta' and theta, k = p (1 - p)
        q^2, so |v''| <= ||d|| sup ||grad k|| / V^2. As |d[p (1 - p)] / dz| <=
        1 / (6 sqrt(3)) for p = s(z), |q| <= b and |a - q| <= X + 2 b, the norm of
        grad k is at most b^2 |(b, X + 2 b)| / (6 sqrt(3) V) + b / 2.
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

    def value(a, q):
        return np.sqrt(square(a, q, _sigmoid(q * (2 * a - q) / (2 * variance))))

    def upper(low, high):
        a, q = zip(low, high, strict=True)
        return np.sqrt(_at_corners(square, a, q, _chance(a, q, variance)))

    reach = truncation + half_width
    return _supremum(upper, value, [-reach, -half_width], [reach, half_width])


@functools.cache
def _mixture_diameter(half_width, truncation, variance) -> float:
    def square(x, y, t, q, p, r):
        first = x - y - (p - r) * q
        return (first**2 + (p * (x - t - q) - r * (y - t - q)) ** 2) / variance**2

    def value(x, y, t, q):
        p, r = (_sigmoid(q * (2 * (s - t) - q) / (2 * variance)) for s in (x, y))
        return np.sqrt(square(x, y, t, q, p, r))

    def upper(low, high):
        x, y, t, q = zip(low, high, strict=True)
        p, r = (_chance((s[0] - t[1], s[1] - t[0]), q, variance) for s in (x, y))
        return np.sqrt(_at_corners(square, x, y, t, q, p, r))

    ends = np.array([truncation, truncation, half_width, half_width])
    return _supremum(upper, value, -ends, ends)


def _chance(a, q, variance):
    """Range of p for ranges of a and q."""
    corners = [(s, u) for s in a for u in q]
    best = [(s, np.clip(s, *q)) for s in a]
    least, most = (
        extreme.reduce([u * (2 * s - u) for s, u in points])
        for extreme, points in ((np.minimum, corners), (np.maximum, best))
    )
    return _sigmoid(least / (2 * variance)), _sigmoid(most / (2 * variance))


def _at_corners(function, *ranges):
    """Largest value at the corners of cells; `function` is convex in each argument."""
    return np.maximum.reduce([function(*c) for c in itertools.product(*ranges)])


def _supremum(upper, value, low, high, tolerance=1e-3) -> float:
    """Upper bound on sup `value` over a box, at most a share `tolerance` above it.

    Parameters
    ----------
    upper
        ``(low, high) -> (cells,)``: bounds over cells ``(variables, cells)``.
    value
        ``(*variables) -> (cells,)``, positive.
    """
    low, high = (np.asarray(ends, np.float64)[:, None] for ends in (low, high))
    attained, bound = 0.0, 0.0
    while low.size:
        found = upper(low, high)
        attained = max(attained, value(*(low + high) / 2).max())
        keep = found > (1 + tolerance) * attained
        bound = max(bound, found[~keep].max(initial=0.0))
        low, high = low[:, keep], high[:, keep]
        longest = np.argmax(high - low, axis=0) == np.arange(len(low))[:, None]
        middle = (low + high) / 2
        low, high = (
            np.concatenate([low, np.where(longest, middle, low)], axis=1),
            np.concatenate([np.where(longest, middle, high), high], axis=1),
        )
    # The last factor covers rounding.
    return float(bound * (1 + 1e-9))


def _sigmoid(logit):
    return 1 / (1 + np.exp(-logit))


def _check_positive(**numbers):
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {number}")
