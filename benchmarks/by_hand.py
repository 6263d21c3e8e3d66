"""Steps written by hand: what the speed of the private kernels is held against.

Each makes the passes over the data that a private step needs, in float32 and for all
chains at once: formulas worked out for one model, clipped for every record and summed.
It stops there: no exact integers, no noise, no accept test. A step is a function
``(position, rng_key, data) -> position``, whose result hangs on every sum, so that XLA
leaves none out; positions have shape ``(chains, d)``.
"""

import jax
import jax.numpy as jnp

from dpjax.models import network
from dpjax.random import batches

CURVATURE = 20.0


def banana_ratios(first, second, data):
    """Log ratios ``(chains, n)``; the records ``(..., n, d)`` may differ by chain."""
    x1, x2 = data[..., 0], data[..., 1]

    def loglikelihood(position):
        t1, t2 = position[:, :1], position[:, 1:2]
        square = 0.05 * (x1 - t1) ** 2 + 0.4 * (x2 - t2 - CURVATURE * t1**2) ** 2
        for j in range(2, data.shape[-1]):
            square += (data[..., j] - position[:, j : j + 1]) ** 2
        return -0.5 * square

    return loglikelihood(second) - loglikelihood(first)


def vector_ratios(first, second, data):
    """As `banana_ratios`, for normal records of variance one."""

    def loglikelihood(position):
        columns = zip(data.T, position.T, strict=True)
        return -0.5 * sum((x - t[:, None]) ** 2 for x, t in columns)

    return loglikelihood(second) - loglikelihood(first)


def banana_gradient_sum(block_size):
    """Sum of the gradients, each clipped in norm, ``(chains, d)``.

    The number of records is a multiple of `block_size`. Blocks of 2000 records halve
    the time for d = 10, where a whole pass does not fit the cache; for d = 2 one block
    is fastest.
    """

    def gradient_sum(position, data, l2_clip_norm):
        t1, t2, *others = position.T[:, :, None]
        blocks = data.reshape(-1, block_size, data.shape[1]).transpose(0, 2, 1)

        def add(total, block):
            x1, x2, *rest = block
            second = 0.4 * (x2 - t2 - CURVATURE * t1**2)
            gradient = [0.05 * (x1 - t1) + 2 * CURVATURE * t1 * second, second]
            gradient += [x - t for x, t in zip(rest, others, strict=True)]
            norm = jnp.sqrt(sum(g**2 for g in gradient))
            shrink = jnp.minimum(1.0, l2_clip_norm / norm)
            found = jnp.sum(jnp.stack([g * shrink for g in gradient]), axis=2)
            return total + found.T, None

        return jax.lax.scan(add, jnp.zeros_like(position), blocks)[0]

    return gradient_sum


def logistic_loglikelihood(position, data):
    """Log-likelihoods ``(chains, n)``."""
    features, labels = data
    logits = position @ features.T
    return labels * logits - jax.nn.softplus(logits)


def logistic_ratios(first, second, data):
    """As `banana_ratios`, both positions in one matrix product."""
    value = logistic_loglikelihood(jnp.concatenate([second, first]), data)
    return value[: len(first)] - value[len(first) :]


def logistic_gradient_sum(position, data, l2_clip_norm):
    """As `banana_gradient_sum`, in two matrix products."""
    features, labels = data
    weights = labels - jax.nn.sigmoid(position @ features.T)
    bound = l2_clip_norm / jnp.linalg.norm(features, axis=1)
    return jnp.clip(weights, -bound, bound) @ features


def network_gradient_sum(position, data, l2_clip_norm):
    """As `banana_gradient_sum`, for `models.network`, from norms by layer."""
    features, targets = data
    num_features = features.shape[1]
    inputs = jnp.pad(features, ((0, 0), (0, 1)), constant_values=1.0)
    inputs /= (num_features + 1) ** 0.5
    square_lengths = jnp.sum(inputs**2, axis=1)

    def of_one_chain(position):
        hidden, output, log_sd = network.layers(position, num_features)
        scale = (len(hidden) + 1) ** 0.5
        active = jax.nn.relu(inputs @ hidden.T)
        gap = targets - (active @ output[:-1] + output[-1]) / scale
        of_mean = gap * jnp.exp(-2 * log_sd) / scale
        of_log_sd = gap**2 * jnp.exp(-2 * log_sd) - 1
        of_hidden = of_mean[:, None] * output[:-1] * (active > 0)
        square = jnp.sum(of_hidden**2, axis=1) * square_lengths + of_log_sd**2
        square += of_mean**2 * (jnp.sum(active**2, axis=1) + 1)
        shrink = jnp.minimum(1.0, l2_clip_norm / jnp.sqrt(square))
        of_mean *= shrink
        parts = (shrink[:, None] * of_hidden).T @ inputs, of_mean @ active
        sums = jnp.sum(of_mean)[None], jnp.sum(shrink * of_log_sd)[None]
        return jnp.concatenate([part.ravel() for part in parts + sums])

    return jax.vmap(of_one_chain)(position)


def random_walk(ratios, length, clip_bound):
    """Step with one sum of the log ratios to a position `length` away."""

    def step(position, rng_key, data):
        jump = length * jax.random.normal(rng_key, position.shape)
        ratio = ratios(position, position + jump, data)
        total = jnp.sum(jnp.clip(ratio, -clip_bound, clip_bound), axis=1)
        return position + 1e-9 * total[:, None] * jump

    return step


def batched_walk(ratios, length, clip_bound, batch_size, num_records):
    """As `random_walk` on a batch drawn for every chain: mean and variance."""
    num_words = batches.num_words(batch_size, num_records)

    def draw(words):
        return batches.without_replacement(words, batch_size, num_records)

    def step(position, rng_key, data):
        jump_key, batch_key = jax.random.split(rng_key)
        jump = length * jax.random.normal(jump_key, position.shape)
        words = jax.random.bits(batch_key, (len(position), num_words), jnp.uint32)
        ratio = ratios(position, position + jump, data[jax.vmap(draw)(words)])
        ratio = jnp.clip(ratio, -clip_bound, clip_bound)
        mean = jnp.mean(ratio, axis=1)
        variance = jnp.mean(ratio**2, axis=1) - mean**2
        return position + 1e-9 * (mean + variance)[:, None] * jump

    return step


def langevin(gradient_sum, step_size, l2_clip_norm):
    """Step along one sum of gradients."""

    def step(position, rng_key, data):
        noise = jax.random.normal(rng_key, position.shape)
        gradient = gradient_sum(position, data, l2_clip_norm)
        return position + step_size * (gradient + noise)

    return step


def hamiltonian(
    gradient_sum, ratios, step_size, num_integration_steps, l2_clip_norm, clip_bound
):
    """Leapfrog path with a pass for each of its L + 1 points, and one sum of ratios."""

    def step(position, rng_key, data):
        def kick_and_drift(carry, _):
            z, p = carry
            p = p + step_size * gradient_sum(z, data, l2_clip_norm)
            return (z + step_size * p, p), None

        start = position, jax.random.normal(rng_key, position.shape)
        points = num_integration_steps + 1
        (end, _), _ = jax.lax.scan(kick_and_drift, start, length=points)
        ratio = ratios(position, end, data)
        total = jnp.sum(jnp.clip(ratio, -clip_bound, clip_bound), axis=1)
        return position + 1e-9 * total[:, None] * (end - position)

    return step
