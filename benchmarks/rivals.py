"""Four private posteriors of one linear regression, at the same budget.

    python -m benchmarks.rivals [--epsilon E ...] [--data-sets N] [--json FILE]

The model, its records and their number are those of configs/numpyro/linear.toml.

- `fit`: `dpjax.numpyro.sample`, which needs no settings.
- `walk`: the same with ``method="walk"``.
- `dpvi`: `dpjax.dpvi` and `dpjax.noise_aware`. Its settings below were chosen on a data
  set of another seed.
- `statistics`: the sums of z z^T over the records, z = (1, x, y), released with
  Gaussian noise; y is clipped to a public range. Each draw takes noise of the same law
  off again, and then draws from the posterior that such sums imply.

Means and widths are compared with the posterior without privacy, and intervals with
the truth, as in `benchmarks.numpyro_models`. Neighbours differ in one substituted
record.
"""

import argparse
import dataclasses
import functools
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import dpjax
from benchmarks import numpyro_models
from dpjax import config, privacy
from dpjax.vi.guides import MeanField
from dpjax.vi.optimizers import noise_scaled_sgd

DELTA = 1e-6
NUM_DRAWS = 2000
NAME = "linear"
DIM = 5

NUM_STEPS, CLIP_NORM, DISTANCE, SCALE = 400, 8.0, 0.1, 0.005
WARMUP_FRACTION, CURVATURE_LOG_SD = 0.3, 0.5
"""Of DPVI. The scale is about 0.7 / sqrt(n)."""

RANGE = -2.0, 4.0
"""Of y, which no record of a million leaves by chance."""

PRIOR_SDS = np.array([2.0, 1.0, 1.0, 1.0])


def sampled(posterior, epsilon, seed, method):
    return dpjax.numpyro.sample(
        dataclasses.replace(posterior, constrain_fn=None),
        budget=dpjax.Budget(epsilon, DELTA),
        method=method,
        verbose=False,
        unsafe_key=jax.random.key(seed),
    ).positions


def dpvi(posterior, epsilon, seed):
    guide = MeanField(DIM, SCALE)

    def algorithm_fn(noise_multiplier):
        return functools.partial(
            dpjax.dpvi,
            optimizer=noise_scaled_sgd(NUM_STEPS, DISTANCE),
            guide=guide,
            l2_clip_norm=CLIP_NORM,
            noise_multiplier=noise_multiplier,
            sampling_prob=1.0,
            aligned=False,
        )

    noise_multiplier = privacy.calibrate(
        lambda multiplier: algorithm_fn(multiplier)(posterior).privacy(1),
        num_steps=NUM_STEPS,
        epsilon=epsilon,
        delta=DELTA,
        bracket=(1.0, 3e4),
    )
    start = {"intercept": (1,), "sigma": (1,), "slopes": (1, 3)}
    infos = dpjax.run(
        algorithm_fn(noise_multiplier),
        posterior,
        NUM_STEPS,
        initial_position={name: jnp.zeros(shape) for name, shape in start.items()},
        num_chains=1,
        budget=dpjax.Budget(epsilon, DELTA),
        warmup_fraction=0.0,
        verbose=False,
        unsafe_key=jax.random.key(seed),
    ).infos
    first = int(WARMUP_FRACTION * NUM_STEPS)
    infos = jax.tree.map(lambda leaf: leaf[:, first:], infos)
    found = dpjax.noise_aware(infos, curvature_log_sd=CURVATURE_LOG_SD)
    return found.draws(jax.random.key(seed), guide, NUM_DRAWS)


