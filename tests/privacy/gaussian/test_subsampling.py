"""Subsampled releases: divergences by quadrature, printed epsilons, conventions."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import special, stats

from dpjax import acceptance, privacy
from dpjax.privacy import composition
from dpjax.privacy.gaussian import conversions, pld, subsampling

ADD = privacy.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = privacy.NeighboringRelation.REPLACE_ONE
ORDERS = np.array([1.3, 2.0, 2.5, 7.0, 30.0, 100.0])


def mixture(x, q, noise, centre):
    """Log density of (1 - q) N(0, noise^2) + q N(centre, noise^2)."""
    normal = stats.norm(scale=noise)
    return np.logaddexp(
        np.log1p(-q) + normal.logpdf(x), np.log(q) + normal.logpdf(x - centre)
    )


def renyi(log_p, log_q, x, orders):
    """Renyi divergences of two densities given on a fine grid."""
    step = np.log(x[1] - x[0])
    terms = [special.logsumexp(a * log_p + (1 - a) * log_q) + step for a in orders]
    return np.array(terms) / (orders - 1)


@pytest.mark.parametrize(("noise", "q"), [(0.9, 0.01), (5.0, 0.01), (5.0, 0.4)])
def test_poisson_divergences_by_quadrature(noise, q):
    x = np.linspace(-20, 140, 800_001) * max(noise, 1 / noise)
    pair = mixture(x, q, noise, 1.0)
    one = renyi(pair, stats.norm(scale=noise).logpdf(x), x, ORDERS)
    two = renyi(pair, mixture(x, q, noise, -1.0), x, ORDERS)
    for relation, exact in ((ADD, one), (REPLACE, two)):
        event = privacy.PoissonGaussianRelease(noise, q, relation)
        found = subsampling.poisson_rdp(event, ORDERS)
        assert np.all(found >= exact * (1 - 1e-5))
        if relation is ADD:
            integers = ORDERS == np.round(ORDERS)
            assert found[integers] == pytest.approx(exact[integers], rel=1e-5)


def test_large_noise_makes_the_triangle_tight():
    event = privacy.PoissonGaussianRelease(1e4, 0.01, REPLACE)
    found = subsampling.poisson_rdp(event, ORDERS[3:])
    assert found == pytest.approx(2 * ORDERS[3:] * 1e-12, rel=0.02)


def test_poisson_divergences_are_those_of_dp_accounting():
    orders = np.arange(2, 65)
    for noise, q in ((0.7, 0.001), (3.0, 0.2), (50.0, 0.01)):
        accountant = RdpAccountant(orders)
        accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(noise)))
        event = privacy.PoissonGaussianRelease(noise, q, ADD)
        found = subsampling.poisson_rdp(event, orders)
        assert found == pytest.approx(accountant.rdp, rel=1e-6)


def test_batch_divergences_by_the_printed_sum():
    q, tau = 0.01, 0.7
    found = subsampling.fixed_batch_rdp(lambda a: a / (2 * tau), q, np.arange(2.0, 9.0))
    for order, value in zip(range(2, 9), found, strict=True):
        second = min(4 * math.expm1(2 / (2 * tau)), 2 * math.exp(2 / (2 * tau)))
        total = 1 + q**2 * math.comb(order, 2) * second
        for j in range(3, order + 1):
            moment = math.exp((j - 1) * j / (2 * tau))
            total += 2 * q**j * math.comb(order, j) * moment
        assert value == pytest.approx(math.log(total) / (order - 1), rel=1e-6)


@pytest.mark.parametrize(
    "event",
    [
        privacy.GaussianRelease(3.0),
        privacy.AcceptBit(acceptance.penalty(2.0), 0.5),
        privacy.AcceptBit(acceptance.barker(0.3), 0.1),
        pytest.param(privacy.BarkerTest(100), marks=pytest.mark.thorough),
    ],
)
def test_batches_cost_less_than_all_records(event):
    orders = conversions.ORDERS
    whole = composition.renyi_curve(event, orders)
    curves = [
        composition.renyi_curve(privacy.FixedBatch(event, 100, n), orders)
        for n in (200, 1000, 10**6)
    ]
    for dearer, cheaper in zip([whole, *curves], curves, strict=False):
        assert np.all(cheaper <= dearer)
    assert np.all(curves[2][:20] < 1e-3 * whole[:20])


@pytest.mark.parametrize("size", [40, 1300])
def test_barker_test_divergences_by_the_closed_form_of_two_normals(size):
    orders = np.array([1.5, 2.0, 5.0, 9.0, size / 5])
    found = subsampling.barker_test_rdp(size, orders)
    moved = 4 / size
    worst = np.zeros(orders.shape)
    for low in np.linspace(1, 2, 41):
        for high in np.linspace(low, min(2, low + moved), 5):
            for v, w in ((low, high), (high, low)):
                spread = orders * w - (orders - 1) * v
                value = orders * moved / (2 * spread) - np.log(v / w) / 2
                value += np.log(w / spread) / (2 * (orders - 1))
                worst = np.maximum(worst, value)
    assert np.all(found >= worst)
    assert found == pytest.approx(worst, rel=1e-3)
    x = np.linspace(-30, 60, 200_001)
    parameters = ((2 / size**0.5, math.sqrt(1 + moved)), (0, 1))
    normals = [stats.norm(m, s).logpdf(x) for m, s in parameters]
    exact = renyi(*normals, x, orders[:3])
    assert np.all(found[:3] >= exact * (1 - 1e-6))
    assert found[:3] == pytest.approx(exact, rel=1e-3)
    assert np.isinf(subsampling.barker_test_rdp(size, [1 + size / 4])).all()


@pytest.mark.parametrize(
    ("sampling_prob", "add", "replace"),
    [(0.001, 1.19, 1.54), (1 / math.sqrt(5e4), 0.514, 1.06), (0.01, 0.501, 1.06)],
)
def test_printed_epsilons_of_sgld(sampling_prob, add, replace):
    """sgld_sep.md A3, fixed step .1: N = 50000, T = 10000, delta = 1e-5."""
    noise = sampling_prob * math.sqrt(5e4 / 0.1)
    for relation, printed in ((ADD, add), (REPLACE, replace)):
        event = privacy.PoissonGaussianRelease(noise, sampling_prob, relation)
        found = privacy.epsilon([(event, 10_000)], 1e-5)
        assert found == pytest.approx(printed, rel=0.005)
        assert privacy.best_method([(event, 10_000)], 1e-5) == "pld"
        assert privacy.epsilon([(event, 10_000)], 1e-5, "rdp") >= found


def test_sampling_every_record_is_the_gaussian_release():
    for relation, factor in ((ADD, 1), (REPLACE, 2)):
        event = privacy.PoissonGaussianRelease(6.0, 1.0, relation)
        gaussian = privacy.GaussianRelease(6.0 / factor)
        assert event.gaussian == gaussian
        for method in ("rdp", "gdp", "zcdp", "best"):
            assert privacy.epsilon([(event, 5)], 1e-6, method) == privacy.epsilon(
                [(gaussian, 5)], 1e-6, method
            )
        # The limit through dp-accounting, whose REPLACE_ONE doubles the distance.
        nearly = privacy.PoissonGaussianRelease(6.0, 1 - 1e-9, relation)
        for method in ("rdp", "pld"):
            assert privacy.epsilon([(nearly, 5)], 1e-6, method) == pytest.approx(
                privacy.epsilon([(gaussian, 5)], 1e-6, method), rel=1e-3
            )
    batch = privacy.FixedBatch(privacy.GaussianRelease(3.0), 10, 10)
    assert batch.gaussian == privacy.GaussianRelease(3.0)


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.1, 1.0, 3.0])
def test_one_batch_has_the_profile_of_balle_et_al(epsilon):
    noise, q = 0.8, 0.02
    inner = math.log1p(math.expm1(epsilon) / q)
    exact = q * conversions.gdp_delta(noise**-2, inner)
    batch = privacy.FixedBatch(privacy.GaussianRelease(noise), 2, 100)
    found = privacy.delta([(batch, 1)], epsilon, "pld")
    assert exact <= found <= exact * 1.001 + 1e-12
    bit = privacy.AcceptBit(acceptance.penalty(0.8), 1.0)
    error = privacy.delta([(privacy.FixedBatch(bit, 2, 100), 1)], epsilon, "pld")
    assert error == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize("centre", [0.0, 0.5, 1.0])
def test_composed_batches_bound_every_triple_of_centres(centre):
    """Record absent at 0, x at `centre`, x' at centre - 1: at most 1 apart."""
    noise, q, count = 1.0, 0.1, 12
    batch = privacy.FixedBatch(privacy.GaussianRelease(noise), 1, 10)
    x = np.linspace(-14, 14, 4001)
    left, right = (mixture(x, q, noise, c) for c in (centre, centre - 1))
    width = 1e-4
    lower = []
    for p, r in ((left, right), (right, left)):
        mass = np.exp(p) * (x[1] - x[0])
        loss = np.floor((p - r) / width).astype(int)
        pmf = np.bincount(loss - loss.min(), weights=mass)
        size = count * pmf.size
        composed = np.fft.irfft(np.fft.rfft(pmf, size) ** count, size)
        losses = (np.arange(size) + count * loss.min()) * width
        lower.append(
            [
                # Losses rounded down: a lower bound.
                np.sum(composed * np.maximum(-np.expm1(epsilon - losses), 0.0))
                for epsilon in (0.2, 1.0, 2.0)
            ]
        )
    exact = np.max(lower, axis=0)
    found = [privacy.delta([(batch, count)], e, "pld") for e in (0.2, 1.0, 2.0)]
    assert np.all(found >= exact - 1e-12)
    if centre == 1:
        assert np.all(found < 1.5 * exact)


