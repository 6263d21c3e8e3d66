"""DPVI of an exponential family in closed form, many runs at once.

With K draws z_k = m + s e_k from the guide, s = softplus(rho), that a step shares among
its records, the gradient of the mean log-likelihood of a record with statistic t with
respect to phi = (m, rho) is linear in t,

    mean_k grad_phi l(z_k) = a + B t,
    a = -grad_phi mean_k A(z_k),    B = grad_phi mean_k eta(z_k),

so records of equal t share one gradient, and a sample enters through how many of each t
it holds. Bernoulli and categorical samples are drawn as binomial counts. Samples of the
exponential are drawn record by record, the same places of the data for all runs: their
records are independent, which makes the runs so, but for the sizes of the samples.

The randomness is NumPy's: these are experiments on generated records, with nothing to
protect. The gradient is that of `dpjax.dpvi`, with which a test compares it.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.noise_aware.models import Family

__all__ = [
    "Release",
    "aligned_gradient",
    "expected_curvature",
    "plain_gradient",
    "run",
]

BLOCK = 500
"""Steps whose randomness is in memory at a time."""


class Release(NamedTuple):
    """How gradients are clipped and released.

    l2_clip_norm
        C, of one record's gradient after it was multiplied by `preconditioner`.
    preconditioner
        w, of m and of rho.
    noise_multiplier
        Sd of the noise over C.
    sampling_prob
        q.
    num_records
        N.
    inside
        Whether prior and entropy are clipped with the likelihood, a share of 1/N in
        every record, as published.
    corrected
        Whether what clipping takes off a record, as the model expects it at m, is added
        back.
    """

    l2_clip_norm: float
    preconditioner: tuple[float, float]
    noise_multiplier: float
    sampling_prob: float
    num_records: int
    inside: bool = False
    corrected: bool = False


def plain_gradient(family: Family, release: Release) -> Callable:
    """The noisy gradient of the ELBO with respect to phi, of one run.

    Returns
    -------
    A function of phi ``(2 dim,)``, the normals e ``(K, dim)``, the statistics ``(size,
    dim)`` of a sample, how many records have each ``(size,)``, and standard normals
    ``(2 dim,)`` for the noise.
    """
    weights = jnp.repeat(jnp.asarray(release.preconditioner), family.dim)

    def gradient_fn(parameters, normals, statistics, counts, noise):
        def mean_of(function):
            return lambda phi: jnp.mean(jax.vmap(function)(_draws(phi, normals)), 0)

        def objective(phi):
            scales = jax.nn.softplus(phi[family.dim :])
            return mean_of(family.logprior)(phi) + jnp.sum(jnp.log(scales))

        constant = -jax.grad(mean_of(family.log_partition))(parameters)
        slopes = jax.jacrev(mean_of(family.natural))(parameters)
        public = jax.grad(objective)(parameters)
        if release.inside:
            constant = constant + public / release.num_records
        constant, slopes = weights * constant, weights[None] * slopes

        gradient = _noisy_sum(release, constant, slopes, statistics, counts, noise)
        if release.corrected:
            statistics, masses = family.made_up(parameters[: family.dim])
            records = _linear(constant, slopes, statistics)
            lost = masses * (1 - _factors(release, records))
            gradient = gradient + release.num_records * _weighted(lost, records)
        gradient = gradient / weights
        return gradient if release.inside else gradient + public

    return gradient_fn


def aligned_gradient(family: Family, release: Release) -> Callable:
    """That of DPVIm: the gradient with respect to one draw is clipped and released.

    The arguments are those of `plain_gradient`, normals ``(1, dim)`` and ``(dim,)``.
    """

    def gradient_fn(parameters, normals, statistics, counts, noise):
        draw, pull_back = jax.vjp(lambda phi: _draws(phi, normals)[0], parameters)
        constant = -jax.grad(family.log_partition)(draw)
        public = jax.grad(family.logprior)(draw)
        constant = constant + public / release.num_records
        slopes = jax.jacrev(family.natural)(draw)
        (gradient,) = pull_back(
            _noisy_sum(release, constant, slopes, statistics, counts, noise)
        )
        rho = parameters[family.dim :]
        entropy = jax.nn.sigmoid(rho) / jax.nn.softplus(rho)
        return gradient.at[family.dim :].add(entropy)

    return gradient_fn


def expected_curvature(family: Family, release: Release, parameters) -> jax.Array:
    """Minus the derivative of each component of the gradient of the ELBO to its own.

    That of the gradient which `release` makes of records as the model expects them at
    m, clipping included; no data are read. ``(2 dim,)``, as `parameters`.
    """
    gradient_fn = plain_gradient(family, release._replace(noise_multiplier=0.0))
    statistics, masses = family.made_up(parameters[: family.dim])
    expected = release.num_records * release.sampling_prob
    # Both signs of every component: mean zero and the covariance of e.
    normals = jnp.sqrt(float(family.dim)) * jnp.eye(family.dim)
    normals = jnp.concatenate([normals, -normals])

    def gradient(parameters):
        noise = jnp.zeros_like(parameters)
        return gradient_fn(parameters, normals, statistics, expected * masses, noise)

    return -jnp.diagonal(jax.jacfwd(gradient)(parameters))


def _draws(parameters, normals):
    location, rho = jnp.split(parameters, 2)
    return location[None] + jax.nn.softplus(rho)[None] * normals


def _linear(constant, slopes, statistics):
    """a + B t of all records, ``(parameters, size)``."""
    return constant[:, None] + jnp.sum(slopes.T[..., None] * statistics.T[None], axis=1)


def _factors(release, records):
    squares = jnp.sum(records**2, axis=0)
    return jnp.minimum(1.0, release.l2_clip_norm * jax.lax.rsqrt(squares))


def _weighted(weights, records):
    return jnp.sum(weights[None] * records, axis=1)


def _noisy_sum(release, constant, slopes, statistics, counts, noise):
    """Of clipped gradients, as large as that of all records."""
    records = _linear(constant, slopes, statistics)
    total = _weighted(counts * _factors(release, records), records)
    total = total + release.l2_clip_norm * release.noise_multiplier * noise
    return total / release.sampling_prob


def run(
    rng: np.random.Generator,
    gradient_fn: Callable,
    optimizer: optax.GradientTransformation,
    data: np.ndarray,
    start: np.ndarray,
    *,
    release: Release,
    num_samples: int,
    num_steps: int,
    antithetic: bool = False,
    noise_sd: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stochastic ascent on all data sets.

    Parameters
    ----------
    gradient_fn
        Of `plain_gradient`, or of `aligned_gradient` with one draw.
    data
        Of `models.simulate`.
    start
        phi, ``(2 dim,)``.
    antithetic
        Whether the second half of the draws of a step mirrors the first.
    noise_sd
        Of the noise on a plain gradient, ``(2 dim,)``; not if it is aligned.

    Returns
    -------
    Parameters where gradients were released and those gradients, both ``(num_draws,
    num_steps, 2 dim)``, and the parameters after the last step.
    """
    are_counts = np.issubdtype(data.dtype, np.integer)
    num_draws = data.shape[0 if are_counts else 1]
    dim = len(start) // 2
    optimizer = optax.with_extra_args_support(optimizer)
    if noise_sd is not None:
        noise_sd = jnp.asarray(noise_sd, jnp.float32)

    def ascend(parameters, memory, normals, statistics, counts, noise):
        gradient = gradient_fn(parameters, normals, statistics, counts, noise)
        updates, memory = optimizer.update(
            -gradient, memory, parameters, noise_sd=noise_sd
        )
        return (optax.apply_updates(parameters, updates), memory), gradient

    def step(records, carry, inputs):
        normals, noise, sample = inputs
        if antithetic:
            normals = jnp.concatenate([normals, -normals], axis=1)
        if are_counts:
            axis, counts = None, sample
            statistics = jnp.eye(data.shape[1], dtype=jnp.float32)[:, :-1]
        else:
            places, counts = sample
            axis, statistics = 1, records[places][..., None]
        moved, gradient = jax.vmap(
            ascend, (0, 0, 0, axis, 0 if are_counts else None, 0)
        )(*carry, normals, statistics, counts, noise)
        return moved, (carry[0], gradient)

    @jax.jit
    def block(records, carry, inputs):
        return jax.lax.scan(functools.partial(step, records), carry, inputs)

    parameters = jnp.tile(jnp.asarray(start, jnp.float32), (num_draws, 1))
    carry = parameters, jax.vmap(optimizer.init)(parameters)
    records = None if are_counts else jnp.asarray(data, jnp.float32)
    noise_size = dim if noise_sd is None else 2 * dim
    num_normals = num_samples // 2 if antithetic else num_samples
    traces = []
    for first in range(0, num_steps, BLOCK):
        shape = min(BLOCK, num_steps - first), num_draws
        inputs = (
            rng.standard_normal((*shape, num_normals, dim), np.float32),
            rng.standard_normal((*shape, noise_size), np.float32),
            _samples(rng, data, release.sampling_prob, shape[0]),
        )
        carry, trace = block(records, carry, inputs)
        traces.append([np.moveaxis(np.asarray(leaf), 0, 1) for leaf in trace])
    parameters, gradients = (
        np.concatenate(leaves, axis=1) for leaves in zip(*traces, strict=True)
    )
    return parameters, gradients, np.asarray(carry[0])


def _samples(rng, data, sampling_prob, num_steps):
    """Counts ``(num_steps, num_draws, labels)``, or places and whether they count."""
    if np.issubdtype(data.dtype, np.integer):
        shape = num_steps, *data.shape
        return rng.binomial(data, sampling_prob, shape).astype(np.float32)
    is_sampled = rng.random((num_steps, len(data)), np.float32) < sampling_prob
    sizes = is_sampled.sum(axis=1)
    # Nine sd above the mean: one shape for all blocks.
    mean = len(data) * sampling_prob
    width = min(len(data), math.ceil(mean + 9 * math.sqrt(mean)))
    assert sizes.max() <= width
    places = np.argsort(~is_sampled, axis=1, kind="stable")[:, :width]
    counts = np.arange(width) < sizes[:, None]
    return places.astype(np.int32), counts.astype(np.float32)
