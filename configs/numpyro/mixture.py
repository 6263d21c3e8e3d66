"""Mixture of two normal distributions with ordered means."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform


def model(x):
    weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
    unordered = dist.Normal(0.0, 2.0).expand([2]).to_event(1)
    ordered = dist.TransformedDistribution(unordered, OrderedTransform())
    means = numpyro.sample("means", ordered)
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("people", x.shape[0]):
        weights = jnp.stack([weight, 1.0 - weight])
        components = dist.Normal(means, scale)
        law = dist.MixtureSameFamily(dist.Categorical(weights), components)
        numpyro.sample("x", law, obs=x)


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    first = rng.random(num_records) < 0.4
    return {"x": np.where(first, -1.5, 1.0) + 0.8 * rng.normal(size=num_records)}


def example():
    return records(1000, seed=2)
