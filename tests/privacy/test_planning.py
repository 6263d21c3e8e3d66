"""Calibration and the adaptive filter."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats

from dpjax import acceptance, privacy
from tests.tiers import tiered

BUDGET = {"epsilon": 1.0, "delta": 1e-6}


def gaussian(value):
    return [(privacy.GaussianRelease(value), 1)]


def barker(value):
    return [(privacy.AcceptBit(acceptance.barker(), value), 1)]


def in_four_dimensions(value):
    return privacy.KNormRelease(value, 4)


@pytest.mark.parametrize(
    ("events", "bracket", "worse"),
    tiered(
        [(gaussian, (1.0, 1e6), 1 - 3e-4), (barker, (1e-4, 10.0), 1 + 3e-4)],
        [(gaussian, (1.0, 1e6), 1 - 3e-4)],
    ),
)
def test_calibrated_value_just_fits(events, bracket, worse):
    value = privacy.calibrate(events, num_steps=500, bracket=bracket, **BUDGET)
    assert bracket[0] < value < bracket[1]
    assert privacy.max_steps(events(value), **BUDGET) >= 500
    assert privacy.delta([(events(value)[0][0], 500)], 1.0) < 1e-6
    assert privacy.delta([(events(value * worse)[0][0], 500)], 1.0) >= 1e-6


def test_calibration_inverts_max_steps():
    steps = privacy.max_steps(gaussian(0.1 * math.sqrt(1e5)), **BUDGET)
    value = privacy.calibrate(gaussian, num_steps=steps, bracket=(1.0, 1e3), **BUDGET)
    assert value <= 0.1 * math.sqrt(1e5) * (1 + 1e-4)


def test_calibration_without_a_bracket_raises():
    with pytest.raises(ValueError, match="both ends"):
        privacy.calibrate(gaussian, num_steps=1, bracket=(1e3, 1e4), **BUDGET)
    message = f"an epsilon of {privacy.epsilon(gaussian(3.0), 1e-6):.2g} or more"
    with pytest.raises(privacy.BudgetError, match=message):
        privacy.calibrate(gaussian, num_steps=1, bracket=(1.0, 3.0), **BUDGET)
    with pytest.raises(privacy.BudgetError, match="epsilon of more than 500"):
        privacy.calibrate(gaussian, num_steps=1, bracket=(1e-3, 1e-2), **BUDGET)
    for bracket in ((2.0, 1.0), (0.0, 1.0), (1.0, math.nan), (1.0, math.inf), None, 3):
        with pytest.raises(ValueError, match="bracket"):
            privacy.calibrate(gaussian, num_steps=1, bracket=bracket, **BUDGET)
    for steps in (0, -1, 1.5, math.nan, True):
        with pytest.raises(ValueError, match="num_steps"):
            privacy.calibrate(gaussian, num_steps=steps, bracket=(1.0, 10.0), **BUDGET)


@pytest.mark.parametrize("event_fn", [privacy.GaussianRelease, in_four_dimensions])
@pytest.mark.parametrize("others", [[], gaussian(8.0), gaussian(5.0) + barker(0.1)])
def test_the_last_release_spends_what_is_left(event_fn, others):
    noise = privacy.spend_rest(event_fn, others, **BUDGET)
    assert privacy.delta([*others, (event_fn(noise), 1)], 1.0) < 1e-6
    assert privacy.delta([*others, (event_fn(noise / (1 + 3e-4)), 1)], 1.0) >= 1e-6


def test_nothing_left_raises():
    with pytest.raises(privacy.BudgetError, match="leave nothing"):
        privacy.spend_rest(privacy.GaussianRelease, gaussian(1.0), **BUDGET)
    with pytest.raises(ValueError, match="epsilon"):
        privacy.spend_rest(privacy.GaussianRelease, [], epsilon=0.0, delta=1e-6)


def test_filter_runs_almost_as_long_as_a_plan():
    step = barker(0.02)
    planned = privacy.max_steps(step, method="rdp", **BUDGET)
    spent = privacy.RdpFilter(**BUDGET, typical_step=step)
    steps = 0
    while spent.spend(step):
        steps += 1
        assert spent.epsilon_spent <= 1.0
    assert 0.97 * planned <= steps <= planned
    assert spent.epsilon_spent == pytest.approx(1.0, rel=0.01)


def test_filter_never_exceeds_the_budget_on_changing_events():
    rng = np.random.default_rng(3)
    spent = privacy.RdpFilter(**BUDGET, typical_step=barker(0.05))
    accepted, refused = [], 0
    for sensitivity in rng.choice([0.01, 0.05, 0.2, 0.6], 300):
        events = barker(float(sensitivity)) + gaussian(100.0)
        before = spent.epsilon_spent
        if spent.spend(events):
            accepted += events
        else:
            refused += 1
            assert spent.epsilon_spent == before
    assert refused and accepted
    assert spent.epsilon_spent <= 1.0
    # Non-adaptively composed, what was let through keeps the budget too.
    assert privacy.delta(accepted, 1.0, "rdp") < 1e-6


def test_filter_counts_bits():
    spent = privacy.RdpFilter(**BUDGET, typical_step=barker(1e-3), max_steps=10)
    event = barker(1e-3)[0][0]
    assert not spent.spend([(event, 11)])
    assert spent.epsilon_spent == 0.0
    assert spent.spend([(event, 10)])
    assert not spent.spend([(event, 1)])
    assert spent.spend(gaussian(1e4))


def test_filter_covers_the_numerical_error_of_any_release():
    for errors in ((1e-12, 0.0), (0.0, 1e-6)):
        step = [*barker(0.02), (privacy.GaussianRelease(1e3, *errors), 11)]
        with pytest.raises(privacy.BudgetError, match="max_steps"):
            privacy.RdpFilter(**BUDGET, typical_step=step)
        spent = privacy.RdpFilter(**BUDGET, typical_step=step, max_steps=300)
        assert sum(spent.spend(step) for _ in range(310)) == 300
    # What is reserved is part of what is spent.
    assert spent.epsilon_spent > 2 * 300 * 11e-6


def test_filter_refuses_what_is_not_private():
    spent = privacy.RdpFilter(**BUDGET, typical_step=barker(0.02))
    assert not spent.spend([(privacy.AcceptBit(acceptance.metropolis(), 0.1), 1)])
    assert spent.epsilon_spent == 0.0
    with pytest.raises(ValueError, match="event"):
        spent.spend([])


def test_bad_filters_raise():
    step = barker(0.02)
    with pytest.raises(privacy.BudgetError, match="max_steps"):
        privacy.RdpFilter(8.0, 1e-6, step, max_steps=10**9)
    with pytest.raises(ValueError, match="epsilon"):
        privacy.RdpFilter(math.nan, 1e-6, step)
    with pytest.raises(ValueError, match="delta"):
        privacy.RdpFilter(1.0, 1.0, step)
    with pytest.raises(ValueError, match="max_steps"):
        privacy.RdpFilter(1.0, 1e-6, step, max_steps=0)
    with pytest.raises(ValueError, match="events"):
        privacy.RdpFilter(1.0, 1e-6, step[0][0])
    with pytest.raises(privacy.BudgetError):
        privacy.RdpFilter(
            1.0, 1e-6, [(privacy.AcceptBit(acceptance.metropolis(), 0.1), 1)]
        )


FIRST = gaussian(8.0)
TOTAL = privacy.Budget(1.0, 1e-6)


def lazy_bit(laziness, sensitivity):
    return [(privacy.AcceptBit(acceptance.barker(laziness=laziness), sensitivity), 1)]


def accepted(delta_fn):
    """Lazy bits of 13 sensitivities, each as active as keeps a delta of 1e-6."""
    bits = []
    for sensitivity in np.linspace(1.0, 13.0, 13):
        low, high = 1e-9, 1.0
        while high > low * 1.01:
            middle = math.sqrt(low * high)
            fits = delta_fn(middle, sensitivity) <= TOTAL.delta
            low, high = (middle, high) if fits else (low, middle)
        bits.append((low, sensitivity))
    return bits


def delta_of_the_best(bits):
    """delta(1) of FIRST and of that lazy bit which then tells most, by quadrature."""
    y, width = np.linspace(-40, 80, 601, retstep=True)
    log_odds = np.linspace(-20, 20, 41)
    best = np.zeros_like(y)
    first, second = stats.norm.pdf(y, 1, 8), stats.norm.pdf(y, 0, 8)
    for laziness, sensitivity in bits:
        for change in sensitivity, -sensitivity:
            p = laziness * special.expit(log_odds)[:, None]
            q = laziness * special.expit(log_odds + change)[:, None]
            told = sum(
                (a * first - math.e * b * second).clip(0)
                for a, b in ((p, q), (1 - p, 1 - q))
            )
            best = np.maximum(best, told.max(axis=0))
    return np.sum(best) * width


def test_a_bit_chosen_in_view_of_the_first_release_stays_within_the_budget():
    rule = privacy.AdaptiveRule.of(FIRST, TOTAL)
    fixed = accepted(lambda *bit: delta_of_the_best([bit]))
    adaptive = accepted(lambda *bit: rule.delta([FIRST, lazy_bit(*bit)], 1.0))
    # Whichever bit is fixed in advance keeps the budget, but not the best of them.
    assert delta_of_the_best(fixed) > 1.5e-6
    assert delta_of_the_best(adaptive) <= 1e-6


ALIKE = {
    "many bits": (barker(0.003), 0.999),
    "Gaussian": (gaussian(1000.0), 0.985),
    "few bits": (lazy_bit(0.1, 0.1), 0.985),
    "penalty": ([(privacy.AcceptBit(acceptance.penalty(2.0), 0.03), 1)], 0.985),
    "sampled": (
        [(privacy.PoissonGaussianRelease(1.0, 1e-3, TOTAL.neighboring_relation), 1)],
        0.985,
    ),
}


@pytest.mark.parametrize("name", tiered(ALIKE, ["many bits", "Gaussian", "few bits"]))
def test_adaptive_choice_costs_little(name):
    """Many bits pay nothing for it, other runs that are alike one step in a hundred."""
    step, least = ALIKE[name]
    event = step[0][0]
    planned = privacy.max_steps(step, method="best", **BUDGET)
    first = [(event, planned // 2)]
    rule = privacy.AdaptiveRule.of(first, TOTAL)
    assert rule.max_steps(step, [], TOTAL) == planned
    assert rule.epsilon([first], TOTAL.delta) == privacy.epsilon(first, TOTAL.delta)
    more = rule.max_steps(step, [first], TOTAL)
    assert least * planned < planned // 2 + more <= planned
    total = [first, [(event, more)]]
    assert rule.epsilon(total, TOTAL.delta) == pytest.approx(1.0, rel=1e-3)
    assert rule.delta(total, 1.0) <= TOTAL.delta < rule.delta([*total, step * 200], 1.0)


@pytest.mark.parametrize(
    ("accept", "sensitivity"),
    [(acceptance.barker(0.1), 0.05), (acceptance.penalty(2.0), 0.03)],
)
def test_only_runs_that_are_alike_have_the_large_share(accept, sensitivity):
    """All others are charged at one order, the runs before included."""
    bits = [(privacy.AcceptBit(accept, sensitivity), 200)]
    rule = privacy.AdaptiveRule.of(bits, TOTAL)
    alike, share = [bits, bits], rule.alike_share
    found = privacy.delta([(bits[0][0], 400)], 1.0)
    assert share == 0.9
    assert rule.delta(alike, 1.0) == pytest.approx(found / share, rel=1e-9)
    for other in gaussian(50.0), [(replace(bits[0][0], sensitivity=0.01), 3)]:
        for runs in [bits, other], [bits, bits, other]:
            by_order = privacy.AdaptiveRule(rule.order, 0.0).delta(runs, 1.0)
            ratio = rule.delta(runs, 1.0) / by_order
            assert ratio == pytest.approx(1 / (1 - share), rel=1e-9)


def test_the_numerical_error_is_charged_to_the_share_of_delta_that_bears_it():
    """A share of delta that all but releases that fail fill is not enough."""
    bits = [(privacy.AcceptBit(acceptance.barker(0.1), 1e-6), 200_000)]
    rule = privacy.AdaptiveRule.of(gaussian(50.0), TOTAL)
    share, runs = rule.alike_share, [gaussian(50.0), bits]
    failures = sum(count * event.failure_prob for run in runs for event, count in run)
    assert failures > 1e-10
    assert rule.delta(runs, 50.0) >= failures / (1 - share)


def test_as_many_steps_are_paid_for_as_are_then_accepted():
    """Also if the earlier runs together are of one kind, and not each of them."""
    bits = [(privacy.AcceptBit(acceptance.penalty(2.0), 0.01), 50)]
    rule = privacy.AdaptiveRule.of(bits, TOTAL)
    runs = [bits, gaussian(50.0)]
    most = rule.max_steps(bits, runs, TOTAL)
    assert most > 0
    for steps, fits in ((most, True), (most + 1, False)):
        found = rule.delta([*runs, privacy.events.repeat(bits, steps)], TOTAL.epsilon)
        assert (found < TOTAL.delta) == fits


def test_metropolis_bits_add_their_total_variation():
    bits = [(privacy.AcceptBit(acceptance.metropolis(), 1e-9), 100)]
    runs = [bits, barker(0.1), bits]
    rule = privacy.AdaptiveRule.of(bits, TOTAL)
    assert rule.alike_share == 0
    only_barker = rule.delta([barker(0.05), barker(0.05)], 1.0)
    assert 2e-7 < rule.delta(runs, 1.0) < 2.1e-7 + only_barker
