"""DPVI on UCI Adult beside non-private VI, and its step beside jax-privacy's.

    python -m benchmarks.dpvi [--columns compact all] [--repetitions N] [--speed]

Logistic regression with prior N(0, 3^2) and rows of norm at most 1, so that a clip norm
of 1 never clips the aligned gradients. For epsilon = 1 and 10 at delta = 1e-5
(substitution) the noise multiplier spends the budget on 1000 steps of Poisson samples
of a tenth of the records. Non-private VI has the same guide, optimiser and number of
steps, all records, and no clipping and noise (`benchmarks.adult` has NUTS). Printed are
accuracy and mean log-likelihood of the test file, mean and sd over repetitions.

``--speed`` times a step in one process, in turns, with one that takes a batch from
jax-privacy's Poisson sampling, pads it to the same size, and sums by its
``clipped_grad``, in float32: with and without the drawing of the batch.
"""

import argparse
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection, clipping

import dpjax
from benchmarks import timing
from dpjax import privacy
from dpjax.datasets.adult import adult_features, load_adult
from dpjax.models import logistic_regression
from dpjax.random.batches import num_poisson_words, poisson
from dpjax.release import vector_sums
from dpjax.release.gaussian_sum import GaussianSum

EPSILONS, DELTA = (1.0, 10.0), 1e-5
NUM_STEPS, SAMPLING_PROB = 1000, 0.1
LEARNING_RATE = optax.cosine_decay_schedule(0.1, NUM_STEPS, alpha=0.1)
OPTIMIZER = optax.adam(LEARNING_RATE)
FITS = {
    "mean field": (dpjax.guides.MeanField, True),
    "mean field, plain": (dpjax.guides.MeanField, False),
    "full rank": (dpjax.guides.FullRank, True),
}
"""Guides, and whether their gradients are aligned."""
SCANNED = 20
"""Steps of a timed loop."""
NOT_PRIVATE = dict(l2_clip_norm=float("inf"), noise_multiplier=0.0)


def adult(columns):
    """The posterior, and the test features and labels."""
    splits = load_adult()
    features, labels, _ = adult_features(splits["train"], columns)
    test = adult_features(splits["test"], columns)[:2]
    posterior = logistic_regression(
        jnp.asarray(features), jnp.asarray(labels), prior_sd=3.0
    )
    return posterior, test


