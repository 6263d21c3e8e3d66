"""Linear regression with heavy-tailed errors and two correlated covariates."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

SLOPES = np.linspace(-0.5, 0.5, 10)


def model(x, y):
    prior = dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1)
    slopes = numpyro.sample("slopes", prior)
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.StudentT(5.0, x @ slopes, sigma), obs=y)


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_records, SLOPES.size))
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    return {"x": x, "y": x @ SLOPES + 0.8 * rng.standard_t(5, num_records)}


def example():
    return records(1000, seed=2)
