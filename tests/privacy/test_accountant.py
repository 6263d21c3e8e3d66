"""Composition: reference counts, soundness, monotonicity, failing closed."""

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest

from dpjax import acceptance, privacy
from dpjax.privacy import accountant, composition
from dpjax.privacy.gaussian import conversions
from tests.tiers import tiered

BARKER = acceptance.barker()
REFERENCE = {
    # (RDP, exact, limit) counts at epsilon 1 and 4, from an independent computation.
    "penalty 2": (acceptance.penalty(2.0), (34, 461), (38, 512), (42, 528)),
    "Barker": (BARKER, (20, 250), (22, 279), (22, 280)),
    "lazy Barker .5": (acceptance.barker(0.5), (40, 623), (46, 696), (62, 778)),
    "lazy Barker .2": (acceptance.barker(0.2), (99, 1711), (117, 1851), (176, 2207)),
}
EVENT_LISTS = [
    [(privacy.GaussianRelease(30.0), 50)],
    [(privacy.AcceptBit(BARKER, 0.05), 300)],
    [(privacy.AcceptBit(acceptance.penalty(2.0), 0.1), 80)],
    [
        (privacy.AcceptBit(acceptance.barker(0.3), 0.1), 40),
        (privacy.GaussianRelease(60.0), 200),
    ],
]


@pytest.mark.parametrize("name", tiered(REFERENCE, ["Barker"]))
def test_reference_counts(name):
    accept, rdp, exact, limit = REFERENCE[name]
    bit = privacy.AcceptBit(accept, 0.1)
    for epsilon, *expected in zip((1, 4), rdp, exact, limit, strict=True):
        counts = {
            method: privacy.max_steps(
                [(bit, 1)], epsilon=epsilon, delta=1e-6, method=method
            )
            for method in ("rdp", "exact", "best")
        }
        assert 0.98 * expected[0] <= counts["rdp"] <= expected[1]
        assert 0.98 * expected[1] <= counts["exact"] <= expected[2]
        assert counts["best"] == counts["exact"]
        for method, count in counts.items():
            assert privacy.delta([(bit, count)], epsilon, method) < 1e-6
            assert privacy.delta([(bit, count + 1)], epsilon, method) >= 1e-6
        assert privacy.best_method([(bit, counts["best"])], 1e-6) == "exact"


@pytest.mark.parametrize(
    ("sensitivity", "printed"),
    [(0.001, 0.178), (0.002, 0.375), (0.005, 1.01), (0.01, 2.17), (0.02, 4.73)],
)
def test_printed_epsilons_of_ten_thousand_barker_bits(sensitivity, printed):
    events = [(privacy.AcceptBit(BARKER, sensitivity), 10_000)]
    assert privacy.epsilon(events, 1e-5) == pytest.approx(printed, rel=0.005)


def test_large_epsilon_is_not_lost_to_the_numerical_error_of_bits():
    # (1 + e^14.1) 1e4 times the failure probability would be above delta.
    events = [(privacy.AcceptBit(BARKER, 0.05), 10_000)]
    assert privacy.epsilon(events, 1e-5) == pytest.approx(14.1, rel=0.005)


def test_best_is_the_smallest_sound_method():
    events = [(privacy.AcceptBit(acceptance.penalty(2.0), 0.1), 30)]
    names = ("rdp", "gdp", "zcdp", "exact")
    each = {name: privacy.epsilon(events, 1e-6, name) for name in names}
    assert privacy.epsilon(events, 1e-6) == min(each.values()) == each["exact"]
    assert privacy.best_method(events, 1e-6) == "exact"
    each = [privacy.delta(events, 0.8, name) for name in names]
    assert privacy.delta(events, 0.8) == min(each)


