"""Counts that vary more than a Poisson law allows."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


def model(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    prior = dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1)
    slopes = numpyro.sample("slopes", prior)
    concentration = numpyro.sample("concentration", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("people", x.shape[0]):
        mean = jnp.exp(intercept + x @ slopes)
        law = dist.NegativeBinomial2(mean, concentration)
        numpyro.sample("y", law, obs=y)


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    x = 0.7 * rng.normal(size=(num_records, 3))
    mean = np.exp(1.0 + x @ [0.5, -0.3, 0.2])
    return {"x": x, "y": rng.poisson(mean * rng.gamma(2.0, 0.5, num_records))}


def example():
    return records(1000, seed=2)
