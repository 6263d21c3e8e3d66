"""The certified Renyi curve against brute force, and the exact one-bit profile."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from dpjax import acceptance, privacy
from dpjax.privacy.bits import renyi

ORDERS = np.array([1.05, 1.5, 2.0, 5.0, 20.0, 63.0, 256.0, 1024.0])
ACCEPTANCES = {
    "Barker": acceptance.barker(),
    "lazy Barker .5": acceptance.barker(0.5),
    "lazy Barker .2": acceptance.barker(0.2),
    "lazy Barker .05": acceptance.barker(0.05),
    "nearly lazy Barker": acceptance.barker(1 - 1e-9),
    "penalty .5": acceptance.penalty(0.5),
    "penalty 2": acceptance.penalty(2.0),
    "penalty 5": acceptance.penalty(5.0),
    "lazy penalty 2": acceptance.penalty(2.0, 0.2),
    "lazy penalty .1": acceptance.penalty(0.1, 0.3),
}


def log_odds(accept, sensitivity):
    """Return y and G of the module docstring on a dense grid of l."""
    s = accept.noise_sd or 2.0
    grid = np.concatenate(
        [np.linspace(-60, 60, 4001), np.linspace(-8 * s, s**2 / 2 + 22 * s, 4001)]
    )
    c = accept.laziness
    logs = []
    for l in (grid, grid + sensitivity):  # noqa: E741
        log_a, log_b = accept.log_accept(l), accept.log_reject(l)
        if c < 1:
            log_b = np.log1p(-c * np.exp(log_a))
            log_a = log_a + math.log(c)
        logs.append((log_a, log_b))
    (log_a, log_b), (up_a, up_b) = logs
    return log_a - log_b, (up_a - log_a) + (log_b - up_b)


def brute_force(y, gap, order):
    """Maximum over the grid and both directions, rounded down."""

    def difference(near, middle, far):
        sign = np.where(middle > 0, -1, 1)
        near, middle, far = (np.logaddexp(0, sign * t) for t in (near, middle, far))
        size = far + order * middle + (order - 1) * near
        value = far - order * middle + (order - 1) * near
        return (value - 1e-14 * size * (1 + np.abs(y))) / (order - 1)

    quadratic = order / 2 * gap**2 * np.exp(-np.abs(y) - order * gap)
    quadratic /= (1 + np.exp(-np.abs(y))) ** 2
    forward = difference(y, y + gap, y + order * gap)
    back = difference(y + gap, y, y - (order - 1) * gap)
    return max(part.max() for part in (quadratic, forward, back))


@pytest.mark.parametrize("sensitivity", [1e-4, 1e-2, 0.1, 1.0, 4.0])
@pytest.mark.parametrize("name", ACCEPTANCES)
def test_curve_is_a_tight_upper_bound(name, sensitivity):
    accept = ACCEPTANCES[name]
    y, gap = log_odds(accept, sensitivity)
    curve = renyi.rdp(privacy.AcceptBit(accept, sensitivity), ORDERS)
    for order, bound in zip(ORDERS, curve, strict=True):
        exact = brute_force(y, gap, order)
        assert bound >= exact * (1 - 1e-9)
        far = accept.laziness == 1 and accept.family == "penalty"
        if not (far and (order - 1) * sensitivity > 12 * accept.noise_sd):
            assert bound <= exact * 1.02


@pytest.mark.parametrize("sensitivity", [0.01, 0.3, 3.0])
@pytest.mark.parametrize(
    "name", ["Barker", "penalty .5", "penalty 5", "lazy penalty 2"]
)
def test_curve_bounds_divergences_in_high_precision(name, sensitivity):
    accept = ACCEPTANCES[name]
    s = accept.noise_sd
    curve = renyi.rdp(privacy.AcceptBit(accept, sensitivity), ORDERS)
    with mpmath.workdps(120):

        def probability(l):  # noqa: E741
            if not s:
                value = 1 / (1 + mpmath.exp(-l))
            else:
                value = mpmath.ncdf(l / s - mpmath.mpf(s) / 2)
                value += mpmath.exp(l) * mpmath.ncdf(-l / s - mpmath.mpf(s) / 2)
            return accept.laziness * value

        far = 18 if s is None else s**2 / 2 + 8 * s
        for l in np.linspace(-12, far, 16):  # noqa: E741
            low = probability(mpmath.mpf(float(l)))
            high = probability(mpmath.mpf(float(l)) + mpmath.mpf(sensitivity))
            for order, bound in zip(ORDERS, curve, strict=True):
                for p, q in ((low, high), (high, low)):
                    total = p**order * q ** (1 - order)
                    total += (1 - p) ** order * (1 - q) ** (1 - order)
                    assert mpmath.log(total) / (order - 1) <= bound


def test_curve_is_below_the_closed_form_bounds():
    for sensitivity in (1e-50, 1e-6, 0.1, 4.0, 60.0, 1e6):
        barker = renyi.rdp(privacy.AcceptBit(acceptance.barker(), sensitivity), ORDERS)
        assert np.all(barker <= ORDERS * sensitivity**2 / 8 * (1 + 1e-9))
        assert np.all(barker <= sensitivity * (1 + 1e-9))
        for s in (1e-4, 0.5, 2.0, acceptance.MAX_NOISE_SD):
            bit = privacy.AcceptBit(acceptance.penalty(s), sensitivity)
            gaussian = ORDERS * sensitivity**2 / (2 * s**2)
            assert np.all(renyi.rdp(bit, ORDERS) <= gaussian * (1 + 1e-9))


def test_laziness_and_smaller_sensitivity_never_cost_more():
    for make in (acceptance.barker, lambda c: acceptance.penalty(2.0, c)):
        curves = [
            renyi.rdp(privacy.AcceptBit(make(c), 0.2), ORDERS)
            for c in (0.05, 0.2, 0.5, 1.0)
        ]
        for cheap, dear in itertools.pairwise(curves):
            assert np.all(cheap <= dear * 1.002)
        half = renyi.rdp(privacy.AcceptBit(make(1.0), 0.1), ORDERS)
        assert np.all(half <= curves[-1] * 1.002)


def test_metropolis_bit_has_no_finite_curve():
    bit = privacy.AcceptBit(acceptance.metropolis(), 0.1)
    assert np.all(np.isinf(renyi.rdp(bit, ORDERS)))


def test_rdp_returns_a_fresh_array():
    bit = privacy.AcceptBit(acceptance.barker(), 0.1)
    renyi.rdp(bit, ORDERS)[:] = 0
    assert np.all(renyi.rdp(bit, ORDERS) > 0)


@pytest.mark.parametrize("order", [1.0, 0.5, -2.0, math.nan, math.inf, 1e9])
def test_bad_orders_raise(order):
    bit = privacy.AcceptBit(acceptance.barker(), 0.1)
    with pytest.raises(ValueError, match="order"):
        renyi.rdp(bit, [2.0, order])


@pytest.mark.parametrize("laziness", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("sensitivity", [1e-3, 0.1, 1.0, 4.0])
def test_one_bit_profile_against_a_search_over_l(sensitivity, laziness):
    bit = privacy.AcceptBit(acceptance.barker(laziness), sensitivity)
    for fraction in (0.0, 0.1, 0.5, 0.9, 1.0, 1.5):
        epsilon = fraction * sensitivity
        exact = renyi.one_bit_delta(bit, epsilon)
        searched = 0.0
        for low, high in ((-40, 40), (-sensitivity - 4, 4)):
            l = np.linspace(low, high, 400_001)  # noqa: E741
            p = laziness / (1 + np.exp(-l))
            q = laziness / (1 + np.exp(-l - sensitivity))
            grow = math.exp(epsilon)
            for divergence in (q - grow * p, (1 - p) - grow * (1 - q)):
                searched = max(searched, divergence.max())
        assert searched <= exact + 1e-12
        assert exact == pytest.approx(searched, abs=1e-9)


@pytest.mark.parametrize("sensitivity", [1e-3, 0.1, 1.0, 4.0])
def test_accountant_gives_the_printed_profile_of_one_barker_bit(sensitivity):
    bit = privacy.AcceptBit(acceptance.barker(), sensitivity)
    for fraction in (0.0, 0.2, 0.7, 1.0, 1.3):
        epsilon = fraction * sensitivity
        root = math.exp(sensitivity / 2) - math.exp(min(epsilon, sensitivity) / 2)
        expected = root**2 / (math.exp(sensitivity) - 1)
        assert privacy.delta([(bit, 1)], epsilon) == pytest.approx(expected, abs=1e-9)


def test_one_bit_profile_is_not_claimed_for_the_penalty():
    bit = privacy.AcceptBit(acceptance.penalty(2.0), 0.1)
    assert renyi.one_bit_delta(bit, 0.1) == 1
