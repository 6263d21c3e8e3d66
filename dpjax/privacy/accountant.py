"""Epsilon, delta and number of steps of composed events.

Methods, each an upper bound that holds when events are chosen adaptively among those
listed:

- ``"rdp"``: any events, by the sum of their Renyi divergences, that of infinite order
  included.
- ``"tv"``: any events, with bits that have no Renyi divergence (Metropolis's) among
  them: the total variation of those beside the others' delta (see
  `dpjax.privacy.bits.total_variation`).
- ``"gdp"``: exact, where every event is Gaussian or post-processing of a Gaussian.
- ``"zcdp"``: the plain bound for Gaussian releases and bits.
- ``"pld"``: Gaussian releases, penalty bits as what they process, Poisson samples, and
  fixed batches of Gaussian releases or penalty bits: within 0.5 % of the pairs that
  dominate them (see `dpjax.privacy.gaussian.pld`).
- ``"exact"``: one kind of accept bit, adaptively composed, with any events of
  ``"pld"``; at most 200 000 bits (see `dpjax.privacy.bits.exact`).
- ``"best"``: the smallest of those that apply and take seconds. ``"exact"`` is tried up
  to 5000 bits: it allows about a tenth more steps than ``"rdp"``, and its time grows
  faster than the number of bits.

Releases in floating point are off the ideal ones by a total variation that each event
states; N that are ideally (eps, delta) are (eps, delta + (1 + e^eps) N TV). Every
answer includes that.
"""

import math
from collections.abc import Callable

from dpjax.privacy import composition
from dpjax.privacy.bits import exact
from dpjax.privacy.bits import total_variation as bare
from dpjax.privacy.events import Event, check_events
from dpjax.privacy.validate import check_delta, check_epsilon, check_real

__all__ = [
    "best_method",
    "delta",
    "epsilon",
    "max_steps",
    "numerical_delta",
    "total_variation",
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
        One of the module docstring.

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
    events = check_events(events)
    bounds = composition.bounds(events, method).values()
    return _with_error(min(bound.delta(epsilon) for bound in bounds), events, epsilon)


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
    spent = list(spent)
    if not callable(step_events):
        one_step = check_events(step_events)

        def step_events(steps: int) -> list[tuple[Event, int]]:
            return [(event, n * steps) for event, n in one_step]

    def events(steps: int) -> tuple[tuple[Event, int], ...]:
        return check_events([*spent, *step_events(steps)])

    def fits(steps: int, name: str) -> bool:
        released = events(steps)
        bound = composition.bounds(released, method, name).get(name)
        if bound is None:
            return False
        return _with_error(bound.delta(epsilon), released, epsilon) < delta

    most = 0
    for name in composition.choose(events(1), method):
        if name != "exact":
            most = max(most, _largest(lambda steps, name=name: fits(steps, name)))
    if "exact" in composition.choose(events(most + 1), method):
        try:
            guess = _exact_guess(events, epsilon, delta)
        except ValueError:
            # Bits that give away too much.
            if method != "best":
                raise
        else:
            most = max(most, _largest(lambda steps: fits(steps, "exact"), guess))
    return most


def _largest(fits: Callable[[int], bool], guess: int = 0) -> int:
    """Largest number that fits if all below fit too, and 0 does; fast near `guess`."""
    low, high, stride = guess, guess + 1, 1
    while low and not fits(low):
        low, high, stride = max(0, low - stride), low, 2 * stride
    stride = 1
    while high == low + stride and fits(high):
        low, stride = high, 2 * stride
        high = low + stride
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


def _exact_guess(events: Callable, epsilon: float, delta: float) -> int:
    """Steps that the exact accountant allows, in one sweep on another grid."""
    one, two = dict(events(1)), dict(events(2))
    bit = composition.only_bit(one.items())
    bits_per_step = two[bit] - one[bit]
    if not bits_per_step:
        return 0
    before = one[bit] - bits_per_step

    def others_fn(bits: int) -> Callable:
        steps = max(1, math.ceil((bits - before) / bits_per_step))
        return composition.other_profiles(events(steps))[0]

    bits = exact.max_steps(
        bit,
        epsilon=epsilon,
        delta=delta,
        others_fn=others_fn if len(one) > 1 else None,
    )
    return max(0, bits - before) // bits_per_step


def numerical_delta(error: float, epsilon: float) -> float:
    """delta that releases off by a total variation of `error` add to the ideal one."""
    if error == 0:
        return 0.0
    if epsilon > 700:
        return math.inf
    return (1 + math.exp(epsilon)) * error


def _with_error(ideal: float, events, epsilon: float) -> float:
    return min(1.0, ideal + numerical_delta(total_variation(events), epsilon))


def total_variation(events) -> float:
    """Numerical error of checked events, added up; `bare` counts that of its bits."""
    return sum(
        count * event.total_variation
        for event, count in events
        if bare.variation(event) is None
    )


def _epsilons(events, delta: float, method: str) -> dict[str, float]:
    """Epsilon by the name of each method, with the numerical error."""
    delta, events = check_delta(delta), check_events(events)
    error = total_variation(events)

    def corrected(bound: composition.Bound) -> float:
        value, slack = bound.epsilon(delta), 1e-13
        for _ in range(100):
            # An epsilon below `trial` pays no more than the slack at `trial`. As small
            # as it can be: what `max_steps` allows must not come out above its budget.
            trial, slack = value * (1 + slack) + slack, min(2 * slack, 1e-6)
            left = delta - numerical_delta(error, trial)
            if not left >= 1e-100:
                return math.inf
            value = bound.epsilon(left)
            if value <= trial:
                return value
        return math.inf

    bounds = composition.bounds(events, method)
    return {name: corrected(bound) for name, bound in bounds.items()}
