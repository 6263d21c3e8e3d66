"""Draws of effects of unknown scale, from releases of the effects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import dpjax
from dpjax.fit.normal_laws import Laws
from dpjax.fit.pinned import Pinned
from dpjax.fit.pinned_draws import _log_weights, _Whitened, draws
from dpjax.fit.released import Released
from dpjax.fit.slopes import Evidence

NUM_EFFECTS = 4
DIM = 1 + NUM_EFFECTS
SLOPE, NOISE_SD, SHARE = 0.6, 0.3, 0.85
# The first component is the log scale of the effects.
PINNED = Pinned(
    np.zeros(DIM), np.arange(1, DIM), lambda theta: jnp.exp(theta[0]) * theta[1:]
)
TARGET = dpjax.Posterior(
    lambda theta: -jnp.sum(theta**2) / 2, lambda theta, record: 0.0, jnp.zeros(1)
)


def released(seen):
    """With the slope known, and one score, which is that of `seen`."""
    zero, matrix = np.array(0.0), np.zeros((NUM_EFFECTS, NUM_EFFECTS))
    found = Released(
        position=np.zeros(NUM_EFFECTS),
        stretch=np.eye(NUM_EFFECTS),
        data_share=np.full(NUM_EFFECTS, SHARE),
        prior_mean=np.zeros(NUM_EFFECTS),
        places=np.zeros((1, NUM_EFFECTS)),
        scores=SLOPE * seen[None],
        slope=SLOPE * np.eye(NUM_EFFECTS),
        drift=np.array(1.0),
        score_noise_sds=np.array([NOISE_SD]),
        search_noise_sd=np.array(1e9),
        slope_noise_sd=np.array(1e-4),
        clip_norm=np.array(2.0),
        clipped=np.array(0.25),
        inefficiency=np.array(1.0),
        variance=matrix,
        variance_noise_sd=zero,
        lost=zero,
        lost_noise_sd=zero,
        num_records=np.array(1e8),
        excess=zero,
        excess_noise_sd=np.array(40.0),
        expected_square=np.array(900.0),
    )
    return jax.tree.map(jnp.asarray, found)


def moments(seen):
    """Mean and sd of the log scale and the effects, by quadrature."""
    variance = (SLOPE + NOISE_SD**2) / SLOPE**2
    log_scale = np.linspace(-9, 6, 4001)[:, None]
    squares = np.exp(2 * log_scale)
    of_effects = np.log(squares + variance) + seen**2 / (squares + variance)
    chance = np.exp(-(log_scale[:, 0] ** 2) / 2 - of_effects.sum(axis=1) / 2)
    chance /= chance.sum()
    kept = squares / (squares + variance)
    means = np.hstack([log_scale, kept * seen])
    inner = [0 * log_scale, np.repeat(kept * variance, len(seen), axis=1)]
    mean = chance @ means
    return mean, np.sqrt(chance @ (np.hstack(inner) + (means - mean) ** 2))


@pytest.mark.thorough
@pytest.mark.parametrize("seen", [np.zeros(4), np.array([5.0, -3.0, 4.0, -2.0])])
def test_effects_of_unknown_scale_are_those_of_quadrature(seen):
    """Standard errors of 8000 draws that are worth a third of them are .02: six."""
    with jax.debug_key_reuse(False):  # BlackJAX's NUTS keeps a key in a loop.
        theta, known = draws(
            TARGET,
            released(seen),
            jax.random.key(1),
            8000,
            jnp.zeros(DIM),
            pinned=PINNED,
            prior_mean=np.zeros(DIM),
            prior_precision=np.eye(DIM),
            lost_fn=lambda released: 0.0,
        )
    found = np.array(theta, np.float64)
    found[:, 1:] *= np.exp(found[:, :1])
    mean, sd = moments(seen)
    assert np.abs((np.mean(found, 0) - mean) / sd).max() < 0.12
    np.testing.assert_allclose(np.std(found, 0) / sd, 1, atol=0.1)
    assert known.num_directions == NUM_EFFECTS and known.r_hat < 1.1
    # Without noise, the variance of what the records say is that of the scatter alone.
    of_noise = NOISE_SD**2 / SLOPE
    assert 0.1 * of_noise < known.position_error**2 < 2 * of_noise
    assert known.records + known.prior + known.noise == pytest.approx(1)


@pytest.mark.thorough
def test_the_volume_of_the_coordinates_is_that_of_their_derivative():
    with jax.enable_x64(True):
        rows = np.random.default_rng(0).normal(size=(1, NUM_EFFECTS, NUM_EFFECTS))
        near = Laws(rows, np.ones((1, NUM_EFFECTS)), np.ones((1, NUM_EFFECTS)), rows)
        whitened = _Whitened.of(
            PINNED,
            released(np.ones(NUM_EFFECTS)),
            np.ones(NUM_EFFECTS, bool),
            near,
            np.zeros(DIM),
            np.diag([4.0, 1, 2, 3, 4]),
            True,
        )
        x = jnp.asarray(np.random.default_rng(1).normal(size=(2, DIM)))
        matrices = jax.vmap(jax.jacfwd(lambda x: whitened.theta(x)[0]))(x)
        _, exact = np.linalg.slogdet(np.asarray(matrices))
        volume = np.asarray(jax.vmap(lambda x: whitened.theta(x)[1])(x))
    # The units of the log scale are the same everywhere.
    np.testing.assert_allclose(volume - exact, np.log(2), rtol=1e-9)


def test_weights_are_ratios_of_normal_densities():
    rng = np.random.default_rng(0)
    mean, score = rng.normal(size=(2, 3))
    covariance = np.diag([1.0, 2.0, 3.0])
    roots = rng.normal(size=(5, 3, 3))
    slopes = roots @ np.swapaxes(roots, 1, 2) + 0.1 * np.eye(3)
    evidence = Evidence(
        slope=slopes[0],
        slope_noise_sd=0.1,
        regular=slopes[0],
        data_share=np.full(3, 0.9),
        stretch=np.eye(3),
        back=np.eye(3),
        level=0.5,
        places=np.zeros((1, 3)),
        scores=score[None],
        score_sds=np.array([0.4]),
        arrival_sd=1e9,
        inefficiency=0.8,
        variance=np.zeros((3, 3)),
    )
    y = np.array([0.3, -0.2, 0.5])
    found = _log_weights(evidence, mean, covariance, slopes)
    for weight, slope in zip(found, slopes, strict=True):
        scatter = evidence.scatter(slope, 0.4)
        rest = score - slope @ y
        given = weight - rest @ np.linalg.solve(scatter, rest) / 2
        whole = slope @ covariance @ slope + scatter
        exact = multivariate_normal(slope @ y, scatter).logpdf(score)
        exact -= multivariate_normal(slope @ mean, whole).logpdf(score)
        np.testing.assert_allclose(given, exact, rtol=1e-9)
