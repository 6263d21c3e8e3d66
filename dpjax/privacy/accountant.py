"""Epsilon, delta and number of steps of composed events.

There are several methods. Each gives an upper bound, which also holds if the events are
chosen adaptively among those listed.

- ``"rdp"`` takes any events and adds their Renyi divergences, including the divergence
  of infinite order.
- ``"tv"`` takes any events, if there are bits among them that have no finite Renyi
  divergence, such as Metropolis's. It adds the total variation of those bits to the
  delta of all other events (see `dpjax.privacy.bits.total_variation`).
- ``"gdp"`` takes Gaussian releases and penalty bits as post-processing of them. It is
  exact for Gaussian releases.
- ``"zcdp"`` takes Gaussian releases and bits. It is the simple bound of zCDP.
- ``"pld"`` takes Gaussian releases, Poisson samples of them, K-norm releases, pure
  releases, penalty bits as post-processing of Gaussian releases, and fixed batches of
  Gaussian releases or penalty bits. It is within 0.5 % of the pairs of distributions
  that dominate these events (see `dpjax.privacy.gaussian.pld`).
- ``"exact"`` takes one kind of accept bit, adaptively composed, together with any
  events that ``"pld"`` takes, and at most 10^7 bits (see `dpjax.privacy.bits.exact`).
- ``"best"`` is the smallest answer of the methods that apply and take seconds.
  ``"exact"`` is tried for up to 5000 bits. It allows about a tenth more steps than
  ``"rdp"``.

*Floating point.* An event states how a release in floating point differs from the ideal
one. The law of the release is P' = (1 - f) Q + f J, where f is the failure probability
and J is any law. At every outcome Q is within factors e^-r and e^r of the ideal law P,
where r is the relative error. The joint law of releases that are chosen adaptively has
the same form, with the sum of the f and the sum of the r, because the probability that
any release fails is at most the sum of the f. So if P is (eps, delta)-private, then for
neighbouring data D, E and every event S

    P'_D(S) <= (1 - f) e^r P_D(S) + f
            <= (1 - f) e^r (e^eps P_E(S) + delta) + f
            <= e^(eps + 2 r) P'_E(S) + e^r delta + f.

Every answer includes r and f. Neither r nor f is multiplied by e^eps, as the total
variation between P' and P would be. So epsilon may be large.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import NamedTuple

from dpjax.privacy import composition
from dpjax.privacy.bits import total_variation
from dpjax.privacy.events import Event, check_events, repeat
from dpjax.privacy.validate import (
    MAX_EPSILON,
    check_delta,
    check_epsilon,
    check_real,
)

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
        Probability, in [1e-100, 1).
    method
        Name of a method that the module docstring lists.

    Returns
    -------
    Epsilon in nats. It is infinite if the method cannot reach `delta`.

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
    """Delta at which the composed events are (epsilon, delta)-DP, at most 1.

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
    epsilon = check_real("epsilon", epsilon, low=0.0, high=MAX_EPSILON)
    return least_delta(check_events(events), epsilon, method, composition.METHODS)


def least_delta(events, epsilon: float, method: str, names: Container[str]) -> float:
    """As `delta`, for checked events and only by the methods that are among `names`.

    It is 1 if none of the chosen methods is among them.
    """

    def ideal(epsilon: float) -> float:
        bounds = composition.bounds(events, method, names)
        return min((bound.delta(epsilon) for _, bound in bounds), default=1.0)

    return numerical_error(events).delta(ideal, epsilon)


def max_steps(
    step_events, *, epsilon: float, delta: float, method: str = "best", spent=()
) -> int:
    """Largest number of steps whose composed delta(epsilon) is below `delta`.

    It is found by doubling and bisection [Raisa 2021, Algorithm 2].

    Parameters
    ----------
    step_events
        List of (event, count) of one step. If steps differ, a function
        ``num_steps -> list`` that gives the events of all steps.
    epsilon, delta
        The budget.
    method
        As in `epsilon`.
    spent
        List of (event, count) of other releases, which were fixed together with the
        steps before the first output. `dpjax.privacy.AdaptiveRule` is for steps that
        are chosen in view of earlier outputs.

    Returns
    -------
    A number of steps. It is 0 if one step is already too many.

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
        # This search stops below `MAX_STEPS`. Only `fits` raises the error for more.
        if left < 1e-100 or steps > MAX_STEPS // 4:
            return False
        found = composition.rough_epsilon(events(steps), left)
        return found + 2 * error.relative_error < epsilon

    # The methods are asked in groups, slow ones last. Each search starts from the
    # answer of the group before.
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
    """Largest number n for which ``fits(n)`` is true, found from a guess.

    It is assumed that 0 fits, and that all numbers below one that fits do too. Strides
    up or down from the guess are doubled until the answer is between two numbers. Then
    the interval is bisected.

    Raises
    ------
    ValueError
        If more than 10^12 fit.
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
    """How the releases of all events in floating point differ from the ideal ones.

    failure_prob
        Sum of their failure probabilities.
    relative_error
        Sum of their relative errors, nats.
    """

    failure_prob: float
    relative_error: float

    def delta(self, ideal: Callable[[float], float], epsilon: float) -> float:
        """delta(epsilon) of the releases in floating point, at most 1.

        `ideal` is the function ``epsilon -> delta`` of the ideal releases.
        """
        left = epsilon - 2 * self.relative_error
        # delta(left) <= delta(0) + 1 - e^left where `left` is negative.
        delta = ideal(max(left, 0.0)) + max(-left, 0.0)
        return min(1.0, math.exp(self.relative_error) * delta + self.failure_prob)

    def delta_left(self, delta: float) -> float:
        """The delta that is left for the ideal releases, if `delta` is allowed.

        It is zero or negative if nothing is left.
        """
        return math.exp(-self.relative_error) * (delta - self.failure_prob)


def numerical_error(events) -> NumericalError:
    """Sums of the failure probabilities and of the relative errors of the events.

    Bits without a finite Renyi divergence are left out, because method "tv" charges
    their failure probability together with their ideal total variation.
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
    """Epsilon of each method that is asked, by its name, with the numerical error."""
    delta, events = check_delta(delta), check_events(events)
    error = numerical_error(events)
    left = error.delta_left(delta)
    return {
        name: bound.epsilon(left) + 2 * error.relative_error
        if left >= 1e-100
        else math.inf
        for name, bound in composition.bounds(events, method)
    }
