"""Logistic regression."""

import numpy as np
import numpyro
import numpyro.distributions as dist


def model(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    prior = dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
    slopes = numpyro.sample("slopes", prior)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ slopes), obs=y)


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (num_records, 3))
    chance = 1.0 / (1.0 + np.exp(0.5 - x @ [1.0, -0.6, 0.3]))
    return {"x": x, "y": (rng.random(num_records) < chance).astype(int)}


def example():
    return records(1000, seed=2)
