"""Draws from made-up releases: known slopes, unknown slopes, nothing at all."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

import dpjax
from dpjax.fit.fit_check import FitCheck
from dpjax.fit.normal_laws import PriorLaw, laws_of
from dpjax.fit.released import Released
from dpjax.fit.score_draws import draws, evidence_of
from dpjax.fit.slopes import LEVEL_SD, MEDIAN_SPREAD, SPREAD_SD, slopes
from dpjax.runner.checks import of_fit

DIM, NUM_RECORDS = 3, 2000
PRIOR_SD = 20.0
SLOPE = np.diag([0.6, 0.5, 0.4])
TARGET = dpjax.Posterior(
    lambda y: -jnp.sum(y**2) / (2 * PRIOR_SD**2), lambda y, record: 0.0, jnp.zeros(1)
)


def released(slope, slope_noise_sd, score_noise_sd, truth, seed, excess=0.0):
    """What a fit of a normal model would release, where only J is not the identity."""
    rng = np.random.default_rng(seed)
    places = np.array([[3.0, -2.0, 1.0], [0.5, 0.5, -0.5], [0.0, 0.0, 0.0]])
    noise_sds = score_noise_sd * np.array([10.0, 3.0, 1.5]) ** 0.5
    scatter = np.linalg.cholesky(slope) @ rng.normal(size=DIM)
    noise = noise_sds[:, None] * rng.normal(size=places.shape)
    noisy = slope_noise_sd * rng.normal(size=(DIM, DIM))
    return Released(
        position=np.zeros(DIM),
        stretch=np.eye(DIM),
        data_share=np.full(DIM, 1 - PRIOR_SD**-2.0),
        prior_mean=np.zeros(DIM),
        places=places,
        scores=(truth - places) @ slope + scatter + noise,
        slope=slope + (noisy + noisy.T) / 2,
        drift=np.array(1.0),
        score_noise_sds=noise_sds,
        search_noise_sd=np.array(1e9),
        slope_noise_sd=slope_noise_sd,
        clip_norm=np.array(2.0),
        clipped=np.array(0.25),
        inefficiency=np.array(1.0),
        variance=np.zeros((DIM, DIM)),
        variance_noise_sd=np.array(0.0),
        lost=np.array(0.0),
        lost_noise_sd=np.array(0.0),
        num_records=np.array(float(NUM_RECORDS)),
        excess=np.array(excess),
        excess_noise_sd=np.array(40.0),
        expected_square=np.array(900.0),
    )


def nothing_lost(released):
    return 0.0


def drawn(found, num_draws=4000, lost_fn=nothing_lost):
    found = jax.tree.map(jnp.asarray, found)
    return draws(TARGET, found, jax.random.key(1), num_draws, jnp.zeros(DIM), lost_fn)


@pytest.mark.thorough
def test_a_slope_without_noise_gives_the_posterior_in_closed_form():
    noise_sd = 0.5
    found = released(SLOPE, 1e-4, noise_sd, np.array([1.0, -1.0, 2.0]), 0, 90.0)
    y, known = drawn(found)

    weights = found.score_noise_sds**-2.0
    place, score = (
        weights @ leaf / weights.sum() for leaf in (found.places, found.scores)
    )
    inverse = np.linalg.inv(SLOPE + np.eye(DIM) / weights.sum())
    precision = SLOPE @ inverse @ SLOPE + np.eye(DIM) / PRIOR_SD**2
    mean = np.linalg.solve(precision, SLOPE @ inverse @ (score + SLOPE @ place))
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    # Standard errors of 4000 draws are .016 and .011: six of them. Curvature adds a
    # few per cent to the noise.
    assert np.abs((np.mean(y, 0) - mean) / sd).max() < 0.1
    np.testing.assert_allclose(np.std(y, 0) / sd, 1, atol=0.08)
    assert known.resolution > 100
    variance = 40**2 + 900 * (1 + DIM * known.position_error**2)
    assert known.fit_check == pytest.approx((1.1, variance**0.5 / 900))


@pytest.mark.thorough
def test_what_clipping_loses_is_known():
    found = released(SLOPE, 1e-4, 0.5, np.ones(DIM), 0, 90.0)
    _, without = drawn(found, 20)
    _, known = drawn(found, 20, lambda released: DIM)
    assert known.position_error**2 == pytest.approx(without.position_error**2 + 1)
    assert known.records == pytest.approx(without.records / 2)
    assert known.prior == pytest.approx(without.prior / 2)
    assert known.fit_check == without.fit_check


@pytest.mark.thorough
def test_a_second_fit_compiles_nothing(compilations):
    found = [released(SLOPE, 1e-4, 0.5, np.ones(DIM), seed) for seed in (1, 2)]
    drawn(found[0], num_draws=40)
    assert compilations
    compilations.clear()
    drawn(found[1], num_draws=40)
    assert not compilations


@pytest.mark.thorough
def test_where_nothing_is_resolved_the_draws_are_the_priors():
    found = released(SLOPE, 100.0, 1000.0, np.zeros(DIM), 0)
    y, known = drawn(found)
    # Standard errors of 4000 draws are .016 and .011: six of them.
    assert np.abs(np.mean(y, 0)).max() < 0.1 * PRIOR_SD
    np.testing.assert_allclose(np.std(y, 0) / PRIOR_SD, 1, atol=0.07)
    assert known.resolution < 0.5 and known.records < 0.01
    (check,) = (each for each in of_fit(known) if not each.is_fine and each.is_warned)
    assert "times as many records or as large an epsilon" in check.advice


@pytest.mark.thorough
@pytest.mark.parametrize("seen", [np.zeros(4), np.array([5.0, -3.0, 4.0, -2.0])])
def test_effects_of_unknown_scale_are_those_of_quadrature(seen):
    """The first component is the log scale of the others: there is no mode."""
    dim = 1 + len(seen)

    def logprior(y):
        effects = y[1:] * jnp.exp(-y[0])
        return -(y[0] ** 2) / 2 - jnp.sum(effects**2) / 2 - len(seen) * y[0]

    slope, noise_sd = np.diag(np.append(0.0, np.full(len(seen), 0.6))), 0.3
    found = released(SLOPE, 1e-4, 0.5, np.zeros(DIM), 0)._replace(
        position=np.zeros(dim),
        stretch=np.eye(dim),
        data_share=np.append(0.0, np.full(len(seen), 0.85)),
        prior_mean=np.zeros(dim),
        places=np.zeros((1, dim)),
        scores=np.append(0.0, seen)[None] @ slope,
        slope=slope,
        score_noise_sds=np.array([noise_sd]),
        variance=np.zeros((dim, dim)),
    )
    target = dataclasses.replace(TARGET, logprior_fn=logprior)
    found = jax.tree.map(jnp.asarray, found)
    y, _ = draws(target, found, jax.random.key(1), 4000, jnp.zeros(dim), nothing_lost)

    variance = (0.6 + noise_sd**2) / 0.6**2
    log_scale = np.linspace(-9, 6, 4001)[:, None]
    squares = np.exp(2 * log_scale)
    of_effects = np.log(squares + variance) + seen**2 / (squares + variance)
    chance = np.exp(-(log_scale[:, 0] ** 2) / 2 - of_effects.sum(axis=1) / 2)
    chance /= chance.sum()
    kept = squares / (squares + variance)
    means = np.hstack([log_scale, kept * seen])
    inner = np.hstack([0 * log_scale, np.repeat(kept * variance, len(seen), axis=1)])
    mean = chance @ means
    sd = np.sqrt(chance @ (inner + (means - mean) ** 2))
    # Standard errors of 4000 draws are .016 and .011. What their short chains do not
    # forget of the normal law they start from adds .01 and .03. As six standard errors
    # more are allowed, a false alarm has a probability below 1e-7.
    assert np.abs((np.mean(y, 0) - mean) / sd).max() < 0.11
    np.testing.assert_allclose(np.std(y, 0) / sd, 1, atol=0.1)


def test_a_model_holds_within_noise_and_chance():
    for excess in (175.0, -175.0):
        check = FitCheck.of(excess, 40.0, 900.0, 900.0)
        assert check == pytest.approx((1 + excess / 900, 50 / 900))
        assert not check.holds
        assert FitCheck.of(0.9 * excess, 40.0, 900.0, 900.0).holds


@pytest.mark.thorough
def test_intervals_cover_where_noise_hides_the_slope():
    """Truths and slopes come from their priors, so 90 % intervals cover 90 %."""
    eye, asked, num_sets, covered = np.eye(DIM), np.ones(DIM, bool), 80, 0
    prior = PriorLaw(np.zeros(DIM), eye / PRIOR_SD**2)
    for seed in range(num_sets):
        rng = np.random.default_rng(1000 + seed)
        # The level of a clip norm of two is .5.
        level = 0.5 * np.exp(LEVEL_SD * rng.normal())
        spread = MEDIAN_SPREAD * np.exp(SPREAD_SD * rng.normal())
        turns = rng.normal(size=(DIM, DIM))
        half = eye + spread * (turns + turns.T) / np.sqrt(4 * DIM)
        slope = level * half @ half * (1 - PRIOR_SD**-2.0)
        truth = PRIOR_SD * rng.normal(size=DIM)
        evidence = evidence_of(released(slope, 0.3, 0.5, truth, seed), asked, 1.0)
        key = jax.random.key(seed)
        found = slopes(evidence, prior.mean, key, 128)
        laws = laws_of(evidence, prior, asked, found)
        sd = np.sqrt(np.sum(laws.root[:, 0] ** 2, axis=1))
        chance = np.mean(ndtr((truth[0] - laws.mean[:, 0]) / sd))
        covered += 0.05 < chance < 0.95
    # A false alarm has a chance below 2e-7.
    assert binom.cdf(covered, num_sets, 0.9) > 1e-7
    assert binom.sf(covered - 1, num_sets, 0.9) > 1e-7
