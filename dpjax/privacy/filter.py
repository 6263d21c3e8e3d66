"""Privacy filters: budgets for releases that are chosen as the outputs come in.

The accountant's bounds are for a list of events that is fixed before the first output
is seen. If a release is chosen in view of earlier outputs, the epsilon of the list that
came out can be too small a claim: whoever chooses can go on just where it went well.
Sums over all releases that stay below a constant fixed in advance remain sound:

- the number of releases, if all are of one kind [Zhu, Dong and Wang 2022];
- of Renyi divergences at one order [Feldman and Zrnic 2021, Theorem 3.1];
- of mu^2, if every release is mu-GDP [Smith and Thakurta 2022, Theorem 2.1; Koskela,
  Tobaben and Honkela 2023, Theorem 7].

Bits without a finite Renyi divergence add their total variation to delta, however they
are chosen (`dpjax.privacy.bits.total_variation`).

*Plans.* Fixing the events does not mean fixing their order. Say that at most so many
events of each kind are fixed before the first output. Then the accountant's bound on
all of them holds for whatever part of them is released, and in whatever order, with
every choice made in view of the outputs before.

For neighbouring data let p(o) and q(o) be the probabilities of an output o, and for
w >= 0 let H(w) be the sum of (p - w q)+ over all outputs, so that delta(epsilon) is
H(e^epsilon). Let every kind of event be dominated by a pair of distributions (P, Q)
[Zhu, Dong and Wang 2022]: no release of the kind has a larger H at any w than the pair
has. For a multiset S of events let H_S be that of the product of their pairs. *No
adaptive choice of events from S exceeds H_S.* This is clear if S is empty, and follows
by induction. If the first event is of kind i with output o, what follows is chosen
from S without one i, call it T, so that

    H(w) <= sum over o of p(o) H_T(w q(o) / p(o)) <= H_S(w).

The first step is the induction. The middle is H of the first event and the product of T
released side by side, and replacing the event by its dominating pair gives the product
of S, in which the order has no part. So the bound is the same for every i, and choosing
i at random averages it. Whoever stops early is dominated by the product of fewer pairs,
which is post-processing of H_S. The same induction holds where the bound on several
events of a kind is not a product: H_T is then a mean of the kind's own bound over the
other pairs, and these means can be exchanged ("exact"); or bounds add, at each Renyi
order ("rdp", "zcdp") or as total variations ("tv").
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from dpjax.privacy import accountant, composition
from dpjax.privacy.bits import total_variation
from dpjax.privacy.budget import Budget, BudgetError
from dpjax.privacy.events import (
    AcceptBit,
    GaussianRelease,
    PoissonAcceptBit,
    check_events,
    repeat,
)
from dpjax.privacy.gaussian import conversions
from dpjax.privacy.validate import (
    check_count,
    check_delta,
    check_epsilon,
    check_real,
)

__all__ = ["AdaptiveRule", "RdpFilter"]


ALIKE_SHARE = 0.9
"""Share of delta for the case that all runs are alike."""

MIN_GAIN = 0.03
"""Gain in events above which a rule keeps a share of delta for that case."""

NOISE_MULTIPLIERS = [0.01 * 1.01**power for power in range(2000)]
"""Where `AdaptiveRule.least_noise` looks. Releases of the last, 4e6, say nothing."""


@dataclass(frozen=True)
class AdaptiveRule:
    """How runs add up, of which each is chosen in view of the outputs before it.

    The events of a first run, or of a plan of runs, were fixed before any output, so
    that run or plan costs what the accountant says. A further run is accepted only if
    the sum over all stays below the filter's constant, and so on. This is sound in both
    cases: if the first run or the plan alone exceeds the constant, no run is accepted
    after it and the accountant's bound holds; if it does not, all runs together stay
    below the constant.

    Runs are *alike* if all their events are of the one kind that the first run had, or
    if that run's events were Gaussian and all others are. The accountant's bound on so
    many events of one kind holds however each is chosen in view of the others [Zhu,
    Dong and Wang 2022], and fewer of them cost no more. So their number is
    a filter, and so is mu^2 of Gaussian events. Neither loses anything.

    After the first event that is not alike, the filter is that of one Renyi order.
    Whether such an event comes may depend on the outputs, so each of the two cases has
    a share of delta. This is sound because every sequence of outputs belongs to one
    case. In the first it has the probability that it would have if only runs that are
    alike were accepted, in the other case the probability that it would have under the
    Renyi filter alone. Each of these two processes keeps epsilon at its share of delta,
    and the two shares add.

    Parameters
    ----------
    order
        The Renyi order, above 1.
    alike_share
        Share of delta, in [0, 1), of the case that all runs are alike. The other case
        has the rest.

    Raises
    ------
    ValueError
        If either is out of range.
    """

    order: float
    alike_share: float

    def __post_init__(self):
        order = check_real("order", self.order, low=1.0, high=1e15)
        share = check_real("alike_share", self.alike_share, low=0.0, high=1.0)
        if order == 1 or share == 1:
            raise ValueError("order must be above 1, and alike_share below")

    @classmethod
    def of(cls, events, budget: Budget) -> "AdaptiveRule":
        """The rule that loses least if all that follows resembles the `events`.

        Parameters
        ----------
        events
            List of (event, count) of a first run.
        budget
            The budget of all runs together.
        """
        events = check_events(events)
        if not _gains_if_alike(events, budget):
            return cls.renyi(events, budget)
        return cls(_typical_order(events, budget, 1 - ALIKE_SHARE), ALIKE_SHARE)

    @classmethod
    def renyi(cls, events, budget: Budget) -> "AdaptiveRule":
        """The rule of one Renyi order that loses least, whatever the `events` are.

        The parameters are those of `of`.
        """
        return cls(_typical_order(check_events(events), budget, 1.0), 0.0)

    def delta(self, runs, epsilon: float) -> float:
        """delta at which everything together is (epsilon, delta)-DP, at most 1.

        Parameters
        ----------
        runs
            The lists of (event, count) of every run, in order.
        epsilon
            Nats.
        """
        if len(runs) == 1:
            return accountant.delta(runs[0], epsilon)
        events = _joined(runs)
        if method := self._method_if_alike(runs):
            found = accountant.delta(events, epsilon, method)
            return min(1.0, found / self.alike_share)
        error = accountant.numerical_error(events)
        return error.delta(partial(self._renyi_delta, events), epsilon)

    def epsilon(self, runs, delta: float) -> float:
        """Epsilon at which everything together is (epsilon, delta)-DP.

        It is infinite if `delta` cannot be reached with an epsilon of up to 500.
        """
        if len(runs) == 1:
            return accountant.epsilon(runs[0], delta)
        if method := self._method_if_alike(runs):
            return accountant.epsilon(_joined(runs), self.alike_share * delta, method)
        return conversions.invert_delta(partial(self.delta, runs), delta)

    def max_steps(self, step_events, runs, budget: Budget) -> int:
        """Largest number of steps of one more run that the budget pays for.

        Parameters
        ----------
        step_events
            List of (event, count) of one step, or ``number of steps -> list``.
        runs
            As in `delta`: the runs before.
        budget
            The budget of all runs together.
        """
        if not runs:
            return accountant.max_steps(
                step_events, epsilon=budget.epsilon, delta=budget.delta
            )
        steps_fn: Callable = step_events
        if not callable(step_events):
            steps_fn = partial(repeat, check_events(step_events))
        before = list(_joined(runs))
        if method := self._method_if_alike([*runs, steps_fn(1)]):
            most = accountant.max_steps(
                step_events,
                epsilon=budget.epsilon,
                delta=self.alike_share * budget.delta,
                method=method,
                spent=before,
            )
            if most == 0 or self._method_if_alike([*runs, steps_fn(most)]):
                return most

        def fits(steps: int) -> bool:
            return self.delta([before, steps_fn(steps)], budget.epsilon) < budget.delta

        return accountant.largest(fits)

    def least_noise(self, runs, budget: Budget) -> float:
        """Least noise multiplier of one more Gaussian release that the budget pays for.

        It says, in one number, how much of a budget is left.

        Parameters
        ----------
        runs, budget
            As in `max_steps`.

        Returns
        -------
        A noise multiplier, to 1 % above the least; infinite if nothing is left.
        """

        def fits(noise_multiplier: float) -> bool:
            more = [(GaussianRelease(noise_multiplier), 1)]
            return self.delta([*runs, more], budget.epsilon) < budget.delta

        index = bisect_left(NOISE_MULTIPLIERS, True, key=fits)
        return NOISE_MULTIPLIERS[index] if index < len(NOISE_MULTIPLIERS) else math.inf

    def _method_if_alike(self, runs) -> str | None:
        """The accountant's method for runs that are alike; None if they are not."""
        first, events = check_events(runs[0]), _joined(runs)
        if not self.alike_share:
            return None
        if _is_one_kind(first):
            return "best" if _is_one_kind(events) else None
        return "gdp" if _are_gaussian(events) else None

    def _renyi_delta(self, events, epsilon: float) -> float:
        cost = sum(
            count * _renyi(event, self.order) for event, count in _bounded(events)
        )
        orders = np.array([self.order])
        of_bounded = conversions.rdp_delta(np.array([cost]), epsilon, orders)
        lost = total_variation.compose(events)
        return (lost + of_bounded) / (1 - self.alike_share)


