"""DPVI: variational inference with noisy clipped gradients, one optax update per step.

The guide is theta = t(phi, e), where e is standard normal and phi are its parameters.
It is fitted by ascent on

    ELBO(phi) = E_e[T sum_i l_i(t(phi, e)) + log prior(t(phi, e))] + entropy(phi).

Here l_i is the log-likelihood of record i, and T the tempering. Each step makes K draws
e_k, which all records share. The data enter the gradient through the likelihood alone.
The gradients of the prior and of the entropy are exact, and are added after the noise.
There are two ways to release the gradient of the likelihood:

- *aligned* (DPVIm): the gradient with respect to the K draws theta_k = t(phi, e_k) is
  released. The gradient with respect to phi follows from it by the chain rule, without
  further cost of privacy:

      g = sum_k (d theta_k / d phi)^T G_k,
      G = T/q (sum over the sample of clip(grad_theta mean_k l_i(theta_k)) + noise).

  For a mean field and K = 1 the gradient of the location is G, and that of rho is
  softplus'(rho) * e * G. Clipping and noise act on K d numbers, whatever the guide is.
- *plain*: the gradient with respect to phi is released as the sum over the sample of
  clip(w * grad_phi l_i), plus noise, divided by w and multiplied by T/q. The weights
  w > 0 are a preconditioner. They put the parts of the gradient on one scale, so that
  the noise is as large for all parts relative to the gradient. Without them, the
  gradient of rho is smaller than that of the location by a factor of about s, the
  guide's sd.

Each record enters the sample with probability q. A run keeps phi and the noisy gradient
of every step, and draws from the guide at the mean of the phi that it kept.

References: Jalko, Dikmen and Honkela 2017 (plain); Jalko, Prediger, Honkela and Kaski
2022 (aligned); noise-aware DPVI, AISTATS 2025, arXiv 2410.19371 (preconditioned). These
papers give each record 1/N of the prior and the entropy, which are then clipped and
sampled with it: `published` does that for the third.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Sampler, Transition
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_count, check_positive
from dpjax.random import variates
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.gradient_parts import mean_gradient_parts
from dpjax.release.nominal import nominal_size
from dpjax.vi.guides import Guide

__all__ = ["DPVIInfo", "DPVIState", "as_top_level_api", "dpvi", "init"]


class DPVIState(NamedTuple):
    """The state of the optimiser. Public.

    position
        phi, the parameters of the guide.
    optimizer_state
        The state of the optax transformation, a function of the released gradients.
    """

    position: Any
    optimizer_state: Any


class DPVIInfo(NamedTuple):
    """What a step releases. Public.

    parameters
        phi at which the gradient was taken: the position of the state before the step.
    gradient
        The noisy gradient of the ELBO there, including the prior and the entropy.
    noise_sd
        Standard deviation of the Gaussian noise on each component of the gradient. None
        without noise. None also if `aligned`, because the noise on rho is then
        multiplied by the draws.
    """

    parameters: Any
    gradient: Any
    noise_sd: Any


def init(
    position,
    posterior: Posterior,
    optimizer: optax.GradientTransformation,
    *,
    guide: Guide,
    rng_key: jax.Array | None = None,
) -> DPVIState:
    """The state with a guide whose mean is the public `position`.

    No data are read, and no key is used.
    """
    parameters = guide.init(position)
    return DPVIState(parameters, optimizer.init(parameters))


def as_top_level_api(
    posterior: Posterior,
    optimizer: optax.GradientTransformation,
    *,
    guide: Guide,
    l2_clip_norm: float,
    noise_multiplier: float,
    sampling_prob: float = 1.0,
    num_samples: int = 1,
    antithetic: bool = False,
    aligned: bool = True,
    preconditioner: Any = 1.0,
    published: bool = False,
    nominal_num_records: int | None = None,
) -> Algorithm:
    """Differentially private variational inference.

    Parameters
    ----------
    posterior
        The posterior to approximate, and the data.
    optimizer
        An optax transformation of the noisy gradient of -ELBO. The gradient is a sum
        over all records, not a mean. The sd of its noise is passed as the extra
        argument ``noise_sd``.
    guide
        One of `dpjax.vi.guides`.
    l2_clip_norm
        Bound on the norm of one record's gradient, in nats. If `aligned`, this is the
        gradient with respect to the K draws of theta; otherwise it is w times the
        gradient with respect to the parameters. A bound that clips many gradients moves
        the optimum, and no released number shows it. It moved the optimum by 15
        posterior sds where it clipped 9 % of 50,000 records; see
        `dpjax.numpyro.l2_clip_norm`. Infinity takes the gradient of all records without
        noise, which is not private.
    noise_multiplier
        As in `GaussianSum`; `privacy.calibrate` finds the one that spends a budget.
    sampling_prob
        q, the probability that a record enters a gradient.
    num_samples
        K, the number of draws from the guide in each step.
    antithetic
        Whether half of the draws mirror the other half about the location. The gradient
        of rho has terms e times the gradient of the location, which then cancel. So the
        gradient of rho that a record adds is smaller by a factor of about s. A
        preconditioner of N for rho then clips about as much as one of sqrt(N) does
        without mirrored draws.
    aligned
        Whether the gradient with respect to the draws is released. Otherwise, the
        gradient with respect to the parameters is released.
    preconditioner
        w, a pytree of positive numbers like the parameters of the guide, or a prefix of
        such a pytree: ``{"location": 1.0, "rho": 100.0}``. It must be public. Not for
        `aligned`.
    published
        Whether prior and entropy are part of each record's loss, with weight 1/N, as in
        the papers. Then they are clipped and sampled with the record's likelihood. Not
        for `aligned`.
    nominal_num_records
        The N of `published`. None is the number of records.

    Raises
    ------
    ValueError
        If a parameter is out of range; from ``init``, if the position does not fit the
        guide, or if the preconditioner or the optimizer does not fit the parameters of
        the guide; from ``privacy``, if `l2_clip_norm` is infinite or `noise_multiplier`
        zero, or if the neighbouring relation does not keep the number of records.

    Notes
    -----
    *Formal guarantees.* A step releases one noisy sum of clipped gradients over a
    Poisson sample of the records, with Gaussian noise. State and info are functions of
    it, and so are public. The ELBO and the number of records in the sample are not
    released.
    """
    check_count("num_samples", num_samples)
    if antithetic and num_samples % 2:
        raise ValueError(
            "antithetic draws come in pairs: num_samples must be even, got "
            f"{num_samples}"
        )
    check_positive(preconditioner=preconditioner)
    is_weighted = any(np.any(leaf != 1) for leaf in jax.tree.leaves(preconditioner))
    if aligned and (published or is_weighted):
        raise ValueError(
            "preconditioner and published are for gradients of the parameters: set "
            "aligned=False"
        )
    if nominal_num_records is not None and not published:
        raise ValueError(
            "nominal_num_records is for the weight 1/N of published: leave it out"
        )
    num_records = nominal_size(posterior, nominal_num_records)
    if l2_clip_norm == math.inf and (noise_multiplier or sampling_prob < 1):
        raise ValueError(
            "an infinite l2_clip_norm takes the plain gradient, without noise and "
            "sampling"
        )
    release = None
    if l2_clip_norm != math.inf:
        release = GaussianSum(l2_clip_norm, noise_multiplier, sampling_prob)
    guide_words = num_samples // (2 if antithetic else 1) * guide.num_normals
    size = num_samples * guide.dim if aligned else guide.num_parameters
    optimizer = optax.with_extra_args_support(optimizer)

    def weights_like(parameters):
        """w as a pytree with the structure and the shapes of the parameters."""
        weights = jax.tree.broadcast(preconditioner, parameters)
        return jax.tree.map(jnp.full_like, parameters, weights)

    def noise_sd(parameters):
        if aligned or release is None or not noise_multiplier:
            return None
        scale = posterior.tempering / release.sampling_prob
        sd = scale * release.l2_clip_norm * float(noise_multiplier)
        return jax.tree.map(lambda w: sd / w, weights_like(parameters))

    def elbo_gradient(words, parameters):
        dtype = parameters["rho"].dtype
        normals = variates.normal(words[:guide_words], dtype)
        normals = normals.reshape(-1, guide.num_normals)
        if antithetic:
            normals = jnp.concatenate([normals, -normals])

        _, unravel = ravel_pytree(parameters["location"])

        def draws_fn(parameters):
            """theta of all draws, ``(K, d)``."""
            draws = jax.vmap(guide.transform, (None, 0))(parameters, normals)
            return jax.vmap(lambda draw: ravel_pytree(draw)[0])(draws)

        def loglikelihood(draw, record):
            return posterior.loglikelihood_fn(unravel(draw), record)

        def objective(parameters, density):
            densities = jax.vmap(lambda draw: density(unravel(draw)))
            return jnp.mean(densities(draws_fn(parameters))) + guide.entropy(parameters)

        def value(parameters, record):
            each = jax.vmap(loglikelihood, (0, None))(draws_fn(parameters), record)
            found = jnp.mean(each)
            if published:
                share = posterior.tempering * num_records
                found = found + objective(parameters, posterior.logprior_fn) / share
            return found

        if release is None:
            return jax.grad(objective)(parameters, posterior)
        draws, pull_back = jax.vjp(draws_fn, parameters)
        weights = weights_like(parameters)

        def contribution_fn(record):
            if aligned:
                return mean_gradient_parts(loglikelihood, draws, record)
            gradient = jax.grad(value)(parameters, record)
            return jax.tree.leaves(jax.tree.map(jnp.multiply, weights, gradient))

        noisy = release(words[guide_words:], posterior, contribution_fn)
        scale = posterior.tempering / release.sampling_prob
        noisy = scale * ravel_pytree(noisy)[0]
        if aligned:
            (likelihood,) = pull_back(noisy.reshape(draws.shape))
        else:
            _, like_parameters = ravel_pytree(parameters)
            likelihood = jax.tree.map(jnp.divide, like_parameters(noisy), weights)
        if published:
            return likelihood
        public = jax.grad(objective)(parameters, posterior.logprior_fn)
        return jax.tree.map(jnp.add, likelihood, public)

    def num_words(state):
        if release is None:
            return guide_words
        return guide_words + release.num_words(size, posterior.num_records)

    def climb(state, gradient):
        parameters, sd = state.position, noise_sd(state.position)
        updates, optimizer_state = optimizer.update(
            jax.tree.map(jnp.negative, gradient),
            state.optimizer_state,
            parameters,
            noise_sd=sd,
        )
        moved = DPVIState(optax.apply_updates(parameters, updates), optimizer_state)
        return moved, DPVIInfo(parameters, gradient, sd)

    def move(words, state, memory):
        return *climb(state, elbo_gradient(words, state.position)), memory

    def stay(state):
        nothing = jax.tree.map(jnp.zeros_like, state.position)
        return DPVIInfo(state.position, nothing, noise_sd(state.position))

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        if release is None:
            raise ValueError("variational inference without clipping is not private")
        return [(release.event(size, neighboring_relation), num_steps)]

    def start(position, rng_key=None):
        state = init(position, posterior, optimizer, guide=guide)
        weights_like(state.position)
        jax.eval_shape(climb, state, state.position)
        return state

    return Algorithm.of(start, Transition(num_words, move, stay), privacy, guide.sample)


dpvi = Sampler.of(as_top_level_api, init)
"""Differentially private variational inference: see `as_top_level_api`."""