def score(positions, features, labels):
    """Accuracy and mean log-likelihood of the posterior predictive."""
    draws = np.asarray(positions).reshape(-1, features.shape[1])
    draws = draws[:: max(len(draws) // 500, 1)]
    chance = np.mean(1 / (1 + np.exp(-features @ draws.T)), axis=1)
    loglikelihood = np.log(np.where(labels == 1, chance, 1 - chance))
    return np.mean((chance > 0.5) == labels), np.mean(loglikelihood)


def fits(posterior, dim, repetitions=1, **options):
    """Draws of every repetition."""
    algorithm_fn = functools.partial(dpjax.dpvi, optimizer=OPTIMIZER, **options)
    found = dpjax.batch(
        {"dpvi": (algorithm_fn, None)},
        [posterior],
        NUM_STEPS,
        initial_position=jnp.zeros((1, dim)),
        num_chains=1,
        num_repetitions=repetitions,
        verbose=False,
    )
    return found.positions["dpvi"][0]


def noise_multiplier(posterior, epsilon, **options):
    """The one that spends the budget on all steps."""

    def step_events(value):
        return dpjax.dpvi(
            posterior, OPTIMIZER, noise_multiplier=value, **options
        ).privacy(1)

    return privacy.calibrate(
        step_events,
        num_steps=NUM_STEPS,
        epsilon=epsilon,
        delta=DELTA,
        bracket=(0.3, 1e3),
    )


def line(name, scores):
    accuracy, loglikelihood = np.transpose(scores)
    print(
        f"  {name:<42}{accuracy.mean():8.4f} ({accuracy.std():.4f})"
        f"{loglikelihood.mean():10.4f} ({loglikelihood.std():.4f})",
        flush=True,
    )


def accuracy(columns, repetitions):
    posterior, test = adult(columns)
    dim = test[0].shape[1]
    print(f"Adult, {columns}: {dim} coefficients; accuracy and test log-likelihood")
    for name, (guide, aligned) in FITS.items():
        guide = guide(dim)
        if aligned:
            (plain,) = fits(posterior, dim, guide=guide, **NOT_PRIVATE)
            line(f"{name}, not private", [score(plain, *test)])
        for epsilon in EPSILONS:
            options = dict(
                guide=guide,
                l2_clip_norm=1.0,
                sampling_prob=SAMPLING_PROB,
                aligned=aligned,
            )
            try:
                noise = noise_multiplier(posterior, epsilon, **options)
            except privacy.BudgetError:
                print(f"  {name}, epsilon {epsilon:g}: numerical error exceeds delta")
                continue
            found = fits(posterior, dim, repetitions, noise_multiplier=noise, **options)
            scores = [score(draws, *test) for draws in found]
            line(f"{name}, epsilon {epsilon:g}, noise {noise:.2f}", scores)


def their_step(posterior, guide, release, capacity):
    """The same step by jax-privacy: ``(state, key, indices) -> state``."""
    summed = clipping.clipped_grad(
        posterior.loglikelihood_fn,
        argnums=0,
        batch_argnums=1,
        l2_clip_norm=release.l2_clip_norm,
        keep_batch_dim=False,
    )
    sd = release.noise_multiplier * release.l2_clip_norm

    @jax.jit
    def step(state, key, indices, posterior):
        first, second = jax.random.split(key)
        normals = jax.random.normal(first, (guide.dim,))
        batch = jax.tree.map(lambda leaf: leaf[indices], posterior.data)
        parameters = state.position
        draw, pull_back = jax.vjp(
            lambda parameters: guide.transform(parameters, normals), parameters
        )
        total = summed(draw, batch, is_padding_example=indices < 0)
        noisy = total + sd * jax.random.normal(second, total.shape)
        (likelihood,) = pull_back(noisy / release.sampling_prob)
        public = jax.grad(
            lambda parameters: (
                posterior.logprior_fn(guide.transform(parameters, normals))
                + guide.entropy(parameters)
            )
        )(parameters)
        loss = jax.tree.map(lambda a, b: -a - b, likelihood, public)
        updates, memory = OPTIMIZER.update(loss, state.optimizer_state, parameters)
        return type(state)(optax.apply_updates(parameters, updates), memory)

    return step


def speed(columns, calls=200):
    posterior, _ = adult(columns)
    dim = posterior.data[0].shape[1]
    guide = dpjax.guides.MeanField(dim)
    release = GaussianSum(1.0, 4.0, SAMPLING_PROB)
    options = dict(
        guide=guide, l2_clip_norm=1.0, noise_multiplier=4.0, sampling_prob=SAMPLING_PROB
    )
    num_records, q = posterior.num_records, release.sampling_prob
    algorithm = dpjax.dpvi(posterior, OPTIMIZER, **options)
    state = algorithm.init(jnp.zeros(dim))

    @jax.jit
    def our_step(state, key, posterior):
        return dpjax.dpvi(posterior, OPTIMIZER, **options).step(key, state)[0]

    words = np.random.default_rng(0).integers(
        0, 2**32, num_poisson_words(q, num_records), np.uint32
    )
    sample = poisson(jnp.asarray(words), q, num_records)
    capacity = len(sample.indices)
    batches = batch_selection.CyclicPoissonSampling(q, 10**6).batch_iterator(
        num_records, np.random.default_rng(0)
    )

    def batch():
        return batch_selection.pad_to_multiple_of(next(batches), capacity)

    step, fixed = their_step(posterior, guide, release, capacity), batch()
    summed = clipping.clipped_grad(
        posterior.loglikelihood_fn,
        argnums=0,
        batch_argnums=1,
        l2_clip_norm=1.0,
        keep_batch_dim=False,
    )

    @jax.jit
    def their_sum(posterior, indices):
        batch = jax.tree.map(lambda leaf: leaf[indices], posterior.data)
        return summed(jnp.zeros(dim), batch, is_padding_example=indices < 0)

    @jax.jit
    def our_sum(posterior, sample):
        gradient_fn = jax.grad(posterior.loglikelihood_fn)
        contribution_fn = functools.partial(gradient_fn, jnp.zeros(dim))
        return vector_sums.vector_sum(posterior, contribution_fn, 1.0, sample)

    key = jax.random.key(1)

    @jax.jit
    def our_steps(state, key, posterior):
        """As a run makes them."""
        step = dpjax.dpvi(posterior, OPTIMIZER, **options).step
        keys = jax.random.split(key, SCANNED)
        return jax.lax.scan(lambda state, key: step(key, state), state, keys)[0]

    lines = {
        "dpjax step": lambda: our_step(state, key, posterior),
        "dpjax step in a run": lambda: our_steps(state, key, posterior),
        "jax-privacy step": lambda: step(state, key, batch(), posterior),
        "jax-privacy step, batch given": lambda: step(state, key, fixed, posterior),
        "dpjax gradient sum": lambda: our_sum(posterior, sample),
        "jax-privacy gradient sum": lambda: their_sum(posterior, fixed),
    }
    times = timing.in_turns(lines, calls)
    print(
        f"Adult, {columns}: samples of {capacity} at most; load average "
        f"{os.getloadavg()[0]:.1f}; milliseconds, minimum and median"
    )
    for name, values in times.items():
        scale = 1e3 / (SCANNED if name.endswith("run") else 1)
        print(f"  {name:<32}{scale * min(values):8.3f}{scale * np.median(values):8.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", nargs="+", default=["compact", "all"])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--speed", action="store_true", help="only time the step")
    options = parser.parse_args()
    for columns in options.columns:
        if options.speed:
            speed(columns)
        else:
            accuracy(columns, options.repetitions)


if __name__ == "__main__":
    main()
