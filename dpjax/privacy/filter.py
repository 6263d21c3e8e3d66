"""Privacy filters: budgets for releases that are chosen in view of earlier outputs.

The accountant's bounds are for a list of events that is fixed before the first output
is seen. If releases are chosen in view of earlier outputs, the accountant's epsilon of
the list that resulted can be too small, because one can choose to continue only where
the outputs gave much away. A claim remains sound if it rests on a sum over all releases
that stays below a constant fixed in advance. There are three such sums:

- the number of releases, if all are of one kind [Zhu, Dong and Wang 2022];
- the sum of Renyi divergences at one order [Feldman and Zrnic 2021, Theorem 3.1];
- the sum of mu^2, if every release is mu-GDP [Smith and Thakurta 2022, Theorem 2.1;
  Koskela, Tobaben and Honkela 2023, Theorem 7].

Bits without a finite Renyi divergence add their total variation to delta, however they
are chosen (`dpjax.privacy.bits.total_variation`).

*Plans.* It is enough to fix the events; their order may be chosen later. Suppose that
the largest number of events of each kind is fixed before the first output. Then the
accountant's bound on all of them holds for any part of them that is released, in any
order, even if every choice is made in view of earlier outputs.

*Proof.* For neighbouring data let p(o) and q(o) be the probabilities of an output o,
and for w >= 0 let H(w) be the sum of (p - w q)+ over all outputs, so that
delta(epsilon) is H(e^epsilon). Let every kind of event be dominated by a pair of
distributions (P, Q) [Zhu, Dong and Wang 2022]. This means that no release of the kind
has a larger H than the pair at any w. For a multiset S of events let H_S be the H of
the product of their pairs. The claim is that no adaptive choice of events from S has a
larger H than H_S. It is clear if S is empty, and follows by induction. Let the first
event be of kind i with output o, and let T be S without one event of kind i. All later
events are chosen from T, so that

    H(w) <= sum over o of p(o) H_T(w q(o) / p(o)) <= H_S(w).

The first inequality is the induction hypothesis. The expression in the middle is H of
the first event released together with the product of T. The second inequality replaces
the first event by its dominating pair. That gives the product of S, which does not
depend on the order. So the bound is the same for every i, and it also holds if i is
chosen at random, because that averages H. Stopping early is dominated by a product of
fewer pairs, which is post-processing of the product of S.

The same induction holds for methods whose bound on several events of a kind is not the
H of a product. For "exact", H_T is a mean of the kind's own bound over the other pairs,
and such means can be exchanged. For "rdp" and "zcdp", bounds add at each Renyi order,
and for "tv" total variations add.
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

__all__ = ["NOISE_MULTIPLIERS", "AdaptiveRule", "RdpFilter"]


ALIKE_SHARE = 0.9
"""Share of delta that a rule keeps for the case that all runs are alike."""

MIN_GAIN = 0.03
"""A rule keeps that share of delta only if it then allows more events of the first kind
than a Renyi filter, by more than this relative amount."""

NOISE_MULTIPLIERS = 1e-2, 2.0**11
"""Between these lies a noise multiplier that spends a budget. A release with the
largest says next to nothing."""

NUM_MULTIPLIERS = 2**14
"""Noise multipliers that `AdaptiveRule.least_noise` tries: they grow by .08 %."""


@dataclass(frozen=True)
class AdaptiveRule:
    """The cost of several runs, each of which is chosen in view of earlier outputs.

    The events of the first run, or of a plan of runs, are fixed before any output. So
    that run or plan costs what the accountant says. Each later run is accepted only if
    the sum over all runs stays below the constant of a filter. There are two cases, and
    the rule is sound in both. If the first run or plan alone exceeds the constant, no
    run is accepted after it, and the accountant's bound holds. Otherwise all runs
    together stay below the constant.

    If the events of the first run are of one kind, later runs are *alike* if all their
    events are of that kind. If the first run has Gaussian releases, or several kinds of
    events, runs are alike if all events are Gaussian releases or post-processing of
    them. The accountant's bound on a number of events of one kind holds however each is
    chosen in view of the others [Zhu, Dong and Wang 2022], and fewer of them cost no
    more. So their number is a filter, and so is the sum of mu^2 of Gaussian events.
    Neither filter loses anything against the accountant.

    From the first run on that is not alike, the filter is the sum of Renyi divergences
    at one order. Whether such a run comes may depend on the outputs, so each of the two
    cases has a share of delta. This is sound because every sequence of outputs belongs
    to one of the cases. In the first case it has the probability that it would have if
    only runs that are alike were accepted. In the second case it has the probability
    that it would have under the Renyi filter alone. Each of these two processes is
    (epsilon, delta)-private with its share of delta, and the shares add up to delta.

    Parameters
    ----------
    order
        The Renyi order of the filter, above 1.
    alike_share
        Share of delta, in [0, 1), for the case that all runs are alike. The other case
        has the rest of delta.

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
        """The rule that loses least if all later runs resemble the first one.

        Parameters
        ----------
        events
            List of (event, count) of the first run.
        budget
            The budget of all runs together.

        Raises
        ------
        ValueError
            If the events are invalid.
        """
        events = check_events(events)
        if not _gains_if_alike(events, budget):
            return cls.renyi(events, budget)
        return cls(_typical_order(events, budget, 1 - ALIKE_SHARE), ALIKE_SHARE)

    @classmethod
    def renyi(cls, events, budget: Budget) -> "AdaptiveRule":
        """The rule of one Renyi order, with no share of delta for runs that are alike.

        Parameters and errors are those of `of`. The order is the best one for such
        `events`.
        """
        return cls(_typical_order(check_events(events), budget, 1.0), 0.0)

    def delta(self, runs, epsilon: float) -> float:
        """Delta at which all runs together are (epsilon, delta)-DP, at most 1.

        Parameters
        ----------
        runs
            A list of (event, count) for every run, in order. The first may be a plan.
        epsilon
            Nats.

        Raises
        ------
        ValueError
            If an argument is invalid.
        """
        if len(runs) == 1:
            return accountant.delta(runs[0], epsilon)
        events = _joined(runs)
        if method := self._method_if_alike(runs):
            found = accountant.delta(events, epsilon, method)
            return min(1.0, found / self.alike_share)
        error = accountant.numerical_error(events)
        found = error.delta(partial(self._renyi_delta, events), epsilon)
        return min(1.0, found / (1 - self.alike_share))

    def epsilon(self, runs, delta: float) -> float:
        """Epsilon at which all runs together are (epsilon, delta)-DP, nats.

        `runs` and errors are as in `delta`. Epsilon is infinite if `delta` cannot be
        reached, or only with an epsilon of hundreds (see `conversions.invert_delta`).
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
            List of (event, count) of one step, or a function ``num_steps -> list``, as
            in `accountant.max_steps`.
        runs
            The runs so far, as in `delta`. The list may be empty.
        budget
            The budget of all runs together.

        Raises
        ------
        ValueError
            If the events are invalid, or more than 10^12 steps fit.
        """
        if not runs:
            return accountant.max_steps(
                step_events, epsilon=budget.epsilon, delta=budget.delta
            )
        steps_fn: Callable = step_events
        if not callable(step_events):
            steps_fn = partial(repeat, check_events(step_events))
        if method := self._method_if_alike([*runs, steps_fn(1)]):
            most = accountant.max_steps(
                step_events,
                epsilon=budget.epsilon,
                delta=self.alike_share * budget.delta,
                method=method,
                spent=list(_joined(runs)),
            )
            if most == 0 or self._method_if_alike([*runs, steps_fn(most)]):
                return most

        def fits(steps: int) -> bool:
            return self.delta([*runs, steps_fn(steps)], budget.epsilon) < budget.delta

        return accountant.largest(fits)

    def least_noise(
        self, runs, budget: Budget, run_fn: Callable | None = None
    ) -> float:
        """Least noise multiplier of one more run that the budget pays for.

        Parameters
        ----------
        runs, budget
            As in `max_steps`.
        run_fn
            ``noise multiplier -> list of (event, count)``. By default the run is one
            Gaussian release, whose noise multiplier says how much of the budget is
            left.

        Returns
        -------
        The least of `NUM_MULTIPLIERS` numbers between `NOISE_MULTIPLIERS` that fits. It
        is infinite if not even the largest does.

        Raises
        ------
        ValueError
            If the events are invalid.
        """
        run_fn = run_fn or (lambda multiplier: [(GaussianRelease(multiplier), 1)])

        def fits(noise_multiplier: float) -> bool:
            found = self.epsilon([*runs, run_fn(noise_multiplier)], budget.delta)
            return found <= budget.epsilon

        tried = np.geomspace(*NOISE_MULTIPLIERS, NUM_MULTIPLIERS).tolist()
        return [*tried, math.inf][bisect_left(tried, True, key=fits)]

    def _method_if_alike(self, runs) -> str | None:
        """Name of the accountant's method for runs that are alike; None for others."""
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
        return lost + of_bounded


