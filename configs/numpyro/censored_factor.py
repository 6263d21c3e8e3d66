"""Weibull times to an event, censored at `limit`, with a likelihood written by hand."""

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
    times = law(latents, x)
    survival = -((time / times.scale) ** times.concentration)
    with numpyro.plate("people", x.shape[0]):
        numpyro.factor("time", jnp.where(censored == 1, survival, times.log_prob(time)))


def nodes(latents, record):
    """Midpoints of equally likely ranges of event times, and the end of the study."""
    count = 100
    times = law(latents, record["x"])
    chance = times.cdf(record["limit"])
    levels = chance * (jnp.arange(count) + 0.5) / count
    events = times.scale * (-jnp.log1p(-levels)) ** (1.0 / times.concentration)
    made_up = {
        "x": jnp.broadcast_to(record["x"], (count + 1, record["x"].size)),
        "limit": jnp.full(count + 1, record["limit"]),
        "time": jnp.append(events, record["limit"]),
        "censored": (jnp.arange(count + 1) == count).astype(record["censored"].dtype),
    }
    return made_up, jnp.append(jnp.full(count, chance / count), 1.0 - chance)


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
