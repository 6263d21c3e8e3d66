"""The cipher against RFC 7539, the normals, and the release on its lattice."""

import itertools
import struct

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from dpjax.random import chacha, variates
from dpjax.release import gaussian
from dpjax.release.exact_sums import VECTOR_GRID

KEY = bytes(range(32))
RFC_NONCE = bytes.fromhex("000000090000004a00000000")
RFC_BLOCK = bytes.fromhex(
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
)


def chacha20_block(key, counter, nonce):
    """RFC 7539, section 2.3, in plain Python."""
    state = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key)]
    state += [counter, *struct.unpack("<3I", nonce)]
    work = list(state)

    def quarter(a, b, c, d):
        for target, other, mixed, shift in (
            (a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)
        ):  # fmt: skip
            work[target] = (work[target] + work[other]) % 2**32
            value = work[mixed] ^ work[target]
            work[mixed] = (value << shift | value >> (32 - shift)) % 2**32

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(a + b) % 2**32 for a, b in zip(work, state, strict=True)]


def test_the_plain_cipher_is_the_rfcs():
    assert struct.pack("<16I", *chacha20_block(KEY, 1, RFC_NONCE)) == RFC_BLOCK


@pytest.mark.parametrize("stream", [0, 1, int.from_bytes(RFC_NONCE, "little")])
def test_tape_is_chacha20_from_counter_zero(stream):
    nonce = stream.to_bytes(12, "little")
    expected = [chacha20_block(KEY, counter, nonce) for counter in range(3)]
    np.testing.assert_array_equal(chacha.tape(KEY, stream, (3, 16)), expected)


@pytest.mark.parametrize(("start", "count"), [(0, 16), (0, 100), (48, 33), (160, 1)])
def test_the_device_expands_by_the_same_cipher(start, count):
    key = jnp.asarray(np.frombuffer(KEY, "<u4"))
    whole = chacha.tape(KEY, 0, (300,))
    found = jax.jit(lambda key, start: chacha.expand(key, start, count))(key, start)
    assert found.dtype == jnp.uint32
    np.testing.assert_array_equal(found, whole[start : start + count])


def test_streams_and_keys_differ():
    tapes = [chacha.tape(KEY, stream, (1000,)) for stream in (0, 1, 2**96 - 1)]
    tapes.append(chacha.tape(KEY[::-1], 0, (1000,)))
    for i, one in enumerate(tapes):
        for other in tapes[:i]:
            # 20 equal words in 1000 have probability below 1e-150.
            assert np.sum(one == other) < 20
    with pytest.raises(OverflowError):
        chacha.tape(KEY, 2**96, (1,))


def test_tape_shape():
    tape = chacha.tape(KEY, 5, (3, 4, 2))
    assert tape.shape == (3, 4, 2) and tape.dtype == np.uint32
    np.testing.assert_array_equal(tape.ravel(), chacha.tape(KEY, 5, (24,)))


def test_normal_is_standard_normal():
    draws = np.asarray(variates.normal(chacha.tape(KEY, 0, (200_000,))), np.float64)
    assert draws.std() == pytest.approx(1, abs=6 / 400_000**0.5)
    assert stats.kstest(draws, "norm").pvalue > 1e-7


def test_normal_is_symmetric_and_bounded():
    words = np.append(chacha.tape(KEY, 1, (10_000,)), [0, 1, 2**32 - 1]).astype("u4")
    draws = np.asarray(variates.normal(words))
    np.testing.assert_array_equal(draws, -np.asarray(variates.normal(words ^ 1)))
    assert 6.3 < np.max(abs(draws)) < 6.34
    assert draws.dtype == jnp.result_type(float)
    assert variates.normal(words, jnp.float32).dtype == jnp.float32


def release(integers, multiplier, unit=1.0, stream=2):
    words = chacha.tape(KEY, stream, (gaussian.WORDS_PER_COORDINATE * integers.size,))
    found = gaussian.add_noise(jnp.asarray(words), integers, unit, multiplier)
    return np.asarray(found, np.float64)


def zeros(*shape):
    with jax.enable_x64(True):
        return jnp.zeros(shape, jnp.int64)


