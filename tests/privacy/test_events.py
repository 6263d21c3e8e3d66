"""Events and budgets refuse everything absurd and survive JSON."""

import json
import math

import numpy as np
import pytest

from dpjax import acceptance, privacy
from dpjax.privacy.events import check_events

GAUSSIAN = privacy.GaussianRelease(3.0)
K_NORM = privacy.KNormRelease(3.0, 4, 1e-12)
PURE = privacy.PureRelease(0.5, 1e-12)
BIT = privacy.AcceptBit(acceptance.penalty(2.0, 0.3), 0.1)
POISSON = privacy.PoissonGaussianRelease(
    3.0, 0.01, privacy.NeighboringRelation.REPLACE_ONE, 1e-12, 1e-10
)
BATCH = privacy.FixedBatch(BIT, 100, 1000)
MINIBATCH = privacy.PoissonAcceptBit(acceptance.barker(0.3), 0.1, 1.5)
BAD = [math.nan, math.inf, 0, 0.0, -1.0, True, "1", None, 1e300, 1e-300]


@pytest.mark.parametrize("value", BAD)
def test_bad_events_raise(value):
    with pytest.raises(ValueError, match="noise_multiplier"):
        privacy.GaussianRelease(value)
    with pytest.raises(ValueError, match="noise_multiplier"):
        privacy.KNormRelease(value, 3)
    with pytest.raises(ValueError, match="largest_loss"):
        privacy.PureRelease(value)
    with pytest.raises(ValueError, match="sensitivity"):
        privacy.AcceptBit(acceptance.barker(), value)
    with pytest.raises(ValueError, match="bound"):
        privacy.PoissonAcceptBit(acceptance.barker(), value, 2.0)
    with pytest.raises(ValueError, match="max_odds"):
        privacy.PoissonAcceptBit(acceptance.barker(), 0.1, value)
    relation = privacy.NeighboringRelation.REPLACE_ONE
    with pytest.raises(ValueError, match="noise_multiplier"):
        privacy.PoissonGaussianRelease(value, 0.1, relation)
    with pytest.raises(ValueError, match="sampling_prob"):
        privacy.PoissonGaussianRelease(1.0, value, relation)
    with pytest.raises(ValueError, match="batch_size"):
        privacy.BarkerTest(value)
    with pytest.raises(ValueError, match="batch_size"):
        privacy.FixedBatch(GAUSSIAN, value, 10)
    with pytest.raises(ValueError, match="num_records"):
        privacy.FixedBatch(GAUSSIAN, 10, value)


def test_bad_samples_raise():
    for relation in ("REPLACE", None):
        with pytest.raises(ValueError, match="neighboring_relation"):
            privacy.PoissonGaussianRelease(1.0, 0.1, relation)
    with pytest.raises(ValueError, match="sampling_prob"):
        privacy.PoissonGaussianRelease(1.0, 1.1, privacy.NeighboringRelation(1))
    for event in (POISSON, BATCH, K_NORM, PURE, None):
        with pytest.raises(ValueError, match="event"):
            privacy.FixedBatch(event, 1, 2)
    with pytest.raises(ValueError, match="exceeds"):
        privacy.FixedBatch(GAUSSIAN, 11, 10)
    with pytest.raises(ValueError, match="not that of"):
        privacy.FixedBatch(privacy.BarkerTest(9), 10, 100)


def test_numerical_error_of_a_batch_is_that_of_its_event():
    assert BATCH.failure_prob == BIT.failure_prob > 0
    batch = privacy.FixedBatch(privacy.GaussianRelease(3.0, 1e-9, 1e-8), 1, 2)
    assert (batch.failure_prob, batch.relative_error) == (1e-9, 1e-8)
    assert privacy.BarkerTest(7).failure_prob == BIT.failure_prob


def test_wrong_acceptance_raises():
    with pytest.raises(ValueError, match="acceptance"):
        privacy.AcceptBit("barker", 0.1)
    with pytest.raises(ValueError, match="acceptance"):
        privacy.PoissonAcceptBit("barker", 0.1, 2.0)
    with pytest.raises(ValueError, match="max_odds"):
        privacy.PoissonAcceptBit(acceptance.barker(), 0.1, 1.0)


