"""Poisson regression of counts over exposures of different lengths."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


def model(x, exposure, y):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    prior = dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
    slopes = numpyro.sample("slopes", prior)
    with numpyro.plate("people", x.shape[0]):
        rate = jnp.exp(intercept + x @ slopes + jnp.log(exposure))
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (num_records, 3))
    exposure = rng.uniform(0.2, 2.0, num_records)
    y = rng.poisson(exposure * np.exp(0.5 + x @ [0.6, -0.4, 0.2]))
    return {"x": x, "exposure": exposure, "y": y}


def example():
    return records(1000, seed=2)
