"""Time of per-record gradients: a NumPyro model beside the same model by hand.

    python -m benchmarks.numpyro_speed [--records N] [--repetitions R]

All are ``jit(vmap(grad(log-likelihood)))`` over all records at one position, in
float32 and on the same data; they take turns in one process and the least time is
printed. ``distribution`` calls NumPyro's distribution of a record without the adapter:
what is above it is the adapter's, what it is above the one by hand is NumPyro's.
"""

import argparse
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.distributions import biject_to

from benchmarks import timing
from dpjax.numpyro import posterior


def logistic(x, y):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(logits=x @ b), obs=y)


def logistic_by_hand(position, record):
    logit = jnp.dot(record["x"], position["b"])
    return record["y"] * logit - jax.nn.softplus(logit)


def logistic_distribution(position, record):
    law = dist.Bernoulli(logits=record["x"] @ position["b"])
    return law.log_prob(record["y"])


def poisson(x, y):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Poisson(jnp.exp(x @ b)), obs=y)


def poisson_by_hand(position, record):
    eta = jnp.dot(record["x"], position["b"])
    return record["y"] * eta - jnp.exp(eta) - gammaln(record["y"] + 1)


def poisson_distribution(position, record):
    return dist.Poisson(jnp.exp(record["x"] @ position["b"])).log_prob(record["y"])


def hierarchical(x, group, y):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("groups", 20):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        law = dist.Normal(x @ b + effect[group], scale)
        numpyro.sample("obs", law, obs=y)


def hierarchical_by_hand(position, record):
    mean = jnp.dot(record["x"], position["b"]) + position["effect"][record["group"]]
    deviation = (record["y"] - mean) / jnp.exp(position["scale"])
    return -0.5 * deviation**2 - position["scale"] - 0.5 * jnp.log(2 * jnp.pi)


def hierarchical_distribution(position, record):
    mean = record["x"] @ position["b"] + position["effect"][record["group"]]
    return dist.Normal(mean, jnp.exp(position["scale"])).log_prob(record["y"])


def mixture(y):
    weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
    means = numpyro.sample("means", dist.Normal(jnp.zeros(2), 2.0).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        parts = dist.Categorical(jnp.stack([weight, 1 - weight]))
        law = dist.MixtureSameFamily(parts, dist.Normal(means, 1.0))
        numpyro.sample("obs", law, obs=y)


def mixture_by_hand(position, record):
    logit = position["weight"]
    weights = jnp.stack([-jax.nn.softplus(-logit), -jax.nn.softplus(logit)])
    squares = -0.5 * (record["y"] - position["means"]) ** 2
    constant = 0.5 * jnp.log(2 * jnp.pi)
    return jax.scipy.special.logsumexp(weights + squares) - constant


def mixture_distribution(position, record):
    weight = biject_to(dist.constraints.unit_interval)(position["weight"])
    parts = dist.Categorical(jnp.stack([weight, 1 - weight]))
    law = dist.MixtureSameFamily(parts, dist.Normal(position["means"], 1.0))
    return law.log_prob(record["y"])


def models(num_records):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_records, 10)).astype(np.float32) / 3
    bits = rng.integers(0, 2, num_records).astype(np.float32)
    group = rng.integers(0, 20, num_records)
    return {
        "logistic": (
            logistic,
            logistic_distribution,
            logistic_by_hand,
            dict(x=x, y=bits),
        ),
        "poisson": (poisson, poisson_distribution, poisson_by_hand, dict(x=x, y=bits)),
        "hierarchical": (
            hierarchical,
            hierarchical_distribution,
            hierarchical_by_hand,
            dict(x=x, group=group, y=x[:, 0]),
        ),
        "mixture": (mixture, mixture_distribution, mixture_by_hand, dict(y=x[:, 0])),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=200)
    options = parser.parse_args()
    print(
        f"{options.records} records; load average {os.getloadavg()[0]:.1f}; "
        "milliseconds, and the adapter's over them\n"
        f"{'model':<14}{'adapter':>9}{'distribution':>18}{'by hand':>16}"
    )
    for name, (model, *others, data) in models(options.records).items():
        target = posterior(model, data, plate="data")
        rng = np.random.default_rng(1)
        position = jax.tree.map(
            lambda leaf, rng=rng: jnp.asarray(0.3 * rng.normal(size=leaf.shape)),
            target.model.outline,
        )
        calls = [
            jax.jit(jax.vmap(jax.grad(function), (None, 0)))
            for function in (target.loglikelihood_fn, *others)
        ]
        *first, last = (call(position, target.data) for call in calls)
        for found in first:
            for leaf, other in zip(*map(jax.tree.leaves, (found, last)), strict=True):
                np.testing.assert_allclose(leaf, other, rtol=1e-3, atol=1e-4)
        lines = {
            i: functools.partial(call, position, target.data)
            for i, call in enumerate(calls)
        }
        times = timing.in_turns(lines, options.repetitions)
        adapter, *rest = (seconds.min() for seconds in times.values())
        line = "".join(f"{1e3 * x:10.3f} ({adapter / x:.2f})" for x in rest)
        print(f"{name:<14}{1e3 * adapter:9.3f}{line}", flush=True)


if __name__ == "__main__":
    main()
