"""The bit of a Poisson minibatch: certificate, pure epsilon, printed ratios, filter."""

import itertools
import json
import math

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from dpjax import acceptance, privacy
from dpjax.privacy.bits import poisson_renyi, renyi
from dpjax.privacy.filter import _renyi as renyi_of
from dpjax.privacy.gaussian import conversions
from tests.tiers import tiered

BARKER = acceptance.barker()
ORDERS = np.array([1.05, 2.0, 8.0, 63.0, 512.0])


def poisson(bound, odds, laziness=1.0):
    return privacy.PoissonAcceptBit(acceptance.barker(laziness), bound, odds)


def log_odds(event, remainder, value):
    """logit f(r; v), ``(m,)``; both outcomes summed, so that neither loses digits."""
    total = event.bound * (event.max_odds + 1) / (event.max_odds - 1)
    low, high = (total - value) / 2, (total + value) / 2
    weighted = low * max(low / high, high / low)
    count = np.arange(40 + int(12 * weighted))
    chance = stats.poisson.pmf(count, low)
    log_ratio = remainder[:, None] + count * math.log(high / low)
    accept = special.expit(log_ratio) @ chance
    reject = special.expit(-log_ratio) @ chance
    return np.log(accept) - np.log(reject)


def pairs(event, remainder):
    """Least and highest log odds of the bit, lazy or not, ``(m,)`` each."""
    values = event.bound * np.append(-1.0, np.linspace(0.3, 1, 60))
    odds_of = np.array([log_odds(event, remainder, v) for v in values])
    c = event.acceptance.laziness
    if c < 1:
        log_f = math.log(c) - np.logaddexp(0.0, -odds_of)
        odds_of = log_f - np.log1p(-np.exp(log_f))
    return odds_of[0], odds_of.max(axis=0)


@pytest.mark.parametrize(
    ("bound", "odds", "ratios", "pure"),
    [  # fastmh.md, section 4(c): orders near 1, 8, 32, 128.
        (1e-3, 1.5, (1.002, 1.002, 1.002, 1.005), 0.00217),
        (1e-3, 2, (1.015, 1.016, 1.018, 1.028), 0.0025),
        (1e-3, 3, (1.107, 1.109, 1.116, 1.147), 0.00334),
        (1e-3, 6, (1.739, 1.749, 1.784, 1.939), 0.00624),
        (1e-3, 11, (2.95, 2.99, 3.11, 3.72), 0.0112),
        (0.03, 4.7, (1.42, 1.61, 2.53, 2.90), 0.149),
        (0.03, 22, (5.2, 11.8, 27.9, 15.8), 0.666),
        (0.2, 2, (0.97, 1.12, 1.25, 1.26), 0.5),
    ],
)
def test_printed_ratios_to_the_full_batch(bound, odds, ratios, pure):
    """Within the digits printed, and the tolerance of the certificate above them."""
    orders = [1.001, 8, 32, 128]
    full = renyi.rdp(privacy.AcceptBit(BARKER, 2 * bound), orders)
    found = poisson_renyi.rdp(poisson(bound, odds), orders) / full
    above = 1e-3 if odds <= 2 else 2e-3
    for ratio, printed in zip(found, ratios, strict=True):
        digit = 10.0 ** -len(str(printed).partition(".")[2])
        assert printed - digit / 2 <= ratio * (1 + 5e-4)
        assert ratio <= (printed + digit / 2) * (1 + above)
    assert poisson_renyi.pure_epsilon(poisson(bound, odds)) == pytest.approx(
        pure, rel=3e-3
    )