def test_grids_cost_little(monkeypatch):
    lists = [
        [(privacy.PoissonGaussianRelease(0.8, 0.004, REPLACE), 1000)],
        [(privacy.PoissonGaussianRelease(50.0, 0.1, ADD), 50_000)],
        [(privacy.FixedBatch(privacy.GaussianRelease(0.8), 10, 1000), 300)],
        [
            (privacy.FixedBatch(privacy.GaussianRelease(0.8), 10, 1000), 100),
            (privacy.PoissonGaussianRelease(50.0, 0.1, REPLACE), 1000),
            (privacy.GaussianRelease(100.0), 300),
        ],
    ]
    coarse = [privacy.epsilon(events, 1e-6, "pld") for events in lists]
    monkeypatch.setattr(pld, "POINTS_A_DEVIATION", 80)
    pld.compose.cache_clear()
    fine = [privacy.epsilon(events, 1e-6, "pld") for events in lists]
    pld.compose.cache_clear()
    assert all(f <= c <= 1.005 * f for c, f in zip(coarse, fine, strict=True))


def test_gaussian_releases_keep_their_closed_form():
    event = privacy.GaussianRelease(30.0)
    for epsilon in (0.1, 1.0, 3.0):
        exact = privacy.delta([(event, 100)], epsilon, "gdp")
        found = privacy.delta([(event, 100)], epsilon, "pld")
        assert exact <= found <= 1.01 * exact + 1e-12


