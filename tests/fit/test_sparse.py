"""Where scores have few large components, a norm says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation

from dpjax import privacy
from dpjax.fit.frame import frame, sparse_turn
from dpjax.fit.sparse import sparse_norm
from dpjax.release.mixed_norm import MixedNorm
from dpjax.release.quietest_sum import is_quieter, mixed_norm_sum, quietest_sum

NUM_GROUPS = 20


def of_groups(rng, num_records=2000):
    """Scores along a slope and the intercepts of groups."""
    x, rest = rng.uniform(-1, 1, num_records), rng.standard_normal(num_records)
    groups = np.eye(NUM_GROUPS)[rng.integers(0, NUM_GROUPS, num_records)]
    return rest[:, None] * np.column_stack([x, groups])


def norm_of(scores):
    count, dim = scores.shape
    return sparse_norm(scores, np.full(count, 1 / count), np.eye(dim), 1e4)


def test_intercepts_of_groups_are_single():
    scores = of_groups(np.random.default_rng(0))
    norm = norm_of(scores)
    assert norm.single == tuple(range(1, NUM_GROUPS + 1)) and norm.others == (0,)
    # sqrt(20) + 1 over sqrt(21), for components that are as large as their mean square.
    assert 1.1 < norm.ratio < 1.4


def test_information_that_is_not_positive_has_no_norm():
    """Rounding may make that of a vague prior negative; here it is by far."""
    scores = of_groups(np.random.default_rng(4))
    weights = np.full(len(scores), 1 / len(scores))
    assert sparse_norm(scores, weights, -1e9 * np.eye(NUM_GROUPS + 1), 1e6) is None


def test_no_component_of_a_normal_score_is_single():
    assert norm_of(np.random.default_rng(1).normal(size=(2000, 6))) is None


def test_turned_scores_are_as_sparse_as_the_norm_says():
    scores = of_groups(np.random.default_rng(2))
    count, dim = scores.shape
    norm = norm_of(scores)
    information = 1e4 / count * scores.T @ scores
    with jax.enable_x64(True):
        axes = frame(jnp.asarray(information), jnp.eye(dim), jnp.eye(dim))
        turn = np.asarray(sparse_turn(axes.back, norm))
        found = scores @ np.asarray(axes.stretch) @ turn
        mixed = np.asarray(norm(jnp.asarray(found)))
    np.testing.assert_allclose(turn @ turn.T, np.eye(dim), atol=1e-9)
    # Only the intercept of a record's own group, and the slope.
    is_large = np.abs(found) > 1e-6 * np.abs(found).max(axis=1, keepdims=True)
    assert np.all(is_large == ((scores != 0) | (np.arange(dim) == 0)))
    ratio = np.sqrt(np.mean(mixed**2) / np.mean(np.sum(found**2, axis=1)))
    assert ratio == pytest.approx(norm.ratio, abs=1e-4)


@pytest.mark.parametrize(("ratio", "is_chosen"), [(1.3, True), (3.0, False)])
def test_the_norm_is_chosen_where_its_noise_is_least(ratio, is_chosen):
    norm = norm_of(of_groups(np.random.default_rng(3)))
    others = [(privacy.GaussianRelease(12.0), 1)]
    budget = privacy.Budget(1.0, 1e-6)
    norm = MixedNorm(norm.single, norm.size, ratio)
    mixed = mixed_norm_sum(norm, others, budget)
    event = mixed.event(norm.size, Relation.REPLACE_ONE)
    assert 0.999 < privacy.epsilon([*others, (event, 1)], 1e-6) <= 1.0
    assert is_quieter(mixed, quietest_sum(1.0, norm.size, others, budget)) == is_chosen
