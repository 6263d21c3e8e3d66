"""Distances, symmetry and memory of the proposals, also on pytrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import fisher, proposals
from dpjax.random import chacha

KEY = bytes(range(32))
MEMORYLESS = {
    "gaussian": proposals.gaussian,
    "fixed_length": proposals.fixed_length,
    "one_component": proposals.one_component,
}


def moves(proposal, position, step_size, count=4000, walk=None):
    """`count` moves from one position, with the words that made them."""
    dim = sum(jnp.size(leaf) for leaf in jax.tree.leaves(position))
    words = jnp.asarray(chacha.tape(KEY, 0, (count, proposal.num_words(dim))))
    walk = proposal.init(position) if walk is None else walk
    propose = jax.vmap(lambda w: proposal.propose(w, position, walk, step_size))
    return words, jax.jit(propose)(words)


def test_fixed_length_moves_its_length():
    _, move = moves(proposals.fixed_length, jnp.zeros(5), 0.25)
    np.testing.assert_allclose(np.linalg.norm(move.position, axis=1), 0.25, rtol=1e-6)
    assert np.all(np.asarray(move.distance) == 0.25)
    assert proposals.fixed_length.longest(0.25) == 0.25
    # Every direction: the projection of a uniform point of the 5-sphere is a beta.
    share = np.asarray(move.position)[:, 0] ** 2 / 0.25**2
    assert stats.kstest(share, stats.beta(0.5, 2).cdf).pvalue > 1e-7


def test_fixed_length_wants_a_scalar():
    for step_size in (jnp.ones(2), {"a": 0.1}, [0.1]):
        with pytest.raises(ValueError, match="one number as step_size"):
            moves(proposals.fixed_length, jnp.zeros(2), step_size)


def test_fixed_length_in_one_dimension_never_stands_still():
    words = jnp.array([[0], [1], [2**32 - 1], [2**32 - 2]], jnp.uint32)
    for word in words:
        move = proposals.fixed_length.propose(word, jnp.zeros(1), (), 0.5)
        assert abs(move.position[0]) == 0.5


def test_gaussian():
    _, move = moves(proposals.gaussian, jnp.array([1.0, 2.0]), 0.5)
    jump = np.asarray(move.position) - [1, 2]
    for column in jump.T / 0.5:
        assert stats.kstest(column, "norm").pvalue > 1e-7
    np.testing.assert_allclose(move.distance, np.linalg.norm(jump, axis=1), rtol=1e-5)
    assert proposals.gaussian.longest(0.5) is None


@pytest.mark.parametrize("name", ["one_component", "guided_walk"])
def test_one_component_moves(name):
    _, move = moves(getattr(proposals, name), jnp.zeros(3), 2.0)
    jump = np.asarray(move.position)
    assert np.all(np.sum(jump != 0, axis=1) == 1)
    counts = np.sum(jump != 0, axis=0)
    assert stats.chisquare(counts).pvalue > 1e-7
    np.testing.assert_allclose(move.distance, abs(jump).sum(1), rtol=1e-6)
    size = jump[jump != 0] / 2
    law = "norm" if name == "one_component" else "halfnorm"
    assert stats.kstest(size, law).pvalue > 1e-7


@pytest.mark.parametrize("name", MEMORYLESS)
def test_memoryless_proposals_are_symmetric(name):
    # The last bit of a word is the sign of its normal: a bijection of the words
    # turns every jump into its reflection, so the law is symmetric exactly.
    proposal, position = MEMORYLESS[name], jnp.zeros(4)
    words, move = moves(proposal, position, 0.3)
    flipped = (
        words ^ 1 if name != "one_component" else words.at[:, 1].set(words[:, 1] ^ 1)
    )
    propose = jax.vmap(lambda w: proposal.propose(w, position, (), 0.3))
    back = jax.jit(propose)(flipped)
    np.testing.assert_array_equal(move.position, -back.position)
    np.testing.assert_array_equal(move.distance, back.distance)


def test_guided_walk_turns_when_rejected_and_only_then():
    walk = jnp.array([1.0, -1.0, 1.0])
    _, move = moves(proposals.guided_walk, jnp.zeros(3), 0.5, walk=walk)
    jump = np.asarray(move.position)
    assert np.all(jump * np.asarray(walk) >= 0)
    np.testing.assert_array_equal(move.walk_accepted, np.broadcast_to(walk, jump.shape))
    expected = np.where(jump != 0, -np.asarray(walk), np.asarray(walk))
    np.testing.assert_array_equal(move.walk_rejected, expected)


def test_guided_walk_is_reversible_with_its_walk_turned():
    walk = jnp.array([1.0, -1.0])
    words, move = moves(proposals.guided_walk, jnp.zeros(2), 0.5, 100, walk)
    back = jax.vmap(
        lambda w, p: proposals.guided_walk.propose(w, p, -walk, 0.5).position
    )(words, move.position)
    np.testing.assert_allclose(back, 0, atol=1e-7)


@pytest.mark.parametrize("name", [*MEMORYLESS, "guided_walk"])
def test_pytree_positions(name):
    position = {"a": jnp.ones((2, 2)), "b": jnp.zeros(())}
    _, move = moves(getattr(proposals, name), position, 0.5, 50)
    assert jax.tree.map(jnp.shape, move.position) == {"a": (50, 2, 2), "b": (50,)}
    assert np.all(np.asarray(move.distance) > 0)


@pytest.mark.parametrize("name", ["gaussian", "one_component", "guided_walk"])
def test_step_size_like_the_position(name):
    proposal = getattr(proposals, name)
    position = {"a": jnp.zeros(2), "b": jnp.zeros(())}
    step_size = {"a": jnp.array([1.0, 10.0]), "b": 100.0}
    _, scaled = moves(proposal, position, step_size, 200)
    _, plain = moves(proposal, position, 1.0, 200)
    factor = jnp.array([[1.0, 10.0]])
    np.testing.assert_allclose(
        scaled.position["a"], plain.position["a"] * factor, rtol=1e-5
    )
    np.testing.assert_allclose(
        scaled.position["b"], 100 * plain.position["b"], rtol=1e-5
    )
    # One array for one array.
    _, row = moves(proposal, jnp.zeros(2), jnp.array([1.0, 10.0]), 200)
    assert np.max(abs(np.asarray(row.position)[:, 1])) > 10


@pytest.mark.parametrize("matrix", [[0.04, 0.25], [[0.5, 0.3], [0.3, 0.5]]])
@pytest.mark.parametrize("name", [*MEMORYLESS, "guided_walk"])
def test_in_metric_moves_in_units_of_the_matrix(matrix, name):
    plain = getattr(proposals, name)
    proposal = proposals.in_metric(plain, jnp.array(matrix))
    position = jnp.array([1.0, 2.0])
    words, move = moves(proposal, position, 0.5, count=50)
    root = (
        np.diag(np.sqrt(matrix)) if np.ndim(matrix) == 1 else np.linalg.cholesky(matrix)
    )
    walk = plain.init(position)
    propose = jax.vmap(lambda w: plain.propose(w, jnp.zeros(2), walk, 0.5))
    unit = propose(words)
    np.testing.assert_allclose(
        move.position, [1, 2] + np.asarray(unit.position) @ root.T, rtol=1e-5
    )
    np.testing.assert_allclose(move.distance, unit.distance, rtol=1e-6)


@pytest.mark.parametrize(
    "matrix", [[1.0, -1.0], [[1.0, 2.0], [2.0, 1.0]], [[1.0, 0.5], [0.0, 1.0]], 1.0]
)
def test_in_metric_refuses_what_is_no_covariance(matrix):
    with pytest.raises(ValueError, match="positive definite"):
        proposals.in_metric(proposals.gaussian, np.array(matrix))


def test_in_metric_refuses_a_second_metric():
    with pytest.raises(ValueError, match="has a metric"):
        proposals.in_metric(fisher.geodesic(lambda x: jnp.eye(2)), np.ones(2))


def test_words_are_counted_once_and_not_below_zero():
    counts = iter([3, 4])
    gaussian = proposals.gaussian._replace(num_words=lambda dimension: next(counts))
    settled = proposals.settled(gaussian, 1.0, None)
    assert [settled.num_words(2), settled.num_words(2)] == [3, 3]
    settled = proposals.settled(gaussian._replace(num_words=lambda _: -1), 1.0, None)
    with pytest.raises(ValueError, match="not be negative"):
        settled.num_words(2)
