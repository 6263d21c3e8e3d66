"""Privacy accounting: events, accountant, calibration, filter and budget."""

from dpjax.privacy.accountant import best_method, delta, epsilon, max_steps
from dpjax.privacy.budget import Budget, BudgetError, NeighboringRelation
from dpjax.privacy.calibration import calibrate, spend_rest
from dpjax.privacy.events import (
    AcceptBit,
    BarkerTest,
    FixedBatch,
    GaussianRelease,
    KNormRelease,
    PoissonAcceptBit,
    PoissonGaussianRelease,
    PureRelease,
    event_from_json,
)
from dpjax.privacy.filter import AdaptiveRule, RdpFilter
from dpjax.privacy.step_size import max_step_size

__all__ = [
    "AcceptBit",
    "AdaptiveRule",
    "BarkerTest",
    "Budget",
    "BudgetError",
    "FixedBatch",
    "GaussianRelease",
    "KNormRelease",
    "NeighboringRelation",
    "PoissonAcceptBit",
    "PoissonGaussianRelease",
    "PureRelease",
    "RdpFilter",
    "best_method",
    "calibrate",
    "delta",
    "epsilon",
    "event_from_json",
    "max_step_size",
    "max_steps",
    "spend_rest",
]
