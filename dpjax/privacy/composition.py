"""The accounting methods: which of them apply to a list of events, and their bounds.

`dpjax.privacy.accountant` describes the methods. Every function here takes events that
`check_events` returned. The bounds are those of ideal releases; the accountant adds the
numerical error of releases in floating point.
"""

import math
from collections.abc import Callable, Container, Iterator
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from dpjax.privacy.bits import batch_renyi, exact, poisson_renyi, renyi, total_variation
from dpjax.privacy.events import (
    AcceptBit,
    BarkerTest,
    FixedBatch,
    GaussianRelease,
    KNormRelease,
    PoissonAcceptBit,
    PoissonGaussianRelease,
    PureRelease,
)
from dpjax.privacy.gaussian import conversions, k_norm, pld, pure, subsampling

__all__ = [
    "CHEAP_METHODS",
    "FAST_METHODS",
    "METHODS",
    "SLOW_METHODS",
    "Bound",
    "bounds",
    "choose",
    "mu_squared",
    "only_bit",
    "other_profile",
    "renyi_curve",
    "renyi_curve_at_best",
    "rough_epsilon",
]

CHEAP_METHODS = ("tv", "rdp", "gdp", "zcdp")
SLOW_METHODS = ("pld", "exact")
FAST_METHODS = (*CHEAP_METHODS, "pld")
METHODS = (*CHEAP_METHODS, *SLOW_METHODS)

MAX_EXACT_BITS = 5_000
"""The most accept bits for which "best" tries "exact", which takes seconds for them."""

MAX_RDP_KINDS = 16
"""The most different events for which "best" tries "rdp" beside "pld", which is
tighter."""


MAX_TIGHT_ORDER = 32
"""The highest Renyi order at which `_rough_curve` is tight."""

STRIDE = 10
"""`_estimated` first estimates the divergence at one in so many Renyi orders."""

BLOCK = 5
"""Number of neighbouring Renyi orders at which divergences are bounded together."""


class Bound(NamedTuple):
    """The bound of one method on ideal releases.

    delta
        ``epsilon -> delta``.
    epsilon
        ``delta -> epsilon``, in nats.
    """

    delta: Callable[[float], float]
    epsilon: Callable[[float], float]


def choose(events, method: str) -> list[str]:
    """Names of the methods to ask, cheap ones first.

    A `method` other than "best" is asked alone. "best" asks every method that applies
    to the events, except those that could not give a smaller answer than another one
    does, and those that would take too long.

    Raises
    ------
    ValueError
        If `method` is unknown or does not apply to the events.
    """
    if method not in ("best", *METHODS):
        raise ValueError(f"method must be 'best' or one of {METHODS}, got {method!r}")
    if method != "best":
        if reason := _refusal(method, events):
            raise ValueError(f"method {method!r} {reason}; use 'rdp' or 'best'")
        return [method]
    names = [name for name in METHODS if not _refusal(name, events)]
    num_bits = sum(n for event, n in events if isinstance(event, AcceptBit))
    if "tv" in names:
        return ["tv"]
    if "gdp" in names:
        # It is exact for Gaussian releases; only bits can cost less than theirs.
        if not num_bits:
            return ["gdp"]
        names.remove("pld")
    if "exact" in names and num_bits > MAX_EXACT_BITS:
        names.remove("exact")
    if "pld" in names and len(events) > MAX_RDP_KINDS:
        names.remove("rdp")
    return names


def _refusal(method: str, events) -> str:
    """Why a method does not apply to the events; empty if it does."""
    kinds = [event for event, _ in events]
    others = [event for event in kinds if not isinstance(event, AcceptBit)]
    bits = AcceptBit, PoissonAcceptBit
    has_unbounded = any(_is_unbounded(event) for event in kinds)
    match method:
        case "tv" if not has_unbounded:
            return "is for bits that no other method bounds, such as Metropolis's"
        case "gdp" if any(event.gaussian is None for event in kinds):
            return "needs events that are Gaussian releases or penalty bits"
        case "zcdp" if has_unbounded:
            return "does not apply because the Metropolis bit has no finite zCDP cost"
        case "zcdp" if not all(
            event.gaussian or isinstance(event, bits) for event in kinds
        ):
            return "needs Gaussian releases or bits, on all records"
        case "pld" if not all(pld.applies(event) for event in kinds):
            return (
                "needs Gaussian releases, subsampled or not, K-norm or pure releases "
                "or penalty bits"
            )
        case "exact" if len(kinds) - len(others) != 1 or has_unbounded:
            return "needs one kind of accept bit, Barker's or penalty"
        case "exact" if not all(pld.applies(event) for event in others):
            return "needs other events that method 'pld' takes"
    return ""


def _is_unbounded(event) -> bool:
    """Whether the event has no finite Renyi divergence, only a total variation."""
    return total_variation.variation(event) is not None