@pytest.mark.parametrize("multiplier", [0.74, 2.0, 16.0])
def test_release_has_the_noise(multiplier):
    count, unit = 200_000, 0.7 / VECTOR_GRID
    found = release(zeros(count), multiplier, unit)
    sd = multiplier * 0.7
    spacing = 2.0 ** np.floor(np.log2(multiplier * VECTOR_GRID / 16)) * unit
    assert sd / 32 < spacing <= sd / 16
    np.testing.assert_allclose(found / spacing, np.rint(found / spacing), atol=1e-4)
    # Two coordinates in the list would share no lattice finer than the spacing.
    assert np.gcd.reduce(np.rint(found / spacing).astype(int)) == 1
    variance = sd**2 + spacing**2 / 12
    assert found.var() == pytest.approx(variance, rel=6 * (2 / count) ** 0.5)
    # Six standard errors: 2e-9.
    assert abs(found.mean()) < 6 * sd / count**0.5
    spread = found + spacing * (np.random.default_rng(0).random(count) - 0.5)
    assert stats.kstest(spread / variance**0.5, "norm").pvalue > 1e-7


def test_release_moves_with_the_sum():
    with jax.enable_x64(True):
        shift = jnp.full(1000, 3 * 2**36)
    # spacing is 2^29 cells, so the shift is 384 spacings.
    moved = release(shift, 2.0) - release(zeros(1000), 2.0)
    np.testing.assert_array_equal(moved, 3 * 2.0**36)


@pytest.mark.parametrize("multiplier", [np.nan, -1.0, 0.0, np.inf])
def test_what_is_no_noise_multiplier_releases_nothing(multiplier):
    with jax.enable_x64(True):
        integers = jnp.full(3, 10**9)
        multiplier = jnp.asarray(multiplier, jnp.float64)
    assert np.all(release(integers, multiplier) == 0)


def beyond(edges, noise_sd):
    """How many of 2^95 magnitudes are at least each edge, exactly, by bisection.

    The magnitudes fall with the 95-bit number but for those of the uniform law, which
    have the largest numbers.
    """
    edges = jnp.asarray(edges)

    def is_beyond(high, low):
        """Of a number whose first 64 bits are `high` and whose last 31 bits `low`."""
        words = high >> 32, high & (2**32 - 1), low << 1
        words = (word.astype(jnp.uint32) for word in words)
        return -noise_sd * gaussian._standard_noise(*words) >= edges

    def count(predicate, size):
        """How many of the first numbers below `size` it holds for."""
        few = jnp.zeros(len(edges), jnp.uint64)
        many = jnp.full(len(edges), size, jnp.uint64)

        def halve(_, bounds):
            few, many = bounds
            middle = few + (many - few) // 2
            holds = predicate(middle) & (few < many)
            few = jnp.where(holds, middle + 1, few)
            return few, jnp.where(holds, many, middle)

        return jax.lax.fori_loop(0, 65, halve, (few, many))[0]

    @jax.jit
    def counted():
        last = jnp.full(len(edges), 2**31 - 1, jnp.uint64)
        high = count(lambda high: is_beyond(high, last), 2**64 - 2**18)
        return high, count(lambda low: is_beyond(high, low), 2**31)

    places = (np.arange(2**13) + 0.5) * (gaussian.REACH / 2**13)
    rare = [int(np.sum(noise_sd * places >= edge)) for edge in edges]
    parts = (np.asarray(part).tolist() for part in counted())
    return [high * 2**31 + low + n for high, low, n in zip(*parts, rare, strict=True)]