def statistics(posterior, epsilon, seed):
    """Positions from one release of the sums of products.

    With |z|^2 <= b, two matrices z z^T with the same first entry differ by at most
    sqrt(2 b^2 - 2) in the Frobenius norm. Noise of sd s on the diagonal and s / sqrt(2)
    off it is isotropic in this norm.
    """
    rng = np.random.default_rng(seed)
    middle, half = np.mean(RANGE), np.ptp(RANGE) / 2
    x = np.clip(np.asarray(posterior.data["x"], float), -1, 1)
    y = (np.clip(np.asarray(posterior.data["y"], float), *RANGE) - middle) / half
    z = np.column_stack([np.ones(len(x)), x, y])
    bound = 2.0 + x.shape[1]
    multiplier = privacy.calibrate(
        lambda multiplier: [(privacy.GaussianRelease(multiplier), 1)],
        num_steps=1,
        epsilon=epsilon,
        delta=DELTA,
        bracket=(1e-2, 1e4),
    )
    sd = multiplier * np.sqrt(2 * bound**2 - 2)

    def noise():
        matrix = rng.normal(scale=sd / 2, size=(z.shape[1], z.shape[1]))
        matrix = matrix + matrix.T
        matrix[0, 0] = 0.0
        return matrix

    released = z.T @ z + noise()
    draws = []
    while len(draws) < NUM_DRAWS:
        sums = released - noise()
        if np.linalg.eigvalsh(sums)[0] <= 0:
            continue
        xx, xy, yy = sums[:-1, :-1], sums[:-1, -1], sums[-1, -1]
        squares = yy - xy @ np.linalg.solve(xx, xy)
        variance = squares / rng.chisquare(len(z) - len(xx))
        precision = xx / variance + np.diag((half / PRIOR_SDS) ** 2)
        mean = np.linalg.solve(precision, xy / variance)
        root = np.linalg.cholesky(np.linalg.inv(precision))
        draws.append((half * (mean + root @ rng.normal(size=4)), half * variance**0.5))
    weights, sigma = map(np.stack, zip(*draws, strict=True))
    position = {
        "intercept": weights[:, 0] + middle,
        "sigma": np.log(sigma),
        "slopes": weights[:, 1:],
    }
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], position)


METHODS = {
    "fit": functools.partial(sampled, method="fit"),
    "walk": functools.partial(sampled, method="walk"),
    "dpvi": dpvi,
    "statistics": statistics,
}


def rows(epsilon: float, num_data_sets: int):
    """A row of the table for each method."""
    job = config.load(numpyro_models.CONFIGS / f"{NAME}.toml")
    posterior, _, _ = job.load()
    truth = numpyro_models.TRUTH[NAME]
    start = jax.tree.map(
        lambda leaf: leaf[0], dpjax.numpyro.initial_position(posterior, 1)
    )
    flatten = jax.vmap(lambda position: ravel_pytree(position)[0])
    prior_sd = np.asarray(flatten(posterior.model.prior_draws), np.float64).std(0)
    found = {name: [] for name in METHODS}
    for seed in range(num_data_sets):
        target = numpyro_models.drawn_anew(NAME, posterior, truth, 2000 + seed)
        centre, sd, exact = numpyro_models.mode(target, start)
        exact = numpyro_models.by_site(target, exact)
        exact_inside = numpyro_models.covered(exact, truth)
        for name, method in METHODS.items():
            began = time.perf_counter()
            positions = method(target, epsilon, seed)
            seconds = time.perf_counter() - began
            draws = numpyro_models.by_site(target, positions)
            flat = np.asarray(jax.vmap(flatten)(positions), np.float64)
            flat = flat.reshape(-1, DIM)
            error, width = np.abs(flat.mean(0) - centre) / sd, flat.std(0)
            inside = numpyro_models.covered(draws, truth)
            of_set = error, width / sd, width / prior_sd, inside, exact_inside, seconds
            found[name].append(of_set)
    return [
        dict(method=name, records=posterior.num_records, epsilon=epsilon)
        | numpyro_models.summary(*zip(*parts, strict=True))
        for name, parts in found.items()
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.3, 1.0, 4.0])
    parser.add_argument("--data-sets", type=int, default=20)
    parser.add_argument("--json", type=Path, help="a file that the rows are written to")
    options = parser.parse_args()
    found = []
    print("| method | epsilon | median error | rms | sd ratio | covers | data sets |")
    print("|" + "---|" * 7)
    for epsilon in options.epsilon:
        for row in rows(epsilon, options.data_sets):
            found.append(row)
            print(
                "| {method} | {epsilon:g} | {median:.2f} | {rms:.2f} | {sd_ratio:.2f} "
                "| {covers:.3f} ({covers_error:.3f}) | {data_sets} |".format(**row),
                flush=True,
            )
    if options.json:
        lines = ",\n".join(json.dumps(row) for row in found)
        options.json.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
