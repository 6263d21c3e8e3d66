import numpy as np
import pytest

from dpjax.evaluation import coverage_rmse, noise_floor
from dpjax.evaluation.tarp import (
    LEVELS,
    coverage,
    rmse_with_error,
    shares,
    shares_marginal,
)

DRAWS = 500


def conjugate(rng, scale=1.0, shift=0.0, num_draws=DRAWS, dim=2):
    """Truths from N(0, I), one observation each with unit noise, and the posterior."""
    truth = rng.normal(size=(num_draws, dim))
    mean = (truth + rng.normal(size=truth.shape)) / 2
    sd = scale * 0.5**0.5
    samples = mean[:, None] + sd * rng.normal(size=(num_draws, 400, dim)) + shift
    return samples, truth, mean


def test_noise_floor_is_the_published_one():
    floor = noise_floor(np.random.default_rng(0), DRAWS, 2000)
    # Six standard errors of a mean, of sd .007 each: 2e-9, and rounding.
    assert abs(floor.mean() - 0.016) < 6 * 0.007 / 2000**0.5 + 5e-4
    # Six binomial standard errors about 5 %, and the rounding of .030.
    assert abs(np.mean(floor < 0.030) - 0.95) < 6 * (0.05 * 0.95 / 2000) ** 0.5 + 0.01
    few = noise_floor(np.random.default_rng(0), 20, 2000)
    assert abs(few.mean() - 0.083) < 6 * 0.033 / 2000**0.5 + 5e-4


def test_exact_posteriors_are_within_the_floor():
    rng = np.random.default_rng(1)
    arguments = conjugate(rng)
    # The Cramer-von Mises statistic, n times the mean square, exceeds 1.168 with chance
    # .001 and has a tail of exp(-pi^2 x / 2): 3.4 bounds sixty of them at 1e-6.
    limit = (3.4 / DRAWS) ** 0.5
    joint = coverage(shares(rng, *arguments))
    assert joint.shape == (20, len(LEVELS))
    assert np.all(coverage_rmse(joint) < limit)
    marginal = coverage(shares_marginal(rng, *arguments))
    assert marginal.shape == (2, 20, len(LEVELS))
    assert np.all(coverage_rmse(marginal) < limit)


def test_coverage_of_zero_or_one_scores_as_published():
    for value in (0.0, 1.0):
        score = coverage_rmse(np.full(21, value))
        np.testing.assert_allclose(score, 0.5844, atol=5e-5)


@pytest.mark.parametrize("changes", [dict(scale=0.4), dict(scale=2.0), dict(shift=1.0)])
def test_wrong_posteriors_score_above_the_floor(changes):
    rng = np.random.default_rng(2)
    floor = noise_floor(rng, DRAWS, 1000).max()
    arguments = conjugate(rng, **changes)
    assert coverage_rmse(coverage(shares(rng, *arguments))).min() > floor
    assert coverage_rmse(coverage(shares_marginal(rng, *arguments))).min() > floor


def test_overconfident_posteriors_cover_too_seldom():
    rng = np.random.default_rng(4)
    found = coverage(shares(rng, *conjugate(rng, scale=0.2)))
    assert found[:, LEVELS > 0.89].max() < 0.7


def test_reference_points_off_the_center_see_a_mirrored_posterior():
    rng = np.random.default_rng(5)
    truth = rng.exponential(size=(DRAWS, 1))
    samples = -rng.exponential(size=(DRAWS, 200, 1))
    score = coverage_rmse(coverage(shares(rng, samples, truth, np.zeros_like(truth))))
    assert score.min() > noise_floor(rng, DRAWS).max()


def test_refuses_bad_arguments():
    rng = np.random.default_rng(3)
    samples, truth, center = conjugate(rng, num_draws=3)
    with pytest.raises(ValueError, match="num_samples"):
        shares(rng, samples[:2], truth, center)
    with pytest.raises(ValueError, match="num_samples"):
        shares_marginal(rng, samples, truth[:, :1], center)
    samples[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="finite"):
        shares(rng, samples, truth, center)


def test_error_is_the_sd_over_draws():
    """Of biased posteriors, whose error has a mean and an sd far from zero."""
    rng = np.random.default_rng(6)
    samples, truth, center = conjugate(rng, shift=0.7, num_draws=6000)
    found = shares(rng, samples, truth, center, num_repeats=2)
    assert found.shape == (2, 6000)
    parts = found.reshape(2, 20, 300)
    errors = [rmse_with_error(rng, parts[:, i]) for i in range(20)]
    each = coverage_rmse(coverage(np.moveaxis(parts, 1, 0))).mean(axis=1)
    np.testing.assert_allclose([rmse for rmse, _ in errors], each)
    # The sd of 20 normal numbers is neither half nor three times: 6e-7, chi-squared.
    ratio = np.mean([sd for _, sd in errors]) / each.std(ddof=1)
    assert 0.5 < ratio < 3
