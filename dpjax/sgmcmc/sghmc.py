"""DP-SGHMC: stochastic gradient HMC, whose own noise protects the records.

    v <- (1 - alpha) v + eta G + N(0, 2 alpha K eta / N),    theta <- theta + v

G is the gradient of `noisy_gradient`; the code adds the noise to G instead of adding it
afterwards. The mass is N, and the velocity v has the units of theta. With the friction
alpha = 1 the step is that of SGLD with the same eta. Only the update of v reads the
data. Its noise multiplier is

    sigma = (q / (T C)) sqrt(2 alpha K N / eta).

If a budget asks for a larger sigma, alpha is raised to the value that gives it. Noise
of a larger standard deviation s without more friction would heat the chain to the
temperature s^2 N / (2 alpha eta). The friction multiplies v by 1 - alpha. With the
factor sqrt(1 - N s^2 / (K eta)) of an Ornstein-Uhlenbeck step instead, the variance of
theta would be too small.

References: Chen, Fox and Guestrin 2014, whose step size h is sqrt(eta / N), friction
alpha / h, and mass 1; Li, Chen, Liu and Carin 2019, who name no settings.
"""

import jax
import jax.numpy as jnp
import optax

from dpjax.algorithm import Algorithm, Sampler
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_positive_number
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
        alpha in (0, 1]: the share of the velocity that a step loses. A step may have
        more friction, because of `noise_multiplier`.
    noise_multiplier
        The least standard deviation of the noise on the sum of clipped gradients,
        divided by `l2_clip_norm`. A step raises its friction up to 1 to have so much
        noise. A step so large that friction 1 is not enough has less noise, and is
        charged for it. `privacy.calibrate` finds the multiplier for a budget.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the first step would need a friction above 1.
        A step also raises it if the position does not have `dim` components, and
        `privacy` if records are added or removed.

    Notes
    -----
    *Formal guarantees.* A step makes one Poisson sampled Gaussian release. Its noise
    multiplier is the sigma of the module docstring, for the friction of that step.
    Position, velocity and info are post-processing of it.
    """
    temperature = check_positive_number("temperature", temperature)
    noisy_gradient.check_friction(friction, noise_multiplier)
    scales = Scales(
        posterior, step_size, l2_clip_norm, sampling_prob, nominal_num_records
    )

    def variance(step_size):
        """Variance of the noise in an update of v with friction 1."""
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