def _gains_if_alike(events, budget: Budget) -> bool:
    """Whether a Renyi filter loses much if all runs are like the `events` of the first.

    It does for Gaussian events. For others it does if the filter of one kind allows
    more events, by more than `MIN_GAIN`.
    """
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
    """Whether the events are of one kind other than a Gaussian release.

    Gaussian releases have a better filter, the sum of mu^2.
    """
    return len(events) == 1 and not isinstance(events[0][0], GaussianRelease)


def _are_gaussian(events) -> bool:
    return all(event.gaussian is not None for event, _ in events)


def _bounded(events) -> list:
    """The (event, count) pairs of events with a finite Renyi divergence."""
    return [pair for pair in events if total_variation.variation(pair[0]) is None]


@lru_cache(maxsize=2**14)
def _renyi(event, order: float) -> float:
    return float(composition.renyi_curve(event, [order])[0])


def _typical_order(events, budget: Budget, share: float) -> float:
    typical = _bounded(events) or [(GaussianRelease(1.0), 1)]
    return _best_order(typical, budget.epsilon, share * budget.delta)[0]


def _best_order(events, epsilon: float, delta: float) -> tuple[float, float]:
    """The Renyi order at which the most copies of `events` fit, and its limit.

    The limit is the divergence of that order that converts to epsilon at delta
    [Canonne, Kamath and Steinke 2020, Proposition 12], in nats. If it is not positive,
    nothing fits.
    """

    def limit(orders: np.ndarray) -> np.ndarray:
        return epsilon - conversions.rdp_excess(orders, delta)

    def value(cost: np.ndarray, orders: np.ndarray) -> np.ndarray:
        return -limit(orders) / np.maximum(cost, 1e-300)

    cost, orders = composition.renyi_curve_at_best(events, value)
    best = orders[[np.argmin(value(cost, orders))]]
    return float(best[0]), float(limit(best)[0])


