"""The exact composition of accept bits against enumeration and closed forms."""

import math

import jax
import numpy as np
import pytest
from scipy import integrate

from dpjax import acceptance, privacy
from dpjax.privacy import accountant
from dpjax.privacy.bits import exact, exact_cells, renyi
from dpjax.privacy.gaussian import conversions

BITS = {
    "Barker": acceptance.barker(),
    "lazy Barker .5": acceptance.barker(0.5),
    "lazy Barker .2": acceptance.barker(0.2),
    "penalty 2": acceptance.penalty(2.0),
    "lazy penalty .5": acceptance.penalty(0.5, 0.3),
}


def bit(name="Barker", sensitivity=0.1):
    return privacy.AcceptBit(BITS[name], sensitivity)


def pairs_at(event, l):  # noqa: E741
    """(p, q) of all l in both orders, ``(2 m, 2)``, in float64."""
    c = event.acceptance.laziness
    low, high = (
        c * np.exp(event.acceptance.log_accept(x)) for x in (l, l + event.sensitivity)
    )
    return np.vstack([np.column_stack([low, high]), np.column_stack([high, low])])


def enumerate_adversaries(pairs, ratio, steps):
    """W_steps at the likelihood ratios `ratio`, by recursion over all choices."""
    if steps == 0:
        return np.maximum(0.0, 1 - ratio)
    p, q = pairs.T
    accept = enumerate_adversaries(pairs, ratio[..., None] * (q / p), steps - 1)
    reject = ratio[..., None] * ((1 - q) / (1 - p))
    reject = enumerate_adversaries(pairs, reject, steps - 1)
    return np.max(p * accept + (1 - p) * reject, axis=-1)


def lattice_steps(event, spacing, epsilon, delta):
    """The step at which an adversary without interpolation reaches `delta`.

    It chooses among the pairs whose log-likelihood ratios are multiples of `spacing`
    and that some l and some smaller sensitivity give: an under-estimate of delta, by
    plain sums.
    """
    l = np.linspace(-30, 30, 600_001)  # noqa: E741
    c = event.acceptance.laziness
    accept = c * np.exp(event.acceptance.log_accept(l))
    most = int(event.sensitivity / spacing) + 1
    choices = {}
    for sign in (1, -1):
        for i, j in np.ndindex(most, most):
            up, down = (
                math.exp(sign * (i + 1) * spacing),
                math.exp(-sign * (j + 1) * spacing),
            )
            p = (1 - down) / (up - down)
            q = p * up
            if not 0 < max(p, q) < c:
                continue
            if abs(np.diff(np.interp([p, q], accept, l))[0]) <= event.sensitivity:
                gain = (p - q) ** 2 / (p * (1 - p))
                key = sign, j
                choices[key] = max(
                    choices.get(key, (0,)), (gain, sign * (i + 1), -sign * (j + 1), p)
                )
    best = max(gain for gain, *_ in choices.values())
    choices = [rest for gain, *rest in choices.values() if gain > 0.75 * best]
    low, high = int(3 / spacing), int((epsilon + 2) / spacing)
    w = np.exp(np.arange(-low - most, high + most) * spacing)
    values = np.maximum(0.0, 1 - w)
    inside = np.arange(most, w.size - most)
    for step in range(1, 10_000):
        backups = [
            p * values[inside + i] + (1 - p) * values[inside + j] for i, j, p in choices
        ]
        values[inside] = np.maximum(values[inside], np.max(backups, axis=0))
        if values[low + most + round(epsilon / spacing)] >= delta:
            return step
    raise AssertionError("delta was never reached")


# The sampled supremum of the design note, on a coarser grid in log w.
@pytest.mark.parametrize(
    ("name", "epsilon", "steps"),
    [
        ("penalty 2", 1, 38),
        ("Barker", 1, 22),
        ("lazy Barker .5", 1, 46),
        ("lazy Barker .2", 1, 117),
        ("penalty 2", 4, 512),
        ("Barker", 4, 279),
        ("lazy Barker .5", 4, 696),
        ("lazy Barker .2", 4, 1851),
    ],
)
def test_reference_counts(name, epsilon, steps):
    found, by_rdp = (
        accountant.max_steps(
            [(bit(name), 1)], epsilon=epsilon, delta=1e-6, method=method
        )
        for method in ("exact", "rdp")
    )
    variance = exact_cells.dominating_pairs(bit(name), steps).deviation() ** 2
    assert found >= 0.98 * steps
    assert found >= 1.05 * by_rdp
    # No more than the Gaussian limit, which adversaries nearly reach.
    assert conversions.gdp_delta(found * variance, epsilon) < 1e-6


