"""The baselines sample the posterior and say that they are not private."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.comparisons import baselines
from dpjax.posterior import Posterior
from tests.tiers import tiered

CHAINS, STEPS = 8, 600
SAMPLERS = {
    "nuts": dict(num_warmup=300),
    "hmc": dict(
        step_size=0.12, num_integration_steps=8, inverse_mass_matrix=np.ones(2)
    ),
    "rmh": dict(step_size=0.25),
}


def logprior(position):
    return -0.5 * jnp.sum(position**2)


def loglikelihood(position, record):
    return -0.5 * jnp.sum((record - position) ** 2)


@pytest.mark.parametrize("name", tiered(SAMPLERS, ["hmc", "rmh"]))
def test_baselines_sample_the_posterior(name):
    data = jnp.linspace(-1, 2, 60).reshape(30, 2)
    posterior = Posterior(logprior, loglikelihood, data, 0.5)
    # The checker takes keys that vmap has moved for used ones.
    with jax.debug_key_reuse(False):
        found = getattr(baselines, name)(
            jax.random.key(0),
            posterior,
            STEPS,
            initial_position=jnp.tile(data.mean(0)[None], (CHAINS, 1)),
            **SAMPLERS[name],
        )
    assert found.positions.shape == (CHAINS, STEPS, 2)
    assert found.acceptance_rate.shape == (CHAINS, STEPS)
    assert "NOT PRIVATE" in str(found.statement)
    precision = 1 + 0.5 * 30
    scaled = (found.positions - 0.5 * np.asarray(data.sum(0)) / precision) * (
        precision**0.5
    )
    assert 0.2 < found.acceptance_rate.mean() <= 1
    # At most 40 steps a draw leave 120 draws: six standard errors, 2e-9 each.
    assert np.all(abs(scaled.mean((0, 1))) < 6 / 120**0.5)
    assert np.all(abs(scaled.var((0, 1)) - 1) < 6 * (2 / 120) ** 0.5)