class RdpFilter:
    """A filter that refuses the step that would exceed the budget.

    Steps may be chosen in view of earlier outputs. One Renyi order is fixed before the
    run. As long as the sum of the divergences at that order stays below a constant, the
    whole run keeps the budget [Feldman and Zrnic 2021, Theorem 3.1]. Choosing the order
    afterwards would not be sound.

    The sensitivity of a bit may change with every step. A bit is charged as one with
    the next sensitivity on a grid, which is less than 1 % higher. So most divergences
    need not be computed again.

    Parameters
    ----------
    epsilon, delta
        The budget.
    typical_step
        List of (event, count). The fixed order is the best one for composing such
        steps.
    max_steps
        Number of typical steps whose numerical error is subtracted from the budget in
        advance. A step is refused if the numerical error of all steps would exceed it.

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
        True if the step was charged. False if it does not fit: then nothing was charged
        and the step must not run.

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
        """Epsilon at `delta` of the steps charged so far, nats, at most `epsilon`.

        It is for planning only, because the guarantee of an adaptive run is the whole
        budget.
        """
        if self._spent == 0:
            return 0.0
        ideal = conversions.rdp_epsilon(
            np.array([self._spent]), self._delta, np.array([self.order])
        )
        return ideal + 2 * self._reserve.relative_error


def _rounded_up(event):
    """For a bit, a bit on a grid that costs no less; any other event unchanged.

    `bits.poisson_renyi` shows, at *Monotone*, that the Poisson bit costs no less.
    """
    match event:
        case AcceptBit():
            return replace(event, sensitivity=_up(event.sensitivity, 256))
        case PoissonAcceptBit():
            # k of `bits.poisson_renyi` is rounded up too, because rounding errors make
            # it differ from step to step.
            kappa = _up(event.bound / (event.max_odds - 1), 2**20)
            excess = _up(event.max_odds - 1, 256)
            return replace(event, bound=kappa * excess, max_odds=1 + excess)
    return event


def _up(value: float, resolution: int) -> float:
    """The smallest power of 2^(1/resolution) at or above `value`, with a margin."""
    power = math.ceil(resolution * math.log2(value)) / resolution
    return 2.0**power * (1 + 1e-12)