def _gains_if_alike(events, budget: Budget) -> bool:
    """Whether the Renyi filter loses much if all runs are like these `events`."""
    if _are_gaussian(events):
        return True
    if len(events) > 1 or not _bounded(events):
        return False
    event = events[0][0]
    order, limit = _best_order(((event, 1),), budget.epsilon, budget.delta)
    by_renyi = max(limit, 0.0) / _renyi(event, order)
    count = 1 + int(min((1 + MIN_GAIN) * by_renyi, accountant.MAX_STEPS))
    found = accountant.delta([(event, count)], budget.epsilon)
    return found <= ALIKE_SHARE * budget.delta


def _joined(runs):
    return check_events([pair for events in runs for pair in events])


def _is_one_kind(events) -> bool:
    """Whether the events are of one kind, for which Gaussian DP is not the best."""
    return len(events) == 1 and not isinstance(events[0][0], GaussianRelease)


def _are_gaussian(events) -> bool:
    return all(event.gaussian is not None for event, _ in events)


def _bounded(events) -> list:
    """Those of the events that have a finite Renyi divergence."""
    return [pair for pair in events if total_variation.variation(pair[0]) is None]


@lru_cache(maxsize=2**14)
def _renyi(event, order: float) -> float:
    return float(composition.renyi_curve(event, [order])[0])