@pytest.mark.parametrize(
    ("name", "spacing"), [("Barker", 0.0025), ("lazy Barker .5", 0.00125)]
)
def test_counts_lie_just_below_what_an_adversary_reaches(name, spacing):
    reached = lattice_steps(bit(name), spacing, 1.0, 1e-6)
    steps = [(bit(name), 1)]
    found = accountant.max_steps(steps, epsilon=1.0, delta=1e-6, method="exact")
    assert 0.9 * reached <= found < reached


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("sensitivity", [0.1, 0.8])
@pytest.mark.parametrize(
    ("steps", "cells", "slack"), [(1, 400, 0.01), (3, 13, 0.03), (6, 2, 0.06)]
)
def test_bounds_all_adversaries(name, sensitivity, steps, cells, slack):
    event = bit(name, sensitivity)
    s = event.acceptance.noise_sd
    l = np.linspace(-2, 2 + 3 * s, cells) if cells > 2 else np.array([-0.8, s])  # noqa: E741
    pairs = pairs_at(event, l - sensitivity / 2)
    deviation = exact_cells.dominating_pairs(event, steps).deviation()
    composed = exact.profile(event, steps)
    epsilons = np.array([0.0, 0.5, 1.0, 2.0]) * deviation * math.sqrt(steps)
    least = enumerate_adversaries(pairs, np.exp(epsilons), steps)
    bounds = np.array([composed.delta(float(epsilon)) for epsilon in epsilons])
    assert np.all(bounds >= least)
    assert np.all(bounds[:2] <= (1 + slack) * least[:2])


