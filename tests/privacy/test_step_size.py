"""Step sizes of SGLD: the tables of sgld_sep.md, conventions, published claims."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from dpjax import privacy
from dpjax.comparisons import sgld_claims
from dpjax.privacy import step_size
from dpjax.privacy.gaussian import convolution, pld, profiles
from tests.tiers import tiered

ADD = privacy.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = privacy.NeighboringRelation.REPLACE_ONE
ROOT = 50_000**-0.5


def decay(count):
    return (count + 1.0) ** (-1 / 3)


SECTION_3_1 = dict(num_records=50_000, l2_clip_norm=1.0)


def spent(
    eta,
    num_steps,
    relation,
    *,
    num_records,
    sampling_prob,
    l2_clip_norm,
    temperature=0.5,
    schedule=decay,
    delta=1e-5,
    has_fixed_batch=False,
):
    """Epsilon of a run of SGLD."""
    factors = 1.0 if schedule is None else schedule(np.arange(num_steps))
    noise = step_size.langevin_noise(
        eta * factors * np.ones(num_steps),
        num_records=num_records,
        sampling_prob=sampling_prob,
        l2_clip_norm=l2_clip_norm,
        temperature=temperature,
    )
    if has_fixed_batch:
        batch = round(sampling_prob * num_records)
        events = [
            (privacy.FixedBatch(privacy.GaussianRelease(s / 2), batch, num_records), n)
            for s, n in step_size.round_down(noise)
        ]
    else:
        events = [
            (privacy.PoissonGaussianRelease(s, sampling_prob, relation), n)
            for s, n in step_size.round_down(noise)
        ]
    return privacy.epsilon(events, delta)


MNIST = dict(num_records=60_000, sampling_prob=60_000**-0.5, l2_clip_norm=4.0)
FEWER = dict(num_records=50_000, sampling_prob=ROOT, l2_clip_norm=4.0)
SVHN = dict(num_records=600_000, sampling_prob=600_000**-0.5, l2_clip_norm=1.0)


CLAIMS = [
    (MNIST, 1e-5, 1, "0.170", "0.043", None),
    (MNIST, 1e-5, 245, "0.215", "0.0987", "0.290"),
    (MNIST, 1e-5, 2449, "0.327", "0.206", "0.616"),
    (MNIST, 1e-5, 9798, "0.504", "0.333", "1.01"),
    (FEWER, 1e-5, 224, "0.238", None, None),
    (SVHN, 1e-6, 775, "0.0147", "0.0100", "0.031"),
    (SVHN, 1e-6, 7746, "0.0335", "0.0231", "0.070"),
    (SVHN, 1e-6, 30984, "0.0551", "0.0381", "0.115"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("setting", "delta", "num_steps", "add", "add_hot", "replace"),
    tiered(CLAIMS, CLAIMS[:3] + CLAIMS[5:7]),
)
def test_claims_of_the_experiments(setting, delta, num_steps, add, add_hot, replace):
    """sgld_sep.md A3, eta_t = .1 t^(-1/3); the claims are .10 and .12.

    Within 1 % or half a digit of what is printed. At 200 epochs of SVHN, left out for
    its time, epsilon is .0977, .0674 and .205 where .0982, .0682 and .205 are printed.
    """
    columns = ((ADD, 0.5, add), (ADD, 1.0, add_hot), (REPLACE, 0.5, replace))
    for relation, temperature, printed in columns:
        if printed is not None:
            found = spent(
                0.1,
                num_steps,
                relation,
                temperature=temperature,
                delta=delta,
                **setting,
            )
            half_digit = 0.5 * 10.0 ** -len(printed.split(".")[1])
            assert found == pytest.approx(float(printed), rel=0.01, abs=half_digit)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("eta", "schedule", "sampling_prob", "add", "replace", "add_hot"),
    [
        (0.103, decay, 0.001, 0.129, 0.254, 0.084),
        (0.103, decay, ROOT, 0.119, 0.252, 0.081),
        (0.1, None, 0.001, 1.19, 1.54, 0.476),
        (0.1, None, 0.01, 0.501, 1.06, 0.342),
    ],
)
def test_claims_of_section_3_1(eta, schedule, sampling_prob, add, replace, add_hot):
    """sgld_sep.md A3; the claim is .10."""
    for relation, temperature, printed in (
        (ADD, 0.5, add),
        (REPLACE, 0.5, replace),
        (ADD, 1.0, add_hot),
    ):
        found = spent(
            eta,
            10_000,
            relation,
            schedule=schedule,
            sampling_prob=sampling_prob,
            temperature=temperature,
            **SECTION_3_1,
        )
        assert found == pytest.approx(printed, rel=0.01)


# q, epsilon, and eta: fixed and decreasing under ADD_OR_REMOVE_ONE, fixed Poisson and
# fixed batch under REPLACE_ONE.
BOUNDS = [
    # The specification has .0684 from coarser bins; finer ones than those here: .0694.
    (0.001, 0.1, 0.0050, 0.0694, 0.00131, 0.00103),
    (0.001, 1.0, 0.0907, 0.257, 0.0667, 0.0196),
    (ROOT, 0.5, 0.0948, 1.33, 0.0251, None),
    (ROOT, 1.7, 0.642, 3.64, 0.232, None),
    (0.01, 0.1, 0.00524, 0.0754, 0.00132, 0.00128),
    (0.01, 1.0, 0.344, 4.86, 0.0892, 0.0731),
]


@pytest.mark.parametrize(
    ("sampling_prob", "epsilon", *"fdrb"), tiered(BOUNDS, BOUNDS[::2])
)
def test_largest_step_sizes(sampling_prob, epsilon, f, d, r, b):
    """sgld_sep.md A4, T = 10000, temperature 1/2: the budget is met within 1 % of eta.

    And half a digit of what is printed.
    """
    columns = (
        (ADD, None, False, f),
        (ADD, decay, False, d),
        (REPLACE, None, False, r),
        (REPLACE, None, True, b),
    )
    for relation, schedule, has_fixed_batch, eta in columns:
        if eta is None:
            continue
        half_digit = 0.5 * 10.0 ** (math.floor(math.log10(eta)) - 2)
        below, above = (
            spent(
                eta * (1 + sign * 0.01) + sign * half_digit,
                10_000,
                relation,
                schedule=schedule,
                sampling_prob=sampling_prob,
                has_fixed_batch=has_fixed_batch,
                **SECTION_3_1,
            )
            for sign in (-1, 1)
        )
        assert below < epsilon < above


@pytest.mark.parametrize(
    ("num_steps", "schedule", "options"),
    [
        (10_000, None, dict(neighboring_relation=ADD)),
        (10_000, decay, dict(neighboring_relation=REPLACE)),
    ],
)
def test_bisection_spends_the_budget(num_steps, schedule, options):
    setting = dict(sampling_prob=0.01, temperature=0.5, **SECTION_3_1)
    eta = step_size.max_step_size(
        num_steps, epsilon=0.5, delta=1e-5, schedule=schedule, **setting, **options
    )
    relation = options.pop("neighboring_relation")
    found = spent(eta, num_steps, relation, schedule=schedule, **setting, **options)
    assert 0.5 * (1 - 1e-3) < found <= 0.5


def test_step_sizes_scale_with_temperature_and_clip_norm():
    def largest(temperature, l2_clip_norm):
        return step_size.max_step_size(
            100,
            num_records=1000,
            sampling_prob=0.1,
            l2_clip_norm=l2_clip_norm,
            epsilon=1.0,
            delta=1e-5,
            temperature=temperature,
        )

    one = largest(0.5, 1.0)
    assert largest(1.0, 1.0) == pytest.approx(2 * one, rel=2e-4)
    assert largest(0.5, 2.0) == pytest.approx(one / 4, rel=2e-4)


def test_step_sizes_refuse_what_they_cannot_take():
    setting = dict(num_records=1000, l2_clip_norm=1.0, epsilon=1.0, delta=1e-5)
    for change, words in (
        (dict(schedule=lambda count: count), "positive factors"),
        (dict(schedule=lambda count: 1.0), "positive factors"),
        (dict(sampling_prob=0.0), "sampling_prob"),
    ):
        with pytest.raises(ValueError, match=words):
            step_size.max_step_size(100, **{"sampling_prob": 0.1, **setting, **change})


def test_noise_is_rounded_down_and_nothing_is_lost():
    noise = np.concatenate([np.linspace(0.4, 5.0, 3001), np.full(10, 0.3)])
    pairs = step_size.round_down(noise)
    rounded = np.repeat([s for s, _ in pairs], [n for _, n in pairs])
    ratio = np.sort(noise) / rounded
    assert len(rounded) == 3011 and len(pairs) < 700
    assert np.all(ratio >= 1) and np.all(ratio <= 1.005)
    assert np.all(ratio[rounded < 0.5] <= 1 + 0.005 * 0.25)
    assert step_size.round_down([2.0, 2.0]) == [(2.0, 2)]


@pytest.mark.parametrize("noise", [0.5, 1.0, 6.0])
@pytest.mark.parametrize("sampling_prob", [0.001, 0.3])
def test_profiles_by_quadrature(noise, sampling_prob):
    x = np.linspace(-12 * noise - 1, 12 * noise + 1, 400_001)
    at = [stats.norm(c, noise).pdf(x) for c in (-1.0, 0.0, 1.0)]
    left, right = ((1 - sampling_prob) * at[1] + sampling_prob * at[k] for k in (0, 2))
    pairs = {"remove": (right, at[1]), "add": (at[1], right), "replace": (right, left)}
    epsilon = np.array([-0.4, -0.0005, 0.0, 0.0005, 0.2, 1.0, 3.0])
    for pair, (p, q) in pairs.items():
        excess = np.maximum(p - np.exp(epsilon)[:, None] * q, 0)
        exact = excess.sum(axis=1) * (x[1] - x[0])
        found = profiles.delta(pair, noise, sampling_prob, epsilon)
        assert found == pytest.approx(exact, abs=1e-9)


def test_convolution_is_that_of_all_terms():
    rng = np.random.default_rng(0)
    powers, exact = [], np.ones(1)
    for count, stride, size in ((3, 1, 5), (2, 4, 30), (7, 2, 3)):
        pmf = rng.dirichlet(np.ones(size))
        powers.append((convolution.Losses(0.25 * stride, -2, pmf, 0.0), count))
        spread = np.zeros(stride * (size - 1) + 1)
        spread[::stride] = pmf
        for _ in range(count):
            exact = np.convolve(exact, spread)
    found = convolution.convolve(powers, 0.25)
    lower = -2 * (3 * 1 + 2 * 4 + 7 * 2)
    assert found.interval == 0.25
    first = found.lower - lower
    assert np.sum(exact[:first]) <= 1e-14
    # The window may end above the largest sum.
    inside = np.pad(exact[first:], (0, found.probabilities.size))
    inside, left_out = np.split(inside, [found.probabilities.size])
    assert found.probabilities == pytest.approx(inside, abs=1e-14)
    assert np.sum(left_out) <= 1e-14
    assert found.infinity_mass <= 1e-14


def test_a_narrow_window_keeps_an_upper_bound(monkeypatch):
    """With tails of 1e-3 a loss, delta grows by about that, and never falls."""
    event = privacy.PoissonGaussianRelease(0.6, 0.01, ADD)
    epsilon = np.array([0.0, 0.5, 2.0])
    exact = pld.compose(((event, 100),)).delta(epsilon)
    monkeypatch.setattr(convolution, "MAX_TAIL", 1e-5)
    pld.compose.cache_clear()
    loose = pld.compose(((event, 100),)).delta(epsilon)
    pld.compose.cache_clear()
    assert np.all(loose >= exact)
    assert np.all(loose <= exact + 3e-3)
    assert np.all(loose > exact + 1e-5)


def test_conventions_of_dp_accounting_differ():
    """A Gaussian of multiplier 1, delta = 1e-5: relative to what, and what moves.

    RdpAccountant(REPLACE_ONE) takes multiplier / (sensitivity of a replacement), its
    PLD takes multiplier / (norm of one record). Ours: the latter for Poisson samples,
    the former for `GaussianRelease`.
    """
    for relation in (ADD, REPLACE):
        accountant = RdpAccountant(neighboring_relation=relation)
        epsilon = accountant.compose(GaussianDpEvent(1.0)).get_epsilon(1e-5)
        assert epsilon == pytest.approx(4.73, abs=0.01)
    for relation, multiplier, printed in ((ADD, 1.0, 4.38), (REPLACE, 0.5, 10.00)):
        loss = from_gaussian_mechanism(1.0, neighboring_relation=relation)
        assert loss.get_epsilon_for_delta(1e-5) == pytest.approx(printed, abs=0.01)
        everything = privacy.PoissonGaussianRelease(1.0, 1.0, relation)
        assert everything.gaussian == privacy.GaussianRelease(multiplier)
        found = privacy.epsilon([(everything, 1)], 1e-5)
        assert found == pytest.approx(printed, abs=0.01)
        almost = privacy.PoissonGaussianRelease(1.0, 1 - 1e-9, relation)
        found = privacy.epsilon([(almost, 1)], 1e-5, "pld")
        assert found == pytest.approx(printed, abs=0.02)


@pytest.mark.parametrize(
    ("sampling_prob", "epsilon", "fixed", "decreasing", "stars"),
    [
        (0.001, 0.1, 0.00109, 0.0156, "**"),
        (0.001, 1.0, 0.109, 1.56, "**"),
        (ROOT, 0.1, 0.00109, 0.0156, "**"),
        (ROOT, 0.5, 0.0271, 0.390, " *"),
        (ROOT, 1.7, 0.314, 4.51, " *"),
        (0.01, 1.0, 0.109, 1.56, "**"),
        (0.01, 1.7, 0.314, 4.51, " *"),
    ],
)
def test_published_step_sizes(sampling_prob, epsilon, fixed, decreasing, stars):
    """sgld_sep.md A4; a star where the theorem's own conditions are violated."""
    setting = dict(epsilon=epsilon, delta=1e-5, **SECTION_3_1)
    claims = [
        claim(10_000, sampling_prob=sampling_prob, **setting)
        for claim in (sgld_claims.li_theorem_4, sgld_claims.li_theorem_3)
    ]
    for claim, printed, star in zip(claims, (fixed, decreasing), stars, strict=True):
        assert claim.step_size == pytest.approx(printed, rel=0.005)
        assert bool(claim.broken_conditions) == (star == "*")
    wang = sgld_claims.wang(10_000, **setting)
    assert wang.step_size == pytest.approx(1.48e-6 * (epsilon / 0.1) ** 2, rel=0.005)


def test_where_published_step_sizes_are_unsafe():
    """Exceeded budgets, and whether the theorem's conditions would have told."""
    setting = dict(sampling_prob=0.001, epsilon=1.0, delta=1e-5, **SECTION_3_1)
    claim = sgld_claims.li_theorem_4(10_000, **setting)
    rest = dict(sampling_prob=0.001, schedule=None, **SECTION_3_1)
    assert spent(claim.step_size, 10_000, ADD, **rest) > 1.2
    assert claim.broken_conditions
    quiet = dict(setting, sampling_prob=ROOT)
    claim = sgld_claims.li_theorem_4(10_000, **quiet)
    assert not claim.broken_conditions
    rest = dict(sampling_prob=ROOT, schedule=None, **SECTION_3_1)
    assert spent(claim.step_size, 10_000, ADD, **rest) < 1.0
    assert spent(claim.step_size, 10_000, REPLACE, **rest) > 1.1
    wang = sgld_claims.wang(
        10_000, epsilon=0.1, delta=1e-5, num_records=50_000, l2_clip_norm=1.0
    )
    assert spent(wang.step_size, 10_000, ADD, **rest) == pytest.approx(0.001, rel=0.1)
