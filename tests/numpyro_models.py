"""NumPyro models that tests share: ``{name: (model, data, options)}``, plate "data".

The first eight are those of the adapter's specification, the others are NumPyro's own
examples, on made-up records.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

RECORDS = 60


def logistic(X, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", X.shape[0]):
        fitted = numpyro.deterministic("fitted", X @ b)
        numpyro.sample("obs", dist.Bernoulli(logits=fitted), obs=y)


def hierarchical(x, group, y, groups):
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    upper = numpyro.sample("upper", dist.Uniform(0, 1 + tau))
    with numpyro.plate("groups", groups):
        a = numpyro.sample("a", dist.Normal(upper, tau))
    numpyro.deterministic("a0", a[0])
    sigma = numpyro.sample("sigma", dist.LogNormal(0, 1))
    with numpyro.plate("data", RECORDS, subsample_size=20) as rows:
        mean = a[group[rows]] + x[rows]
        numpyro.sample("obs", dist.Normal(mean, sigma), obs=y[rows])


def mixture(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    means = numpyro.sample("means", dist.Normal(0, 5).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        components = dist.Normal(means, 1.0)
        mixed = dist.MixtureSameFamily(dist.Categorical(weights), components)
        numpyro.sample("obs", mixed, obs=x)


def subsampled(x):
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    with numpyro.plate("data", RECORDS, subsample_size=10):
        batch = numpyro.subsample(x, event_dim=0)
        numpyro.sample("obs", dist.Normal(mean, 1.0), obs=batch)


def scaled(x):
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    with numpyro.plate("data", x.shape[0]), handlers.scale(scale=0.5):
        numpyro.sample("obs", dist.Normal(mean, 1.0), obs=x)


def masked(x, seen):
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    with numpyro.plate("data", x.shape[0]), handlers.mask(mask=seen):
        numpyro.sample("obs", dist.Normal(mean, 1.0), obs=x)


def nested(x):
    mean = numpyro.sample("mean", dist.Normal(0, 5).expand([4]).to_event(1))
    with numpyro.plate("data", x.shape[0], dim=-2), numpyro.plate("items", 4):
        numpyro.sample("obs", dist.Normal(mean, 1.0), obs=x)


def correlated(x):
    mean = numpyro.sample("mean", dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)))
    scale = numpyro.sample("scale", dist.HalfNormal(1).expand([2]).to_event(1))
    cholesky = numpyro.sample("cholesky", dist.LKJCholesky(2, 1.0))
    scale_tril = scale[:, None] * cholesky
    with numpyro.plate("data", x.shape[0]):
        law = dist.MultivariateNormal(mean, scale_tril=scale_tril)
        numpyro.sample("obs", law, obs=x)


def ucbadmit(dept, male, applications, admit):
    v = numpyro.sample("v", dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1).expand([2]).to_event(1))
    with numpyro.plate("depts", 4):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
    effects = v + sigma * z
    logits = effects[dept, 0] + effects[dept, 1] * male
    with numpyro.plate("data", len(applications)):
        numpyro.sample("obs", dist.Binomial(applications, logits=logits), obs=admit)


def zero_inflated(x, y):
    b_gate = numpyro.sample("b_gate", dist.Normal(0, 1).expand([3]).to_event(1))
    b_rate = numpyro.sample("b_rate", dist.Normal(0, 1).expand([3]).to_event(1))
    gate, rate = jax.nn.sigmoid(x @ b_gate), jnp.exp(x @ b_rate)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.ZeroInflatedPoisson(gate, rate), obs=y)


def horseshoe(x, y):
    with numpyro.plate("coefficients", 3):
        local = numpyro.sample("local", dist.HalfCauchy(1.0))
        shape = numpyro.sample("shape", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    sigma = numpyro.sample("sigma", dist.InverseGamma(2.0, 1.0))
    mean = x @ (local * tau * shape)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(mean, sigma), obs=y)


def bayesian_network(x, y):
    first = numpyro.sample("first", dist.Normal(jnp.zeros((3, 4)), 1.0).to_event(2))
    second = numpyro.sample("second", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    mean = jnp.tanh(x @ first) @ second
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(mean, precision**-0.5), obs=y)


def ordinal(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    cuts = numpyro.sample(
        "cuts",
        dist.TransformedDistribution(
            dist.Normal(0, 1).expand([2]).to_event(1),
            dist.transforms.OrderedTransform(),
        ),
    )
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.OrderedLogistic(x * b, cuts), obs=y)


def proportions(x, treated, sold):
    base = numpyro.sample("base", dist.Normal(0, 1).expand([3]).to_event(1))
    effect = numpyro.sample("effect", dist.Normal(0, 1))
    logits = x @ base + effect * treated
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(logits=logits), obs=sold)


def table():
    rng = np.random.default_rng(0)
    vector, matrix = rng.normal(size=RECORDS), rng.normal(size=(RECORDS, 3))
    bits = rng.integers(0, 2, RECORDS)
    counts = rng.integers(0, 5, RECORDS)
    groups = rng.integers(0, 4, RECORDS)
    pairs = rng.normal(size=(RECORDS, 2))
    trials = dict(dept=groups, male=bits, applications=counts + 5, admit=counts)
    return {
        "logistic": (logistic, dict(X=matrix, y=bits), {}),
        "hierarchical": (
            hierarchical,
            dict(x=vector, group=groups, y=2 * vector),
            dict(public=dict(groups=4)),
        ),
        "mixture": (mixture, dict(x=vector), {}),
        "subsampled": (subsampled, dict(x=vector), {}),
        "scaled": (scaled, dict(x=vector), {}),
        "masked": (masked, dict(x=vector, seen=bits.astype(bool)), {}),
        "nested": (nested, dict(x=rng.normal(size=(RECORDS, 4))), {}),
        "correlated": (correlated, dict(x=pairs), {}),
        "ucbadmit": (
            ucbadmit,
            trials := dict(
                dept=groups, male=bits, applications=counts + 5, admit=counts
            ),
            dict(example=trials),
        ),
        "zero inflated": (zero_inflated, dict(x=matrix, y=counts), {}),
        "horseshoe": (horseshoe, dict(x=matrix, y=vector), {}),
        "network": (bayesian_network, dict(x=matrix, y=vector), {}),
        "ordinal": (ordinal, dict(x=vector, y=counts % 3), {}),
        "proportions": (
            proportions,
            dict(x=matrix, treated=vector, sold=bits),
            {},
        ),
    }
