"""Linear regression with an unknown residual scale."""

import numpy as np
import numpyro
import numpyro.distributions as dist


def model(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    prior = dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
    slopes = numpyro.sample("slopes", prior)
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(intercept + x @ slopes, sigma), obs=y)


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (num_records, 3))
    y = 1.0 + x @ [0.5, -0.3, 0.2] + 0.7 * rng.normal(size=num_records)
    return {"x": x, "y": y}


def example():
    return records(1000, seed=2)
