"""Weibull times to an event, of which those after `limit` are censored.

Which times are censored is observed as well, so it is made up together with the times.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


def law(latents, x):
    scale = jnp.exp(latents["intercept"] + x @ latents["slopes"])
    return dist.Weibull(scale, latents["shape"])


def model(x, limit, time, censored):
    latents = {
        "intercept": numpyro.sample("intercept", dist.Normal(0.0, 1.0)),
        "slopes": numpyro.sample(
            "slopes", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
        ),
        "shape": numpyro.sample("shape", dist.LogNormal(0.0, 0.5)),
    }
    with numpyro.plate("people", x.shape[0]):
        observed = dist.RightCensoredDistribution(law(latents, x), censored == 1)
        numpyro.sample("time", observed, obs=time)


def draw(rng_key, latents, record):
    """The record with another time to the event, watched until `limit`."""
    time = law(latents, record["x"]).sample(rng_key)
    censored = (time > record["limit"]).astype(record["censored"].dtype)
    return {**record, "time": jnp.minimum(time, record["limit"]), "censored": censored}


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (num_records, 2))
    limit = rng.uniform(0.5, 2.0, num_records)
    time = np.exp(0.2 + x @ [0.5, -0.3]) * rng.weibull(1.5, num_records)
    censored = (time > limit).astype(int)
    return {
        "x": x,
        "limit": limit,
        "time": np.minimum(time, limit),
        "censored": censored,
    }


def example():
    return records(1000, seed=2)
