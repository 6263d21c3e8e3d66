"""Counts with more zeros than a Poisson law has."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


def model(x, y):
    gate = numpyro.sample("gate", dist.Beta(1.0, 1.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    prior = dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
    slopes = numpyro.sample("slopes", prior)
    with numpyro.plate("people", x.shape[0]):
        rate = jnp.exp(intercept + x @ slopes)
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate=rate), obs=y)


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (num_records, 2))
    counts = rng.poisson(np.exp(1.0 + x @ [0.6, -0.4]))
    return {"x": x, "y": np.where(rng.random(num_records) < 0.25, 0, counts)}


def example():
    return records(1000, seed=2)
