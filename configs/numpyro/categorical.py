"""Regression of a choice between three, the first of which is the reference."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

WEIGHTS = np.array([[0.8, -0.4], [-0.5, 0.6]])


def model(x, y):
    levels = numpyro.sample("levels", dist.Normal(jnp.zeros(2), 2.0).to_event(1))
    prior = dist.Normal(jnp.zeros((x.shape[1], 2)), 1.0).to_event(2)
    weights = numpyro.sample("weights", prior)
    with numpyro.plate("people", x.shape[0]):
        others = levels + x @ weights
        logits = jnp.concatenate([jnp.zeros((x.shape[0], 1)), others], axis=1)
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (num_records, 2))
    logits = np.column_stack([np.zeros(num_records), x @ WEIGHTS + [0.3, -0.5]])
    # The largest of logits with Gumbel noise has the law of the choice.
    return {"x": x, "y": np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)}


def example():
    return records(1000, seed=2)
