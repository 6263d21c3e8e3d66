"""The noise, step size or sensitivity with which releases just fit a budget."""

import math
from collections.abc import Callable
from functools import cache

from dpjax.privacy import accountant, composition
from dpjax.privacy.budget import BudgetError
from dpjax.privacy.events import check_events, repeat
from dpjax.privacy.gaussian import conversions
from dpjax.privacy.shown import shown
from dpjax.privacy.validate import check_count, check_delta, check_epsilon, check_real

__all__ = ["calibrate", "spend_rest"]

RELATIVE_TOLERANCE = 1e-4

REACHES = 0.01, 0.3
"""Relative distances from an estimate. The answer is sought within the first of them
that brackets it. The second is for methods that allow more than the Renyi divergences,
from which the estimate is made."""

FIRST_STRIDE = 0.04
"""Relative distance from the answer of the fast methods to the first value beyond it at
which a slow method is asked."""


def calibrate(
    step_events_fn: Callable,
    *,
    num_steps: int,
    epsilon: float,
    delta: float,
    bracket: tuple[float, float],
    method: str = "best",
) -> float:
    """Value at which `num_steps` steps just fit the budget.

    Parameters
    ----------
    step_events_fn
        Function from a value, such as a noise multiplier or a step size, to the list of
        (event, count) of one step. The cost must be monotone in the value.
    num_steps
        Number of steps, at least 1.
    epsilon, delta
        The budget.
    bracket
        (low, high) with 0 < low < high. The steps must fit the budget at exactly one of
        the two ends.
    method
        As in `accountant.epsilon`.

    Returns
    -------
    The largest value that fits if the cost grows with the value, or the smallest if the
    cost falls. Its relative error is 1e-4, and it never exceeds the budget.

    Raises
    ------
    ValueError
        If an argument is invalid, or both ends of `bracket` fit.
    BudgetError
        If neither end of `bracket` fits.
    """
    num_steps = check_count("num_steps", num_steps)
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    try:
        low, high = bracket
    except (TypeError, ValueError):
        raise ValueError(f"bracket must be (low, high), got {bracket!r}") from None
    low = check_real("bracket[0]", low, low=1e-50, high=1e50)
    high = check_real("bracket[1]", high, low=1e-50, high=1e50)
    if not low < high:
        raise ValueError(f"bracket must have low < high, got {bracket!r}")

    def events(log_value: float):
        value = min(max(math.exp(log_value), low), high)
        return check_events(repeat(check_events(step_events_fn(value)), num_steps))

    def estimate(log_value: float) -> float:
        found = composition.rough_epsilon(events(log_value), delta)
        return math.log(min(max(found, 1e-300), 1e300)) - math.log(epsilon)

    @cache
    def fast(log_value: float, names=composition.FAST_METHODS) -> float:
        """Negative if `num_steps` steps fit the budget by one of these methods."""
        found = accountant.least_delta(events(log_value), epsilon, method, names)
        return math.log(max(found, 1e-300)) - math.log(delta) or 1e-300

    def excess(log_value: float) -> float:
        """Negative if `num_steps` steps fit the budget by any of the chosen methods."""
        names = composition.choose(events(log_value), method)
        if set(names) <= set(composition.FAST_METHODS):
            return fast(log_value)
        return fast(log_value, composition.METHODS)

    near = ends = math.log(low), math.log(high)
    if "rdp" in composition.choose(events(ends[0]), method):
        near = _bracket(estimate, fast, ends)
    fits = [fast(end) < 0 for end in near]
    is_fast = any(fits)
    if not is_fast:
        fits = [excess(end) < 0 for end in ends]
    if not any(fits):
        least = min(
            accountant.epsilon(
                repeat(check_events(step_events_fn(end)), num_steps), delta
            )
            for end in (low, high)
        )
        needed = "more than 500" if least == math.inf else f"{shown(least)} or more"
        raise BudgetError(
            f"epsilon = {epsilon:g} at delta = {delta:g} pays for no value between "
            f"{low:g} and {high:g}, which takes an epsilon of {needed}: raise the "
            "budget or take fewer steps"
        )
    cheap, costly = ends if fits[0] else ends[::-1]
    if is_fast and not all(fits):
        # The slow method is asked only near the answer of the fast ones.
        cheap = _boundary(fast, *(near if fits[0] else near[::-1]))
        if excess(cheap) == fast(cheap):
            return min(max(math.exp(cheap), low), high)
        step = math.copysign(FIRST_STRIDE, costly - cheap)
        ahead = cheap
        while ahead != costly and excess(ahead) < 0:
            cheap, step = ahead, 2 * step
            ahead = min(cheap + step, costly, key=lambda end: abs(end - cheap))
        costly = ahead
    if excess(costly) < 0:
        raise ValueError(
            f"{num_steps} steps fit the budget at both ends of bracket {bracket}; "
            "widen it towards the costly end"
        )
    return min(max(math.exp(_boundary(excess, cheap, costly)), low), high)


