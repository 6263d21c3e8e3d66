"""What the slope says of the scatter of the scores."""

import numpy as np

from dpjax.fit.slopes import Evidence


def evidence(dim, inefficiency):
    return Evidence(
        slope=np.eye(dim),
        slope_noise_sd=0.1,
        regular=np.eye(dim),
        data_share=np.ones(dim),
        stretch=np.eye(dim),
        back=np.eye(dim),
        level=0.5,
        places=np.zeros((1, dim)),
        scores=np.zeros((1, dim)),
        score_sds=np.array([1.0]),
        arrival_sd=1e9,
        inefficiency=inefficiency,
        variance=np.zeros((dim, dim)),
    )


def test_the_scatter_of_clipped_scores_is_known_in_every_direction():
    """Scores of a regression on two covariates and on whether a record is one in fifty.

    The scores of those records are far longer than the others. Clipped, they lose most
    of their slope in the rare direction, and scatter there a quarter as much as in
    proportion to it.
    """
    rng = np.random.default_rng(0)
    covariates = rng.normal(size=(400_000, 3))
    covariates[:, 0] = rng.random(len(covariates)) < 0.02
    scores = covariates * rng.choice([-1.0, 1.0], size=(len(covariates), 1))
    scores /= np.sqrt(np.mean(scores**2, axis=0))
    lengths = np.linalg.norm(scores, axis=1, keepdims=True)
    clipped = scores * np.minimum(1, 1.5 / lengths)
    slope = clipped.T @ scores / len(scores)
    scatter = clipped.T @ clipped / len(scores)
    inefficiency = np.trace(scatter) / np.trace(slope)
    found = evidence(3, inefficiency).scatter(slope, 0.0)
    np.testing.assert_allclose(np.diag(found) / np.diag(scatter), 1, atol=0.1)
    assert inefficiency * slope[0, 0] > 3 * scatter[0, 0]
    many = evidence(3, inefficiency).scatter(np.stack([slope, 2 * slope]), 0.5)
    np.testing.assert_allclose(many[0], found + 0.25 * np.eye(3))
    np.testing.assert_allclose(many[1], 2 * found + 0.25 * np.eye(3))
