"""How many records a step clips: not private, for generated data.

A replay proposes again from states of a finished chain and counts the records whose
log ratio, or gradient, is above its bound. Replays are functions
``(rng_key, posterior, position) -> (proposed, clip_bound, gradient_clip)``, the bound
in nats and the share of gradients clipped, NaN where there are none.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax import Lipschitz
from dpjax.proposals import Proposal

__all__ = ["FEW", "MANY", "clip_fractions", "leapfrog", "walk"]

FEW, MANY = 20, 100
"""States of a chain that are replayed: of Hamiltonian walks, and of others."""


@functools.partial(jax.jit, static_argnames="replay_fn")
def clip_fractions(replay_fn: Callable, rng_key, posterior, positions):
    """Shares of the log ratios and gradients clipped in steps from `positions`.

    Parameters
    ----------
    positions
        ``(m, d)``.

    Returns
    -------
    Two arrays ``(m,)``.
    """

    def one(arguments):
        rng_key, position = arguments
        proposed, clip_bound, gradients = replay_fn(rng_key, posterior, position)
        over_records = jax.vmap(posterior.loglikelihood_fn, (None, 0))
        ratio = over_records(proposed, posterior.data)
        ratio -= over_records(position, posterior.data)
        return jnp.mean(jnp.abs(ratio) > clip_bound), gradients

    # One at a time, XLA compiles gradients on the CPU to much slower loops.
    rng_keys = jax.random.split(rng_key, len(positions))
    return jax.lax.map(one, (rng_keys, positions), batch_size=4)


def _at(clip_bound, distance):
    if isinstance(clip_bound, Lipschitz):
        return clip_bound.constant * distance
    return clip_bound


def walk(proposal: Proposal, step_size, clip_bound) -> Callable:
    """The replay of a proposal that reads no data."""

    def replay_fn(rng_key, posterior, position):
        words_key, walk_key = jax.random.split(rng_key)
        count = proposal.num_words(position.size)
        words = jax.random.bits(words_key, (count,), jnp.uint32)
        # The memory of a guided walk; random walks have none.
        signs = jax.random.rademacher(walk_key, position.shape, position.dtype)
        move = proposal.propose(words, position, signs, step_size)
        return move.position, _at(clip_bound, move.distance), math.nan

    return replay_fn


def leapfrog(
    step_size,
    clip_bound,
    *,
    num_integration_steps: int,
    l2_clip_norm: float,
    noise_multiplier: float,
) -> Callable:
    """The replay of DP HMC with masses of one; parameters as in `dpjax.hmc`."""
    points = num_integration_steps + 1
    noise_sd = noise_multiplier * l2_clip_norm

    def gradient(normal, posterior, position):
        """G of `dpjax.mcmc.hmc`, and the share of the records' gradients clipped."""
        gradients = jax.vmap(
            jax.grad(posterior.loglikelihood_fn), (None, 0), out_axes=1
        )(position, posterior.data)
        norm = jnp.sqrt(jnp.sum(gradients**2, axis=0))
        shrink = jnp.minimum(1, l2_clip_norm / jnp.maximum(norm, 1e-30))
        total = jnp.sum(gradients * shrink[None], axis=1)
        total += noise_sd * normal
        prior = jax.grad(posterior.logprior_fn)(position)
        return posterior.tempering * total + prior, jnp.mean(norm > l2_clip_norm)

    def replay_fn(rng_key, posterior, position):
        momentum_key, noise_key = jax.random.split(rng_key)
        dim, dtype = position.size, position.dtype
        momentum = jax.random.normal(momentum_key, (dim,), dtype)
        normals = jax.random.normal(noise_key, (points, dim), dtype)

        def kick_and_drift(carry, point):
            theta, momentum = carry
            normal, kick, drift = point
            slope, clipped = gradient(normal, posterior, theta)
            momentum = momentum + kick * step_size * slope
            return (theta + drift * step_size * momentum, momentum), clipped

        ones = jnp.ones(points, dtype)
        kicks = ones.at[0].set(0.5).at[-1].set(0.5)
        rows = normals, kicks, ones.at[-1].set(0)
        (proposed, _), clipped = jax.lax.scan(
            kick_and_drift, (position, momentum), rows
        )
        distance = jnp.linalg.norm(proposed - position)
        return proposed, _at(clip_bound, distance), jnp.mean(clipped)

    return replay_fn