def _typical_order(events, budget: Budget, share: float) -> float:
    typical = _bounded(events) or [(GaussianRelease(1.0), 1)]
    return _best_order(typical, budget.epsilon, share * budget.delta)[0]


def _best_order(events, epsilon: float, delta: float) -> tuple[float, float]:
    """The Renyi order at which most such `events` fit, and the limit at that order.

    The limit is the divergence that converts to epsilon at delta [Canonne, Kamath and
    Steinke 2020, Proposition 12]. If it is not positive, nothing fits.
    """

    def limit(orders: np.ndarray) -> np.ndarray:
        return epsilon - conversions.rdp_excess(orders, delta)

    def value(cost: np.ndarray, orders: np.ndarray) -> np.ndarray:
        return -limit(orders) / np.maximum(cost, 1e-300)

    cost, orders = composition.renyi_curve_at_best(events, value)
    best = orders[[np.argmin(value(cost, orders))]]
    return float(best[0]), float(limit(best)[0])


class RdpFilter:
    """Refuse the step that would exceed the budget, however steps are chosen.

    One Renyi order is fixed before the run. While the sum of the divergences at that
    order stays below a constant, the whole run keeps the budget, even though each event
    depends on earlier outputs [Feldman and Zrnic 2021, Theorem 3.1]. Choosing the order
    afterwards would not be sound.

    The sensitivity of a bit can change with every step. A bit is charged as one whose
    sensitivity is on a grid, less than 1 % higher, so that most costs can be looked up.

    Parameters
    ----------
    epsilon, delta
        The budget.
    typical_step
        List of (event, count). The fixed order is the best one for composing such
        steps.
    max_steps
        Number of typical steps whose numerical error is taken off the budget in
        advance. A step whose numerical error would exceed that is refused.

    Raises
    ------
    ValueError
        If an argument is invalid.
    BudgetError
        If the budget does not cover the numerical error of `max_steps`, or no order
        gives the budget.
    """

    def __init__(
        self, epsilon: float, delta: float, typical_step, max_steps: int = 10**6
    ):
        self.epsilon, self.delta = check_epsilon(epsilon), check_delta(delta)
        self.max_steps = check_count("max_steps", max_steps)
        typical_step = check_events(typical_step)
        reserve = accountant.numerical_error(repeat(typical_step, self.max_steps))
        self._reserve, self._delta = reserve, reserve.delta_left(self.delta)
        left = self.epsilon - 2 * reserve.relative_error
        if not (self._delta > 0 and left > 0):
            raise BudgetError(
                f"{self.max_steps} steps in floating point take "
                f"{reserve.failure_prob:.1e} of delta and "
                f"{2 * reserve.relative_error:.1e} of epsilon, more than there are; "
                "lower max_steps or raise the budget"
            )
        self.order, limit = _best_order(typical_step, left, self._delta)
        if not limit > 0:
            raise BudgetError(
                f"no Renyi order gives ({self.epsilon}, {self.delta}); raise either"
            )
        self._limit = limit * (1 - 1e-9)
        self._spent = 0.0
        self._error = np.zeros(2)

    def spend(self, events) -> bool:
        """Charge a step if it fits.

        Parameters
        ----------
        events
            List of (event, count) of the step.

        Returns
        -------
        True if the step was charged; False if it does not fit, and then nothing was
        charged and the step must not run.

        Raises
        ------
        ValueError
            If `events` is invalid.
        """
        events = check_events(events)
        cost = sum(
            count * _renyi(_rounded_up(event), self.order) for event, count in events
        )
        error = np.add(self._error, accountant.numerical_error(events))
        spent = self._spent + cost
        is_reserved = np.all(error <= np.array(self._reserve) * (1 + 1e-9))
        if not (spent <= self._limit and is_reserved):
            return False
        self._spent, self._error = spent, error
        return True

    @property
    def epsilon_spent(self) -> float:
        """Epsilon at `delta` of what has been charged so far, nats; at most `epsilon`.

        It is for planning. The guarantee of an adaptive run is the whole budget.
        """
        if self._spent == 0:
            return 0.0
        ideal = conversions.rdp_epsilon(
            np.array([self._spent]), self._delta, np.array([self.order])
        )
        return ideal + 2 * self._reserve.relative_error


def _rounded_up(event):
    """A bit that costs no less than the event and is one of few; other events as is.

    That a Poisson bit costs no less is shown in `bits.poisson_renyi`, *Monotone*.
    """
    match event:
        case AcceptBit():
            return replace(event, sensitivity=_up(event.sensitivity, 256))
        case PoissonAcceptBit():
            # Round k up too, as it need not come out the same in every step.
            kappa = _up(event.bound / (event.max_odds - 1), 2**20)
            excess = _up(event.max_odds - 1, 256)
            return replace(event, bound=kappa * excess, max_odds=1 + excess)
    return event


def _up(value: float, resolution: int) -> float:
    """The next power of 2^(1/resolution), up to rounding above `value`."""
    power = math.ceil(resolution * math.log2(value)) / resolution
    return 2.0**power * (1 + 1e-12)
