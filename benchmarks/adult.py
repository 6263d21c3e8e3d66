"""Private logistic regression on UCI Adult, beside the non-private posterior.

    python -m benchmarks.adult [--config configs/adult_logistic.toml]

Prints accuracy and mean log-likelihood on the test file for the private run of the
configuration and for BlackJAX's NUTS on the same Posterior. The second is not private:
it is here because Adult is public.
"""

import argparse
import time

import jax
import jax.numpy as jnp

import dpjax
from dpjax.cli import predictive
from dpjax.comparisons import baselines
from dpjax.config import load


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/adult_logistic.toml")
    parser.add_argument("--samples", type=int, default=500)
    options = parser.parse_args()
    job = load(options.config)
    posterior, names, test = job.load()
    start = time.perf_counter()
    result = dpjax.run(job.algorithm_fn, posterior, budget=job.budget, **job.run)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    baseline = baselines.nuts(
        jax.random.key(0),
        posterior,
        options.samples,
        initial_position=jnp.zeros((1, len(names))),
        num_warmup=options.samples,
    )
    draws = baseline.positions[0]
    print(f"private  {seconds:6.1f} s  {predictive(result.positions, *test)}")
    print(
        f"NUTS     {time.perf_counter() - start:6.1f} s  "
        f"{predictive(draws[None], *test)}"
    )
    private = result.positions.reshape(-1, len(names))
    print(f"{'':<20}{'private mean':>14}{'sd':>8}{'NUTS mean':>12}{'sd':>8}")
    for i, name in enumerate(names):
        print(
            f"{name:<20}{private[:, i].mean():14.3f}{private[:, i].std():8.3f}"
            f"{draws[:, i].mean():12.3f}{draws[:, i].std():8.3f}"
        )


if __name__ == "__main__":
    main()
