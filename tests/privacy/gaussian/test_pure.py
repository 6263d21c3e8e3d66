"""Releases with a bounded loss cost what randomised response does."""

import math

import numpy as np
import pytest
from scipy import stats

from dpjax import privacy
from dpjax.privacy import composition
from dpjax.privacy.gaussian import pure

LOSSES = [0.01, 0.7, 4.0]


def responses(largest, count):
    """Losses of so many responses and their probabilities, and those of the others."""
    truths = np.arange(count + 1)
    losses = largest * (2 * truths - count)
    chance = 1 / (1 + math.exp(-largest))
    return losses, *(stats.binom.pmf(truths, count, p) for p in (chance, 1 - chance))


@pytest.mark.parametrize("largest", LOSSES)
@pytest.mark.parametrize("count", [1, 5])
def test_delta_is_that_of_randomised_response(largest, count):
    _, own, other = responses(largest, count)
    for share in (0.0, 0.35, 0.8):
        epsilon = share * count * largest
        true = np.sum(np.maximum(own - math.exp(epsilon) * other, 0))
        claimed = privacy.delta([(privacy.PureRelease(largest), count)], epsilon)
        assert true * (1 - 1e-9) <= claimed + 1e-14
        # Losses are rounded up to a grid.
        assert claimed <= true * 1.01 + 1e-9


@pytest.mark.parametrize("largest", LOSSES)
def test_renyi_divergences_are_those_of_randomised_response(largest):
    orders = np.array([1.02, 1.5, 2.0, 7.0, 64.0])
    _, own, other = responses(largest, 1)
    expected = [
        math.log(np.sum(own**order * other ** (1 - order))) / (order - 1)
        for order in orders
    ]
    found = composition.renyi_curve(privacy.PureRelease(largest), orders)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.all(found >= np.array(expected) * (1 - 1e-9))


@pytest.mark.parametrize("dim", [1, 4, 100])
def test_no_release_of_this_loss_costs_more(dim):
    """Beside a Gaussian release, and alone."""
    rate, gaussian = 0.8, (privacy.GaussianRelease(4.0), 1)
    k_norm = privacy.KNormRelease(math.sqrt(dim + 1) / rate, dim)
    for others in ([gaussian], []):
        for epsilon in (0.1, 0.5, 1.0):
            mine, bound = (
                privacy.delta([*others, (event, 1)], epsilon)
                for event in (k_norm, privacy.PureRelease(k_norm.rate))
            )
            assert mine <= bound * (1 + 1e-6) + 1e-14


@pytest.mark.parametrize("largest", [1e-50, 1e-6, 1.0, 3e3, 1e50])
def test_extremes(largest):
    event = privacy.PureRelease(largest)
    epsilon = privacy.epsilon([(event, 2)], 1e-6)
    assert 0 <= epsilon <= 2.001 * largest
    assert largest > 100 or privacy.delta([(event, 1)], 1.001 * largest) == 0
    losses = pure.losses(event, largest / 100)
    assert losses.probabilities.sum() == pytest.approx(1, abs=1e-12)
