"""Epsilon, delta and number of steps of composed events.

Methods: ``"gdp"`` is exact where every event is Gaussian or post-processing of a
Gaussian release; ``"rdp"`` takes any events; ``"zcdp"`` is the plain bound; ``"best"``
is the smallest of those that apply, and of the exact profile of a lone Barker bit. All
hold when events are chosen adaptively among those listed.

Releases in floating point are off the ideal ones by a total variation that each event
states; N that are ideally (eps, delta) are (eps, delta + (1 + e^eps) N TV). Every
answer includes that.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpjax.privacy import accept_bit, conversions
from dpjax.privacy.events import AcceptBit, check_events
from dpjax.privacy.validate import check_delta, check_epsilon, check_real

__all__ = ["delta", "epsilon", "max_steps", "numerical_delta"]

METHODS = ("best", "rdp", "gdp", "zcdp")
MAX_STEPS = 10**12


def epsilon(events, delta: float, method: str = "best") -> float:
    """Epsilon at which the composed events are (epsilon, delta)-DP.

    Parameters
    ----------
    events
        List of (event, count).
    delta
        In (0, 1).
    method
        ``"best"``, ``"rdp"``, ``"gdp"`` or ``"zcdp"``.

    Returns
    -------
    Nats; infinite if `delta` cannot be reached.

    Raises
    ------
    ValueError
        If an argument is invalid or the method does not apply to the events.
    """
    delta = check_delta(delta)
    total = _total(events, method)
    value = total.epsilon(delta)
    for _ in range(100):
        # An epsilon below `trial` pays no more than the slack at `trial`.
        trial = value * (1 + 1e-6) + 1e-9
        left = delta - numerical_delta(total.total_variation, trial)
        if not left >= 1e-100:
            return math.inf
        value = total.epsilon(left)
        if value <= trial:
            return value
    return math.inf


def delta(events, epsilon: float, method: str = "best") -> float:
    """delta at which the composed events are (epsilon, delta)-DP, at most 1.

    Parameters
    ----------
    events
        List of (event, count).
    epsilon
        Nats, in [0, 500].
    method
        As in `epsilon`.

    Raises
    ------
    ValueError
        If an argument is invalid or the method does not apply to the events.
    """
    epsilon = check_real("epsilon", epsilon, low=0.0, high=500.0)
    return _total(events, method).delta(epsilon)


def max_steps(
    step_events, *, epsilon: float, delta: float, method: str = "best", spent=()
) -> int:
    """Largest number of steps with composed delta(epsilon) < delta.

    Doubling and bisection on the exact condition [Raisa 2021, Algorithm 2].

    Parameters
    ----------
    step_events
        List of (event, count) of one step.
    epsilon, delta
        The budget.
    method
        As in `epsilon`.
    spent
        List of (event, count) that were released before.

    Returns
    -------
    A number of steps; 0 if one step is already too many.

    Raises
    ------
    ValueError
        If an argument is invalid, the method does not apply to the events, or more
        than 10^12 steps fit.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    step_events = check_events(step_events)

    def fits(steps: int) -> bool:
        events = [(event, count * steps) for event, count in step_events]
        return _total([*spent, *events], method).delta(epsilon) < delta

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
        if high > MAX_STEPS:
            raise ValueError(
                "more than 1e12 steps fit the budget, which suggests a wrong "
                "sensitivity or noise multiplier; check the events"
            )
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def numerical_delta(total_variation: float, epsilon: float) -> float:
    """delta that releases off by `total_variation`, added up, add to the ideal one."""
    if total_variation == 0:
        return 0.0
    if epsilon > 700:
        return math.inf
    return (1 + math.exp(epsilon)) * total_variation


@dataclass(frozen=True)
class _Total:
    """Composed cost: numerical error; mu^2, rho and Renyi curve, None if not used."""

    total_variation: float
    lone: AcceptBit | None
    mu_squared: float | None = None
    rho: float | None = None
    curve: np.ndarray | None = None

    def delta(self, epsilon: float) -> float:
        bounds = [1.0]
        if self.mu_squared is not None:
            bounds.append(conversions.gdp_delta(self.mu_squared, epsilon))
        if self.rho is not None:
            bounds.append(conversions.zcdp_delta(self.rho, epsilon))
        if self.curve is not None:
            bounds.append(conversions.rdp_delta(self.curve, epsilon))
        if self.lone is not None:
            bounds.append(accept_bit.one_bit_delta(self.lone, epsilon))
        return min(1.0, min(bounds) + numerical_delta(self.total_variation, epsilon))

    def epsilon(self, delta: float) -> float:
        """Of ideal bits, without their numerical error."""
        bounds = [math.inf]
        if (mu_squared := self.mu_squared) is not None:
            bounds.append(
                conversions.invert_delta(
                    lambda value: conversions.gdp_delta(mu_squared, value), delta
                )
            )
        if self.rho is not None:
            bounds.append(conversions.zcdp_epsilon(self.rho, delta))
        if self.curve is not None:
            bounds.append(conversions.rdp_epsilon(self.curve, delta))
        if (lone := self.lone) is not None:
            bounds.append(
                conversions.invert_delta(
                    lambda value: accept_bit.one_bit_delta(lone, value), delta
                )
            )
        return min(bounds)


def _total(events, method: str) -> _Total:
    events = check_events(events)
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    releases = [
        (event.gaussian, n) for event, n in events if event.gaussian is not None
    ]
    gaussian = len(releases) == len(events)
    metropolis = any(_family(event) == "metropolis" for event, _ in events)
    bits = any(isinstance(event, AcceptBit) for event, _ in events)
    total_variation = sum(count * event.total_variation for event, count in events)
    if method == "gdp" and not gaussian:
        raise ValueError(
            "method 'gdp' needs events that are Gaussian releases or penalty bits; "
            "use 'rdp' or 'best'"
        )
    if method == "zcdp" and metropolis:
        raise ValueError(
            "method 'zcdp' does not apply because the Metropolis bit has no finite "
            "zCDP cost; use Barker's or the penalty acceptance function"
        )
    mu_squared = rho = curve = lone = None
    if method == "gdp" or (method == "best" and gaussian):
        mu_squared = sum(n / release.noise_multiplier**2 for release, n in releases)
    if method == "zcdp" or (method == "best" and bits and not metropolis):
        rho = sum(n * _rho(event) for event, n in events)
    if method == "rdp" or (method == "best" and bits):
        curves = [n * renyi_curve(event, conversions.ORDERS) for event, n in events]
        curve = np.sum(curves, axis=0)
    if method == "best" and len(events) == 1:
        event, count = events[0]
        lone = event if count == 1 and isinstance(event, AcceptBit) else None
    return _Total(total_variation, lone, mu_squared, rho, curve)


def renyi_curve(event, orders) -> np.ndarray:
    """Renyi divergences of one event, nats, ``(m,)``."""
    if isinstance(event, AcceptBit):
        return accept_bit.rdp(event, orders)
    if event.gaussian is None:
        raise ValueError(f"no Renyi curve is known of {event}")
    return conversions.gaussian_rdp(event.gaussian.noise_multiplier, orders)


def _family(event) -> str | None:
    return event.acceptance.family if isinstance(event, AcceptBit) else None


def _rho(event) -> float:
    """zCDP cost of one event; alpha D^2 / 8 for Barker's bit as A'' <= 1/4."""
    if event.gaussian is not None:
        return 1 / (2 * event.gaussian.noise_multiplier**2)
    return event.sensitivity**2 / 8
