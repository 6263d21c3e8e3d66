"""Models of whole records, skewed or discrete, sampled privately with nothing tuned.

    python -m benchmarks.whole_records [--only NAME ...] [--epsilon E ...]
        [--data-sets N] [--records N] [--json FILE]

`dpjax.sample` on records that a law of NumPyro draws. Parameters are unconstrained, and
standard normal in the prior. For every data set a truth is drawn from the prior, and
records from the truth. Reported is what `benchmarks.numpyro_models` reports, against
the normal law at the mode of the exact posterior.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import dpjax
from benchmarks.numpyro_models import HEADER, LINE, mode, summary

LAWS = {
    "bernoulli": (1, lambda t: dist.Bernoulli(logits=t[0])),
    "beta": (2, lambda t: dist.Beta(*jnp.exp(t))),
    "gamma": (2, lambda t: dist.Gamma(*jnp.exp(t))),
    "lognormal": (2, lambda t: dist.LogNormal(t[0], jnp.exp(t[1]))),
    "negative_binomial": (2, lambda t: dist.NegativeBinomial2(*jnp.exp(t))),
    "student_t": (3, lambda t: dist.StudentT(2 + jnp.exp(t[0]), t[1], jnp.exp(t[2]))),
    "normal_20d": (20, lambda t: dist.Normal(t, 1.0).to_event(1)),
}
"""Number of parameters, and the law of a record given them."""


def logprior(position):
    return -0.5 * jnp.sum(position**2)


def analysis(name, num_records, seed, epsilons):
    """Error, ratio of sds, width, coverage and seconds at every epsilon."""
    dim, law = LAWS[name]

    def simulate_fn(rng_key, position):
        return law(position).sample(rng_key)

    def prior_sample_fn(rng_key):
        return jax.random.normal(rng_key, (dim,))

    truth_key, record_key = jax.random.split(jax.random.key(1000 + seed))
    truth = prior_sample_fn(truth_key)
    keys = jax.random.split(record_key, num_records)
    records = jax.jit(jax.vmap(simulate_fn, (0, None)))(keys, truth)
    posterior = dpjax.Posterior(
        logprior, lambda position, record: law(position).log_prob(record), records
    )
    centre, sd = mode(posterior, truth)
    for epsilon in epsilons:
        began = time.perf_counter()
        draws = dpjax.sample(
            posterior,
            simulate_fn,
            prior_sample_fn,
            budget=dpjax.Budget(epsilon, 1e-6),
            verbose=False,
            unsafe_key=jax.random.key(seed),
        ).positions.reshape(-1, dim)
        seconds = time.perf_counter() - began
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        inside = (low <= np.asarray(truth)) & (np.asarray(truth) <= high)
        width = draws.std(0)
        yield np.abs(draws.mean(0) - centre) / sd, width / sd, width, inside, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=LAWS, default=list(LAWS))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--data-sets", type=int, default=20)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="a file that the rows are written to")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="(?s).*ArviZ is undergoing")
    print(HEADER)
    rows = []
    for name in options.only:
        found = [
            list(analysis(name, options.records, seed, options.epsilon))
            for seed in range(options.data_sets)
        ]
        for epsilon, of_sets in zip(
            options.epsilon, zip(*found, strict=True), strict=True
        ):
            row = dict(model=name, records=options.records, epsilon=epsilon)
            rows.append(row | summary(*zip(*of_sets, strict=True)))
            print(LINE.format(**rows[-1]), flush=True)
        if options.json:
            lines = ",\n".join(json.dumps(row) for row in rows)
            options.json.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
