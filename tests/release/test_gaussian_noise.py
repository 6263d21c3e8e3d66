"""The cipher against RFC 7539, the normals, and the release on its lattice."""

import itertools
import struct

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.scipy.special import ndtri
from scipy import stats

from dpjax.random import chacha, variates
from dpjax.release import gaussian
from dpjax.release.exact_sums import GRID
from tests.tiers import tiered

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
    words = jnp.asarray(chacha.tape(KEY, stream, (2 * integers.size,)))
    found = gaussian.add_noise(words, integers, unit, multiplier)
    return np.asarray(found, np.float64)


def zeros(*shape):
    with jax.enable_x64(True):
        return jnp.zeros(shape, jnp.float64)


@pytest.mark.parametrize("multiplier", [0.74, 2.0, 16.0])
def test_release_has_the_noise(multiplier):
    count, unit = 200_000, 0.7 / GRID
    found = release(zeros(count), multiplier, unit)
    sd = multiplier * 0.7
    spacing = 2.0 ** np.floor(np.log2(multiplier * GRID / 16)) * unit
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
        shift = jnp.full(1000, 2.0**20 * 3, jnp.float64)
    # spacing is 2^17 cells, so the shift is 24 spacings.
    moved = release(shift, 2.0) - release(zeros(1000), 2.0)
    np.testing.assert_array_equal(moved, 3 * 2.0**20)


@pytest.mark.parametrize("multiplier", [2.0, gaussian.MAX_NOISE_MULTIPLIER])
@pytest.mark.parametrize("offset", tiered([0.0, 0.2, 0.7], [0.2]))
def test_release_total_variation(multiplier, offset):
    """Exact mass of every lattice cell, by bisection on the 63-bit integer."""
    # Just below a power of two the lattice is finest: sd / 32.
    sd = GRID * multiplier * (1 - 2.0**-20)
    spacing = 2.0 ** np.floor(np.log2(sd / 16))

    def noise_of(uniform):
        high = (uniform >> 31).astype(jnp.float64) * 2.0**-33
        low = (uniform & (2**31 - 1)).astype(jnp.float64) * 2.0**-64
        return sd * -ndtri(high + low + 2.0**-65)

    def surplus(edges):
        """P(noise >= edge) of the sampler less that of the Gaussian, edge > 0."""
        few = jnp.zeros(len(edges), jnp.int64)
        many = jnp.full(len(edges), 2**63 - 1, jnp.int64)
        for _ in range(64):
            middle = few + (many - few) // 2
            beyond = noise_of(middle) >= edges
            few = jnp.where(beyond, middle + 1, few)
            many = jnp.where(beyond, many, middle)
        return [
            mpmath.mpf(count) / 2**64 - mpmath.erfc(edge / sd / mpmath.sqrt(2)) / 2
            for count, edge in zip(
                np.asarray(few).tolist(), map(mpmath.mpf, edges.tolist()), strict=True
            )
        ]

    with jax.enable_x64(True), mpmath.workdps(40):
        total = 0
        for start in (offset, 1 - offset):
            tail = surplus(np.floor((np.arange(290) + start) * spacing) + 0.5)
            # The last cell, beyond 9 standard deviations, is everything outside.
            total += sum(abs(a - b) for a, b in itertools.pairwise([*tail, 0]))
    assert 1e-16 < float(total) / 2 <= gaussian.TOTAL_VARIATION
