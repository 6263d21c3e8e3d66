"""EP and SEP: exact where the model is conjugate, close to NUTS where it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.comparisons import baselines
from dpjax.comparisons.ep import ep
from dpjax.comparisons.sep import sep
from dpjax.ep import sites
from dpjax.ep.gaussians import Full, Moments
from dpjax.posterior import Posterior

pytestmark = pytest.mark.thorough

FAMILY = Full((2,))


def fits(posterior, site_fn, family, num_epochs=40):
    """EP, and SEP of all records at once."""
    start = jnp.zeros(2)
    yield ep(posterior, site_fn, family=family, initial_position=start, num_sweeps=8)
    yield sep(
        jax.random.key(0),
        posterior,
        site_fn,
        family=family,
        initial_position=start,
        num_epochs=num_epochs,
        batch_size=posterior.num_records,
    )


@pytest.mark.thorough
def test_conjugate_posteriors_are_exact(linear_regression, x64):
    posterior, site_fn, mean, covariance = linear_regression
    tolerance = 1e-9 if x64 else 2e-4
    for found in fits(posterior, site_fn, FAMILY, 2):
        sds = np.sqrt(np.diag(covariance))
        assert np.all(np.abs(found.mean - mean) < tolerance * sds)
        gap = np.abs(found.covariance - covariance)
        assert np.all(gap < tolerance * np.outer(sds, sds))


@pytest.mark.thorough
def test_classification_agrees_with_nuts(classification):
    posterior = classification["logistic"]
    # BlackJAX's adaptation uses keys twice.
    with jax.debug_key_reuse(False):
        run = baselines.nuts(
            jax.random.key(1), posterior, 5_000, initial_position=jnp.zeros((4, 2))
        )
    draws = run.positions.reshape(-1, 2)
    # The standard error of an sd from 5,000 effective draws is 1 %, that of the means
    # is smaller. The bound of 5 % is five standard errors, and the seed is fixed.
    for found in fits(posterior, sites.logistic, FAMILY):
        assert np.allclose(found.mean, draws.mean(axis=0), rtol=0.05)
        sds = np.sqrt(np.diag(found.covariance))
        assert np.allclose(sds, draws.std(axis=0), rtol=0.05)
    correlation = np.corrcoef(draws.T)[0, 1]
    assert abs(found.covariance[0, 1] / sds.prod() - correlation) < 0.05


def test_single_records_wander_about_the_fixed_point(linear_regression):
    posterior, site_fn, mean, covariance = linear_regression
    found = sep(
        jax.random.key(2),
        posterior,
        site_fn,
        family=FAMILY,
        initial_position=jnp.zeros(2),
        num_epochs=10,
    )
    sds = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(found.mean - mean) < 2 * sds)
    assert np.allclose(np.sqrt(np.diag(found.covariance)), sds, rtol=0.1)


def test_averaged_steps_reach_it(linear_regression):
    """With rho_k = 1/(k + 1), theta_f is the mean of the sites after one epoch."""
    posterior, site_fn, mean, covariance = linear_regression
    found = sep(
        jax.random.key(2),
        posterior,
        site_fn,
        family=FAMILY,
        initial_position=jnp.zeros(2),
        num_epochs=1,
        schedule=lambda k: 1 / (k + 1),
    )
    assert np.allclose(found.mean, mean, rtol=1e-4)
    assert np.allclose(found.covariance, covariance, rtol=1e-3)


@pytest.mark.thorough
def test_clipping_shrinks_the_differences():
    """Of two clusters of records, the far one pulls no more than its clip."""
    records = jnp.concatenate([jnp.zeros(50), jnp.full(50, 1e6)])
    posterior = Posterior(lambda w: -0.5 * jnp.sum(w**2), lambda w, r: 0.0 * w[0],
                          (jnp.ones((100, 1)), records))  # fmt: skip
    found = sep(
        jax.random.key(0),
        posterior,
        sites.linear(1.0),
        family=Full((1,)),
        initial_position=jnp.zeros(1),
        num_epochs=60,
        batch_size=100,
        l2_clip_norm=2.0,
        schedule=lambda k: 0.3,
    )
    # At the fixed point 50 d + 50 u = 0. The clipped difference u of the far records
    # has the norm 2 along h, so near records have d = (-2, 0), and theta_f has h = 2.
    natural = Full((1,)).natural(Moments(*found))
    assert np.allclose(natural[0], 200, rtol=0.01)


@pytest.mark.thorough
def test_clusters_are_found():
    rng = np.random.default_rng(1)
    centres = np.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    labels = rng.integers(3, size=300)
    records = jnp.asarray(centres[labels] + 0.5 * rng.normal(size=(300, 2)))
    posterior = Posterior(
        lambda w: -0.5 * jnp.sum(w**2) / 9, lambda w, r: 0.0 * w[0, 0], records
    )
    start = jnp.asarray(centres + 0.5)
    arguments = dict(family=Full((3, 2)), initial_position=start)
    site_fn = sites.mixture(3, 0.5)
    exact = np.stack([records[labels == j].mean(axis=0) for j in range(3)])
    counts = np.bincount(labels)
    for found in (
        ep(posterior, site_fn, num_sweeps=4, **arguments),
        sep(jax.random.key(0), posterior, site_fn, num_epochs=30, batch_size=300,
            **arguments),
    ):  # fmt: skip
        assert np.allclose(found.mean, exact, atol=0.02)
        variances = np.diagonal(found.covariance, axis1=1, axis2=2)
        assert np.allclose(variances, 0.25 / counts[:, None], rtol=0.05)


def test_bad_arguments_are_refused(linear_regression):
    posterior, site_fn, _, _ = linear_regression
    good = dict(family=FAMILY, initial_position=jnp.zeros(2))
    with pytest.raises(ValueError, match="num_sweeps"):
        ep(posterior, site_fn, num_sweeps=0, **good)
    with pytest.raises(ValueError, match="shape"):
        ep(posterior, site_fn, family=FAMILY, initial_position=jnp.zeros(3))
    key = jax.random.key(0)
    for message, bad in {
        "num_epochs": dict(num_epochs=0),
        "batch_size": dict(num_epochs=1, batch_size=301),
        "l2_clip_norm": dict(num_epochs=1, l2_clip_norm=0.0),
    }.items():
        with pytest.raises(ValueError, match=message):
            sep(key, posterior, site_fn, **good, **bad)
    tempered = Posterior(posterior.logprior_fn, posterior.loglikelihood_fn,
                         posterior.data, 0.5)  # fmt: skip
    with pytest.raises(ValueError, match="tempering"):
        ep(tempered, site_fn, **good)
