"""The model of a trace of DPVI: released gradients are linear in the parameters.

About the optimum phi* the gradient of the ELBO is linear. In each component of phi,

    g_t = a (phi* - phi_t) + N(0, v),    v = s^2 + r^2,    a = softplus(u),

s the known sd of the noise, a the diagonal of the Hessian of -ELBO, r the sd of what
the sampling of records and the draws of the guide do. The priors are

    phi* ~ N(phi_0, sd_0^2),    r ~ N(0, r_0^2),
    u ~ N(m, tau^2),  m = |Sxg| / Sxx,  tau = s / sqrt(Sxx),    or
    log a ~ N(log a_0, sd_a^2),

with n steps, means x of phi_t and g of g_t, and centred sums of squares and products
Sxx, Sxg, Sgg. They are all that the likelihood needs:

    -n/2 log v - (Sgg + 2 a Sxg + a^2 Sxx + n (g - a (phi* - x))^2) / (2 v).

Given u and r, phi* is normal of precision 1/sd_0^2 + n a^2 / v. The components are
independent of each other.
"""

from typing import NamedTuple

import numpy as np

__all__ = ["TraceModel", "conditional", "log_density", "log_joint"]


class TraceModel(NamedTuple):
    """What the posterior depends on, but for n in arrays of one entry a component.

    num_steps
        n.
    noise_sd
        s.
    parameters, gradient
        x and g.
    sxx, sxg, sgg
        Centred sums.
    optimum_mean, optimum_sd
        phi_0 and sd_0.
    sampling_error_sd
        r_0; zero leaves r out.
    guess, guess_sd
        log a_0 and sd_a; `guess_sd` is infinite where u ~ N(m, tau^2).
    """

    num_steps: int
    noise_sd: np.ndarray
    parameters: np.ndarray
    gradient: np.ndarray
    sxx: np.ndarray
    sxg: np.ndarray
    sgg: np.ndarray
    optimum_mean: np.ndarray
    optimum_sd: np.ndarray
    sampling_error_sd: np.ndarray
    guess: np.ndarray
    guess_sd: np.ndarray

    @property
    def slope(self):
        """m."""
        return abs(self.sxg) / self.sxx

    @property
    def slope_sd(self):
        """tau."""
        return self.noise_sd / self.sxx**0.5


def conditional(model: TraceModel, u, r, xp=np):
    """Mean and precision of phi* given u and r; `xp` is NumPy or jax.numpy."""
    a, v = xp.logaddexp(u, 0.0), model.noise_sd**2 + r**2
    precision = model.optimum_sd**-2 + model.num_steps * a**2 / v
    pull = a * (model.parameters - model.optimum_mean) + model.gradient
    return model.optimum_mean + model.num_steps * a / v * pull / precision, precision


def log_joint(model: TraceModel, optimum, u, r, xp=np):
    """Log density of (phi*, u, r) of each component, up to a constant."""
    a, v = xp.logaddexp(u, 0.0), model.noise_sd**2 + r**2
    error = model.gradient - a * (optimum - model.parameters)
    squares = model.sgg + 2 * a * model.sxg + a**2 * model.sxx
    squares = squares + model.num_steps * error**2
    of_slope = ((u - model.slope) / model.slope_sd) ** 2 / 2
    # d log a / d u = sig(u) / a.
    log_a = xp.log(xp.maximum(a, 1e-300))
    of_guess = ((log_a - model.guess) / model.guess_sd) ** 2 / 2
    of_guess = of_guess + xp.logaddexp(-u, 0.0) + log_a
    has_error = model.sampling_error_sd > 0
    of_error = (r / xp.where(has_error, model.sampling_error_sd, 1.0)) ** 2 / 2
    return (
        -model.num_steps / 2 * xp.log(v)
        - squares / (2 * v)
        - ((optimum - model.optimum_mean) / model.optimum_sd) ** 2 / 2
        - xp.where(model.guess_sd < np.inf, of_guess, of_slope)
        - of_error
    )


def log_density(model: TraceModel, u, r, xp=np):
    """Log density of (u, r) of each component, phi* integrated out."""
    optimum, precision = conditional(model, u, r, xp)
    return log_joint(model, optimum, u, r, xp) - xp.log(precision) / 2
