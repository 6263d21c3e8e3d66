"""DP-SGNHT: the stochastic gradient Nose-Hoover thermostat, private by its own noise.

    v <- (1 - alpha_t) v + eta G + N(0, s^2),        theta <- theta + v,
    alpha_(t+1) = clip(alpha_t + r (K_t / K - 1), 0, 1)

G is the gradient of `noisy_gradient`; the code adds the noise to G instead of adding it
afterwards. K_t is the kinetic temperature, (N / eta) mean(v^2) (1 - alpha_t / 2). The
friction alpha adapts until K_t is near the temperature K, whatever the noise is. So the
standard deviation s may be as large as a budget asks for,

    s = max(sqrt(2 A K eta / N), sigma eta T C / (q N)),

where A is the first alpha. The random choice of the sample is noise as well, which
heats the chains of SGLD and SGHMC. The friction adapts to it as far as it is isotropic.

The velocities of the Euler scheme have the variance (K eta / N) / (1 - alpha / 2).
Hence the factor 1 - alpha_t / 2 of K_t, which the published K_t lacks; without it,
strong friction would become too strong. alpha is computed from the velocity, which is
public.

Reference: Ding, Fang, Babbush, Chen, Skeel and Neven 2014, with that correction.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Sampler
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_positive_number
from dpjax.sgmcmc import noisy_gradient
from dpjax.sgmcmc.noisy_gradient import Scales

__all__ = ["ThermostatState", "as_top_level_api", "sgnht"]


class ThermostatState(NamedTuple):
    """The optimizer state of a chain. All fields are public.

    velocity
        v, a pytree like the position.
    friction
        alpha, a scalar.
    num_steps
        Number of steps made, int32.
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
        A in (0, 1], the first value of alpha. The noise is at least that of
        `dpjax.sghmc` with this friction.
    noise_multiplier
        The least standard deviation of the noise on the sum of clipped gradients,
        divided by `l2_clip_norm`. `privacy.calibrate` finds the multiplier for a
        budget.
    gain
        r: how fast alpha follows the kinetic temperature.

    Raises
    ------
    ValueError
        If a parameter is out of range. A step also raises it if the position does not
        have `dim` components, and `privacy` if records are added or removed.

    Notes
    -----
    *Formal guarantees.* A step makes one Poisson sampled Gaussian release. Its noise
    multiplier is the larger of `noise_multiplier` and (q / (T C)) sqrt(2 A K N / eta).
    Position, velocity, friction and info are post-processing of it.
    """
    gain = check_positive_number("gain", gain)
    temperature = check_positive_number("temperature", temperature)
    noisy_gradient.check_friction(friction, noise_multiplier)
    scales = Scales(
        posterior, step_size, l2_clip_norm, sampling_prob, nominal_num_records
    )

    def variance(step_size):
        """K eta / N: variance of a velocity component in the limit of no friction."""
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
