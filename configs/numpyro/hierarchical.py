"""Linear regression whose intercept differs by group.

Intercepts themselves are the latents, since a group holds thousands of records: their
standardised effects would lie on a curved ridge with `mean` and `spread`, and noisy
steps along it would move all of them by many posterior standard deviations.
"""

import numpy as np
import numpyro
import numpyro.distributions as dist


def model(x, group, y, num_groups):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("groups", num_groups):
        intercept = numpyro.sample("intercept", dist.Normal(mean, spread))
    with numpyro.plate("people", x.shape[0]):
        law = dist.Normal(intercept[group] + slope * x, sigma)
        numpyro.sample("y", law, obs=y)


def records(num_records, seed=0, num_groups=20):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, num_records)
    group = rng.integers(0, num_groups, num_records)
    intercept = 1.0 + 0.7 * np.random.default_rng(1).normal(size=num_groups)
    y = intercept[group] - 0.5 * x + 1.5 * rng.normal(size=num_records)
    return {"x": x, "group": group, "y": y}


def example():
    return records(1000, seed=2)
