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
- ``"pld"`` takes Gaussian releases, Poisson samples of them, K-norm releases, penalty
  bits as post-processing of Gaussian releases, and fixed batches of Gaussian releases
  or penalty bits. It is within 0.5 % of the pairs of distributions that dominate these
  events (see `dpjax.privacy.gaussian.pld`).
- ``"exact"`` takes one kind of accept bit, adaptively composed, with any events of
  ``"pld"``, and at most 10^7 bits (see `dpjax.privacy.bits.exact`).
- ``"best"`` is the smallest of the methods that apply and take seconds. ``"exact"`` is
  tried up to 5000 bits: it allows about a tenth more steps than ``"rdp"``.

*Floating point.* An event states how a release in floating point differs from the ideal
one: its law is P' = (1 - f) Q + f J, where f is the failure probability, J is any law,
and Q is within factors e^-r and e^r of the ideal law P at every outcome, r the relative
error. The laws of releases that are chosen adaptively have the same form, with the sums
of the f and of the r, because no release fails with a probability of at most the sum.
So if P is (eps, delta)-private, then for neighbouring data D, E and every event S

    P'_D(S) <= (1 - f) e^r P_D(S) + f
            <= (1 - f) e^r (e^eps P_E(S) + delta) + f
            <= e^(eps + 2 r) P'_E(S) + e^r delta + f.

Every answer includes r and f. Neither is multiplied by e^eps, as the total variation
between P' and P would be. So epsilon may be large.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import NamedTuple

from dpjax.privacy import composition
from dpjax.privacy.bits import total_variation
from dpjax.privacy.events import Event, check_events, repeat
from dpjax.privacy.validate import check_delta, check_epsilon, check_real

__all__ = [
    "NumericalError",
    "best_method",
    "delta",
    "epsilon",
    "largest",
    "least_delta",
    "max_steps",
    "numerical_error",
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

    def ideal(epsilon: float) -> float:
        bounds = composition.bounds(events, method, names)
        return min((bound.delta(epsilon) for _, bound in bounds), default=1.0)

    return numerical_error(events).delta(ideal, epsilon)


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

    def roughly_fits(steps: int) -> bool:
        error = numerical_error(events(steps))
        left = error.delta_left(delta)
        # Whether more than `MAX_STEPS` fit is for the methods to say.
        if left < 1e-100 or steps > MAX_STEPS // 4:
            return False
        found = composition.rough_epsilon(events(steps), left)
        return found + 2 * error.relative_error < epsilon

    # Slow accountants come last, and start from what is known.
    most = largest(roughly_fits)
    asked = [
        names
        for names in (composition.CHEAP_METHODS, *zip(composition.SLOW_METHODS))
        if set(names) & set(composition.choose(events(most + 1), method))
    ]
    most = largest(partial(fits, asked[0]), most)
    for names in asked[1:]:
        if fits(names, most + 1):
            most = largest(partial(fits, names), most + 1)
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


class NumericalError(NamedTuple):
    """How releases in floating point differ from the ideal ones, all together.

    failure_prob
        Sum of their failure probabilities.
    relative_error
        Sum of their relative errors, nats.
    """

    failure_prob: float
    relative_error: float

    def delta(self, ideal: Callable[[float], float], epsilon: float) -> float:
        """delta(epsilon) in floating point, given that of ideal releases, at most 1."""
        left = epsilon - 2 * self.relative_error
        # delta(left) <= delta(0) + 1 - e^left where `left` is negative.
        delta = ideal(max(left, 0.0)) + max(-left, 0.0)
        return min(1.0, math.exp(self.relative_error) * delta + self.failure_prob)

    def delta_left(self, delta: float) -> float:
        """What is left of `delta` for ideal releases; not positive if nothing is."""
        return math.exp(-self.relative_error) * (delta - self.failure_prob)


def numerical_error(events) -> NumericalError:
    """The sums over floating-point releases.

    Method "tv" charges the error of the bits without a finite Renyi divergence
    together with their ideal total variation, so these sums leave them out.
    """
    bounded = [
        (event, count)
        for event, count in events
        if total_variation.variation(event) is None
    ]
    return NumericalError(
        sum(count * event.failure_prob for event, count in bounded),
        sum(count * event.relative_error for event, count in bounded),
    )


def _epsilons(events, delta: float, method: str) -> dict[str, float]:
    """Epsilon by the name of each method, with the numerical error."""
    delta, events = check_delta(delta), check_events(events)
    error = numerical_error(events)
    left = error.delta_left(delta)
    return {
        name: bound.epsilon(left) + 2 * error.relative_error
        if left >= 1e-100
        else math.inf
        for name, bound in composition.bounds(events, method)
    }
