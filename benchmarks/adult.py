"""Private logistic regression on UCI Adult, beside the non-private posterior.

    python -m benchmarks.adult [--config configs/adult_logistic.toml]

Prints accuracy and mean log-likelihood on the test file for the private run of the
configuration and for BlackJAX's NUTS on the same Posterior. The second is not private:
it is here because Adult is public.
"""

import argparse
import time

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax.cli import predictive
from dpjax.config import load


def nuts(posterior, dim, num_samples):
    """Draws ``(num_samples, dim)`` after as many steps of window adaptation."""

    @jax.jit
    def sample(posterior, key):
        warmup, run = jax.random.split(key)
        adaptation = blackjax.window_adaptation(blackjax.nuts, posterior)
        (state, parameters), _ = adaptation.run(warmup, jnp.zeros(dim), num_samples)
        algorithm = blackjax.nuts(posterior, **parameters)
        _, (states, _) = blackjax.util.run_inference_algorithm(
            run, algorithm, num_samples, initial_state=state
        )
        return states.position

    return np.asarray(sample(posterior, jax.random.key(0)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/adult_logistic.toml")
    parser.add_argument("--samples", type=int, default=500)
    options = parser.parse_args()
    job = load(options.config)
    posterior, names, test = job.load()
    start = time.perf_counter()
    result = dpjax.run(None, job.algorithm_fn, posterior, budget=job.budget, **job.run)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    draws = nuts(posterior, len(names), options.samples)
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
