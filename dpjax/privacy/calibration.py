"""Choose the noise, step size or sensitivity that spends a budget."""

import math
from collections.abc import Callable

from dpjax.privacy import accountant
from dpjax.privacy.budget import BudgetError
from dpjax.privacy.events import check_events, repeat
from dpjax.privacy.validate import check_count, check_delta, check_epsilon, check_real

__all__ = ["calibrate"]

RELATIVE_TOLERANCE = 1e-4


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
        Maps a value, such as a noise multiplier or a step size, to the list of
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
    The largest value that fits if the cost grows with the value, the smallest if it
    falls, to 1e-4 relative and never over budget.

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

    def fits(value: float) -> bool:
        events = repeat(check_events(step_events_fn(value)), num_steps)
        return accountant.delta(events, epsilon, method) < delta

    fits_low, fits_high = fits(low), fits(high)
    if fits_low and fits_high:
        raise ValueError(
            f"{num_steps} steps fit the budget at both ends of bracket {bracket}; "
            "widen it towards the costly end"
        )
    if not fits_low and not fits_high:
        raise BudgetError(
            f"{num_steps} steps exceed the budget at both ends of bracket {bracket}; "
            "widen it towards the cheap end or take fewer steps"
        )
    while high > low * (1 + RELATIVE_TOLERANCE):
        middle = math.sqrt(low * high)
        if fits(middle) == fits_low:
            low = middle
        else:
            high = middle
    return low if fits_low else high