def cells(noise_sd, offset):
    """Chances of lattice cells as drawn and as ideal, up to 40 standard deviations.

    Zero lies the share `offset` into its cell, up to rounding to the grid.
    """
    spacing = max(1.0, 2.0 ** np.floor(np.log2(noise_sd / 16)))
    count = int(gaussian.REACH * noise_sd / spacing)
    drawn, ideal = [], []
    for start in (offset, 1 - offset):
        edges = np.floor((np.arange(count) + start) * spacing) + 0.5
        with jax.enable_x64(True), mpmath.workdps(60):
            numbers = [mpmath.mpf(n) / 2**96 for n in beyond(edges, noise_sd)]
            scale = mpmath.mpf(noise_sd) * mpmath.sqrt(2)
            tails = [mpmath.erfc(edge / scale) / 2 for edge in edges.tolist()]
            for found, beyond_edge in ((drawn, numbers), (ideal, tails)):
                found += [a - b for a, b in itertools.pairwise(beyond_edge)]
                found.append(beyond_edge[0])
    # The last entry of each half is what is missing to 1/2 in the cell of zero.
    half = len(drawn) // 2
    for found in drawn, ideal:
        middle = 1 - found.pop(half - 1) - found.pop()
        found.append(middle)
    return drawn, ideal


NOISE_SDS = {
    "finest lattice": 2.0 * VECTOR_GRID * (1 - 2.0**-20),
    "coarsest lattice": 2.0 * VECTOR_GRID,
    "loudest": gaussian.MAX_NOISE_MULTIPLIER * VECTOR_GRID * (1 - 2.0**-20),
    "lattice of the grid": 20.3,
    "cells of a standard deviation": 1.0,
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "offset"), [*zip(NOISE_SDS, [0.01, 0.2, 0.7, 0.2, 0.7], strict=True)]
)
def test_every_cell_of_the_lattice_has_its_chance(name, offset):
    """The two inequalities by which the accountant defines an event's errors."""
    drawn, ideal = cells(NOISE_SDS[name], offset)
    with mpmath.workdps(40):
        relative = mpmath.mpf(gaussian.RELATIVE_ERROR)
        lacking = max(
            mpmath.log(i / d) for i, d in zip(ideal, drawn, strict=True) if i > 0
        )
        # The other half of the bound is for what other devices make of logarithms.
        assert 0 <= lacking <= relative / 2
        usual = (1 - mpmath.mpf(gaussian.FAILURE_PROB)) * mpmath.exp(relative)
        surplus = sum(max(0, d - usual * i) for i, d in zip(ideal, drawn, strict=True))
        assert gaussian.FAILURE_PROB / 2 < surplus <= gaussian.FAILURE_PROB


ONES = 2**32 - 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((0, 0, 0), -stats.norm.isf(2.0**-97)),
        ((0, 0, 1), stats.norm.isf(2.0**-97)),
        ((0, 0, 2), -stats.norm.isf(3 * 2.0**-97)),
        ((2**31, 0, 0), -stats.norm.isf(0.25)),
        ((ONES, ONES, ONES - 1), -(40 - 20 * 2.0**-13)),
        ((ONES, ONES, ONES), 40 - 20 * 2.0**-13),
        ((ONES, ONES, (2**18 - 1) << 14), -20 * 2.0**-13),
        ((ONES, ONES, (2**18 - 1) << 14 | 2 << 1), -20 * 2.0**-13 * 5),
        ((ONES, ONES, (2**18 - 1) << 14 | 2**13), -(20 + 20 * 2.0**-13)),
        # One bit less than the 82 ones: the smallest usual magnitudes.
        ((ONES, ONES, ONES - 2**14), 0.0),
        ((ONES, ONES - 1, ONES), 0.0),
        ((ONES - 1, ONES, ONES), 0.0),
        ((ONES, ONES, 2**31 - 1), 0.0),
    ],
)
def test_single_words(words, expected):
    with jax.enable_x64(True):
        found = gaussian._standard_noise(*jnp.array(words, jnp.uint32))
        assert found.dtype == jnp.float64
    assert float(found) == pytest.approx(expected, rel=1e-14, abs=1e-9)


def test_single_bits():
    """Numbers with one bit set, by SciPy's quantiles. The last bit is the sign."""
    words = np.zeros((3, 96), np.uint32)
    for bit in range(96):
        words[2 - bit // 32, bit] = 2 ** (bit % 32)
    with jax.enable_x64(True):
        found = gaussian._standard_noise(*jnp.asarray(words))
    tails = np.array([(2**bit // 2 + 0.5) / 2**96 for bit in range(96)])
    expected = np.where(np.arange(96) == 0, 1, -1) * stats.norm.isf(tails)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-14)
