"""DP-SGNHT: the stochastic gradient Nose-Hoover thermostat, private by its noise.

    v <- (1 - alpha_t) v + eta G + N(0, s^2),        theta <- theta + v,
    alpha_(t+1) = clip(alpha_t + r (K_t / K - 1), 0, 1)

with the gradient G of `noisy_gradient`, which holds the noise, and the kinetic
temperature K_t = (N / eta) mean(v^2) (1 - alpha_t / 2). The friction alpha adapts to
the noise that there is, so s may be as large as a budget asks for,

    s = max(sqrt(2 A K eta / N), sigma eta T C / (q N)).

It also adapts to isotropic noise from the choice of the sample, which heats the chains
of SGLD and SGHMC. The velocities of the Euler scheme have the variance (K eta / N) /
(1 - alpha / 2). K_t as published lacks the last factor, which makes strong friction too
strong. alpha reads the velocity alone, which is public.

Reference: Ding, Fang, Babbush, Chen, Skeel and Neven 2014, with that correction.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Sampler
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_positive
from dpjax.sgmcmc import noisy_gradient
from dpjax.sgmcmc.noisy_gradient import Scales

__all__ = ["ThermostatState", "as_top_level_api", "sgnht"]


class ThermostatState(NamedTuple):
    """What the thermostat remembers. Public.

    velocity
        v, a pytree like the position.
    friction
        alpha, a scalar.
    num_steps
        Steps made, int32.
    """

    velocity: Any
    friction: jax.Array
    num_steps: jax.Array


def as_top_level_api(
    posterior: Posterior,
    step_size,
    *,
    dim: int,
    friction: float,
    l2_clip_norm: float,
    sampling_prob: float,
    noise_multiplier: float = 0.0,
    gain: float = 0.02,
    temperature: float = 1.0,
    nominal_num_records: int | None = None,
) -> Algorithm:
    """Differentially private stochastic gradient Nose-Hoover thermostat.

    Parameters
    ----------
    posterior, step_size, dim, l2_clip_norm, sampling_prob, temperature
        As in `dpjax.sgld`.
    nominal_num_records
        As in `dpjax.sgld`.
    friction
        A in (0, 1]: where alpha starts. It is also the friction that would balance the
        noise of `dpjax.sghmc`.
    noise_multiplier
        The least standard deviation of the noise on the sum of clipped gradients over
        `l2_clip_norm`. `privacy.calibrate` finds what a budget asks for.
    gain
        r: how fast alpha follows the kinetic temperature.

    Raises
    ------
    ValueError
        If a parameter is out of range; later, if the position has not `dim` components.

    Notes
    -----
    *Formal guarantees.* A step releases one Poisson sampled Gaussian release whose
    noise multiplier is the larger of `noise_multiplier` and (q / (T C)) sqrt(2 A K N /
    eta); position, velocity, friction and info are post-processing of it.
    """
    check_positive(gain=gain, temperature=temperature)
    noisy_gradient.check_friction(friction, noise_multiplier)
    scales = Scales(
        posterior, step_size, l2_clip_norm, sampling_prob, nominal_num_records
    )

    def variance(step_size):
        """Variance of the velocity without friction."""
        return temperature * step_size / scales.num_records

    def noise_sd(step_size):
        own = (2 * friction * variance(step_size)) ** 0.5
        return jnp.maximum(own, scales.noise_sd(noise_multiplier, step_size))

    def init_fn(params):
        still = jax.tree.map(jnp.zeros_like, params)
        start = jnp.asarray(friction, jnp.result_type(float))
        return ThermostatState(still, start, jnp.zeros((), jnp.int32))

    def update_fn(updates, state, params=None):
        with jax.enable_x64(True):
            step_size = scales.at(state.num_steps)
            ideal = variance(step_size)
        dtype = state.friction.dtype
        step_size, ideal = step_size.astype(dtype), ideal.astype(dtype)

        def kick(v, g):
            return (1 - state.friction) * v - step_size * g

        velocity = jax.tree.map(kick, state.velocity, updates)
        square = jnp.mean(ravel_pytree(velocity)[0] ** 2)
        kinetic = square / ideal * (1 - state.friction / 2)
        moved = jnp.clip(state.friction + gain * (kinetic - 1), 0.0, 1.0)
        return velocity, ThermostatState(velocity, moved, state.num_steps + 1)

    optimizer = optax.GradientTransformation(init_fn, update_fn)
    return noisy_gradient.algorithm(scales, optimizer, noise_sd, dim)


sgnht = Sampler.of(as_top_level_api)
"""Differentially private stochastic gradient thermostat: see `as_top_level_api`."""
