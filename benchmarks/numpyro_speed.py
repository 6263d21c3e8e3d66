"""Time of per-record gradients: a NumPyro model beside the same model by hand.

    python -m benchmarks.numpyro_speed [--records N] [--repetitions R]

Both are ``jit(vmap(grad(log-likelihood)))`` over all records at one position, in
float32 and on the same data; they take turns in one process and the least time is
printed.
"""

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from dpjax.numpyro import posterior


def logistic(x, y):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Bernoulli(logits=x @ b), obs=y)


def logistic_by_hand(position, record):
    logit = jnp.dot(record["x"], position["b"])
    return record["y"] * logit - jax.nn.softplus(logit)


def poisson(x, y):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Poisson(jnp.exp(x @ b)), obs=y)


def poisson_by_hand(position, record):
    eta = jnp.dot(record["x"], position["b"])
    return record["y"] * eta - jnp.exp(eta) - gammaln(record["y"] + 1)


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


def models(num_records):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_records, 10)).astype(np.float32) / 3
    bits = rng.integers(0, 2, num_records).astype(np.float32)
    group = rng.integers(0, 20, num_records)
    return {
        "logistic": (logistic, logistic_by_hand, dict(x=x, y=bits)),
        "poisson": (poisson, poisson_by_hand, dict(x=x, y=bits)),
        "hierarchical": (
            hierarchical,
            hierarchical_by_hand,
            dict(x=x, group=group, y=x[:, 0]),
        ),
        "mixture": (mixture, mixture_by_hand, dict(y=x[:, 0])),
    }


def seconds(gradients, position, data):
    start = time.perf_counter()
    jax.block_until_ready(gradients(position, data))
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=50)
    options = parser.parse_args()
    print(
        f"{'model':<14}{'NumPyro':>12}{'by hand':>12}{'ratio':>8}    "
        f"{options.records} records; load average {os.getloadavg()[0]:.1f}"
    )
    for name, (model, by_hand, data) in models(options.records).items():
        target = posterior(model, data, plate="data")
        rng = np.random.default_rng(1)
        shapes = jax.eval_shape(target.logprior_fn.__self__.draw, jax.random.key(0))
        position = jax.tree.map(
            lambda leaf, rng=rng: jnp.asarray(0.3 * rng.normal(size=leaf.shape)), shapes
        )
        calls = [
            jax.jit(jax.vmap(jax.grad(function), (None, 0)))
            for function in (target.loglikelihood_fn, by_hand)
        ]
        first, second = (call(position, target.data) for call in calls)
        for leaf, other in zip(*map(jax.tree.leaves, (first, second)), strict=True):
            np.testing.assert_allclose(leaf, other, rtol=1e-3, atol=1e-4)
        best = [np.inf, np.inf]
        for _ in range(options.repetitions):
            for i, call in enumerate(calls):
                best[i] = min(best[i], seconds(call, position, target.data))
        ours, hand = best
        print(f"{name:<14}{ours * 1e3:9.3f} ms{hand * 1e3:9.3f} ms{ours / hand:8.2f}")


if __name__ == "__main__":
    main()
