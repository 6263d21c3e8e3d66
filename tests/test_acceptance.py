"""The accept bit against 50 digits: the constant it certifies, and its draw."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpjax import acceptance
from dpjax.acceptance import FAILURE_PROB
from dpjax.random import batches
from dpjax.release import accept_bit

NOISE = [0.05, 0.5, 1, 2, 5, 8.7, 10, 15.3, 63.7, acceptance.MAX_NOISE_SD]
CASES = [("barker", 0.0), ("metropolis", 0.0)] + [("penalty", s) for s in NOISE]
WORDS = 2**32 - 1


def grid(noise_sd):
    """Log ratios: all the range, and where the function moves."""
    s = noise_sd or 4
    parts = (
        np.linspace(-800, 800, 21),
        s**2 / 2 + s * np.linspace(-6, 6, 30),
        np.linspace(-3, 3, 12),
        s * (acceptance.MIN_MILLS_ARGUMENT - s / 2) + np.array([-1e-9, 1e-9]),
    )
    return np.concatenate(parts)


@functools.cache
def reference(family, noise_sd, factor=1):
    """a(l) and 1 - a(l) where l is on the grid times the factor, 50 digits."""
    table = []
    with mpmath.workdps(50):
        for ratio in grid(noise_sd).tolist():
            value = mpmath.mpf(ratio) * factor
            if family == "barker":
                pair = 1 / (1 + mpmath.exp(-value)), 1 / (1 + mpmath.exp(value))
            elif family == "metropolis":
                accept = min(mpmath.mpf(1), mpmath.exp(value))
                pair = accept, 1 - accept
            else:
                s = mpmath.mpf(noise_sd)
                x = value / s - s / 2
                tail = mpmath.exp(value) * cdf(-x - s)
                pair = cdf(x) + tail, cdf(-x) - tail
            table.append(pair)
    return table


def cdf(x):
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def traced(family, noise_sd, log_ratio):
    with jax.enable_x64(True):
        log_ratio = jnp.asarray(log_ratio, jnp.float64)
        return np.asarray(acceptance.probability(family, log_ratio, noise_sd))


def least_share(family, noise_sd, threshold_of):
    """The least chance of an outcome that is drawn over the ideal one, less one.

    The ideal one is that of a log ratio which is the grid's after one rounding. Batches
    may fail too, so a chance that is drawn is less by `batches.FAILURE_PROB`.
    """
    with jax.enable_x64(True):
        log_ratio = jnp.asarray(grid(noise_sd), jnp.float64)
        chance = acceptance.probability(family, log_ratio, noise_sd)
        thresholds = np.asarray(threshold_of(log_ratio, chance)).tolist()
    shares = []
    with mpmath.workdps(50):
        for factor in (1 - mpmath.mpf(2) ** -53, 1 + mpmath.mpf(2) ** -53):
            ideal = reference(family, noise_sd, factor)
            for threshold, pair in zip(thresholds, ideal, strict=True):
                accepted = mpmath.mpf(threshold) / 2**63
                for drawn, exact in zip((accepted, 1 - accepted), pair, strict=True):
                    if exact > 1e-40:
                        shares.append((drawn - batches.FAILURE_PROB) / exact - 1)
        return min(shares)


@pytest.mark.parametrize(("family", "noise_sd"), CASES)
def test_no_outcome_has_less_than_its_share(family, noise_sd):
    assert least_share(family, noise_sd, accept_bit.threshold) >= -FAILURE_PROB


def test_a_chance_that_is_only_rounded_misses_outcomes():
    """Without the fair coin an outcome of chance 2^-64 never comes."""

    def plain(log_ratio, chance):
        return jnp.floor(chance * 2.0**63).astype(jnp.uint64)

    assert least_share("barker", 0.0, plain) < -0.99
    assert least_share("penalty", 2.0, plain) < -0.99


@pytest.mark.parametrize("family", ["barker", "metropolis"])
def test_the_failures_charged_are_not_twice_too_many(family):
    assert least_share(family, 0.0, accept_bit.threshold) < -FAILURE_PROB / 2


@pytest.mark.parametrize(("family", "noise_sd"), CASES)
def test_balance(family, noise_sd):
    ratio = np.linspace(-30, 30, 61)
    forward, back = (traced(family, noise_sd, sign * ratio) for sign in (1, -1))
    kept = (forward > 1e-280) & (back > 1e-280)
    assert np.sum(kept) >= 20
    np.testing.assert_allclose(
        forward[kept], np.exp(ratio)[kept] * back[kept], rtol=1e-9
    )


@pytest.mark.parametrize(("family", "noise_sd"), CASES)
def test_host_logarithms(family, noise_sd):
    chosen = acceptance.Acceptance(family, noise_sd)
    with mpmath.workdps(50):
        logs = [
            [float(mpmath.log(p)) if p > 0 else -np.inf for p in pair]
            for pair in reference(family, noise_sd)
        ]
    accept, reject = np.array(logs).T
    ratio = grid(noise_sd)
    # log(1 - a) is only absolutely exact where a is below the rounding of 1.
    np.testing.assert_allclose(chosen.log_accept(ratio), accept, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(chosen.log_reject(ratio), reject, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("family", "noise_sd", "ratio"),
    [
        ("barker", 0.0, -2.0),
        ("barker", 0.0, 0.3),
        ("penalty", 0.5, -0.7),
        ("penalty", 2.0, 1.5),
        ("metropolis", 0.0, -1.2),
    ],
)
def test_draw_has_the_probability(family, noise_sd, ratio):
    count = 400_000
    words = np.random.default_rng(0).integers(0, 2**32, (count, 2), np.uint32)
    with jax.enable_x64(True):
        log_ratio = jnp.asarray(ratio, jnp.float64)
    bits = jax.vmap(lambda w: accept_bit.draw(w, family, log_ratio, noise_sd))(words)
    expected = np.exp(acceptance.Acceptance(family, noise_sd).log_accept(ratio))
    sd = (expected * (1 - expected) / count) ** 0.5
    # 5.7 standard deviations: a false alarm has probability 6e-8 over the cases.
    assert abs(np.mean(bits) - expected) < 5.7 * sd


@pytest.mark.parametrize(
    ("words", "ratio", "expected"),
    [
        ((0, 0), -np.inf, False),
        ((0, 0), -1e300, True),
        ((0, 2**15), -800.0, True),
        ((0, 2**15 + 2**13), -800.0, False),
        ((WORDS, WORDS), np.inf, True),
        ((WORDS, WORDS), 1e300, False),
        ((WORDS, WORDS), 30.0, False),
        # One half is 2^62 of 2^63: strictly below is accepted.
        ((2**31 - 1, WORDS), 0.0, True),
        ((2**31, 0), 0.0, False),
        ((2**31, 1), 0.0, False),
        ((0, 0), np.nan, False),
    ],
)
def test_edges_of_the_threshold(words, ratio, expected):
    with jax.enable_x64(True):
        log_ratio = jnp.asarray(ratio, jnp.float64)
    words = jnp.array(words, jnp.uint32)
    assert bool(accept_bit.draw(words, "barker", log_ratio)) is expected
    compiled = jax.jit(accept_bit.draw, static_argnums=1)
    assert bool(compiled(words, "barker", log_ratio)) is expected


def test_draw_needs_no_64_bits_from_the_user():
    words = np.random.default_rng(1).integers(0, 2**32, (1000, 2), np.uint32)
    bits = []
    for enabled in (False, True):
        with jax.enable_x64(enabled):
            ratio = jnp.asarray(0.25, jnp.float32)
            draw = jax.jit(lambda w, r: accept_bit.draw(w, "penalty", r, 1.0))
            bits.append(np.asarray(jax.vmap(draw, (0, None))(words, ratio)))
            assert jax.config.jax_enable_x64 is enabled
    np.testing.assert_array_equal(*bits)


@pytest.mark.parametrize(
    "arguments",
    [
        ("logistic",),
        ("penalty",),
        ("barker", 1.0),
        ("penalty", 0.0),
        ("penalty", np.inf),
        ("penalty", np.nan),
        ("barker", 0.0, 0.0),
        ("barker", 0.0, 1.1),
        ("barker", 0.0, np.nan),
        ("barker", 0.0, True),
        ("penalty", True),
        ("penalty", "1.0"),
    ],
)
def test_bad_parameters_raise(arguments):
    with pytest.raises(ValueError):
        acceptance.Acceptance(*arguments)


def test_numbers_become_python_floats():
    """A float32 would make the accountant compute in float32."""
    found = acceptance.penalty(np.float32(0.1), np.float32(0.3))
    assert type(found.noise_sd) is type(found.laziness) is float
    assert found == acceptance.penalty(float(np.float32(0.1)), float(np.float32(0.3)))


def test_louder_noise_is_refused_and_never_accepts():
    louder = acceptance.MAX_NOISE_SD * 1.01
    with pytest.raises(ValueError, match=r"in \(0, 64\.0\]"):
        acceptance.penalty(louder)
    assert np.all(traced("penalty", louder, grid(louder)) == 0)


def test_a_bit_takes_two_words():
    """JAX would read the last word again in place of one that is missing."""
    for count in (1, 3):
        with pytest.raises(ValueError, match="takes 2 words"):
            accept_bit.draw(jnp.zeros(count, jnp.uint32), "barker", 0.0)
