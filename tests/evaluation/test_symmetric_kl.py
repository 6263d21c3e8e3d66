import numpy as np
import pytest

from dpjax.evaluation import histogram, symmetric_kl

RNG = np.random.default_rng(0)


def test_divergence_of_two_coins():
    p, q = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    forward = np.sum(p * np.log(p / q))
    backward = np.sum(q * np.log(q / p))
    assert symmetric_kl(p, q) == pytest.approx(forward + backward)
    assert symmetric_kl(p, q) == symmetric_kl(q, p)
    assert symmetric_kl(p, p) == 0


def test_empty_bins_are_raised_to_the_floor():
    p, q = np.array([1.0, 0.0]), np.array([0.75, 0.25])
    expected = 0.25 * np.log(1 / 0.75) + 0.25 * np.log(0.25 / 1e-13)
    assert symmetric_kl(p, q) == pytest.approx(expected)
    assert symmetric_kl(p, q, floor=1e-3) < 0.4 * expected


def test_histogram_has_the_first_component_first():
    shares = histogram([[-0.9, 0.9], [0.1, 0.9], [0.2, 0.9], [0.0, 1.5]], -1, 1, 2)
    np.testing.assert_array_equal(shares, [[0, 0.25], [0, 0.5]])


def test_draws_of_the_reference_score_their_sampling_error():
    """For full bins the expectation is 2 sum (1 - q) / (2 m) (a chi-square)."""
    edges = 10
    draws = RNG.uniform(-3, 3, (200_000, 2))
    score = symmetric_kl(histogram(draws, -3, 3, edges), np.full((10, 10), 0.01))
    # m times the score is nearly chi-square with 99 degrees of freedom: 6 sd.
    assert abs(score * 200_000 - 99) < 6 * (2 * 99) ** 0.5


def test_refusals():
    with pytest.raises(ValueError, match="shapes"):
        symmetric_kl(np.ones(3) / 3, np.ones(4) / 4)
    with pytest.raises(ValueError, match="floor"):
        symmetric_kl(np.ones(3) / 3, np.ones(3) / 3, floor=0.0)
    with pytest.raises(ValueError, match="draws"):
        histogram(np.ones(3), -1, 1)
