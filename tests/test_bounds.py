import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from dpjax import bounds

MIXTURE = bounds.GaussianMixture()
LOGISTIC = bounds.LogisticRegression(1.0)
RNG = np.random.default_rng(0)
box = st.tuples(st.floats(-3, 3), st.floats(-3, 3)).map(np.array)
distances = st.floats(-4, 0.7).map(lambda power: 10.0**power)
angles = st.floats(0, 2 * math.pi)


def log_mixture(theta, x):
    one = -((x - theta[..., :1]) ** 2) / 4
    two = -((x - theta.sum(-1, keepdims=True)) ** 2) / 4
    return np.logaddexp(one, two)


def mixture_gradient(theta, x):
    """grad log p by NumPy, ``(..., 2)``; the axes of `theta` come first."""
    residual = x - theta[..., 0]
    chance = special.expit(theta[..., 1] * (2 * residual - theta[..., 1]) / 4)
    second = chance * (residual - theta[..., 1])
    return np.stack([(1 - chance) * residual + second, second], axis=-1) / 2


def half(low, high):
    return (high - low) / 2


def nats(bound, theta, other):
    """The range as Python floats."""
    with jax.enable_x64(True):
        return tuple(float(end) for end in jax.jit(bound)(theta, other))


def moved(theta, distance, angle):
    """A proposal in the box, at most `distance` away."""
    jump = distance * np.array([math.cos(angle), math.sin(angle)])
    return np.clip(theta + jump, -3, 3)


def test_mixture_constants_beat_the_papers():
    assert 3.575 < MIXTURE.lipschitz <= 3.595 < 8.746
    assert MIXTURE.half_range < 0.54 * MIXTURE.lipschitz


def test_mixture_constants_hold_and_are_attained():
    theta = RNG.uniform(-3, 3, (100_000, 2))
    theta[:50_000, 0] = RNG.choice([-3, 3], 50_000)
    x = np.where(RNG.random(100_000) < 0.5, RNG.uniform(-3, 3, 100_000), 3.0)
    norms = np.linalg.norm(mixture_gradient(theta, x), axis=-1)
    assert norms.max() <= MIXTURE.lipschitz
    edge = np.stack([np.full(10_001, -3.0), np.linspace(-3, 3, 10_001)], axis=1)
    largest = np.linalg.norm(mixture_gradient(edge, 3.0), axis=-1).max()
    assert MIXTURE.lipschitz < 1.0011 * largest
    points = np.linspace(-3, 3, 25)
    grid = np.stack(np.meshgrid(points, points), axis=-1).reshape(-1, 2)
    slopes = mixture_gradient(grid[:, None], np.linspace(-3, 3, 31)[None])
    gaps = np.linalg.norm(slopes[:, :, None] - slopes[:, None, :], axis=-1)
    assert gaps.max() / 2 <= MIXTURE.half_range < 1.01 * gaps.max() / 2


def test_mixture_gradient_of_the_tests_is_that_of_the_density():
    theta, x = np.array([0.4, -1.3]), 2.2
    step = 1e-5 * np.eye(2)
    slope = log_mixture(theta + step, x) - log_mixture(theta - step, x)
    np.testing.assert_allclose(
        mixture_gradient(theta, x), slope[:, 0] / 2e-5, rtol=1e-6
    )


@settings(max_examples=200, deadline=None)
@given(box, distances, angles)
def test_mixture_range_holds_and_is_tight(theta, distance, angle):
    other = moved(theta, distance, angle)
    length = np.linalg.norm(other - theta)
    low, high = nats(MIXTURE, theta, other)
    x = np.linspace(-3, 3, 4_001)
    value = log_mixture(other, x) - log_mixture(theta, x)
    rounding = 1e-13
    assert low <= value.min() + rounding
    assert value.max() <= high + rounding
    assert half(low, high) <= np.ptp(value) / 2 + 0.00155 * length + rounding
    assert half(low, high) <= MIXTURE.half_range * length + rounding
    assert max(-low, high) <= (MIXTURE.lipschitz + 0.00155) * length + rounding
    assert nats(MIXTURE, other, theta) == (-high, -low)


def test_mixture_range_in_other_units():
    """With all lengths in units of 1 / k the log ratios are the same."""
    k = 0.01
    small = bounds.GaussianMixture(3 * k, 3 * k, 2 * k**2)
    theta, other = np.array([0.3, -1.0]), np.array([0.35, -0.9])
    np.testing.assert_allclose(
        nats(small, k * theta, k * other), nats(MIXTURE, theta, other), rtol=1e-9
    )
    assert k * small.lipschitz == pytest.approx(MIXTURE.lipschitz, rel=2e-3)
    assert k * small.half_range == pytest.approx(MIXTURE.half_range, rel=2e-3)


def log_ratio(theta, other, z):
    """v of records z = (2 y - 1) x, ``(m,)``."""
    return np.logaddexp(0, -z @ theta) - np.logaddexp(0, -z @ other)


