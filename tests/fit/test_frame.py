"""Frames whiten what they are told is the information."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.fit.frame import frame
from dpjax.fit.slopes import regular


def positive(rng, dim, rank=None):
    root = rng.standard_normal((dim, rank or dim))
    return root @ root.T


def test_a_frame_whitens_the_corrected_information():
    rng = np.random.default_rng(0)
    information, prior = 50 * positive(rng, 4), positive(rng, 4) + np.eye(4)
    correction = positive(rng, 4) + np.eye(4)
    with jax.enable_x64(True):
        axes = frame(*map(jnp.asarray, (information, prior, correction)))
        root = np.linalg.cholesky(information + prior)
        whole = root @ correction @ root.T
        stretch = np.asarray(axes.stretch)
        np.testing.assert_allclose(stretch @ axes.back, np.eye(4), atol=1e-9)
        np.testing.assert_allclose(stretch.T @ whole @ stretch, np.eye(4), atol=1e-9)
        rest = 1 - np.asarray(axes.data_share)
        np.testing.assert_allclose(
            stretch.T @ prior @ stretch, np.diag(rest), atol=1e-9
        )
        # A matrix in units of the frame stands for the same information elsewhere.
        matrix = positive(rng, 4) + np.eye(4)
        again = frame(
            jnp.asarray(information),
            jnp.asarray(prior),
            axes.corrected(jnp.asarray(matrix)),
        )
    units = np.linalg.inv(stretch)
    expected = units.T @ matrix @ units
    found = np.linalg.inv(np.asarray(again.stretch))
    np.testing.assert_allclose(found.T @ found, expected, rtol=1e-8)


def test_directions_of_which_records_say_nothing_are_not_asked():
    rng = np.random.default_rng(1)
    information = 100 * positive(rng, 3, rank=2)
    with jax.enable_x64(True):
        axes = frame(jnp.asarray(information), jnp.eye(3), jnp.eye(3))
        effective_dim = float(axes.effective_dim)
    assert np.sum(np.asarray(axes.is_measured)) == 2
    assert effective_dim == pytest.approx(np.sum(np.asarray(axes.data_share)))
    silent = np.asarray(axes.stretch)[:, ~np.asarray(axes.is_measured)]
    assert np.linalg.norm(information @ silent) < 1e-6 * np.linalg.norm(information)


def test_vague_priors_keep_a_share():
    """It would be zero, or negative, by rounding."""
    information = positive(np.random.default_rng(3), 3)
    with jax.enable_x64(True):
        axes = frame(jnp.asarray(information), 1e-20 * jnp.eye(3), jnp.eye(3))
        rest = 1 - np.asarray(axes.data_share)
    assert np.all(rest > 0) and np.all(rest < 1e-7)


def test_a_released_slope_is_shrunk_by_as_much_as_is_noise():
    rng = np.random.default_rng(2)
    asked = jnp.asarray([True, True, True, False])
    block = np.outer(asked, asked)
    slope = np.diag([1.4, 1.0, 0.6, 0.0])
    with jax.enable_x64(True):
        exact = regular(jnp.asarray(slope), 0.0, asked)
        noise = rng.standard_normal((4, 4)) * 5
        flat = regular(jnp.asarray(slope + noise + noise.T), 50.0, asked)
        low = regular(jnp.asarray(np.diag([2.0, 1.0, -3.0, 7.0])), 0.0, asked)
        exact, flat, low = map(np.asarray, (exact, flat, low))
    np.testing.assert_allclose(exact, slope, atol=1e-12)
    np.testing.assert_allclose(flat, flat[0, 0] * np.eye(4) * block, atol=1e-9)
    assert np.linalg.eigvalsh(low[:3, :3]).min() > 0


def test_a_correction_makes_no_information_where_records_tell_nothing():
    """An intercept and two effects, of which F knows the sums alone."""
    rows = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    information, null = 1e5 * rows.T @ rows, np.array([1.0, -1.0, -1.0])
    correction = np.diag([1.5, 0.8, 1.0]) + 0.1
    with jax.enable_x64(True):
        axes = frame(*map(jnp.asarray, (information, np.eye(3), correction)))
        back = np.asarray(axes.back)
    assert np.sum(np.asarray(axes.is_measured)) == 2
    np.testing.assert_allclose(back.T @ back @ null, null, atol=1e-6)
