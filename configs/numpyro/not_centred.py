"""The regression of `hierarchical.py` with standardised effects as latents.

Every group's intercept is ``mean + spread * effect``. A fit asks of the intercepts,
which the records tell of, and draws all latents from what they say.
"""

import numpyro
import numpyro.distributions as dist


def model(x, group, y, num_groups):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("groups", num_groups):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    intercept = numpyro.deterministic("intercept", mean + spread * effect)
    with numpyro.plate("people", x.shape[0]):
        law = dist.Normal(intercept[group] + slope * x, sigma)
        numpyro.sample("y", law, obs=y)
