"""The limits and the exchanges that docs/scale.md states."""

import json
import math

import pytest

from benchmarks import scale

RESULTS = json.loads(scale.RESULTS.read_text())["kernels"]


@pytest.mark.parametrize("name", scale.KERNELS)
def test_kernels_take_as_many_records_as_the_page_says(name):
    limit = 2**31 if name == "fast_mh" else 2**30
    assert scale.largest(name) == RESULTS[name]["largest"] == limit


def test_estimates_are_what_was_measured_where_it_was():
    measured = RESULTS["barker"]
    for size, seconds in zip(scale.SIZES, measured["seconds"], strict=True):
        assert scale.estimate(measured, size, 1).seconds == pytest.approx(seconds)
    one, many = (scale.estimate(measured, 10**9, count) for count in (1, 512))
    assert many.seconds < one.seconds / 100
    assert one.exchanged == 0 < many.exchanged


def test_numerical_errors_leave_no_epsilon_at_a_tiny_delta():
    assert scale.epsilon(10**10, 1000, delta=1e-11) == math.inf
    assert scale.epsilon(10**10, 1000) < 0.02
