"""A filter for steps whose events are chosen as the run goes."""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dpjax.privacy import accountant, composition
from dpjax.privacy.budget import BudgetError
from dpjax.privacy.events import AcceptBit, PoissonAcceptBit, check_events
from dpjax.privacy.gaussian import conversions
from dpjax.privacy.validate import check_count, check_delta, check_epsilon

__all__ = ["RdpFilter"]


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
        Number of typical steps whose numerical error is taken off `delta` in advance.
        A step whose numerical error would exceed that is refused.

    Raises
    ------
    ValueError
        If an argument is invalid.
    BudgetError
        If `delta` does not cover the numerical error of `max_steps`, or no order gives
        the budget.
    """

    def __init__(
        self, epsilon: float, delta: float, typical_step, max_steps: int = 10**6
    ):
        self.epsilon, self.delta = check_epsilon(epsilon), check_delta(delta)
        self.max_steps = check_count("max_steps", max_steps)
        typical_step = check_events(typical_step)
        self._max_error = self.max_steps * accountant.numerical_error(typical_step)
        reserve = accountant.numerical_delta(self._max_error, self.epsilon)
        self._delta = self.delta - reserve
        if not self._delta > 0:
            raise BudgetError(
                f"{self.max_steps} steps in floating point add {reserve:.1e} to "
                f"delta, more than {self.delta:.1e}; lower max_steps or epsilon, or "
                "raise delta"
            )
        orders = conversions.ORDERS
        cost = sum(
            count * composition.renyi_curve(event, orders)
            for event, count in typical_step
        )
        # The divergence of each order that converts to epsilon at delta [Canonne,
        # Kamath and Steinke 2020, Proposition 12].
        limit = (
            self.epsilon
            - np.log1p(-1 / orders)
            + (math.log(self._delta) + np.log(orders)) / (orders - 1)
        )
        best = int(np.argmax(limit / np.maximum(cost, 1e-300)))
        if not limit[best] > 0:
            raise BudgetError(
                f"no Renyi order gives ({self.epsilon}, {self.delta}); raise either"
            )
        self.order = float(orders[best])
        self._limit = float(limit[best]) * (1 - 1e-9)
        self._cost = lru_cache(maxsize=2**14)(
            lambda event: float(composition.renyi_curve(event, [self.order])[0])
        )
        self._spent = 0.0
        self._error = 0.0

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
        cost = sum(count * self._cost(_rounded_up(event)) for event, count in events)
        error = self._error + accountant.numerical_error(events)
        spent = self._spent + cost
        if not (spent <= self._limit and error <= self._max_error * (1 + 1e-9)):
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
        return conversions.rdp_epsilon(
            np.array([self._spent]), self._delta, np.array([self.order])
        )


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