def disc(theta, other):
    """Records of norm up to 1 that fill the plane in which v can be extreme."""
    basis = np.linalg.svd(np.stack([theta, other]), full_matrices=False)[2]
    turn = np.linspace(0, 2 * math.pi, 1_000, endpoint=False)
    rim = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    shares = np.linspace(0, 1, 21)[1:]
    return (shares[:, None, None] * (rim @ basis)).reshape(-1, theta.size)


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 5]), distances)
def test_logistic_range_holds_and_is_tight(seed, dim, distance):
    rng = np.random.default_rng(seed)
    theta = 10.0 ** rng.uniform(-2, 2) * rng.normal(size=dim) / dim**0.5
    # Jumps along the position, where the range is lopsided, are tried too.
    jump = rng.normal(size=dim) + 10 * rng.integers(-1, 2) * theta
    other = theta + distance * jump / np.linalg.norm(jump)
    low, high = nats(LOGISTIC, theta, other)
    value = log_ratio(theta, other, disc(theta, other))
    length, rounding = np.linalg.norm(other - theta), 1e-11
    assert low <= value.min() + rounding
    assert value.max() <= high + rounding
    assert max(-low, high) <= length * (1 + 1e-9)
    radius = max(np.linalg.norm(theta), np.linalg.norm(other))
    slack = bounds._logistic_remainder(radius) + 2e-4 * (1 + radius) ** 2
    assert half(low, high) <= np.ptp(value) / 2 + slack * length + rounding
    bounded = bounds.LogisticRegression(1.0, radius)
    assert half(low, high) <= bounded.half_range * length + rounding


def test_logistic_range_in_other_units():
    """With features in units of 1 / k and coefficients of k, ratios are the same."""
    k, theta, other = 7.0, RNG.normal(size=3), RNG.normal(size=3)
    large = nats(bounds.LogisticRegression(k), theta / k, other / k)
    np.testing.assert_allclose(large, nats(LOGISTIC, theta, other), rtol=1e-9)


@pytest.mark.parametrize("logit", [0.1, 1.0, 3.0, 10.0])
def test_logistic_half_range_is_attained(logit):
    """Short steps across the position attain it; it is between B / 2 and B."""
    found = bounds.LogisticRegression(2.0, logit / 2).half_range / 2
    angle = np.linspace(0, math.pi / 2, 10_001)
    across = np.max(np.cos(angle) * special.expit(logit * np.sin(angle)))
    assert max(across, 0.5) <= found < 1.003 * across
    assert bounds.LogisticRegression(2.0).half_range == 2.0


def test_logistic_range_in_one_dimension():
    x = np.linspace(-1, 1, 10_001)[:, None]
    for theta, other in (([4.0], [9.0]), ([9.0], [4.0]), ([-1.0], [1.0])):
        theta, other = np.array(theta), np.array(other)
        low, high = nats(LOGISTIC, theta, other)
        value = log_ratio(theta, other, x)
        assert low <= value.min() and value.max() <= high
        assert half(low, high) < 1.1 * np.ptp(value) / 2


@pytest.mark.thorough
def test_ranges_hold_on_coarse_grids(monkeypatch):
    """On two cells the bounds consist of the remainder for the most part."""
    monkeypatch.setattr(bounds, "CELLS", 2)
    x = np.linspace(-3, 3, 1_001)
    for _ in range(100):
        theta, angle = RNG.uniform(-3, 3, 2), RNG.uniform(0, 2 * math.pi)
        other = moved(theta, 0.3, angle)
        value = log_mixture(other, x) - log_mixture(theta, x)
        low, high = MIXTURE(theta, other)
        assert float(low) <= value.min() and value.max() <= float(high)
        value = log_ratio(theta, other, disc(theta, other))
        low, high = LOGISTIC(theta, other)
        assert float(low) <= value.min() and value.max() <= float(high)


@pytest.mark.parametrize("bound", [MIXTURE, LOGISTIC])
def test_ranges_are_compiled_in_float64_whatever_the_setting(bound):
    theta, other = jnp.array([0.5, -0.2]), jnp.array([0.5002, -0.2])
    for low, high in (bound(theta, other), jax.jit(bound)(theta, other)):
        assert low.dtype == high.dtype == jnp.float64
        np.testing.assert_allclose(
            (float(low), float(high)), nats(bound, theta, other), rtol=1e-9
        )
    assert nats(bound, theta, theta) == (0, 0)


def test_refusals():
    with pytest.raises(ValueError, match="feature_norm"):
        bounds.LogisticRegression(0.0)
    with pytest.raises(ValueError, match="radius"):
        bounds.LogisticRegression(1.0, -1.0)
    with pytest.raises(ValueError, match="truncation"):
        bounds.GaussianMixture(truncation=math.inf)
