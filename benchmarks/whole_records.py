"""Models of whole records, skewed or discrete, sampled privately with nothing tuned.

    python -m benchmarks.whole_records [--only NAME ...] [--epsilon E ...]
        [--data-sets N] [--records N] [--json FILE]

`dpjax.sample` on records that a law of NumPyro draws. Parameters are unconstrained, and
standard normal in the prior. For every data set a truth is drawn from the prior, and
records from the truth. Reported is what `benchmarks.numpyro_models` reports, against
the normal law at the mode of the exact posterior.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import dpjax
from benchmarks.numpyro_models import (
    covered,
    mode,
    parser_of,
    print_table,
    summaries,
)

LAWS = {
    "bernoulli": (1, lambda t: dist.Bernoulli(logits=t[0])),
    # Without the one, some records would be too close to 0 or 1 for float32.
    "beta": (2, lambda t: dist.Beta(*(1 + jnp.exp(t)))),
    "gamma": (2, lambda t: dist.Gamma(*jnp.exp(t))),
    "lognormal": (2, lambda t: dist.LogNormal(t[0], jnp.exp(t[1]))),
    "negative_binomial": (2, lambda t: dist.NegativeBinomial2(*jnp.exp(t))),
    "student_t": (3, lambda t: dist.StudentT(2 + jnp.exp(t[0]), t[1], jnp.exp(t[2]))),
    "normal_20d": (20, lambda t: dist.Normal(t, 1.0).to_event(1)),
}
"""Number of parameters, and the law of a record given them."""


def logprior(position):
    return -0.5 * jnp.sum(position**2)


def rows(name, num_data_sets, num_records, epsilons):
    """A row of the table for each epsilon."""
    dim, law = LAWS[name]

    def simulate_fn(rng_key, position):
        return law(position).sample(rng_key)

    def prior_sample_fn(rng_key):
        return jax.random.normal(rng_key, (dim,))

    def loglikelihood(position, record):
        return law(position).log_prob(record)

    scores = {epsilon: [] for epsilon in epsilons}
    for seed in range(num_data_sets):
        truth_key, record_key = jax.random.split(jax.random.key(1000 + seed))
        truth = prior_sample_fn(truth_key)
        keys = jax.random.split(record_key, num_records)
        records = jax.jit(jax.vmap(simulate_fn, (0, None)))(keys, truth)
        posterior = dpjax.Posterior(logprior, loglikelihood, records)
        centre, sd, exact = mode(posterior, truth)
        truth = {"truth": truth}
        exact_inside = covered({"truth": exact[0]}, truth)
        for epsilon, found in scores.items():
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
            error = np.abs(draws.mean(0) - centre) / sd
            width = draws.std(0)
            inside = covered({"truth": draws}, truth)
            found.append((error, width / sd, width, inside, exact_inside, seconds))
    return summaries(name, num_records, scores)


def main():
    options = parser_of(__doc__.splitlines()[0], LAWS, 20_000).parse_args()
    print_table(
        options,
        lambda name: rows(name, options.data_sets, options.records, options.epsilon),
    )


if __name__ == "__main__":
    main()