def test_a_million_steps_take_seconds():
    event = privacy.PoissonGaussianRelease(250.0, 0.1, REPLACE)
    gaussian = privacy.GaussianRelease(250.0 / 0.2)
    found = privacy.epsilon([(event, 10**6)], 1e-6)
    assert found == pytest.approx(privacy.epsilon([(gaussian, 10**6)], 1e-6), rel=0.005)


@pytest.mark.parametrize(("noise", "q"), [(1e3, 1e-4), (1.0, 1e-2)])
def test_a_billion_steps_do_not_overflow(noise, q):
    """The grid of "pld" is too coarse then, and its rounding too large."""
    events = [(privacy.PoissonGaussianRelease(noise, q, ADD), 10**9)]
    by = {m: privacy.epsilon(events, 1e-6, m) for m in ("pld", "rdp", "best")}
    assert 0 < by["best"] == by["rdp"] < by["pld"]


@pytest.mark.parametrize(("relation", "variance"), [(ADD, 1.718), (REPLACE, 4.701)])
def test_small_losses_keep_their_digits(relation, variance):
    """E (dP/dQ - 1)^2 is `variance` times q^2. It decides the limit of many steps."""
    q = 1e-5
    event, count = privacy.PoissonGaussianRelease(1.0, q, relation), int(0.03 / q**2)
    limit = privacy.GaussianRelease(1 / math.sqrt(count * variance * q**2))
    found = privacy.epsilon([(event, count)], 1e-6, "pld")
    assert found == pytest.approx(privacy.epsilon([(limit, 1)], 1e-6), rel=0.05)
    for losses in pld._single(event, 1e-6):
        total = losses.probabilities.sum() + losses.infinity_mass
        assert total == pytest.approx(1.0, abs=1e-15 * losses.probabilities.size**0.5)