def bounds(
    events, method: str, names: Container[str] = METHODS
) -> Iterator[tuple[str, Bound]]:
    """Names and bounds of the chosen methods that are among `names`, one by one."""
    for name in choose(events, method):
        if name not in names:
            continue
        try:
            bound = _BOUNDS[name](events)
        except ValueError:
            # "exact" refuses bits that give away too much. Then "best" leaves it out.
            if method != "best":
                raise
        else:
            yield name, bound


def _inverted(delta: Callable[[float], float]) -> Bound:
    """The bound whose profile is ``delta(epsilon)``; its epsilon is found by inversion.

    Evaluations are cached, because inversions for several deltas share most of them.
    """
    delta = lru_cache(maxsize=1024)(delta)
    return Bound(delta, lambda value: conversions.invert_delta(delta, value))


def _tv(events) -> Bound:
    """Total variation of the unbounded events, added to the delta of all others."""
    lost = total_variation.compose(events)
    rest = tuple(pair for pair in events if not _is_unbounded(pair[0]))
    if not rest:
        return Bound(lambda _: lost, lambda delta: 0.0 if lost <= delta else math.inf)
    of_rest = [bound for _, bound in bounds(rest, "best", FAST_METHODS)]

    def epsilon(delta: float) -> float:
        left = delta - lost
        if not left >= 1e-100:
            return math.inf
        return min(bound.epsilon(left) for bound in of_rest)

    def delta(epsilon: float) -> float:
        return min(1.0, lost + min(bound.delta(epsilon) for bound in of_rest))

    return Bound(delta, epsilon)


def _gdp(events) -> Bound:
    total = mu_squared(events)
    return _inverted(lambda epsilon: conversions.gdp_delta(total, epsilon))


def mu_squared(events) -> float:
    """mu^2 of events that are Gaussian releases or post-processing of them.

    Together they are mu-GDP.
    """
    return sum(n / event.gaussian.noise_multiplier**2 for event, n in events)


def _zcdp(events) -> Bound:
    rho = sum(n * _rho(event) for event, n in events)
    return Bound(
        lambda epsilon: conversions.zcdp_delta(rho, epsilon),
        lambda delta: conversions.zcdp_epsilon(rho, delta),
    )


def _rho(event) -> float:
    """rho of one event, which is rho-zCDP.

    For a bit of Barker's family with the sensitivity D it is D^2 / 8, because
    A'' <= 1/4 in the notation of `bits.renyi`.
    """
    if event.gaussian is not None:
        return 1 / (2 * event.gaussian.noise_multiplier**2)
    return event.sensitivity**2 / 8


def _rdp(events) -> Bound:
    # The divergence of infinite order bounds epsilon at every delta.
    pure = sum(n * _pure_epsilon(event) for event, n in events)

    def delta(epsilon: float) -> float:
        if pure <= epsilon:
            return 0.0
        curve, orders = renyi_curve_at_best(
            events, partial(conversions.rdp_log_delta, epsilon=epsilon)
        )
        return conversions.rdp_delta(curve, epsilon, orders)

    def epsilon(delta: float) -> float:
        curve, orders = renyi_curve_at_best(
            events,
            lambda curve, orders: curve + conversions.rdp_excess(orders, delta),
        )
        return min(pure, conversions.rdp_epsilon(curve, delta, orders))

    return Bound(delta, epsilon)


def rough_epsilon(events, delta: float) -> float:
    """Estimate of epsilon in nats, from estimated Renyi divergences.

    It may be too small, so it certifies nothing.
    """
    curve, orders = _estimated(
        events, lambda curve, orders: curve + conversions.rdp_excess(orders, delta)
    )
    return conversions.rdp_epsilon(curve, delta, orders)


