"""The accounting methods: which apply to a list of events, and what each says.

`accountant` describes them.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dpjax.privacy.bits import exact, poisson_renyi, renyi, total_variation
from dpjax.privacy.events import (
    AcceptBit,
    BarkerTest,
    FixedBatch,
    PoissonAcceptBit,
    PoissonGaussianRelease,
)
from dpjax.privacy.gaussian import conversions, pld, subsampling

__all__ = ["Bound", "bounds", "choose", "only_bit", "other_profiles", "renyi_curve"]

METHODS = ("best", "tv", "rdp", "gdp", "zcdp", "pld", "exact")
AFFORDABLE_BITS = 5_000
AFFORDABLE_CURVES = 16


class Bound(NamedTuple):
    """What one method says of the ideal releases."""

    delta: Callable[[float], float]
    epsilon: Callable[[float], float]


def choose(events, method: str) -> list[str]:
    """The methods to ask, cheap ones first."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if method != "best":
        if reason := _refusal(method, events):
            raise ValueError(f"method {method!r} {reason}; use 'rdp' or 'best'")
        return [method]
    names = [name for name in METHODS[1:] if not _refusal(name, events)]
    if "tv" in names:
        return ["tv"]
    bits = sum(n for event, n in events if isinstance(event, AcceptBit))
    if "gdp" in names:
        if not bits:
            return ["gdp"]
        names.remove("pld")
    if bits > AFFORDABLE_BITS and "exact" in names:
        names.remove("exact")
    if len(events) > AFFORDABLE_CURVES and "pld" in names:
        names.remove("rdp")
    return names


def _refusal(method: str, events) -> str:
    """Why a method does not apply to the events; empty if it does."""
    kinds = [event for event, _ in events]
    bits = [event for event in kinds if isinstance(event, AcceptBit)]
    has_bare = any(_is_bare(event) for event in kinds)
    if method == "tv" and not has_bare:
        return "is for bits that no other method bounds, such as Metropolis's"
    if method == "gdp" and any(event.gaussian is None for event in kinds):
        return "needs events that are Gaussian releases or penalty bits"
    if method == "zcdp":
        if has_bare:
            return "does not apply because the Metropolis bit has no finite zCDP cost"
        test_bits = (AcceptBit, PoissonAcceptBit)
        if not all(event.gaussian or isinstance(event, test_bits) for event in kinds):
            return "needs events on all records"
    if method == "pld" and not all(pld.applies(event) for event in kinds):
        return "needs Gaussian releases, subsampled or not, or penalty bits"
    if method == "exact":
        if len(bits) != 1 or has_bare:
            return "needs one kind of accept bit, Barker's or penalty"
        if not all(pld.applies(event) for event in kinds if event not in bits):
            return "needs other events that method 'pld' takes"
    return ""


def bounds(events, method: str, only: str | None = None) -> dict[str, Bound]:
    found = {}
    for name in choose(events, method):
        if only in (None, name):
            try:
                found[name] = BOUNDS[name](events)
            except ValueError:
                # The exact accountant refuses bits that give away too much.
                if method != "best":
                    raise
    return found


def _inverted(delta: Callable[[float], float]) -> Bound:
    """The bound of a profile; inversions of it share most of their evaluations."""
    delta = lru_cache(maxsize=1024)(delta)
    return Bound(delta, lambda value: conversions.invert_delta(delta, value))


def _tv(events) -> Bound:
    lost = total_variation.compose([pair for pair in events if _is_bare(pair[0])])
    rest = tuple(pair for pair in events if not _is_bare(pair[0]))
    if not rest:
        return Bound(lambda _: lost, lambda delta: 0.0 if lost <= delta else math.inf)
    names = [name for name in choose(rest, "best") if name != "exact"]
    found = [BOUNDS[name](rest) for name in names]

    def epsilon(delta: float) -> float:
        left = delta - lost
        if not left >= 1e-100:
            return math.inf
        return min(bound.epsilon(left) for bound in found)

    return Bound(
        lambda epsilon: min(1.0, lost + min(b.delta(epsilon) for b in found)), epsilon
    )