@pytest.mark.parametrize("events", EVENT_LISTS)
def test_rdp_is_never_below_the_exact_composition(events):
    if all(isinstance(event, privacy.GaussianRelease) for event, _ in events):
        for epsilon in (0.1, 1.0, 4.0):
            exact = privacy.delta(events, epsilon, "gdp")
            assert privacy.delta(events, epsilon, "rdp") >= exact


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_bits_bound_the_composition_of_a_fixed_log_ratio(count):
    """Exact binomial hockey-stick divergences must stay below every claim."""
    sensitivity = 0.5
    k = np.arange(count + 1)
    binomial = np.array([math.comb(count, i) for i in k], np.float64)
    for accept in (BARKER, acceptance.barker(0.3), acceptance.penalty(2.0)):
        events = [(privacy.AcceptBit(accept, sensitivity), count)]
        for l in np.linspace(-4, 5, 19):  # noqa: E741
            p, q = accept.laziness * np.exp(
                accept.log_accept(np.array([l, l + sensitivity]))
            )
            left = binomial * p**k * (1 - p) ** (count - k)
            right = binomial * q**k * (1 - q) ** (count - k)
            for epsilon in (0.05, 0.3, 1.0):
                grow = math.exp(epsilon)
                exact = max(
                    np.maximum(left - grow * right, 0).sum(),
                    np.maximum(right - grow * left, 0).sum(),
                )
                assert privacy.delta(events, epsilon) >= exact - 1e-14


