"""DPVI: variational inference on noisy clipped gradients, an optax update a step.

The guide theta = t(phi, e), e standard normal, is fitted by ascent on

    ELBO(phi) = E_e[T sum_i l_i(t(phi, e)) + log prior(t(phi, e))] + entropy(phi),

with K draws e_k a step that all records share. The data enter its gradient through the
likelihood alone; the gradients of the prior and the entropy are exact and are added
after the noise. Of the likelihood either

- *aligned* (DPVIm): the gradient with respect to the K draws theta_k = t(phi, e_k) is
  released, and the chain rule makes of it, without further cost,

      g = sum_k (d theta_k / d phi)^T G_k,
      G = T/q (sum over the sample of clip(grad_theta mean_k l_i(theta_k)) + noise).

  For a mean field and K = 1 the gradient of the location is G, and that of rho is
  softplus'(rho) * e * G: clipping and noise act on d numbers whatever the guide.
- *plain*: the gradient with respect to phi is clipped and released as it is.

The sample holds each record with chance q. A run keeps phi and the noisy gradient of
every step, and draws from the guide at the mean of the phi it kept.

References: Jalko, Dikmen and Honkela 2017 (plain); Jalko, Prediger, Honkela and Kaski
2022 (aligned), who clip prior and entropy with the likelihood.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from dp_accounting import NeighboringRelation

from dpjax import noise
from dpjax.algorithm import Algorithm, Sampler, Transition, take_step
from dpjax.gradient_release import GradientRelease
from dpjax.posterior import Posterior
from dpjax.vi.guides import Guide

__all__ = ["DPVIInfo", "DPVIState", "as_top_level_api", "build_kernel", "dpvi", "init"]


class DPVIState(NamedTuple):
    """Where the optimiser stands. Public.

    position
        Parameters of the guide.
    optimizer_state
        What the optax transformation remembers of the released gradients.
    """

    position: Any
    optimizer_state: Any


class DPVIInfo(NamedTuple):
    """What a step releases.

    parameters
        phi, where the gradient was taken: those of the state before the step.
    gradient
        The noisy gradient of the ELBO there, prior and entropy included.
    noise_sd
        Standard deviation of the Gaussian noise in each of its components; None if
        `aligned`, where the noise on rho is multiplied by the draws, or without noise.
    """

    parameters: Any
    gradient: Any
    noise_sd: jax.Array | None


def init(
    position,
    optimizer: optax.GradientTransformation,
    guide: Guide,
    *,
    rng_key: jax.Array | None = None,
) -> DPVIState:
    """The guide about the public `position`; no data are read, no key is used."""
    parameters = guide.init(position)
    return DPVIState(parameters, optimizer.init(parameters))


def build_kernel():
    """Build the kernel: see `as_top_level_api` for its parameters."""

    def kernel(
        rng_key: jax.Array,
        state: DPVIState,
        posterior: Posterior,
        optimizer: optax.GradientTransformation,
        **parameters,
    ) -> tuple[DPVIState, DPVIInfo]:
        return as_top_level_api(posterior, optimizer, **parameters).step(rng_key, state)

    return kernel


def as_top_level_api(
    posterior: Posterior,
    optimizer: optax.GradientTransformation,
    *,
    guide: Guide,
    l2_clip_norm: float,
    noise_multiplier: float,
    sampling_prob: float = 1.0,
    num_samples: int = 1,
    aligned: bool = True,
) -> Algorithm:
    """Differentially private variational inference.

    Parameters
    ----------
    posterior
        What to approximate, and the data.
    optimizer
        An optax transformation of the noisy gradient of -ELBO, which is as large as
        that of the whole data.
    guide
        One of `dpjax.vi.guides`.
    l2_clip_norm
        Bound on the norm of one record's gradient, in nats: with respect to the K draws
        of theta if `aligned`, else to the parameters. Infinity takes the gradient of
        all records without noise, which is not private.
    noise_multiplier
        As in `GradientRelease`; `privacy.calibrate` finds the one that spends a budget.
    sampling_prob
        q, the chance that a record enters a gradient.
    num_samples
        K, draws from the guide a step.
    aligned
        Whether the gradient of the draws is released, or that of the parameters.

    Raises
    ------
    ValueError
        If a parameter is out of range; later, if the position does not fit the guide.

    Notes
    -----
    *Formal guarantees.* A step releases one noisy sum of clipped gradients, a Poisson
    sampled Gaussian release, and what follows from it. Neither the ELBO nor the number
    of records in the sample leaves it. State and info are public.
    """
    if not (isinstance(num_samples, int) and num_samples >= 1):
        raise ValueError(f"num_samples must be a positive integer, got {num_samples}")
    if math.isinf(l2_clip_norm) and (noise_multiplier or sampling_prob < 1):
        raise ValueError(
            "an infinite l2_clip_norm takes the plain gradient, without noise and "
            "sampling"
        )
    release = None
    if not math.isinf(l2_clip_norm):
        release = GradientRelease(l2_clip_norm, noise_multiplier, sampling_prob)
    guide_words = num_samples * guide.num_normals
    size = num_samples * guide.dim if aligned else guide.num_parameters
    noise_sd = None
    if noise_multiplier and not aligned:
        scale = posterior.tempering / release.sampling_prob
        noise_sd = scale * l2_clip_norm * noise_multiplier

    def release_info(parameters, gradient):
        sd = None if noise_sd is None else jnp.asarray(noise_sd, float)
        return DPVIInfo(parameters, gradient, sd)

    def elbo_gradient(words, parameters):
        dtype = parameters["rho"].dtype
        normals = noise.normal(words[:guide_words], dtype).reshape(num_samples, -1)

        def draws_fn(parameters):
            return jax.vmap(guide.transform, (None, 0))(parameters, normals)

        def objective(parameters, density):
            mean = jnp.mean(jax.vmap(density)(draws_fn(parameters)))
            return mean + guide.entropy(parameters)

        def of_draws(draws, record):
            each = jax.vmap(posterior.loglikelihood_fn, (0, None))(draws, record)
            return jnp.mean(each)

        def of_parameters(parameters, record):
            return of_draws(draws_fn(parameters), record)

        if release is None:
            return jax.grad(objective)(parameters, posterior)
        words = words[guide_words:]
        if aligned:
            draws, pull_back = jax.vjp(draws_fn, parameters)
            (likelihood,) = pull_back(release(words, posterior, draws, of_draws))
        else:
            likelihood = release(words, posterior, parameters, of_parameters)
        public = jax.grad(objective)(parameters, posterior.logprior_fn)
        return jax.tree.map(jnp.add, likelihood, public)

    def num_words(state):
        if release is None:
            return guide_words
        return guide_words + release.num_words(size, posterior.num_records)

    def move(words, state, memory):
        parameters = state.position
        gradient = elbo_gradient(words, parameters)
        updates, optimizer_state = optimizer.update(
            jax.tree.map(jnp.negative, gradient), state.optimizer_state, parameters
        )
        moved = DPVIState(optax.apply_updates(parameters, updates), optimizer_state)
        return moved, release_info(parameters, gradient), memory

    def stay(state):
        nothing = jax.tree.map(jnp.zeros_like, state.position)
        return release_info(state.position, nothing)

    def steps(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        if release is None:
            raise ValueError("variational inference without clipping is not private")
        return [(release.event(size, neighboring_relation), num_steps)]

    transition = Transition(
        num_words=num_words,
        recall=lambda state: None,
        move=move,
        stay=stay,
    )
    return Algorithm(
        init=lambda position, rng_key=None: init(position, optimizer, guide),
        step=lambda rng_key, state: take_step(rng_key, state, transition),
        privacy=steps,
        transition=transition,
        sample=guide.sample,
    )


dpvi = Sampler(as_top_level_api, init, build_kernel)
"""Differentially private variational inference: see `as_top_level_api`."""
