"""Bayesian neural network of one hidden layer with tanh units."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


def model(x, y, num_hidden):
    inputs = jnp.zeros((x.shape[1], num_hidden))
    first = numpyro.sample("first", dist.Normal(inputs, 1.0).to_event(2))
    shift = numpyro.sample("shift", dist.Normal(inputs[0], 1.0).to_event(1))
    second = numpyro.sample("second", dist.Normal(inputs[0], 1.0).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 0.5))
    with numpyro.plate("people", x.shape[0]):
        mean = jnp.tanh(x @ first + shift) @ second
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, (num_records, 1))
    y = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=num_records)
    return {"x": x, "y": y}


def example():
    return records(1000, seed=2)