@pytest.mark.parametrize("laziness", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("sensitivity", [1e-3, 0.1, 1.0, 4.0])
def test_one_bit_is_its_closed_form_from_above(sensitivity, laziness):
    event = privacy.AcceptBit(acceptance.barker(laziness), sensitivity)
    composed = exact.profile(event, 1)
    for fraction in (0.0, 0.1, 0.5, 0.8):
        epsilon = fraction * sensitivity
        closed = renyi.one_bit_delta(event, epsilon)
        # Cells are as fine as many bits need, not one.
        slack = 0.015 * composed.delta(0.0)
        assert closed <= composed.delta(epsilon) <= closed + slack


@pytest.mark.parametrize("sensitivity", [1e-3, 1.0])
def test_one_very_lazy_bit_is_tight(sensitivity):
    event = privacy.AcceptBit(acceptance.barker(1e-4), sensitivity)
    composed = exact.profile(event, 1)
    for fraction in (0.0, 0.1, 0.5):
        closed = renyi.one_bit_delta(event, fraction * sensitivity)
        assert closed <= composed.delta(fraction * sensitivity) <= 1.01 * closed


def hockey_sticks(low, high, w):
    """sup over the pairs of E_P (1 - w Q/P)_+, both orders, at each w."""
    best = np.zeros_like(w)
    for p, q in ((low, high), (high, low)):
        p, q, x = p[:, None], q[:, None], w[None]
        values = np.maximum(0, p - x * q) + np.maximum(0, (1 - p) - x * (1 - q))
        best = np.maximum(best, values.max(axis=0))
    return best


def dominates(event, num_bits):
    pairs = exact_cells.dominating_pairs(event, num_bits)
    s = event.acceptance.noise_sd
    dense = pairs_at(event, np.linspace(-20, 20 + 8 * s, 20_001))[:20_001]
    w = np.exp(np.linspace(-1.5, 1.5, 41) * event.sensitivity)
    exactly = hockey_sticks(dense[:, 0], dense[:, 1], w)
    bound = hockey_sticks(pairs.low, pairs.low + pairs.gap, w)
    return np.all(bound >= exactly - 1e-13)


@pytest.mark.parametrize("num_bits", [1, 30, 10_000])
@pytest.mark.parametrize("sensitivity", [1e-3, 0.1, 0.9])
@pytest.mark.parametrize("name", BITS)
def test_pairs_dominate_every_log_ratio(name, sensitivity, num_bits):
    assert dominates(bit(name, sensitivity), num_bits)


@pytest.mark.parametrize("name", BITS)
def test_cells_without_their_correction_do_not_dominate(name, monkeypatch):
    moves = exact_cells._moves
    monkeypatch.setattr(
        exact_cells, "_moves", lambda *args: tuple(0 * move for move in moves(*args))
    )
    assert not dominates(bit(name), 30)


@pytest.mark.parametrize("name", BITS)
def test_tails_dominate_what_lies_beyond_the_cells(name):
    event = bit(name)
    accept, c, s = (
        event.acceptance,
        event.acceptance.laziness,
        event.acceptance.noise_sd,
    )
    pairs = exact_cells.dominating_pairs(event, 30)
    tails = exact_cells.Pairs(*(x[[0, -1]] for x in pairs))
    l = np.linspace(-40, 40 + 20 * s, 4000)  # noqa: E741
    w = np.exp(np.linspace(0, 0.99, 12) * event.sensitivity)[:, None]
    low, high = pairs_at(event, l)[:4000].T
    is_left = low <= tails.low[0]
    assert np.any(is_left & (low > 0.5 * tails.low[0]))
    low, high = low[is_left], high[is_left]
    assert np.all(
        high - w * low <= (tails.low + tails.gap - w * tails.low)[:, :1] * 1.0001
    )
    least = tails.one_minus_low[1] - (1 - c)
    is_right = c * np.exp(accept.log_reject(l)) <= least
    assert np.any(is_right)
    l = l[is_right]  # noqa: E741
    # 1 - p - w (1 - q) is (1 - c) (1 - w) more than this, for every pair alike.
    low, high = (c * np.exp(accept.log_reject(x)) for x in (l, l + event.sensitivity))
    assert np.all(low - w * high <= (least - w * (least - tails.gap[1])) * 1.0001)


def test_one_backup_on_a_short_grid_against_its_closed_form():
    """W(w) = 1 / (1 + w), p = 1/2 and q = 1: one law never rejects."""
    half = np.array([0.5])
    spacing, margin = math.log(2) / 64, 128
    w = np.exp(np.arange(-500, -90) * spacing)
    decay = np.exp(-np.arange(margin, 0, -1) * spacing)
    one, other = (1 / (1 + 2 * w) + 1) / 2, 1 / (1 + w / 2)
    pairs = exact_cells.Pairs(half, half, half)
    for both_orders, exactly in ((False, one), (True, np.maximum(one, other))):
        rows = exact._rows(pairs, spacing, margin, both_orders)
        with jax.enable_x64(True):
            bound = np.asarray(exact._backups(1 / (1 + w), decay, *rows, 1))
        assert np.all(bound >= exactly - 1e-14)
        # The shifts are whole: nothing is lost where the grid reaches.
        np.testing.assert_allclose(bound[64:-64], exactly[64:-64], rtol=1e-13)


@pytest.mark.parametrize("name", ["Barker", "penalty 2"])
def test_derivative_bounds_hold_inside_the_cells(name):
    accept = BITS[name]
    edges = np.linspace(-12, 20, 60)
    second, third = exact_cells._derivatives(accept, edges[:-1], edges[1:])
    inside = np.linspace(edges[:-1], edges[1:], 41)[1:-1]
    h = 1e-3
    around = [np.exp(accept.log_accept(inside + k * h)) for k in (-2, -1, 0, 1, 2)]
    found = (around[1] - 2 * around[2] + around[3]) / h**2
    assert np.all(np.abs(found) <= second + 1e-6)
    found = (around[4] - 2 * around[3] + 2 * around[1] - around[0]) / (2 * h**3)
    assert np.all(np.abs(found) <= third + 1e-6)


@pytest.mark.parametrize("name", BITS)
def test_delta_grows_with_steps_and_sensitivity_and_falls_with_epsilon(name):
    def curve(sensitivity, steps):
        composed = exact.profile(bit(name, sensitivity), steps)
        return np.array([composed.delta(e) for e in (0.0, 0.3, 1.0, 2.0)])

    base = curve(0.1, 40)
    assert np.all(np.diff(base) < 0)
    assert np.all(curve(0.1, 60) > base)
    assert np.all(curve(0.13, 40) > base)


def test_penalty_bits_never_cost_more_than_their_gaussian_releases():
    for steps in (3, 50, 300):
        composed = exact.profile(bit("penalty 2"), steps)
        for epsilon in (0.1, 1.0, 3.0):
            gaussian = conversions.gdp_delta(steps * 0.05**2, epsilon)
            # What is left out at the far right is below 1e-30 a bit.
            assert composed.delta(epsilon) < gaussian + 1e-27


def gaussian_curve(mu):
    def curve(epsilons):
        # H(-e) = 1 - e^-e + e^-e H(e), the Gaussian pair being symmetric.
        sizes = [conversions.gdp_delta(mu**2, abs(float(e))) for e in epsilons]
        grow = np.exp(np.minimum(epsilons, 0.0))
        return np.maximum(0.0, 1 - grow) + grow * np.array(sizes)

    return curve


@pytest.mark.parametrize("mu", [0.05, 0.5])
@pytest.mark.parametrize("laziness", [1.0, 0.2])
def test_one_bit_and_one_gaussian_against_quadrature(mu, laziness):
    event = privacy.AcceptBit(acceptance.barker(laziness), 0.5)

    def after(x):
        """W_1(e^x), by the symmetry of one bit's two orders for x < 0."""
        if x >= 0:
            return renyi.one_bit_delta(event, x)
        return 1 - math.exp(x) + math.exp(x) * renyi.one_bit_delta(event, -x)

    composed = exact.profile(event, 1)
    for epsilon in (0.0, 0.2, 0.6):

        def integrand(z, epsilon=epsilon):
            density = math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
            return density * after(epsilon - mu**2 / 2 - mu * z)

        both, _ = integrate.quad(integrand, -9, 9, limit=400, epsabs=1e-12)
        bound = composed.delta(epsilon, gaussian_curve(mu))
        assert both <= bound + 1e-9
        assert bound <= 1.02 * both + 1e-4


def test_bits_that_say_nothing_leave_the_gaussian_alone():
    composed = exact.profile(bit("Barker", 1e-5), 5)
    for epsilon in (0.0, 0.5, 2.0):
        alone = conversions.gdp_delta(0.25, epsilon)
        bound = composed.delta(epsilon, gaussian_curve(0.5))
        assert alone <= bound <= alone * (1 + 1e-3)


def test_max_steps_is_where_the_profile_passes_delta():
    event, budget = bit("lazy Barker .5"), {"epsilon": 1.0, "delta": 1e-6}
    gaussian = privacy.GaussianRelease(20.0)
    for step in ([(event, 1)], [(event, 3)], [(event, 2), (gaussian, 1)]):
        steps = accountant.max_steps(step, method="exact", **budget)
        assert steps > 3
        for count, fits in ((steps, True), (steps + 1 + steps // 20, False)):
            composed = exact.profile(event, step[0][1] * count)
            others = [gaussian_curve(0.05 * math.sqrt(count))] if step[1:] else []
            assert (composed.delta(1.0, *others) < 1e-6) == fits


def test_no_bit_fits_a_tiny_budget():
    event, budget = bit("Barker", 4.0), {"epsilon": 0.01, "delta": 1e-9}
    assert accountant.max_steps([(event, 1)], method="exact", **budget) == 0


def test_the_users_precision_setting_is_left_alone():
    before = jax.config.jax_enable_x64
    composed = exact.profile(bit(), 4)
    assert composed.values.dtype == np.float64
    assert jax.config.jax_enable_x64 == before


def test_refusals():
    metropolis = privacy.AcceptBit(acceptance.metropolis(), 0.1)
    loud = privacy.AcceptBit(acceptance.penalty(0.1), 5.0)
    with pytest.raises(ValueError, match="Metropolis"):
        exact.profile(metropolis, 3)
    with pytest.raises(ValueError, match="too much"):
        exact.profile(loud, 3)
    with pytest.raises(ValueError, match="at most"):
        exact.profile(bit(), 10**8)


def test_the_frame_moves_by_whole_shifts(monkeypatch):
    """The grid's drift costs nothing: a fine grid gives the same delta."""
    event = bit("lazy Barker .2", 0.3)
    coarse = [exact.profile(event, 150).delta(e) for e in (0.0, 1.0, 2.0)]
    monkeypatch.setattr(exact, "NODES_A_JUMP", 200)
    exact._composition.cache_clear()
    fine = [exact.profile(event, 150).delta(e) for e in (0.0, 1.0, 2.0)]
    exact._composition.cache_clear()
    np.testing.assert_allclose(coarse, fine, rtol=0.02)


@pytest.mark.parametrize("name", BITS)
def test_blocks_dominate_and_cost_little(name, monkeypatch):
    """A profile by blocks and parts is above that of the whole, which is exact."""
    event, num_bits = bit(name), 600
    whole = exact.profile(event, num_bits)
    monkeypatch.setattr(exact, "BLOCK", 100 * event.acceptance.laziness)
    assert exact.block_size(event) == 128
    blocks = exact.profile(event, num_bits)
    exact._composition.cache_clear()
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        exactly, bound = whole.delta(epsilon), blocks.delta(epsilon)
        assert bound >= exactly * (1 - 5e-3)
        assert bound <= 2 * exactly + 1e-12


def test_blocks_of_very_many_bits():
    """A million bits, beside their Gaussian limit and the Renyi bound."""
    events = [(bit("Barker", 1e-3), 10**6)]
    by = {m: privacy.epsilon(events, 1e-6, m) for m in ("exact", "rdp")}
    limit = conversions.invert_delta(lambda e: conversions.gdp_delta(0.25, e), 1e-6)
    assert limit <= by["exact"] <= 1.01 * limit
    assert by["rdp"] > 1.05 * by["exact"]
