"""K-norm noise of a mixed norm has the law that is charged for what it clips."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpjax import privacy
from dpjax.privacy import audit
from dpjax.release import vector_sums
from dpjax.release.exact_sums import VECTOR_GRID
from dpjax.release.k_norm_sum import KNormSum
from dpjax.release.mixed_norm import MixedNorm
from tests.release.test_gaussian_sum import posterior_of, released
from tests.release.test_k_norm_sum import CLIP, spacing
from tests.release.test_vector_sums import numbers

NORM = MixedNorm((0, 3), 5)
"""Of two single components and three others, whose weight is sqrt(2)."""


def length(vector):
    """Of NORM, in Python's numbers."""
    others = math.hypot(*(float(vector[place]) for place in (1, 2, 4)))
    return abs(float(vector[0])) + abs(float(vector[3])) + math.sqrt(2) * others


def test_the_norm_is_what_it_says_and_at_least_the_euclidean_one():
    vectors = np.random.default_rng(0).normal(size=(50, 5)) ** 3
    found = np.asarray(NORM(jnp.asarray(vectors)))
    np.testing.assert_allclose(found, [length(row) for row in vectors], rtol=1e-5)
    assert np.all(found >= np.linalg.norm(vectors, axis=1) * (1 - 1e-6))
    alone = MixedNorm((0, 1), 2)
    np.testing.assert_allclose(alone(jnp.array([[3.0, -4.0]])), [7.0])


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.lists(numbers, min_size=5, max_size=5), min_size=2, max_size=2),
    clip_norm=st.sampled_from([1e-6, 0.7, 3.0]),
)
def test_sums_are_no_farther_apart_than_is_charged(rows, clip_norm):
    data = jnp.asarray(rows, jnp.result_type(float))
    first, second = (
        np.asarray(total(row[None], clip_norm)).astype(float) for row in data
    )
    for record in (first, second):
        assert length(record) <= VECTOR_GRID * (1 + 1e-15)
    assert length(first - second) <= 2 * VECTOR_GRID * (1 + 1e-15)


def total(data, clip_norm):
    return vector_sums.vector_sum(
        posterior_of(data), lambda record: record, clip_norm, norm=NORM
    )


def test_short_vectors_are_left_as_they_are():
    data = jnp.asarray(np.random.default_rng(2).normal(size=(30, 5)))
    found = np.asarray(total(data, 100.0), float) * 100.0 / VECTOR_GRID
    np.testing.assert_allclose(found, np.sum(data, axis=0), atol=30 * 100 / 2**16)


def test_the_noise_has_the_law():
    """Each test fails by chance in 1e-8."""
    release = KNormSum(CLIP, 1.5, norm=NORM)
    draws = released(release, posterior_of(jnp.zeros((5, 5))), 10_000)
    rest = np.random.default_rng(1).uniform(-0.5, 0.5, draws.shape)
    draws = draws + spacing(1.5) * rest
    sd = 1.5 * CLIP
    single, others = draws[:, [0, 3]], draws[:, [1, 2, 4]]
    for column in single.T:
        assert stats.kstest(column, stats.laplace(scale=sd / 2**0.5).cdf).pvalue > 1e-8
    radius = np.linalg.norm(others, axis=1)
    assert stats.kstest(radius, stats.gamma(3, scale=sd / 2).cdf).pvalue > 1e-8
    direction = stats.beta(1, 1, loc=-1, scale=2)
    assert stats.kstest(others[:, 1] / radius, direction.cdf).pvalue > 1e-8
    parts = np.abs(single[:, 0]), np.abs(single[:, 1]), radius
    for left, right in ((0, 1), (0, 2), (1, 2)):
        assert stats.spearmanr(parts[left], parts[right]).pvalue > 1e-8
    # Six standard errors of a variance whose law has a kurtosis of six at most.
    np.testing.assert_allclose(np.var(draws, axis=0) / sd**2, 1, atol=0.14)


@pytest.mark.parametrize(
    ("relation", "sensitivity"),
    [(Relation.REPLACE_ONE, 2.0), (Relation.REPLACE_SPECIAL, 1.0)],
)
def test_events(relation, sensitivity):
    event = KNormSum(3.0, 6.0, norm=NORM).event(5, relation)
    assert isinstance(event, privacy.PureRelease)
    assert event.largest_loss == pytest.approx(2**0.5 * sensitivity / 6.0)
    assert 0 < event.failure_prob < 1e-20
    assert 1e-10 < event.relative_error < 1e-8
    with pytest.raises(ValueError, match="norm is of 5 numbers, got 4"):
        KNormSum(3.0, 6.0, norm=NORM).event(4, relation)


@pytest.mark.parametrize("vector", [[1, 0, 0, 0, 0], [0.2, 0.3, 0, -0.3, 0.1]])
def test_an_attack_finds_no_more_than_is_charged(vector):
    """The likelihood ratio of two sums; a claim fails by chance in 1e-7."""
    noise, delta = 2.0, 1e-2
    release = KNormSum(CLIP, noise, norm=NORM)
    direction = np.array(vector, float) / length(vector)
    counts = []
    for seed, sign in enumerate((-1, 1)):
        data = jnp.zeros((4, 5)).at[0].set(sign * 1e6 * direction)
        draws = released(release, posterior_of(data), 20_000, seed)
        distance, other = (
            np.asarray(NORM(jnp.asarray(draws - one * CLIP * direction)))
            for one in (-1, 1)
        )
        scores = (distance - other) * 2**0.5 / noise / CLIP
        counts.append(np.digitize(scores, np.linspace(-2, 2, 33)))
    found = audit.epsilon_lower_bound(*counts, delta, significance=1e-7)
    claim = privacy.epsilon([(release.event(5, Relation.REPLACE_ONE), 1)], delta)
    assert 0.5 * claim < found <= claim
    # What would be charged if records were clipped at a third of what they are.
    quiet = KNormSum(CLIP / 3, 6.0, norm=NORM).event(5, Relation.REPLACE_ONE)
    assert found > privacy.epsilon([(quiet, 1)], delta)