def spend_rest(event_fn: Callable, others, *, epsilon: float, delta: float) -> float:
    """Noise of one release that spends what other releases leave of a budget.

    Parameters
    ----------
    event_fn
        Function from a noise multiplier to the event of the release. The larger the
        noise multiplier, the less the event must cost.
    others
        List of (event, count) of the other releases, made before or after this one. It
        may be empty.
    epsilon, delta
        The budget of all releases together.

    Returns
    -------
    The smallest noise multiplier that fits. Its relative error is 1e-4, and it never
    exceeds the budget.

    Raises
    ------
    ValueError
        If an argument is invalid, or `event_fn` refuses the noise that is needed.
    BudgetError
        If the other releases leave nothing of the budget.
    """
    others = list(others)

    def events(noise_multiplier: float):
        return [*others, (event_fn(noise_multiplier), 1)]

    def fits(noise_multiplier: float) -> bool:
        return accountant.delta(events(noise_multiplier), epsilon) < delta

    # The search for a bracket begins at the noise multiplier that a Gaussian release
    # would need without the others.
    high = 1 / conversions.gdp_mu(check_epsilon(epsilon), check_delta(delta))
    if others and accountant.delta(others, epsilon) >= delta:
        raise BudgetError(
            f"the other releases leave nothing of ({epsilon:g}, {delta:g}); give them "
            "more noise, or raise the budget"
        )
    while not fits(high):
        high *= 2
    low = high / 2
    while fits(low):
        low, high = low / 2, low
    return calibrate(
        events, num_steps=1, epsilon=epsilon, delta=delta, bracket=(low, high)
    )


def _bracket(
    estimate: Callable, excess: Callable, ends: tuple[float, float]
) -> tuple[float, float]:
    """Values near the root of `estimate` between which `excess` changes sign.

    All values are logarithms. If none are found within `REACHES`, the given ends are
    returned.
    """
    low, high = ends
    if (estimate(low) < 0) == (estimate(high) < 0):
        return ends
    middle = conversions.find_root(estimate, low, high, xtol=REACHES[0] / 10)
    for reach in REACHES:
        near = max(middle - reach, low), min(middle + reach, high)
        if (excess(near[0]) < 0) != (excess(near[1]) < 0):
            return near
    return ends


def _boundary(excess: Callable, cheap: float, costly: float) -> float:
    """The logarithm of a value that fits, close to values that do not fit.

    `cheap` and `costly` are logarithms of two values, of which only the first fits.
    """
    known = {}

    def record(log_value: float) -> float:
        known[log_value] = excess(log_value)
        return known[log_value]

    conversions.find_root(record, cheap, costly, xtol=RELATIVE_TOLERANCE / 4)
    fitting = [log_value for log_value, found in known.items() if found < 0]
    return min(fitting, key=lambda log_value: abs(log_value - costly))
