"""DP-SGHMC: stochastic gradient Hamiltonian Monte Carlo, private by friction's noise.

    v <- (1 - alpha) v + eta G + N(0, 2 alpha K eta / N),    theta <- theta + v

with the gradient G of `noisy_gradient`, which holds the noise. The mass is N, the
velocity has the units of theta, and alpha = 1 is SGLD with the same eta. Only the first
line reads the data. Its noise multiplier is

    sigma = (q / (T C)) sqrt(2 alpha K N / eta).

Where a budget asks for more noise than that, alpha is raised to the value that gives
it. Noise of standard deviation s without more friction would heat the chain to the
temperature s^2 N / (2 alpha eta). Friction multiplies v by 1 - alpha: an
Ornstein-Uhlenbeck step, v <- sqrt(1 - N s^2 / (K eta)) v, has too small a variance in
theta.

References: Chen, Fox and Guestrin 2014, whose step size h is sqrt(eta / N), friction
alpha / h, and mass 1; Li, Chen, Liu and Carin 2019, who name no settings.
"""

import jax
import jax.numpy as jnp
import optax

from dpjax.algorithm import Algorithm, Sampler
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_positive
from dpjax.sgmcmc import noisy_gradient
from dpjax.sgmcmc.noisy_gradient import Scales

__all__ = ["as_top_level_api", "sghmc"]


def as_top_level_api(
    posterior: Posterior,
    step_size,
    *,
    dim: int,
    friction: float,
    l2_clip_norm: float,
    sampling_prob: float,
    noise_multiplier: float = 0.0,
    temperature: float = 1.0,
    nominal_num_records: int | None = None,
) -> Algorithm:
    """Differentially private stochastic gradient Hamiltonian Monte Carlo.

    Parameters
    ----------
    posterior, step_size, dim, l2_clip_norm, sampling_prob, temperature
        As in `dpjax.sgld`.
    nominal_num_records
        As in `dpjax.sgld`.
    friction
        alpha in (0, 1]: the share of the velocity that a step loses.
    noise_multiplier
        Standard deviation of the noise on the sum of clipped gradients over
        `l2_clip_norm`. Friction is raised for it, up to 1, beyond which a larger step
        size has less noise. `privacy.calibrate` finds what a budget asks for.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the first step would need a friction above 1;
        later, if the position has not `dim` components.

    Notes
    -----
    *Formal guarantees.* A step releases one Poisson sampled Gaussian release, with
    the noise multiplier sigma of the module's docstring at the friction that the step
    has; position, velocity and info are post-processing of it.
    """
    check_positive(temperature=temperature)
    noisy_gradient.check_friction(friction, noise_multiplier)
    scales = Scales(
        posterior, step_size, l2_clip_norm, sampling_prob, nominal_num_records
    )

    def variance(step_size):
        """Variance of the noise in an update with friction 1."""
        return 2 * temperature * step_size / scales.num_records

    def least_friction(step_size):
        noise_sd = scales.noise_sd(noise_multiplier, step_size)
        return noise_sd**2 / variance(step_size)

    def friction_fn(step_size):
        return jnp.clip(least_friction(step_size), friction, 1.0)

    def noise_sd(step_size):
        return (friction_fn(step_size) * variance(step_size)) ** 0.5

    def decay(count):
        with jax.enable_x64(True):
            kept = 1 - friction_fn(scales.at(count))
        return kept.astype(float)

    if (least := float(least_friction(scales.sizes(1)[0][0]))) > 1:
        raise ValueError(
            f"a noise_multiplier of {noise_multiplier:g} asks for a friction of "
            f"{least:.3g}, but 1 is the most: divide the step size by that"
        )
    optimizer = optax.chain(
        optax.scale_by_learning_rate(step_size),
        optax.inject_hyperparams(optax.trace)(decay=decay),
    )
    return noisy_gradient.algorithm(scales, optimizer, noise_sd, dim)


sghmc = Sampler.of(as_top_level_api)
"""Differentially private stochastic gradient HMC: see `as_top_level_api`."""