@pytest.mark.parametrize("laziness", [1.0, 0.3])
@pytest.mark.parametrize(
    ("bound", "odds"), [(1e-3, 1.1), (0.2, 2.0), (0.05, 5.0), (0.3, 15.0), (2.0, 1.5)]
)
def test_curve_bounds_random_pairs_in_high_precision(bound, odds, laziness):
    event = poisson(bound, odds, laziness)
    curve = poisson_renyi.rdp(event, ORDERS)
    rng = np.random.default_rng(int(1000 * bound))
    with mpmath.workdps(40):
        total = mpmath.mpf(bound) * (odds + 1) / (mpmath.mpf(odds) - 1)

        def chance(remainder, value):
            low, high = (total - value) / 2, (total + value) / 2
            odds = mpmath.exp(-remainder)
            found, weight, count = mpmath.mpf(0), mpmath.exp(-low), 0
            while weight * high**count > low**count * mpmath.mpf(10) ** -35:
                found += weight / (1 + odds * (low / high) ** count)
                count += 1
                weight *= low / count
            return laziness * found

        for _ in range(12):
            remainder = float(rng.uniform(-8, 8))
            values = bound * np.append(rng.uniform(-1, 1, 2), [-1, 1])
            chances = [chance(remainder, mpmath.mpf(v)) for v in values]
            for p in chances:
                for q in chances:
                    for order, most in zip(ORDERS, curve, strict=True):
                        moment = p**order * q ** (1 - order)
                        moment += (1 - p) ** order * (1 - q) ** (1 - order)
                        assert mpmath.log(moment) / (order - 1) <= most


@pytest.mark.parametrize("laziness", tiered([1.0, 0.5, 0.05], [0.5]))
@pytest.mark.parametrize(
    ("bound", "odds", "above"),
    [(0.02, 1.2, 2e-3), (0.2, 2.0, 2e-3), (0.05, 3.0, 2.5e-3), (0.1, 20.0, 2.5e-3)],
)
def test_curve_is_close_to_the_supremum(bound, odds, above, laziness):
    event = poisson(bound, odds, laziness)
    curve = poisson_renyi.rdp(event, ORDERS)
    remainder = np.linspace(-25, 25, 3001)
    logs = [
        (-np.logaddexp(0.0, -y), -np.logaddexp(0.0, y)) for y in pairs(event, remainder)
    ]
    for order, most in zip(ORDERS, curve, strict=True):
        attained = 0.0
        for (p, p_not), (q, q_not) in (logs, logs[::-1]):
            moment = np.logaddexp(
                order * p + (1 - order) * q, order * p_not + (1 - order) * q_not
            )
            attained = max(attained, moment.max() / (order - 1))
        assert attained * (1 - 1e-6) <= most <= attained * (1 + above)


@pytest.mark.parametrize("laziness", [1.0, 0.4])
@pytest.mark.parametrize("odds", [1.3, 2.0, 8.0])
def test_cells_hold_every_pair(odds, laziness):
    event = poisson(0.1, odds, laziness)
    edges = np.linspace(-6, 6, 7)
    middle, width, gap, least_gap = poisson_renyi._describe(event, edges[None])
    remainder = np.linspace(edges[:-1], edges[1:], 101, axis=-1)
    low, high = (
        part.reshape(remainder.shape) for part in pairs(event, remainder.ravel())
    )
    assert np.all(np.abs(low - middle[:, None]) <= width[:, None] / 2)
    assert np.all(high - low <= gap[:, None])
    assert np.all(least_gap[:, None] <= (high - low) * (1 + 2e-3))


@pytest.mark.parametrize("tolerance", [poisson_renyi.TOLERANCE, 4e-3])
@pytest.mark.parametrize(
    ("bound", "odds"), [(2.9, 2.42), (0.8, 11.0), (1e-6, 11.0), (1e-3, 9e3)]
)
def test_the_highest_shift_is_bounded_between_nodes(bound, odds, tolerance):
    """Against a fine grid of w at random r."""
    remainder = np.random.default_rng(0).normal(0.0, 8.0, 60)
    nodes, log_highest = poisson_renyi._highest(bound, odds, tolerance)
    assert nodes[0] < remainder.min() < remainder.max() < nodes[-1]
    step = np.linspace(math.log(1 + math.sqrt(2)), math.log(odds), 5000)
    rate = bound * (odds + 1) / (odds - 1) * special.expit(-step)
    attained = poisson_renyi._shift(remainder[:, None], rate, step).max(axis=1)
    above = np.interp(remainder, nodes, log_highest) - np.log(attained)
    assert 0.0 <= above.min() <= above.max() <= 2.4 * tolerance