def _is_bare(event) -> bool:
    return total_variation.variation(event) is not None


def _gdp(events) -> Bound:
    mu_squared = sum(n / event.gaussian.noise_multiplier**2 for event, n in events)

    return _inverted(lambda epsilon: conversions.gdp_delta(mu_squared, epsilon))


def _zcdp(events) -> Bound:
    rho = sum(n * _rho(event) for event, n in events)
    return Bound(
        lambda epsilon: conversions.zcdp_delta(rho, epsilon),
        lambda delta: conversions.zcdp_epsilon(rho, delta),
    )


def _rho(event) -> float:
    """zCDP cost of one event; D^2 / 8 for Barker's bit as A'' <= 1/4."""
    if event.gaussian is not None:
        return 1 / (2 * event.gaussian.noise_multiplier**2)
    return event.sensitivity**2 / 8


def _rdp(events) -> Bound:
    curve = np.sum([n * _curve(event) for event, n in events], axis=0)
    # The divergence of infinite order: pure differential privacy.
    pure = sum(n * _pure_epsilon(event) for event, n in events)
    return Bound(
        lambda epsilon: (
            0.0 if pure <= epsilon else conversions.rdp_delta(curve, epsilon)
        ),
        lambda delta: min(pure, conversions.rdp_epsilon(curve, delta)),
    )


def _pure_epsilon(event) -> float:
    if isinstance(event, PoissonAcceptBit):
        return poisson_renyi.pure_epsilon(event)
    barker = isinstance(event, AcceptBit) and event.acceptance.family == "barker"
    return event.sensitivity if barker else math.inf


@lru_cache(maxsize=256)
def _curve(event) -> np.ndarray:
    return renyi_curve(event, conversions.ORDERS)


def renyi_curve(event, orders) -> np.ndarray:
    """Renyi divergences of one event, nats, ``(m,)``."""
    orders = np.asarray(orders, np.float64)
    if isinstance(event, AcceptBit):
        return renyi.rdp(event, orders)
    if isinstance(event, PoissonAcceptBit):
        return poisson_renyi.rdp(event, orders)
    if isinstance(event, PoissonGaussianRelease):
        return subsampling.poisson_rdp(event, orders)
    if isinstance(event, BarkerTest):
        return subsampling.barker_test_rdp(event.batch_size, orders)
    if isinstance(event, FixedBatch):
        return subsampling.fixed_batch_rdp(
            lambda orders: renyi_curve(event.event, orders),
            event.batch_size / event.num_records,
            orders,
        )
    return conversions.gaussian_rdp(event.noise_multiplier, orders)


def _pld(events) -> Bound:
    composed = pld.compose(events)
    return _inverted(lambda epsilon: float(composed.delta(epsilon)))


def only_bit(events) -> AcceptBit:
    """The accept bit among events that method "exact" takes."""
    return next(event for event, _ in events if isinstance(event, AcceptBit))


def other_profiles(events) -> list[Callable]:
    """The profile of the events that are no bits, for `exact`, if there are any."""
    others = tuple((e, n) for e, n in events if not isinstance(e, AcceptBit))
    return [pld.compose(others).delta] if others else []


def _exact(events) -> Bound:
    bit = only_bit(events)
    if events == ((bit, 1),) and bit.acceptance.family == "barker":
        return _inverted(lambda epsilon: renyi.one_bit_delta(bit, epsilon))
    # One grid for every epsilon, so that answers at different ones agree.
    profile = exact.profile(bit, dict(events)[bit], epsilon=500.0)
    others = other_profiles(events)
    return _inverted(lambda epsilon: profile.delta(epsilon, *others))


BOUNDS = {
    "tv": _tv,
    "rdp": _rdp,
    "gdp": _gdp,
    "zcdp": _zcdp,
    "pld": _pld,
    "exact": _exact,
}
