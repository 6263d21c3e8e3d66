"""Clip bounds follow the model's tails, and read no data."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from dpjax.numpyro import clip_per_step, l2_clip_norm, posterior

NUM_RECORDS = 2500
POSITION = {"mean": jnp.zeros(())}


def normal(x):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(mean, 1), obs=x)


@pytest.fixture(scope="module")
def target():
    return posterior(normal, dict(x=np.full(NUM_RECORDS, np.nan)), plate="data")


@pytest.mark.parametrize("bound", [l2_clip_norm, lambda *a: clip_per_step(*a, [[1.0]])])
def test_covariates_are_not_made_up(bound):
    def regression(x, y):
        mean = numpyro.sample("mean", dist.Normal(0, 10))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("obs", dist.Normal(mean * x, 1), obs=y)

    data = dict(x=np.ones(9), y=np.ones(9))
    with pytest.raises(ValueError, match=r"does not generate \['x'\].*example="):
        bound(posterior(regression, data, plate="data"), POSITION)


# The .999 quantile of |normal| is 3.29. That of 20,000 has a standard error of 0.07.


def test_log_ratios(target):
    """In posterior sds, of which one is 1 / sqrt(n)."""
    found = clip_per_step(target, POSITION, np.array([[1 / NUM_RECORDS]]))
    assert found * NUM_RECORDS**0.5 == pytest.approx(3.29, abs=0.4)


def test_gradients(target):
    assert l2_clip_norm(target, POSITION) == pytest.approx(3.29, abs=0.4)
