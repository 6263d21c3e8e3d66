"""A horseshoe whose coefficients are latents or products of them, beside NUTS."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpjax
from dpjax import baselines
from dpjax.numpyro import initial_position, posterior

DIM, TRUTH = 8, np.array([0.6, -0.4, 0, 0, 0, 0, 0, 0])


def scales(dim):
    tau = numpyro.sample("tau", dist.HalfCauchy(0.2))
    local = numpyro.sample("local", dist.HalfCauchy(jnp.ones(dim)).to_event(1))
    return tau * local


def observe(x, y, slopes):
    with numpyro.plate("data", len(y)):
        numpyro.sample("obs", dist.Bernoulli(logits=x @ slopes), obs=y)


def centred(x, y):
    law = dist.Normal(0, scales(x.shape[1])).to_event(1)
    observe(x, y, numpyro.sample("slopes", law))


def not_centred(x, y):
    scale = scales(x.shape[1])
    z = numpyro.sample("z", dist.Normal(0, jnp.ones_like(scale)).to_event(1))
    observe(x, y, numpyro.deterministic("slopes", scale * z))


@pytest.mark.thorough
def test_coefficients_and_their_scale_are_those_of_nuts():
    """Means have errors of .1 posterior sds, by chance, noise and clipping, and sds of
    4 %. Six times as much is allowed, which is exceeded with a probability below 1e-7.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4_000, DIM))
    y = (rng.random(4_000) < 1 / (1 + np.exp(-x @ TRUTH))).astype(np.int32)
    made_up = dict(x=np.random.default_rng(1).normal(size=(1000, DIM)))
    target, other = (
        posterior(model, dict(x=x, y=y), plate="data", example=made_up)
        for model in (centred, not_centred)
    )
    with jax.debug_key_reuse(False):
        chains = baselines.nuts(
            jax.random.key(0),
            other,
            400,
            initial_position=initial_position(other, 2),
            num_warmup=300,
        )

    def moments(draws):
        vectors = np.concatenate(
            [
                np.reshape(draws["slopes"], (-1, DIM)),
                np.log(np.reshape(draws["tau"], (-1, 1))),
                np.log(np.reshape(draws["local"], (-1, DIM))),
            ],
            axis=1,
        )
        return vectors.mean(0), vectors.std(0)

    exact, exact_sd = moments(chains.positions)
    for fitted in (target, other):
        with jax.debug_key_reuse(False):
            run = dpjax.numpyro.sample(
                fitted,
                budget=dpjax.Budget(20, 1e-6),
                verbose=False,
                unsafe_key=jax.random.key(0),
            )
        mean, sd = moments(run.positions)
        assert np.abs((mean - exact) / exact_sd).max() < 0.6
        np.testing.assert_allclose(sd / exact_sd, 1, atol=0.25)
