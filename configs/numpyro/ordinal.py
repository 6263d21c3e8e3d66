"""Regression of an answer on a scale of four (ordered logistic)."""

import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform


def model(x, y):
    prior = dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
    slopes = numpyro.sample("slopes", prior)
    unordered = dist.Normal(0.0, 1.5).expand([3]).to_event(1)
    ordered = dist.TransformedDistribution(unordered, OrderedTransform())
    cuts = numpyro.sample("cuts", ordered)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(x @ slopes, cuts), obs=y)


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (num_records, 2))
    latent = x @ [1.0, -0.5] + rng.logistic(size=num_records)
    return {"x": x, "y": np.searchsorted([-1.0, 0.3, 1.5], latent)}


def example():
    return records(1000, seed=2)
