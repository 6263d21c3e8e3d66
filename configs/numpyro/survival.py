"""Weibull times to an event, of people who are watched until a date in the future.

The data have the time to the event or, if there was none, the time for which a person
was watched. How long somebody with an event would have been watched is not in the data.
It is drawn from a public law: people entered the study evenly over a year and a half,
and were watched for half a year at least.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


def law(latents, x):
    scale = jnp.exp(latents["intercept"] + x @ latents["slopes"])
    return dist.Weibull(scale, latents["shape"])


def model(x, time, event):
    latents = {
        "intercept": numpyro.sample("intercept", dist.Normal(0.0, 1.0)),
        "slopes": numpyro.sample(
            "slopes", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
        ),
        "shape": numpyro.sample("shape", dist.LogNormal(0.0, 0.5)),
    }
    with numpyro.plate("people", x.shape[0]):
        observed = dist.RightCensoredDistribution(law(latents, x), event == 0)
        numpyro.sample("time", observed, obs=time)


def draw(rng_key, latents, record):
    """The record with another time to the event, watched for as long as it was."""
    of_watch, of_event = jax.random.split(rng_key)
    least = jnp.maximum(record["time"], 0.5)
    watched = jax.random.uniform(of_watch, minval=least, maxval=2.0)
    watched = jnp.where(record["event"] == 1, watched, record["time"])
    time = law(latents, record["x"]).sample(of_event)
    event = (time <= watched).astype(record["event"].dtype)
    return {**record, "time": jnp.minimum(time, watched), "event": event}


def records(num_records, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (num_records, 2))
    time = np.exp(0.2 + x @ [0.5, -0.3]) * rng.weibull(1.5, num_records)
    watched = rng.uniform(0.5, 2.0, num_records)
    event = (time <= watched).astype(int)
    return {"x": x, "time": np.minimum(time, watched), "event": event}


def example():
    return records(1000, seed=2)
