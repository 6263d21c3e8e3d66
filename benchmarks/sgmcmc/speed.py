"""A step of SGLD on the MNIST network beside one with jax-privacy's clipped gradients.

In one process, in turns, in float32, on a padded Poisson sample of the same size; with
and without drawing it. And the memory that the step of twenty chains takes.
"""

import functools
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import batch_selection, clipping

import dpjax
from benchmarks import timing
from benchmarks.sgmcmc import mnist, network
from dpjax.random.batches import num_poisson_words, poisson
from dpjax.release import vector_sums

CHAINS = 20


def run(settings: dict, quick: bool) -> None:
    """Print both tables."""
    posterior, _ = mnist.load(quick)
    num_records, norm = posterior.num_records, settings["l2_clip_norm"]
    q = np.ceil(settings["sampling_prob"] * 2**32) / 2**32
    words = np.random.default_rng(0).integers(
        0, 2**32, num_poisson_words(q, num_records), np.uint32
    )
    sample = poisson(jnp.asarray(words), q, num_records)
    capacity = len(sample.indices)
    sampling = batch_selection.CyclicPoissonSampling(q, 10**6)
    batches = sampling.batch_iterator(num_records, np.random.default_rng(0))

    def batch():
        return batch_selection.pad_to_multiple_of(next(batches), capacity)

    fixed = batch()
    position = network.start(jax.random.key(0))
    size = settings["init_value"]
    noise_sd = (2 * size / num_records) ** 0.5

    def kernel(posterior):
        return dpjax.sgld(
            posterior, size, dim=network.DIM, l2_clip_norm=norm, sampling_prob=q
        )

    @jax.jit
    def our_step(state, key, posterior):
        return kernel(posterior).step(key, state)[0]

    summed = clipping.clipped_grad(
        network.loglikelihood,
        argnums=0,
        batch_argnums=1,
        l2_clip_norm=norm,
        keep_batch_dim=False,
    )

    def their_total(position, indices, posterior):
        batch = jax.tree.map(lambda leaf: leaf[indices], posterior.data)
        return summed(position, batch, is_padding_example=indices < 0)

    @jax.jit
    def their_step(position, key, indices, posterior):
        total = their_total(position, indices, posterior)
        prior = jax.grad(posterior.logprior_fn)(position)
        leaves, tree = jax.tree.flatten(position)
        keys = tree.unflatten(jax.random.split(key, len(leaves)))
        return jax.tree.map(
            lambda leaf, g, p, k: (
                leaf
                + size / num_records * (g / q + p)
                + noise_sd * jax.random.normal(k, leaf.shape)
            ),
            position,
            total,
            prior,
            keys,
        )

    @jax.jit
    def our_sum(position, sample, posterior):
        gradient_fn = functools.partial(jax.grad(posterior.loglikelihood_fn), position)
        return vector_sums.vector_sum(posterior, gradient_fn, norm, sample)

    their_sum = jax.jit(their_total)
    state, key = kernel(posterior).init(position), jax.random.key(1)
    lines = {
        "dpjax step": lambda: our_step(state, key, posterior),
        "jax-privacy step": lambda: their_step(position, key, batch(), posterior),
        "jax-privacy step, batch given": lambda: their_step(
            position, key, fixed, posterior
        ),
        "dpjax gradient sum": lambda: our_sum(position, sample, posterior),
        "jax-privacy gradient sum": lambda: their_sum(position, fixed, posterior),
    }
    times = timing.in_turns(lines, 3 if quick else 20)
    print(
        f"{network.DIM} weights, samples of {capacity} at most; load average "
        f"{os.getloadavg()[0]:.1f}; milliseconds, minimum and median"
    )
    for name, values in times.items():
        print(f"  {name:<32}{1e3 * min(values):9.1f}{1e3 * np.median(values):9.1f}")
    print("temporary memory of a step, MB")
    for chains in (1, CHAINS):
        keys = jax.random.split(key, chains)
        states = jax.vmap(lambda _: state)(keys)
        stepped = jax.jit(jax.vmap(our_step, (0, 0, None)))
        compiled = stepped.lower(states, keys, posterior).compile()
        start = time.perf_counter()
        jax.block_until_ready(compiled(states, keys, posterior))
        seconds = time.perf_counter() - start
        temporary = compiled.memory_analysis().temp_size_in_bytes / 1e6
        print(f"  {chains:>3} chains {temporary:9.0f}{seconds:9.2f} s")
    everything = CHAINS * capacity * network.DIM * 4 / 1e6
    print(f"  all gradients of {CHAINS} chains at once {everything:9.0f}")