@pytest.mark.parametrize("laziness", [1.0, 0.4])
@pytest.mark.parametrize("odds", [1.3, 2.0, 8.0])
@pytest.mark.parametrize("reach", tiered([0.5, 3.0, 10.0], [3.0]))
def test_tails_bound_what_is_beyond(reach, odds, laziness):
    event = poisson(0.1, odds, laziness)
    tails = poisson_renyi._tails(event, ORDERS, reach)
    remainder = np.linspace(reach, reach + 30, 2001)
    low, high = pairs(event, np.append(-remainder[::-1], remainder))
    for order, most in zip(ORDERS, tails, strict=True):
        assert renyi.divergence(low, high - low, order).max() <= most * (1 + 1e-9)


@pytest.mark.parametrize("bound", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("odds", tiered([1.01, 2.0, 2.5, 6.0, 20.0], [2.0, 20.0]))
def test_pure_epsilon_against_brute_force(bound, odds):
    event = poisson(bound, odds)
    remainder = np.linspace(-150, 150, 121)
    values = bound * np.linspace(-1, 1, 201)
    odds_of = np.array([log_odds(event, remainder, v) for v in values])
    searched = 0.0
    for logs in (-np.logaddexp(0.0, -odds_of), -np.logaddexp(0.0, odds_of)):
        searched = max(searched, np.ptp(logs, axis=0).max())
    found = poisson_renyi.pure_epsilon(event)
    assert searched * (1 - 1e-9) <= found <= searched * (1 + 1e-3)
    assert np.all(poisson_renyi.rdp(event, [1e6]) <= found * (1 + 1e-9))


@pytest.mark.parametrize("bound", [1e-4, 0.1, 3.0])
def test_many_draws_are_the_full_batch(bound):
    full = renyi.rdp(privacy.AcceptBit(BARKER, 2 * bound), ORDERS)
    for rate in (1e9, 301, 299, 100):
        curve = poisson_renyi.rdp(poisson(bound, 1 + bound / rate), ORDERS)
        assert np.all(np.abs(curve / full - 1) < 1.5e-3 + bound / rate)


@pytest.mark.parametrize(("bound", "odds"), [(1e-50, 2.0), (30.0, 1.2), (1e20, 1e20)])
def test_extreme_bits_have_a_curve(bound, odds):
    curve = poisson_renyi.rdp(poisson(bound, odds), ORDERS)
    assert np.all((curve > 0) & (curve <= bound * (1 + odds) * (1 + 1e-9)))


def test_other_acceptances_have_no_finite_curve():
    for accept in (acceptance.metropolis(), acceptance.penalty(2.0)):
        event = privacy.PoissonAcceptBit(accept, 0.1, 2.0)
        assert np.all(np.isinf(poisson_renyi.rdp(event, ORDERS)))
        assert poisson_renyi.pure_epsilon(event) == math.inf


def test_dearer_bits_cost_more():
    kappa = 0.05
    curves = [
        poisson_renyi.rdp(poisson(bound, 1 + bound / kappa), ORDERS)
        for bound in (0.01, 0.02, 0.05, 0.1, 0.5)
    ]
    for cheap, dear in itertools.pairwise(curves):
        assert np.all(cheap < dear)
    lazy = poisson_renyi.rdp(poisson(0.05, 2.0, 0.2), ORDERS)
    assert np.all(lazy <= curves[2] * 1.001)


STEP = [(poisson(2e-3, 2.0), 1)]


def test_the_accountant_takes_the_event():
    full = [(privacy.AcceptBit(BARKER, 4e-3), 1)]
    by = {m: privacy.epsilon([(STEP[0][0], 10_000)], 1e-5, m) for m in ("rdp", "zcdp")}
    assert privacy.epsilon([(full[0][0], 10_000)], 1e-5) < by["rdp"] < by["zcdp"]
    assert privacy.best_method([(STEP[0][0], 10_000)], 1e-5) == "rdp"
    budget = {"epsilon": 1.0, "delta": 1e-5}
    steps = privacy.max_steps(STEP, **budget)
    # 1.6 % more Renyi divergence.
    assert 0.975 < steps / privacy.max_steps(full, method="rdp", **budget) < 0.99
    assert privacy.delta([(STEP[0][0], steps)], 1.0) < 1e-5
    for method in ("gdp", "pld", "exact"):
        with pytest.raises(ValueError, match=method):
            privacy.epsilon(STEP, 1e-5, method)


def test_few_small_bits_are_purely_private():
    for bit in (poisson(4e-6, 2.0), privacy.AcceptBit(BARKER, 1e-5)):
        assert privacy.delta([(bit, 4)], 3.9e-5, "rdp") > 1e-6
        found = privacy.delta([(bit, 4)], 4.1e-5, "rdp")
        assert found == pytest.approx(4 * bit.failure_prob, rel=1e-6, abs=0)
        assert privacy.epsilon([(bit, 4)], 1e-12, "rdp") == pytest.approx(4e-5)


def test_json_keeps_the_event():
    event = poisson(1 / 3, 2.5, 0.2)
    assert privacy.event_from_json(json.loads(json.dumps(event.to_json()))) == event


def path(num_steps, seed):
    """Bounds that vary over a factor of about 30 at fixed lambda / n."""
    bounds = 1e-4 * np.random.default_rng(seed).gamma(4.0, 1.0, num_steps)
    return [poisson(float(h), float(1 + h / 1e-3)) for h in bounds]


def test_filter_charges_a_changing_bound_rightly():
    spent = privacy.RdpFilter(1.0, 1e-5, STEP)
    events = path(200, 1)
    for event in events:
        before = spent._spent
        assert spent.spend([(event, 1)])
        exact = poisson_renyi.rdp(event, [spent.order])[0]
        # The certificate is within 0.05 % and the grid up to 0.6 % above.
        assert exact * (1 - 1e-3) <= spent._spent - before <= exact * 1.007


@pytest.mark.thorough
def test_filter_takes_a_long_run_of_changing_bounds():
    events = path(10_000, 2)
    typical = np.mean([event.bound**2 for event in events]) ** 0.5
    step = [(poisson(typical, 1 + typical / 1e-3), 1)]
    planned = privacy.epsilon([(step[0][0], 10_000)], 1e-5)
    for share, least, most in ((1.05, 10_000, 10_000), (0.5, 2400, 2900)):
        renyi_of.cache_clear()
        spent = privacy.RdpFilter(share * planned, 1e-5, step)
        steps = sum(spent.spend([(event, 1)]) for event in events)
        assert least <= steps <= most
    bounds = [event.bound for event in events]
    cells = 256 * math.log2(max(bounds) / min(bounds)) + 1
    assert renyi_of.cache_info().misses <= cells
    assert spent.epsilon_spent == pytest.approx(0.5 * planned, rel=1e-3)


def test_full_batches_of_changing_sensitivity_are_filtered_too():
    spent = privacy.RdpFilter(1.0, 1e-5, [(privacy.AcceptBit(BARKER, 0.01), 1)])
    for sensitivity in np.random.default_rng(0).uniform(0.005, 0.02, 50):
        event = privacy.AcceptBit(BARKER, float(sensitivity))
        before = spent._spent
        assert spent.spend([(event, 1)])
        exact = renyi.rdp(event, [spent.order])[0]
        assert exact * (1 - 1e-3) <= spent._spent - before <= exact * 1.007


def test_printed_epsilon_of_many_large_bits():
    """fastmh.md, section 3: 14.1 before the numerical error of the bits."""
    curve = renyi.rdp(privacy.AcceptBit(BARKER, 0.05), conversions.ORDERS)
    found = conversions.rdp_epsilon(10_000 * curve, 1e-5)
    assert found == pytest.approx(14.1, rel=0.005)
