"""What is foretold of a fit is what a release says of the parameters."""

import numpy as np
import pytest
from scipy.stats import norm

from dpjax.fit.foretold import MadeUp, Noise
from dpjax.release.mixed_norm import MixedNorm

NUM_RECORDS, PRECISION = 400, 400.0


def normal(dim, tempering=1.0):
    """Scores of normal records with unit variance, at a prior of their own weight."""
    scores = np.random.default_rng(0).normal(size=(20_000, dim))
    return MadeUp(scores, PRECISION * np.eye(dim), tempering)


@pytest.mark.parametrize("mixed", [None, MixedNorm((0,), 2, 1.2)])
def test_the_width_is_that_of_what_a_release_leaves_unknown(mixed):
    """Parameters and releases are drawn 10,000 times, and one regressed on the other.

    The variance that is left has the relative sd sqrt(2 / 20,000) = .01, and the test
    allows .05: it fails by chance with a probability below 1e-6.
    """
    rng, num_draws, dim, sigma = np.random.default_rng(1), 10_000, 2, 12.0
    model = normal(dim)
    widths = model.widths(NUM_RECORDS, Noise(sigma, norm=mixed))
    unit = np.sqrt(1.0 / NUM_RECORDS)  # Half of the information on two parameters.
    whitened = 1 / np.sqrt(NUM_RECORDS + PRECISION) / unit

    def length(vectors):
        if mixed is None:
            return np.linalg.norm(vectors, axis=1)
        return (np.abs(vectors[:, 0]) + np.abs(vectors[:, 1])) / mixed.ratio

    lengths = length(model.scores) * whitened
    clip_norm = model._clip_norm(lengths, unit, sigma) / whitened
    assert 0.5 < clip_norm < 2  # It binds.
    theta = rng.normal(size=(num_draws, dim)) / np.sqrt(PRECISION)
    released = clip_norm * sigma * rng.normal(size=(num_draws, dim))
    for _ in range(NUM_RECORDS):
        records = theta + rng.normal(size=(num_draws, dim))
        kept = np.minimum(1, clip_norm / length(records))
        released += records * kept[:, None]
    slope = np.sum(theta * released) / np.sum(released**2)
    left = np.mean((theta - slope * released) ** 2)
    found = left * (NUM_RECORDS + PRECISION)
    np.testing.assert_allclose(widths**2, found, rtol=0.05)


def test_without_noise_nothing_is_lost_and_with_much_the_prior_is_left():
    model = normal(3)
    np.testing.assert_allclose(model.widths(NUM_RECORDS, Noise(0.0)), 1, atol=1e-2)
    most = np.sqrt((NUM_RECORDS + PRECISION) / PRECISION)
    np.testing.assert_allclose(model.widths(NUM_RECORDS, Noise(1e6)), most, rtol=1e-2)


def test_clipping_loses_what_it_does_of_a_normal_mean():
    """The variance of clipped scores over the square of their slope is 1.107."""
    scores = np.random.default_rng(0).normal(size=(100_000, 1))
    model = MadeUp(scores, 1e-3 * np.eye(1), 1.0)
    kept = 2 * norm.cdf(1) - 1
    variance = kept - 2 * norm.pdf(1) + 2 * norm.sf(1)
    # Six standard errors of 100,000 scores.
    assert abs(model.lost(NUM_RECORDS, 1.0) - (variance / kept**2 - 1)) < 0.02
    assert abs(model.lost(NUM_RECORDS, 100.0)) < 1e-4


@pytest.mark.parametrize("slope", [0.0, 20.0])
def test_draws_widen_with_the_noise(slope):
    found = [
        normal(3).widths(NUM_RECORDS, Noise(noise, slope)) for noise in (1, 5, 20, 80)
    ]
    assert np.all(np.diff(found, axis=0) > 0)


def test_noise_on_the_slope_widens_draws():
    found = [normal(3).widths(NUM_RECORDS, Noise(5.0, s)) for s in (0.0, 10.0, 20.0)]
    assert np.all(np.diff(found, axis=0) > 0)


def test_tempering_divides_what_records_say_and_not_the_noise():
    """With T = 1/4, noise is a fourth of what it is for as much information."""
    whole = normal(2).widths(NUM_RECORDS, Noise(10.0))
    tempered = normal(2, tempering=0.25).widths(4 * NUM_RECORDS, Noise(10.0))
    assert np.all(tempered < whole) and np.all(tempered > 1)


@pytest.mark.parametrize("slope", [0.0, 5.0])
def test_what_records_do_not_tell_changes_nothing(slope):
    """A parameter with no score, such as the scale of effects that are zero."""
    model, noise = normal(3), Noise(5.0, slope)
    more = MadeUp(
        np.pad(model.scores, ((0, 0), (1, 0))),
        np.pad(model.prior_precision, ((1, 0), (1, 0))) + np.diag([2.0, 0, 0, 0]),
        1.0,
    )
    expected = [1.0, *model.widths(NUM_RECORDS, noise)]
    np.testing.assert_allclose(more.widths(NUM_RECORDS, noise), expected, rtol=0.02)


def test_redraws_lose_what_they_do_not_keep():
    """Half of what is known of two parameters comes from the records."""
    model = normal(2)._replace(kept=0.8)
    expected = 2 * (1 / (0.5 * 0.8 + 0.5) - 1)
    # Of 20,000 scores.
    np.testing.assert_allclose(model.lost(NUM_RECORDS, 100.0), expected, rtol=0.02)
