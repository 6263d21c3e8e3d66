"""Conversions of Gaussian DP, zCDP and Renyi curves to delta and epsilon.

A Renyi curve is an array of Renyi divergences in nats, one for each order.
"""

import math
from collections.abc import Callable

import numpy as np
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant
from scipy import optimize, special

from dpjax.privacy.validate import MAX_EPSILON

__all__ = [
    "ORDERS",
    "find_root",
    "gaussian_rdp",
    "gdp_delta",
    "gdp_mu",
    "invert_delta",
    "rdp_delta",
    "rdp_epsilon",
    "rdp_excess",
    "rdp_log_delta",
    "zcdp_delta",
    "zcdp_epsilon",
]

ORDERS = np.unique(
    np.concatenate(
        [
            [1.02, 1.05],
            rdp_privacy_accountant.DEFAULT_RDP_ORDERS,
            np.round(2.0 ** np.arange(6, 10.01, 1 / 6)),
            2.0 ** np.arange(10.5, 15.01, 0.5),
        ]
    )
)
"""Renyi orders of all curves: those of dp-accounting, and more in its gaps above 63 and
up to 2^15."""


def gaussian_rdp(noise_multiplier: float, orders) -> np.ndarray:
    """Renyi divergences of one Gaussian release, by dp-accounting, nats, ``(m,)``."""
    accountant = RdpAccountant(orders)
    accountant.compose(GaussianDpEvent(noise_multiplier))
    return _check_curve(accountant.rdp)


def gdp_delta(mu_squared: float, epsilon: float) -> float:
    """delta(epsilon) of mu-GDP, exact up to rounding, which is upwards.

    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) [Raisa 2021, Theorem 3.2;
    Balle and Wang 2018, Theorem 8]. It is computed as phi(z) (M(z) - M(z + mu)), where
    z = eps/mu - mu/2 and M is Mills' ratio. This form neither overflows nor cancels.
    """
    mu = math.sqrt(mu_squared)
    z = epsilon / mu - mu / 2
    density = math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    upper = density * _mills(z + mu)
    lower = density * _mills(z) if z > 0 else float(special.ndtr(-z))
    # The result is rounded up. Rounding of the exponent z^2 / 2 makes a relative error
    # of z^2 ulps, and the difference has an error of some ulps of its terms.
    value = (lower - upper) * (1 + 1e-15 * (10 + z**2)) + 2e-15 * lower
    return _check_number(min(max(value, 0.0), 1.0))


def gdp_mu(epsilon: float, delta: float) -> float:
    """mu in [1e-12, 100] of the Gaussian release that spends a budget."""

    def excess(log_mu: float) -> float:
        return gdp_delta(math.exp(2 * log_mu), epsilon) - delta

    return math.exp(find_root(excess, math.log(1e-12), math.log(100)))


def find_root(function: Callable, low: float, high: float, **options) -> float:
    """Root of a function that changes sign in [low, high], by Brent's method.

    `options` are those of `scipy.optimize.root_scalar`.
    """
    bracket = low, high
    return optimize.root_scalar(
        function, bracket=bracket, method="brentq", **options
    ).root


def zcdp_delta(rho: float, epsilon: float) -> float:
    """delta(epsilon) of rho-zCDP [Bun and Steinke 2016, Proposition 1.3]."""
    if epsilon <= rho:
        return 1.0
    return _check_number(math.exp(-((epsilon - rho) ** 2) / (4 * rho)))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Epsilon of rho-zCDP, rho + 2 sqrt(rho log(1/delta)); source as `zcdp_delta`."""
    return _check_number(rho + 2 * math.sqrt(-rho * math.log(delta)))


def rdp_excess(orders: np.ndarray, delta: float) -> np.ndarray:
    """For each order, by how much epsilon at `delta` exceeds the Renyi divergence.

    The result is in nats, ``(m,)``. Source: Canonne, Kamath and Steinke 2020,
    Proposition 12.
    """
    spread = (math.log(delta) + np.log(orders)) / (orders - 1)
    return np.log1p(-1 / orders) - spread


def rdp_log_delta(curve: np.ndarray, orders: np.ndarray, epsilon: float) -> np.ndarray:
    """Logarithm of delta at `epsilon`, by each order of a Renyi curve, ``(m,)``.

    Source: as for `rdp_excess`.
    """
    return (orders - 1) * (curve + rdp_excess(orders, 1.0) - epsilon)


def rdp_delta(curve: np.ndarray, epsilon: float, orders=ORDERS) -> float:
    """delta(epsilon) of a Renyi curve, by the conversion of dp-accounting.

    dp-accounting takes a divergence of 0 for perfect privacy, and fails on a positive
    one below 1e-16. So smaller divergences than 1e-15 are replaced by 1e-15.
    """
    curve = np.maximum(_check_curve(curve), 1e-15)
    # The product of a high order and a huge divergence may be infinite.
    with np.errstate(over="ignore"):
        found = rdp_privacy_accountant.compute_delta(list(orders), list(curve), epsilon)
    return _check_number(found[0])


def rdp_epsilon(curve: np.ndarray, delta: float, orders=ORDERS) -> float:
    """Epsilon of a Renyi curve at a delta, by the conversion of dp-accounting."""
    curve = np.maximum(_check_curve(curve), 1e-15)
    found = rdp_privacy_accountant.compute_epsilon(list(orders), list(curve), delta)
    return _check_number(found[0])


def invert_delta(profile: Callable[[float], float], delta: float) -> float:
    """Smallest epsilon >= 0 with profile(epsilon) <= delta, for a falling `profile`.

    It is found by bisection and rounded up, by 1e-13 of itself at most. The result is
    infinite if an epsilon of 500 is not enough.
    """
    if profile(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1e-3
    while profile(high) > delta:
        if high == MAX_EPSILON:
            return math.inf
        low, high = high, min(2 * high, MAX_EPSILON)
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if profile(middle) > delta:
            low = middle
        else:
            high = middle
    return high


def _mills(z: float) -> float:
    """Mills' ratio (1 - Phi(z)) / phi(z) for z >= 0."""
    return math.sqrt(math.pi / 2) * float(special.erfcx(z / math.sqrt(2)))


def _check_number(value: float) -> float:
    if not value >= 0:
        raise ArithmeticError(f"the accountant computed {value}, not a privacy cost")
    return float(value)


def _check_curve(curve) -> np.ndarray:
    curve = np.asarray(curve, np.float64)
    if not np.all(curve >= 0):
        raise ArithmeticError("the accountant computed a Renyi curve that is not >= 0")
    return curve