def renyi_curve_at_best(events, value_fn: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Composed Renyi divergences at a few of `ORDERS`, the best order among them.

    The search starts at the order that is best by estimates, and ends at an order that
    is better than its neighbours. It does not miss a better one, because the value is
    quasi-convex in the order alpha: it is (alpha - 1) D_alpha plus other terms, which
    is convex, divided by alpha - 1.

    Parameters
    ----------
    events
        Checked (event, count) pairs.
    value_fn
        ``(divergences, orders) -> values``, ``(m,)`` each. The best order has the least
        value, such as epsilon at a given delta.

    Returns
    -------
    divergences, orders
        ``(m,)`` each, the divergences in nats.
    """
    estimates, orders = _estimated(events, value_fn)
    likely = orders[np.argmin(value_fn(estimates, orders))]
    first = int(np.searchsorted(conversions.ORDERS, likely)) // BLOCK * BLOCK
    last = first + BLOCK
    found = _composed(events, first, last)
    while True:
        best = int(np.argmin(value_fn(*found)))
        if best == 0 and first > 0:
            first -= BLOCK
            pieces = _composed(events, first, first + BLOCK), found
        elif best == found[1].size - 1 and last < conversions.ORDERS.size:
            last += BLOCK
            pieces = found, _composed(events, last - BLOCK, last)
        else:
            return found
        (curve, orders), (next_curve, next_orders) = pieces
        found = np.append(curve, next_curve), np.append(orders, next_orders)


def _estimated(events, value_fn: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Estimated divergences, and their orders, for `renyi_curve_at_best`.

    The orders are one in `STRIDE` of `ORDERS`, and all that are near the best of these.
    """
    coarse = _composed(events, 0, None, STRIDE, estimate=True)
    best = STRIDE * int(np.argmin(value_fn(*coarse)))
    near = max(best - STRIDE, 0) + 1, best + STRIDE
    fine = _composed(events, *near, estimate=True)
    return np.append(coarse[0], fine[0]), np.append(coarse[1], fine[1])


def _composed(
    events, *window: int | None, estimate: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Composed divergences at ``ORDERS[slice(*window)]``, nats, and these orders."""
    curve = np.sum(
        [n * _curve(event, estimate, *window) for event, n in events], axis=0
    )
    return curve, conversions.ORDERS[slice(*window)]


def _pure_epsilon(event) -> float:
    match event:
        case PoissonAcceptBit():
            return poisson_renyi.pure_epsilon(event)
        case AcceptBit() if event.acceptance.family == "barker":
            return event.sensitivity
        case KNormRelease():
            return k_norm.pure_epsilon(event)
        case PureRelease():
            return pure.pure_epsilon(event)
    return math.inf


@lru_cache(maxsize=4096)
def _curve(event, estimate: bool, *window) -> np.ndarray:
    return renyi_curve(event, conversions.ORDERS[slice(*window)], estimate)


def renyi_curve(event, orders, estimate: bool = False) -> np.ndarray:
    """Upper bounds on the Renyi divergences of one event, nats, ``(m,)``.

    With `estimate`, those of accept bits are estimates: see `renyi.supremum`.
    """
    orders = np.asarray(orders, np.float64)
    match event:
        case AcceptBit():
            return renyi.rdp(event, orders, estimate)
        case PoissonAcceptBit():
            return poisson_renyi.rdp(event, orders, estimate)
        case PoissonGaussianRelease():
            return subsampling.poisson_rdp(event, orders)
        case KNormRelease():
            return k_norm.rdp(event, orders)
        case PureRelease():
            return pure.rdp(event, orders)
        case BarkerTest():
            return subsampling.barker_test_rdp(event.batch_size, orders)
        case FixedBatch():
            return _batch_curve(event, orders, estimate)
    return conversions.gaussian_rdp(event.noise_multiplier, orders)


def _batch_curve(event, orders, estimate: bool) -> np.ndarray:
    inner, bound = event.event, np.full(orders.shape, np.inf)
    curve_fn = partial(renyi_curve, inner)
    if not isinstance(inner, GaussianRelease):
        bound = batch_renyi.rdp(event, orders, estimate)
    if isinstance(inner, AcceptBit):
        if np.isfinite(bound).all():
            return bound  # It is tight.
        curve_fn = partial(_rough_curve, inner)
    share = event.batch_size / event.num_records
    return np.minimum(bound, subsampling.fixed_batch_rdp(curve_fn, share, orders))


def _rough_curve(bit: AcceptBit, orders: np.ndarray) -> np.ndarray:
    """Bounds on the divergences of a bit, nats, ``(m,)``.

    They are tight up to `MAX_TIGHT_ORDER`. The divergences of a batch depend most on
    those low orders.
    """
    bound, is_low = renyi.closed_form(bit, orders), orders <= MAX_TIGHT_ORDER
    if is_low.any():
        bound[is_low] = renyi.rdp(bit, orders[is_low])
    return bound


def _pld(events) -> Bound:
    composed = pld.compose(events)
    return _inverted(lambda epsilon: float(composed.delta(epsilon)))


def only_bit(events) -> AcceptBit:
    """The accept bit among events that method "exact" takes."""
    return next(event for event, _ in events if isinstance(event, AcceptBit))


def other_profile(events) -> exact.Curve:
    """delta(epsilon) of the events other than accept bits, for method "exact"."""
    others = tuple((e, n) for e, n in events if not isinstance(e, AcceptBit))
    return pld.compose(others).delta if others else exact.no_release


def _exact(events) -> Bound:
    bit = only_bit(events)
    if events == ((bit, 1),) and bit.acceptance.family == "barker":
        return _inverted(lambda epsilon: renyi.one_bit_delta(bit, epsilon))
    profile = exact.profile(bit, dict(events)[bit])
    others = other_profile(events)
    return _inverted(lambda epsilon: profile.delta(epsilon, others))


_BOUNDS = {
    "tv": _tv,
    "rdp": _rdp,
    "gdp": _gdp,
    "zcdp": _zcdp,
    "pld": _pld,
    "exact": _exact,
}
