"""Groups that hardly differ: their scale is unknown, and the density has no mode."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam

import dpjax
from dpjax.numpyro import posterior, sample

NUM_GROUPS, NUM_RECORDS = 6, 4000


def model(group, y, groups):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", groups):
        effects = numpyro.sample("effects", dist.Normal(mean, spread))
    numpyro.deterministic("effect", effects)
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("obs", dist.Normal(effects[group], 1.5), obs=y)


not_centred = reparam(model, config={"effects": LocScaleReparam(0)})


def records(seed, size, effects):
    rng = np.random.default_rng(seed)
    group = rng.integers(0, NUM_GROUPS, size)
    return dict(group=group, y=effects[group] + 1.5 * rng.standard_normal(size))


@pytest.mark.thorough
def test_draws_lie_about_the_effects():
    """The effects are known to .06 without privacy, and the prior is 2 wide."""
    truth = 1.0 + 0.02 * np.random.default_rng(0).standard_normal(NUM_GROUPS)
    example = records(1, 500, np.zeros(NUM_GROUPS))
    data = records(0, NUM_RECORDS, truth)
    public = dict(groups=NUM_GROUPS)
    target = posterior(not_centred, data, plate="data", public=public, example=example)
    # The second is BlackJAX's: its NUTS keeps a key in a loop.
    with jax.numpy_rank_promotion("allow"), jax.debug_key_reuse(False):
        run = sample(
            target,
            budget=dpjax.Budget(4.0, 1e-6),
            verbose=False,
            unsafe_key=jax.random.key(0),
        )
    # The last score has noise of a norm that suits groups, and spends all that is left.
    assert "release with a loss of at most" in run.statement.events
    assert 3.99 < run.statement.epsilon <= 4.0
    effects = np.asarray(run.positions["effect"]).reshape(-1, NUM_GROUPS)
    # A normal law is beyond 6 sds in one of six with a chance of 1.2e-8.
    assert np.abs((effects.mean(axis=0) - truth) / effects.std(axis=0)).max() < 6
    assert np.all(effects.std(axis=0) < 0.15)
    assert np.all(np.asarray(run.positions["spread"]) > 0)
