"""What records add is bounded, has mean zero under the model, and the slope it says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.fit import contrast
from dpjax.fit.scores import Scores
from dpjax.release.mixed_norm import MixedNorm
from tests.tiers import tiered

NUM_NODES = 12
TINY = 100 * float(jnp.finfo(jnp.result_type(float)).eps)


def scores(rng, p=2, d=3, scale=1.0):
    """Of a record whose nodes have mean zero, as a model's have."""
    weights = rng.dirichlet(np.ones(NUM_NODES))
    nodes = scale * rng.standard_normal((NUM_NODES, p)) ** 3
    nodes -= weights @ nodes
    directions = rng.standard_normal((p, d))
    return Scores(*map(jnp.asarray, (nodes[0], nodes, weights, directions)))


def seen(found: Scores, node: int) -> Scores:
    return found._replace(observed=found.nodes[node])


@functools.partial(jax.jit, static_argnames="norm")
def contributions(found: Scores, norm=None):
    """Of a record: the contrast, its excess, and the difference."""
    own = contrast.contrast(found, 0.3, norm)
    return own, own.excess, contrast.difference(found)


SIZES = 2, contrast.MAX_UNROLLED + 1
NORMS = None, MixedNorm((1,), 3)


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", tiered([0.01, 1.0, 100.0], [1.0]))
def test_contributions_are_bounded(scale, norm, p):
    rng = np.random.default_rng(0)
    for _ in range(20):
        found = scores(rng, p, scale=scale)
        far = found._replace(observed=jnp.resize(jnp.asarray([1e6, -1e5]), p))
        for record in (found, far):
            own, excess, difference = contributions(record, norm)
            psi, slope, square, lost = own
            assert np.linalg.norm(difference) <= 1 + TINY
            assert (norm or np.linalg.norm)(psi) <= 1 + TINY
            assert np.linalg.norm(slope) <= 0.3 + TINY
            assert -TINY <= square <= 1 + TINY and abs(excess) <= 1 + TINY
            assert abs(lost) <= 1


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", tiered([0.1, 1.0, 10.0], [1.0]))
def test_contributions_have_mean_zero_under_the_model(scale, norm, p):
    rng = np.random.default_rng(1)
    for _ in range(10):
        found = scores(rng, p, scale=scale)
        every = [contributions(seen(found, node), norm) for node in range(NUM_NODES)]
        own, excess, differences = zip(*every, strict=True)
        psi, lost = [one.score for one in own], [one.lost for one in own]
        for added in (differences, psi, excess, lost):
            mean = np.asarray(found.weights, float) @ np.array(added, float)
            assert np.linalg.norm(mean) < TINY


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_expected_slopes_are_covariances_with_the_score(scale):
    found = scores(np.random.default_rng(4), scale=scale)
    kept, whole = map(np.asarray, contrast.expected_slopes(found))
    weights, nodes = np.asarray(found.weights), np.asarray(found.gradients()[1])
    clipped = np.array(
        [contributions(seen(found, node))[2] for node in range(NUM_NODES)]
    )
    np.testing.assert_allclose(kept, (clipped.T * weights) @ nodes, atol=scale * TINY)
    np.testing.assert_allclose(whole, (nodes.T * weights) @ nodes, rtol=TINY)


@pytest.mark.parametrize("p", SIZES)
def test_lengths_are_norms_of_the_vectors(p):
    found = scores(np.random.default_rng(5), p)
    vectors = np.asarray(found.gradients()[1])
    mixed = contrast.length(found.nodes, found.directions, NORMS[1])
    np.testing.assert_allclose(mixed, NORMS[1](vectors), rtol=TINY)
    # w is sqrt(3 / 2) for two others.
    expected = abs(vectors[:, 1]) + 1.5**0.5 * np.hypot(vectors[:, 0], vectors[:, 2])
    np.testing.assert_allclose(mixed, expected, rtol=TINY)
    euclidean = contrast.length(found.nodes, found.directions)
    np.testing.assert_allclose(euclidean, np.linalg.norm(vectors, axis=1), rtol=TINY)
    assert np.all(euclidean <= np.asarray(mixed))


def test_without_clipping_the_contrast_is_the_score():
    found = scores(np.random.default_rng(2), scale=1e-4)
    psi, slope, _, lost = contrast.contrast(found, 1e6)
    assert lost == 0
    gradient, nodes = map(np.asarray, found.gradients())
    np.testing.assert_allclose(psi, gradient, atol=1e-4 * TINY)
    np.testing.assert_allclose(
        slope, (nodes.T * np.asarray(found.weights)) @ nodes, atol=1e-4 * TINY
    )


@pytest.mark.parametrize(("size", "sd"), [(1.3, 1.0), (0.7, 1.7)])
def test_the_slope_is_the_derivative_of_the_mean_contrast(size, sd):
    """Of normal observations whose mean moves, and whose sd is one or is not."""
    grid = np.linspace(-8, 8, 4001)

    def law(mean, sd=1.0):
        density = np.exp(-((grid - mean) ** 2) / (2 * sd**2))
        return density / density.sum()

    directions = jnp.asarray([[size]])
    nodes = jnp.asarray(grid[:, None])
    model = Scores(nodes[0], nodes, jnp.asarray(law(0.0)), directions)
    found = jax.jit(
        jax.vmap(lambda y: contrast.contrast(model._replace(observed=y), 1e6))
    )(nodes)
    each, lost = np.asarray(found.score[:, 0], float), np.asarray(found.lost, float)
    moved = (law(0.01, sd) @ each - law(-0.01, sd) @ each) / 0.02
    slope, lost = found.slope[0, 0, 0], law(0.0, sd) @ lost
    # The score of the parameter is `size` times that of the mean.
    np.testing.assert_allclose(size * moved, slope - lost, rtol=1e-2)
    assert 0 < slope < size**2
    assert abs(lost) < 1e-6 if sd == 1 else lost > 0.1 * slope


def test_matrices_are_packed_with_their_norm():
    matrix = np.random.default_rng(3).standard_normal((4, 4))
    matrix = matrix + matrix.T
    packed = contrast.packed(jnp.asarray(matrix))
    size = np.linalg.norm(matrix)
    np.testing.assert_allclose(np.linalg.norm(packed), size, rtol=TINY)
    np.testing.assert_allclose(contrast.unpacked(packed, 4), matrix, atol=TINY * size)