@pytest.mark.parametrize("count", [0, -1, 1.5, 1.0, math.nan, True, "1", None, 10**16])
def test_bad_counts_raise(count):
    with pytest.raises(ValueError, match="count"):
        privacy.epsilon([(GAUSSIAN, count)], 1e-6)


@pytest.mark.parametrize(
    "events",
    [
        GAUSSIAN,
        POISSON,
        BATCH,
        [GAUSSIAN],
        (GAUSSIAN, 1),
        [(1, GAUSSIAN)],
        [(GAUSSIAN, 1, 2)],
        [(None, 1)],
        [],
        None,
        3,
    ],
)
def test_wrong_lists_raise(events):
    with pytest.raises(ValueError, match="event"):
        privacy.epsilon(events, 1e-6)


def test_equal_events_merge():
    merged = check_events([(BIT, 1), (GAUSSIAN, np.int64(2)), (BIT, 3)])
    assert merged == ((BIT, 4), (GAUSSIAN, 2))
    assert type(merged[1][1]) is int


def test_gaussian_behind_a_bit():
    assert BIT.gaussian == privacy.GaussianRelease(20.0)
    assert privacy.AcceptBit(acceptance.barker(), 0.1).gaussian is None


@pytest.mark.parametrize(
    "event",
    [
        GAUSSIAN,
        BIT,
        K_NORM,
        PURE,
        privacy.GaussianRelease(np.float32(0.1)),
        privacy.AcceptBit(acceptance.barker(), 1 / 3),
        privacy.AcceptBit(acceptance.metropolis(), np.float64(0.1)),
        POISSON,
        BATCH,
        MINIBATCH,
        privacy.FixedBatch(GAUSSIAN, np.int64(10), 100),
        privacy.FixedBatch(privacy.BarkerTest(10), 10, 100),
    ],
)
def test_json_round_trip(event):
    assert privacy.event_from_json(json.loads(json.dumps(event.to_json()))) == event


@pytest.mark.parametrize(
    "data",
    [
        {},
        None,
        {"type": "laplace", "scale": 1.0},
        {"type": "gaussian"},
        {**K_NORM.to_json(), "dim": 4.0},
        {"type": "gaussian", "noise_multiplier": math.nan},
        {"type": "gaussian", "noise_multiplier": 1.0, "extra": 1},
        {"type": "accept_bit", "family": "barker", "noise_sd": 0.0, "laziness": 1.0},
        {**BIT.to_json(), "family": "barker"},
        {**BIT.to_json(), "laziness": math.nan},
        {**BIT.to_json(), "sensitivity": None},
        {**POISSON.to_json(), "neighboring_relation": "neither"},
        {**POISSON.to_json(), "neighboring_relation": None},
        {**POISSON.to_json(), "sampling_prob": math.nan},
        {**MINIBATCH.to_json(), "max_odds": 1.0},
        {**MINIBATCH.to_json(), "sensitivity": 0.1},
        {**BATCH.to_json(), "event": POISSON.to_json()},
        {**BATCH.to_json(), "event": {}},
        {**BATCH.to_json(), "extra": 1},
        {"type": "barker_test"},
    ],
)
def test_bad_json_raises(data):
    with pytest.raises(ValueError):
        privacy.event_from_json(data)


def test_budget():
    budget = privacy.Budget(1, 1e-6)
    assert budget.neighboring_relation is privacy.NeighboringRelation.REPLACE_ONE
    assert (budget.epsilon, budget.delta) == (1.0, 1e-6)
    assert issubclass(privacy.BudgetError, ValueError)
    with pytest.raises(ValueError, match="neighboring_relation"):
        privacy.Budget(1.0, 1e-6, "replace one")
    for value in (math.nan, math.inf, 0.0, -1.0, True, "1", None):
        with pytest.raises(ValueError, match="epsilon"):
            privacy.Budget(value, 1e-6)
    for value in (math.nan, math.inf, 0.0, 1.0, 2.0, -1e-6, True, "1", None):
        with pytest.raises(ValueError, match="delta"):
            privacy.Budget(1.0, value)
