"""Bits that no noise protects: total variation, alone and beside other releases."""

import math

import numpy as np
import pytest
from scipy import stats

from dpjax import acceptance, privacy
from dpjax.privacy.bits import total_variation

METROPOLIS = acceptance.metropolis()
GAUSSIAN = (privacy.GaussianRelease(30.0), 50)


def metropolis(sensitivity):
    return privacy.AcceptBit(METROPOLIS, sensitivity)


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 1.0, 10.0, 100.0])
@pytest.mark.parametrize(
    ("sensitivity", "one", "thousand", "ten_thousand"),
    [  # fastmh.md, section 1; of one the first, of many the last digit printed.
        (0.05, 0.0488, 1.0, 1.0),
        (0.005, 0.00499, 0.993, 1.0),
        (0.001, 0.0010, 0.632, 1.0),
        (1e-5, 1e-5, 0.00995, 0.0952),
    ],
)
def test_printed_deltas(sensitivity, one, thousand, ten_thousand, epsilon):
    printed = zip((1, 1000, 10_000), (one, thousand, ten_thousand), strict=True)
    for count, expected in printed:
        found = privacy.delta([(metropolis(sensitivity), count)], epsilon)
        assert found == pytest.approx(-math.expm1(-count * sensitivity), rel=1e-9)
        assert found == pytest.approx(expected, rel=2e-3)


def test_sensitivities_add_up():
    events = [(metropolis(0.01 * i), i) for i in range(1, 6)]
    lost = -math.expm1(-sum(0.01 * i * i for i in range(1, 6)))
    assert privacy.delta(events, 3.0) == pytest.approx(lost, rel=1e-9)
    assert privacy.epsilon(events, lost * (1 - 1e-6)) == math.inf
    assert privacy.epsilon(events, lost * (1 + 1e-6)) == 0.0
    assert privacy.best_method(events, 0.5) == "tv"
    assert privacy.max_steps([(metropolis(1e-5), 1)], epsilon=1.0, delta=0.0952) in (
        10_004,
        10_005,
    )


def test_bits_that_say_everything():
    assert privacy.delta([(metropolis(100.0), 1), GAUSSIAN], 1.0) == 1.0


def test_total_variation_adds_to_the_delta_of_private_releases():
    for other in (
        GAUSSIAN,
        (privacy.AcceptBit(acceptance.penalty(2.0), 0.1), 20),
        (privacy.AcceptBit(acceptance.barker(), 0.1), 20),
        (privacy.PoissonAcceptBit(acceptance.barker(), 0.05, 2.0), 20),
    ):
        events = [other, (metropolis(1e-3), 10)]
        lost = -math.expm1(-0.01)
        for epsilon in (0.2, 1.0):
            alone = min(
                privacy.delta([other], epsilon, name)
                for name in ("rdp", "gdp")
                if name == "rdp" or other[0].gaussian
            )
            found = privacy.delta(events, epsilon)
            assert found == pytest.approx(lost + alone, rel=1e-9)
        epsilon = privacy.epsilon(events, 0.02)
        assert privacy.delta(events, epsilon * (1 + 1e-6)) <= 0.02 * (1 + 1e-9)
        assert privacy.epsilon(events, 0.0099) == math.inf


def test_mixture_bounds_an_exact_composition():
    """One Gaussian release beside one Metropolis bit at its worst l, on a grid."""
    sensitivity, noise = 0.05, 1.0
    x = np.linspace(-12, 13, 200_001)
    width = x[1] - x[0]
    p, q = stats.norm.pdf(x, 1, noise), stats.norm.pdf(x, 0, noise)
    reject = -math.expm1(-sensitivity)
    events = [(privacy.GaussianRelease(noise), 1), (metropolis(sensitivity), 1)]
    for epsilon in (0.0, 0.5, 2.0):
        grow = math.exp(epsilon)
        exact = width * np.maximum(p * (1 - reject) - grow * q, 0).sum() + reject
        found = privacy.delta(events, epsilon)
        assert exact <= found <= exact + reject


def poisson_chance(remainder, rate, step):
    count = np.arange(400)
    return np.sum(
        stats.poisson.pmf(count, rate)
        * np.exp(np.minimum(remainder[:, None] + step * count, 0.0)),
        axis=1,
    )


@pytest.mark.parametrize(("bound", "odds"), [(1e-3, 1.2), (0.05, 2.0), (0.4, 9.0)])
def test_variation_of_poisson_bits_bounds_metropolis(bound, odds):
    """Section 4(a): delta(0) is between H and 2 H, delta(inf) at least 1 - e^-H."""
    total = bound * (odds + 1) / (odds - 1)
    remainder = np.linspace(-3 * math.log(odds) - 1, 1, 401)
    chances = [
        poisson_chance(remainder, (total - v) / 2, math.log((total + v) / (total - v)))
        for v in np.linspace(-bound, bound, 21)
    ]
    attained = np.max(np.max(chances, axis=0) - np.min(chances, axis=0))
    event = privacy.PoissonAcceptBit(METROPOLIS, bound, odds)
    found = privacy.delta([(event, 1)], 5.0)
    assert max(attained, -math.expm1(-bound)) <= found <= 2 * bound
    assert found <= 2.5 * attained
    assert privacy.epsilon([(event, 1)], bound / 2) == math.inf


def test_laziness_and_sampling_scale_the_variation():
    whole = total_variation.variation(metropolis(0.3))
    lazy = acceptance.Acceptance("metropolis", laziness=0.25)
    assert total_variation.variation(privacy.AcceptBit(lazy, 0.3)) == pytest.approx(
        0.25 * whole
    )
    batch = privacy.FixedBatch(metropolis(0.3), 10, 100)
    assert total_variation.variation(batch) == pytest.approx(0.1 * whole)
    # A release that fails may be anything, whatever the batch holds.
    silent = privacy.FixedBatch(metropolis(1e-30), 10, 100)
    assert total_variation.variation(silent) >= acceptance.FAILURE_PROB
    assert (
        total_variation.variation(privacy.FixedBatch(privacy.BarkerTest(10), 10, 100))
        is None
    )


def test_numerical_error_does_not_grow_with_epsilon():
    found = privacy.delta([(metropolis(1e-12), 1)], 100.0)
    assert found == pytest.approx(1e-12 + acceptance.FAILURE_PROB, rel=1e-9, abs=0)


def test_only_for_lists_with_bare_bits():
    with pytest.raises(ValueError, match="tv"):
        privacy.delta([GAUSSIAN], 1.0, "tv")
    for name in ("gdp", "zcdp", "pld", "exact"):
        with pytest.raises(ValueError, match=name):
            privacy.delta([(metropolis(0.1), 1), GAUSSIAN], 1.0, name)