BIT = privacy.AcceptBit(acceptance.barker(), 0.02)
MIXED = [(BIT, 100), (privacy.PoissonGaussianRelease(20.0, 0.05, REPLACE), 1100)]


def test_bits_and_poisson_samples_compose():
    """DP HMC with Barker's bit."""
    by = {m: privacy.epsilon(MIXED, 1e-6, m) for m in ("rdp", "exact", "best")}
    assert by["best"] == by["exact"] < by["rdp"] < 1.2 * by["exact"]
    alone = [privacy.epsilon([pair], 1e-6) for pair in MIXED]
    assert max(alone) < by["exact"] < sum(alone)
    for method in ("pld", "gdp", "zcdp"):
        with pytest.raises(ValueError, match=method):
            privacy.epsilon(MIXED, 1e-6, method)
    step = [(event, count // 100) for event, count in MIXED]
    spent = privacy.RdpFilter(1.0, 1e-6, step, max_steps=10**4)
    steps = 0
    while spent.spend(step):
        steps += 1
    planned = privacy.max_steps(step, epsilon=1.0, delta=1e-6, method="rdp")
    assert 0.95 * planned <= steps <= planned


def test_methods_refuse_what_they_cannot_take():
    two_bits = [(BIT, 1), (privacy.AcceptBit(acceptance.barker(), 0.03), 1)]
    barker = privacy.FixedBatch(privacy.BarkerTest(10), 10, 100)
    for events in (two_bits, [(barker, 1)], [(BIT, 1), (barker, 1)], [MIXED[1]]):
        with pytest.raises(ValueError, match="exact"):
            privacy.epsilon(events, 1e-6, "exact")
    for event in (BIT, barker):
        with pytest.raises(ValueError, match="pld"):
            privacy.epsilon([(event, 1)], 1e-6, "pld")
    assert privacy.best_method(two_bits, 1e-6) == "rdp"
    with pytest.raises(ValueError, match="zcdp"):
        privacy.delta([(barker, 1)], 1.0, "zcdp")


STEPS = [
    [(privacy.AcceptBit(acceptance.barker(0.5), 0.1), 3)],
    [(privacy.AcceptBit(acceptance.penalty(2.0), 0.15), 1)],
    [(privacy.AcceptBit(acceptance.barker(), 0.1), 1), (MIXED[1][0], 50)],
    [(privacy.PoissonGaussianRelease(2.0, 0.01, ADD, 1e-12), 4)],
    [(privacy.FixedBatch(privacy.GaussianRelease(2.0), 10, 1000), 1)],
    [(privacy.FixedBatch(privacy.BarkerTest(500), 500, 10_000), 1)],
    [(privacy.GaussianRelease(40.0, 1e-12), 2)],
]


@pytest.mark.thorough
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("epsilon", [0.7, 3.0])
def test_planned_steps_keep_the_budget(step, epsilon):
    count = privacy.max_steps(step, epsilon=epsilon, delta=1e-6)
    assert count > 0
    events = [(event, n * count) for event, n in step]
    assert privacy.epsilon(events, 1e-6) <= epsilon
    more = [(event, n * (count + 1)) for event, n in step]
    assert privacy.epsilon(more, 1e-6) > epsilon
    spent = [(event, n * (count // 2)) for event, n in step]
    rest = privacy.max_steps(step, epsilon=epsilon, delta=1e-6, spent=spent)
    assert rest == count - count // 2


def test_bits_spent_before_count():
    spent = [(BIT, 200)]
    step = [(privacy.GaussianRelease(100.0), 1)]
    count = privacy.max_steps(step, epsilon=1.0, delta=1e-6, spent=spent)
    total = [*spent, (step[0][0], count)]
    assert 0.98 < privacy.epsilon(total, 1e-6) <= 1.0
    assert privacy.best_method(total, 1e-6) == "exact"