@pytest.mark.parametrize("method", ["best", "rdp", "zcdp"])
@pytest.mark.parametrize("events", EVENT_LISTS)
def test_monotone_additive_and_order_free(events, method):
    epsilon = privacy.epsilon(events, 1e-6, method)
    assert epsilon > 0
    assert privacy.epsilon(events, 1e-5, method) < epsilon
    assert privacy.epsilon([(e, 2 * n) for e, n in events], 1e-6, method) > epsilon
    split = [(e, n // 2) for e, n in events] + [(e, n - n // 2) for e, n in events]
    assert privacy.epsilon(split, 1e-6, method) == pytest.approx(epsilon, rel=1e-12)
    assert privacy.epsilon(events[::-1], 1e-6, method) == pytest.approx(epsilon)
    deltas = [privacy.delta(events, e, method) for e in (0.0, 0.3, 1.0, 3.0)]
    assert all(a >= b for a, b in itertools.pairwise(deltas))
    assert privacy.delta(events, epsilon * (1 + 1e-9), method) <= 1e-6 * (1 + 1e-6)


def test_dearer_events_allow_fewer_steps():
    counts = [
        privacy.max_steps(
            [(privacy.AcceptBit(BARKER, sensitivity), 1)], epsilon=1.0, delta=1e-6
        )
        for sensitivity in (0.01, 0.02, 0.1, 0.5, 3.0)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0


def test_ten_thousand_steps():
    step = [(privacy.AcceptBit(BARKER, 0.005), 1)]
    count = privacy.max_steps(step, epsilon=1.0, delta=1e-6)
    assert 7_000 < count < 9_000
    # The curve scales with the square of the sensitivity.
    coarse = [(privacy.AcceptBit(BARKER, 0.05), 1)]
    assert 70 < privacy.max_steps(coarse, epsilon=1.0, delta=1e-6) < 90


def test_numerical_error_of_bits_is_charged():
    bit = privacy.AcceptBit(BARKER, 1e-3)
    for epsilon in (20.0, 100.0, 500.0):
        found = privacy.delta([(bit, 1000)], epsilon)
        assert found == pytest.approx(1000 * acceptance.FAILURE_PROB, rel=1e-12)
    assert privacy.epsilon([(bit, 10**10)], 1e-6) == math.inf
    assert privacy.delta([(bit, 1)], 1e-3) >= acceptance.FAILURE_PROB
    gaussian = [(privacy.GaussianRelease(1e4), 1)]
    assert privacy.delta(gaussian, 20.0) == 0.0


def test_numerical_error_ends_a_plan_of_tiny_bits():
    bit = privacy.AcceptBit(acceptance.barker(0.1), 1e-6)
    steps = privacy.max_steps([(bit, 1)], epsilon=1.0, delta=1e-6)
    failure = acceptance.FAILURE_PROB
    assert steps * failure < 1e-6 <= (steps + 1) * failure


def test_relative_error_of_releases_is_charged():
    """Twice the sum of the nats is epsilon that ideal releases do not have."""
    ideal, share = privacy.GaussianRelease(2.0), 1e-3
    release = privacy.GaussianRelease(2.0, 1e-9, share)
    events, count = [(release, 50)], 50
    for epsilon in (0.5, 3.0, 100.0):
        delta = privacy.delta([(ideal, count)], epsilon - 2 * count * share)
        expected = math.exp(count * share) * delta + count * 1e-9
        assert privacy.delta(events, epsilon) == pytest.approx(expected, rel=1e-9)
    left = math.exp(-count * share) * (1e-5 - count * 1e-9)
    expected = privacy.epsilon([(ideal, count)], left) + 2 * count * share
    assert privacy.epsilon(events, 1e-5) == pytest.approx(expected, rel=1e-9)
    # Below twice the error, delta grows by what is missing of it.
    lone = [(privacy.GaussianRelease(2.0, 0.0, share), 1)]
    expected = math.exp(share) * (privacy.delta([(ideal, 1)], 0.0) + 2 * share)
    assert privacy.delta(lone, 0.0) == pytest.approx(expected, rel=1e-9)


def hockey_stick(pair, epsilon):
    """delta(epsilon) of two laws on the same outcomes, the larger direction."""
    gaps = [p - math.exp(epsilon) * q for p, q in (pair, pair[::-1])]
    return max(np.sum(np.maximum(gap, 0.0)) for gap in gaps)


def test_laws_with_these_errors_keep_what_is_claimed():
    """By brute force: Q moves outcomes against the claim, and J gives the data away."""
    failure, relative, num_releases = 1e-3, 0.02, 3
    rng, half_is_too_little = np.random.default_rng(0), 0
    for _ in range(300):
        ideal = rng.dirichlet(np.full(4, 0.5), 2)
        sign = np.where(ideal[0] > ideal[1], 1.0, -1.0)
        moved = ideal * np.exp(relative / 2 * sign * np.array([[1.0], [-1.0]]))
        moved /= moved.sum(axis=1, keepdims=True)
        assert np.all(abs(np.log(moved / ideal)) <= relative)
        drawn = np.hstack([(1 - failure) * moved, failure * np.eye(2)])
        one = ideal, drawn
        ideal, drawn = (functools.reduce(outer, [law] * num_releases) for law in one)
        epsilon = rng.uniform(0.0, 4.0)
        error = accountant.NumericalError(
            num_releases * failure, num_releases * relative
        )
        claims = [
            accountant.NumericalError(*(factor * np.array(error))).delta(
                functools.partial(hockey_stick, ideal), epsilon
            )
            for factor in (1.0, 0.5)
        ]
        attained = hockey_stick(drawn, epsilon)
        assert attained <= claims[0] * (1 + 1e-12)
        half_is_too_little += attained > claims[1]
    assert half_is_too_little > 20


def outer(first, second):
    """The laws of two independent releases together."""
    return np.einsum("di,dj->dij", first, second).reshape(2, -1)


@pytest.mark.parametrize(
    "event",
    [
        privacy.AcceptBit(BARKER, 0.3),
        privacy.AcceptBit(acceptance.penalty(0.5, 0.1), 0.1),
        privacy.FixedBatch(privacy.BarkerTest(1000), 1000, 10**5),
        privacy.PoissonGaussianRelease(
            3.0, 0.1, privacy.NeighboringRelation.REPLACE_ONE
        ),
    ],
)
def test_no_better_order_is_missed(event):
    curve = composition.renyi_curve(event, conversions.ORDERS)
    for count, delta in itertools.product((1, 30, 3000), (1e-2, 1e-6, 1e-12)):
        events = ((event, count),)
        bound = composition._rdp(events)
        least = conversions.rdp_epsilon(count * curve, delta)
        assert bound.epsilon(delta) <= least * (1 + 1e-3)
        least = conversions.rdp_delta(count * curve, 1.0)
        assert bound.delta(1.0) <= least * (1 + 1e-2)


def test_epsilon_leaves_room_for_the_numerical_error():
    # Few digits are left of delta, so the fixed point moves epsilon visibly.
    events = [(privacy.AcceptBit(BARKER, 1e-3), 10**6)]
    for delta in (1e-6, 2e-8):
        found = privacy.epsilon(events, delta)
        ideal = conversions.rdp_epsilon(
            10**6 * composition.renyi_curve(events[0][0], conversions.ORDERS), delta
        )
        assert found > ideal
        if math.isfinite(found):
            assert privacy.delta(events, found * (1 + 1e-9)) <= delta * (1 + 1e-6)


def test_what_max_steps_allows_is_within_the_budget():
    bit = privacy.AcceptBit(acceptance.barker(0.2), 0.004)
    steps = privacy.max_steps([(bit, 2)], epsilon=4.0, delta=1e-6)
    assert 3.9999 < privacy.epsilon([(bit, 2 * steps)], 1e-6) <= 4.0


def test_metropolis_bits_are_never_private():
    events = [(privacy.AcceptBit(acceptance.metropolis(), 0.1), 1)]
    assert privacy.epsilon(events, 0.01) == math.inf
    assert privacy.delta(events, 10.0, "rdp") == 1.0
    assert privacy.max_steps(events, epsilon=5.0, delta=0.01) == 0
    with pytest.raises(ValueError, match="Metropolis"):
        privacy.epsilon(events, 0.01, "zcdp")


def test_gdp_is_refused_for_barker_bits():
    with pytest.raises(ValueError, match="gdp"):
        privacy.epsilon([(privacy.AcceptBit(BARKER, 0.1), 1)], 0.01, "gdp")


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.1, 1.0, 5.0, 30.0])
def test_gaussian_delta_against_the_textbook_formula(mu):
    for epsilon in (0.0, 0.3 * mu, mu, 3 * mu, 10.0):
        found = conversions.gdp_delta(mu**2, epsilon)
        with mpmath.workdps(60):
            m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
            exact = mpmath.ncdf(m / 2 - e / m)
            exact -= mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
            exact = float(exact)
        assert exact * (1 - 1e-13) <= found or exact < 1e-300
        assert found == pytest.approx(exact, rel=1e-8, abs=1e-300)


GOOD = [(privacy.GaussianRelease(30.0), 50)]
BAD_NUMBERS = [math.nan, math.inf, -math.inf, -1.0, True, "1", None, 1j]


@pytest.mark.parametrize("value", [*BAD_NUMBERS, 0.0, 1.0, 2])
def test_bad_delta_raises(value):
    for call in (
        lambda: privacy.epsilon(GOOD, value),
        lambda: privacy.max_steps(GOOD, epsilon=1.0, delta=value),
    ):
        with pytest.raises(ValueError, match="delta"):
            call()


@pytest.mark.parametrize("value", [*BAD_NUMBERS, 1e9])
def test_bad_epsilon_raises(value):
    for call in (
        lambda: privacy.delta(GOOD, value),
        lambda: privacy.max_steps(GOOD, epsilon=value, delta=1e-6),
    ):
        with pytest.raises(ValueError, match="epsilon"):
            call()


def test_other_bad_arguments_raise():
    with pytest.raises(ValueError, match="epsilon"):
        privacy.max_steps(GOOD, epsilon=0.0, delta=1e-6)
    with pytest.raises(ValueError, match="method"):
        privacy.epsilon(GOOD, 1e-6, "moments")
    with pytest.raises(ValueError, match="1e12 steps"):
        privacy.max_steps([(privacy.GaussianRelease(1e40), 1)], epsilon=1.0, delta=1e-6)


def test_nan_costs_are_refused():
    for call in (
        lambda: conversions.rdp_epsilon(np.full(conversions.ORDERS.size, np.nan), 0.1),
        lambda: conversions.rdp_delta(np.full(conversions.ORDERS.size, -1.0), 0.1),
        lambda: conversions.gaussian_rdp(math.nan, conversions.ORDERS),
    ):
        with pytest.raises((ArithmeticError, ValueError)):
            call()
