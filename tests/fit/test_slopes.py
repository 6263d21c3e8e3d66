"""The law of the slope, and what the slope says of the scatter of the scores."""

import jax
import numpy as np
import pytest

from dpjax.fit import slopes as module
from dpjax.fit.slopes import Evidence, regular, slopes


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


def released(says, stretch, noise_sd, data_share, rng):
    """Evidence of one release of the slope `says` of the latents, with noise."""
    dim = len(says)
    noise = noise_sd * rng.normal(size=(dim, dim))
    slope = stretch.T @ says @ stretch + (noise + noise.T) / 2
    with jax.enable_x64(True):
        estimate = np.asarray(jax.jit(regular)(slope, noise_sd, np.ones(dim, bool)))
    return evidence(dim, 1.0)._replace(
        slope=slope,
        slope_noise_sd=noise_sd,
        regular=estimate,
        data_share=np.full(dim, data_share),
        stretch=stretch,
        back=np.linalg.inv(stretch),
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


@pytest.mark.parametrize("is_robust", [False, True])
def test_the_gradient_is_that_of_the_log_density(is_robust, monkeypatch):
    """Central differences in every coordinate are the oracle."""
    dim, num_scores, rng = 3, 2, np.random.default_rng(0)
    stretch = rng.normal(size=(dim, dim))
    # The records say nothing of the last latent, so that it is silent.
    says = np.linalg.inv(stretch @ stretch.T) * np.outer([1, 1, 0.01], [1, 1, 0.01])
    known = released(says / 2, stretch, 0.02, 0.9, rng)._replace(
        places=rng.normal(size=(num_scores, dim)),
        scores=rng.normal(size=(num_scores, dim)),
        score_sds=np.array([0.7, 1.5]),
        arrival_sd=2.0,
        inefficiency=0.8,
        variance=0.1 * np.eye(dim) * is_robust,
    )
    seen = []

    def chains(rng, log_density, size, per_chain):
        u = rng.normal(size=(4, size))
        value, gradient = log_density(u)
        step, differences = 1e-5, np.zeros_like(u)
        for i in range(size):
            ends = (log_density(u + sign * step * np.eye(size)[i]) for sign in (1, -1))
            (above, _), (below, _) = ends
            differences[:, i] = (above - below) / (2 * step)
        size = np.abs(differences).max(axis=1, keepdims=True)
        np.testing.assert_allclose(gradient / size, differences / size, atol=1e-7)
        assert np.all(np.isfinite(value))
        seen.append(module._centre(known))
        return u

    monkeypatch.setattr(module, "chains", chains)
    slopes(known, rng.normal(size=dim), jax.random.key(0), 4)
    assert seen[0].of_latents.is_silent.tolist() == [False, False, True]


@pytest.mark.thorough
@pytest.mark.parametrize("says", [0.0, 0.5])
def test_latents_without_records_have_no_slope(says):
    """The frame mixes the latents, so no direction of it is that of the last one."""
    dim, noise_sd, rng = 5, 0.02, np.random.default_rng(1)
    stretch, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    slope = np.diag([0.5, 0.5, 0.5, 0.5, says])
    known = released(slope, stretch, noise_sd, 0.99, rng)
    found = slopes(known, np.zeros(dim), jax.random.key(0), 256)
    found = stretch @ found @ stretch.T
    along = np.diagonal(found, axis1=1, axis2=2)
    # Of the noise, 7 sds are allowed: a false alarm has a chance below 1e-10.
    np.testing.assert_allclose(along.mean(0)[:-1], 0.5, atol=7 * noise_sd)
    np.testing.assert_allclose(along.mean(0)[-1], says, atol=7 * noise_sd)
    if says == 0:
        # A direction that noise has turned would hold some of the other slopes.
        assert np.median(along[:, -1]) < noise_sd / 4
        sizes = np.linalg.norm(found[:, -1, :-1], axis=1)
        assert np.median(sizes) < 2 * noise_sd


@pytest.mark.thorough
def test_few_records_of_a_latent_are_not_taken_for_none():
    """The public design has many of them, so it expects correlations with others.

    Chains that began with almost no slope there and these correlations stayed at none.
    """
    dim, noise_sd, rng = 4, 0.03, np.random.default_rng(2)
    expected = np.eye(dim)
    expected[0, -1] = expected[-1, 0] = 0.7
    says = 0.7 * np.eye(dim)
    says[-1, -1] = 0.16
    stretch = np.linalg.inv(np.linalg.cholesky(expected)).T
    known = released(says, stretch, noise_sd, 0.999, rng)
    found = slopes(known, np.zeros(dim), jax.random.key(0), 256)
    along = (known.back.T @ found @ known.back)[:, -1, -1]
    assert np.mean(along < 0.02) < 0.05
    np.testing.assert_allclose(along.mean(), 0.16, atol=7 * noise_sd)


@pytest.mark.thorough
def test_a_rare_covariate_that_clipping_hides_is_not_taken_for_none():
    """Clipping leaves a share of its slope, and of its correlations with others.

    Where a latent was less in every record, and not told of by fewer, correlations
    would be the root of this share. They are not, so it seemed to have no slope at all.
    """
    dim, noise_sd, share, rng = 5, 0.02, 0.15, np.random.default_rng(1)
    says = np.full((dim, dim), 0.3) + 0.1 * np.eye(dim)
    expected = says / 0.4
    says[-1] *= share
    says[:-1, -1] *= share
    stretch = np.linalg.inv(np.linalg.cholesky(expected)).T
    known = released(says, stretch, noise_sd, 0.999, rng)
    found = slopes(known, np.zeros(dim), jax.random.key(0), 256)
    along = (known.back.T @ found @ known.back)[:, -1, -1]
    # The sd of the draws is .018, and that of their mean, over 32 chains, at most .003.
    assert np.mean(along < 0.01) < 0.2
    np.testing.assert_allclose(along.mean(), says[-1, -1], atol=0.03)


@pytest.mark.thorough
@pytest.mark.parametrize("dim", [1, 2])
def test_noise_may_leave_the_slope_negative(dim):
    """Then the draws are as small as the prior lets them be, and positive."""
    known = evidence(dim, 1.0)._replace(
        slope=-np.eye(dim), slope_noise_sd=0.5, data_share=np.full(dim, 0.9)
    )
    unknown = known._replace(slope=0.5 * np.eye(dim), slope_noise_sd=1e6)
    small, any_size = (
        np.trace(slopes(each, np.zeros(dim), jax.random.key(0), 512), axis1=1, axis2=2)
        for each in (known, unknown)
    )
    assert np.all(small > 0)
    assert small.mean() < 0.7 * any_size.mean()


@pytest.mark.thorough
def test_noise_far_above_the_slope_leaves_the_prior():
    """Of 16 directions, noise makes some slopes five times as large as any expected.

    Draws of the prior, weighted by the density of the released slope, are the oracle.
    """
    dim, noise_sd, rng = 16, 1.0, np.random.default_rng(4)
    says, level = 0.1 * np.eye(dim), 0.1
    known = released(says, np.eye(dim), noise_sd, 0.99, rng)._replace(level=level)
    found = slopes(known, np.zeros(dim), jax.random.key(0), 512)
    unknown = known._replace(slope_noise_sd=1e6)
    prior = slopes(unknown, np.zeros(dim), jax.random.key(1), 4096)
    misfit = np.sum((known.slope - prior) ** 2, axis=(1, 2)) / noise_sd**2
    weights = np.exp((misfit.min() - misfit) / 2)
    weights /= weights.sum()
    logs = [np.log(np.trace(each, axis1=1, axis2=2)) for each in (found, prior)]
    mean = weights @ logs[1]
    sd = np.sqrt(weights @ (logs[1] - mean) ** 2)
    assert 1 / np.sum(weights**2) > 300
    # Chains that mix are off by .1 sds: by one with a chance far below 1e-6.
    assert abs(logs[0].mean() - mean) < sd
