"""Epsilon, delta and number of steps of composed events.

Methods, each an upper bound that holds when events are chosen adaptively among those
listed:

- ``"rdp"`` adds the Renyi divergences of any events, including the divergence of
  infinite order.
- ``"tv"`` takes any events, among them bits that have no finite Renyi divergence, such
  as Metropolis's. It adds the total variation of those bits to the delta of all other
  events (see `dpjax.privacy.bits.total_variation`).
- ``"gdp"`` is exact where every event is a Gaussian release or post-processing of one.
- ``"zcdp"`` is the plain bound for Gaussian releases and bits.
- ``"pld"`` takes Gaussian releases, Poisson samples of them, penalty bits as
  post-processing of Gaussian releases, and fixed batches of Gaussian releases or
  penalty bits. It is within 0.5 % of the pairs of distributions that dominate these
  events (see `dpjax.privacy.gaussian.pld`).
- ``"exact"`` takes one kind of accept bit, adaptively composed, with any events of
  ``"pld"``, and at most 10^7 bits (see `dpjax.privacy.bits.exact`).
- ``"best"`` is the smallest of the methods that apply and take seconds. ``"exact"`` is
  tried up to 5000 bits: it allows about a tenth more steps than ``"rdp"``.

A release in floating point differs from the ideal one by a total variation TV that its
event states. If N releases are ideally (eps, delta)-private, then they are
(eps, delta + (1 + e^eps) N TV)-private in floating point. Every answer includes that.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable
from functools import partial

from dpjax.privacy import composition
from dpjax.privacy.bits import total_variation
from dpjax.privacy.events import Event, check_events, repeat
from dpjax.privacy.validate import check_delta, check_epsilon, check_real

__all__ = [
    "best_method",
    "delta",
    "epsilon",
    "largest",
    "least_delta",
    "max_steps",
    "numerical_delta",
    "numerical_error",
    "with_error",
]

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
        One of those that the module docstring lists.

    Returns
    -------
    Nats; infinite if `delta` cannot be reached.

    Raises
    ------
    ValueError
        If an argument is invalid or the method does not apply to the events.
    """
    return min(_epsilons(events, delta, method).values())


def best_method(events, delta: float) -> str:
    """Name of the method that gives ``epsilon(events, delta)``.

    Parameters
    ----------
    events, delta
        As in `epsilon`.

    Raises
    ------
    ValueError
        If an argument is invalid.
    """
    epsilons = _epsilons(events, delta, "best")
    return min(epsilons, key=epsilons.__getitem__)


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
    return least_delta(check_events(events), epsilon, method, composition.METHODS)


def least_delta(events, epsilon: float, method: str, names: Container[str]) -> float:
    """`delta` of checked events by the chosen methods that are among `names`.

    It is 1 if there are none.
    """
    bounds = composition.bounds(events, method, names)
    ideal = min((bound.delta(epsilon) for _, bound in bounds), default=1.0)
    return with_error(ideal, events, epsilon)


def max_steps(
    step_events, *, epsilon: float, delta: float, method: str = "best", spent=()
) -> int:
    """Largest number of steps with composed delta(epsilon) < delta.

    Doubling and bisection on that condition [Raisa 2021, Algorithm 2].

    Parameters
    ----------
    step_events
        List of (event, count) of one step, or ``number of steps -> list`` if steps
        differ.
    epsilon, delta
        The budget.
    method
        As in `epsilon`.
    spent
        List of (event, count) that belong to the same plan as the steps. If the steps
        are chosen in view of what was released, see `dpjax.privacy.AdaptiveRule`.

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
    spent = list(spent)
    steps_fn: Callable[[int], Iterable[tuple[Event, int]]] = step_events
    if not callable(step_events):
        steps_fn = partial(repeat, check_events(step_events))

    def events(steps: int) -> tuple[tuple[Event, int], ...]:
        return check_events([*spent, *steps_fn(steps)])

    def fits(names: tuple[str, ...], steps: int) -> bool:
        return least_delta(events(steps), epsilon, method, names) < delta

    # Slow accountants come last, and start from what is known.
    most = largest(partial(fits, composition.CHEAP_METHODS))
    for name in composition.SLOW_METHODS:
        applies = name in composition.choose(events(most + 1), method)
        if applies and fits((name,), most + 1):
            most = largest(partial(fits, (name,)), most + 1)
    return most


def largest(fits: Callable[[int], bool], guess: int = 0) -> int:
    """Largest number that fits, if 0 and all numbers below one that fits do too.

    Strides from the guess, up or down, double until one end fits and the other does
    not; then the interval between them is bisected.
    """
    stride = 1 + guess // 64
    low, high = guess, guess + stride
    if guess and not fits(guess):
        low, high = guess - stride, guess
        while low > 0 and not fits(low):
            low, high = max(0, low - 2 * (high - low)), low
    else:
        while fits(high):
            low, high = high, high + 2 * (high - low)
            if high > MAX_STEPS:
                raise ValueError(
                    "more than 1e12 steps fit the budget, which suggests a wrong "
                    "sensitivity or noise multiplier; check the events"
                )
    return bisect_left(range(high), True, low + 1, key=lambda n: not fits(n)) - 1


def numerical_error(events) -> float:
    """Sum of the total variations of floating-point releases from the ideal ones.

    Method "tv" charges the error of the bits without a finite Renyi divergence
    together with their ideal total variation, so this sum leaves them out.
    """
    return sum(
        count * event.total_variation
        for event, count in events
        if total_variation.variation(event) is None
    )


def numerical_delta(error: float, epsilon: float) -> float:
    """delta that a `numerical_error` adds to the delta of ideal releases."""
    if error == 0:
        return 0.0
    if epsilon > 700:
        return math.inf
    return (1 + math.exp(epsilon)) * error


def with_error(ideal: float, events, epsilon: float) -> float:
    """The delta of `events` in floating point, of that of ideal releases."""
    return min(1.0, ideal + numerical_delta(numerical_error(events), epsilon))


def _epsilons(events, delta: float, method: str) -> dict[str, float]:
    """Epsilon by the name of each method, with the numerical error."""
    delta, events = check_delta(delta), check_events(events)
    error = numerical_error(events)
    return {
        name: _epsilon_with_error(bound, delta, error)
        for name, bound in composition.bounds(events, method)
    }


def _epsilon_with_error(bound: composition.Bound, delta: float, error: float) -> float:
    """An epsilon with bound.delta(epsilon) + numerical_delta(error, epsilon) <= delta.

    The numerical delta at a trial epsilon is paid first, and the ideal releases get
    what is left. If their epsilon is below the trial, it is the answer, as the
    numerical delta grows with epsilon. Each trial is the last answer plus a slack. The
    slack is as small as possible, lest what `max_steps` allows come out above its
    budget.
    """
    value, slack = bound.epsilon(delta), 1e-13
    for _ in range(100):
        trial = value * (1 + slack) + slack
        slack = min(2 * slack, 1e-6)
        left = delta - numerical_delta(error, trial)
        if not left >= 1e-100:
            return math.inf
        value = bound.epsilon(left)
        if value <= trial:
            return value
    return math.inf
