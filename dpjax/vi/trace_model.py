"""The model of a trace of DPVI: released gradients are linear in the parameters.

Near the optimum phi* the gradient of the ELBO is linear in the parameters. So for each
component of phi and each step t the model is

    g_t = a (phi* - phi_t) + N(0, v),    v = s^2 + r^2,    a = softplus(u),

where s is the known sd of the noise, a is the entry of the diagonal of the Hessian of
-ELBO (the curvature), and r is the sd of the error that comes from the sampling of
records and from the draws of the guide. The priors are

    phi* ~ N(phi_0, sd_0^2),    r ~ N(0, r_0^2),    and either
    u ~ N(m, tau^2)  with  m = |Sxg| / Sxx,  tau = s / sqrt(Sxx),    or
    log a ~ N(log a_0, sd_a^2).

Here n is the number of steps, x and g are the means of phi_t and g_t, and Sxx, Sxg, Sgg
are the centred sums of squares and products. The likelihood depends on the trace
through these numbers only. Its logarithm is

    -n/2 log v - (Sgg + 2 a Sxg + a^2 Sxx + n (g - a (phi* - x))^2) / (2 v).

Given u and r, phi* is normal with the precision 1/sd_0^2 + n a^2 / v. The components
are independent of each other.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

__all__ = [
    "TraceModel",
    "conditional",
    "flat",
    "log_density",
    "log_joint",
]


class TraceModel(NamedTuple):
    """The trace and the priors, in float64 arrays with an entry for each component.

    num_steps
        n, the number of steps of the trace.
    noise_sd
        s, the sd of the noise on a gradient.
    parameters, gradient
        x and g, the means over the steps.
    sxx, sxg, sgg
        The centred sums of squares and products.
    optimum_mean, optimum_sd
        phi_0 and sd_0, the prior of phi*.
    sampling_error_sd
        r_0, the prior scale of r. If it is zero, so is r.
    log_curvature_mean, log_curvature_sd
        log a_0 and sd_a. If sd_a is infinite, the prior is u ~ N(m, tau^2) instead.
    """

    num_steps: Any
    noise_sd: Any
    parameters: Any
    gradient: Any
    sxx: Any
    sxg: Any
    sgg: Any
    optimum_mean: Any
    optimum_sd: Any
    sampling_error_sd: Any
    log_curvature_mean: Any
    log_curvature_sd: Any

    @property
    def slope(self):
        """m, the prior mean of u: the absolute slope of the regression."""
        return abs(self.sxg) / self.sxx

    @property
    def slope_sd(self):
        """tau, the prior sd of u: the standard error of that slope."""
        return self.noise_sd / self.sxx**0.5


def conditional(model: TraceModel, u, r, xp: Any = np):
    """Mean and precision of phi* given u and r; `xp` is NumPy or jax.numpy."""
    a, v = xp.logaddexp(u, 0.0), model.noise_sd**2 + r**2
    precision = model.optimum_sd**-2 + model.num_steps * a**2 / v
    pull = a * (model.parameters - model.optimum_mean) + model.gradient
    return model.optimum_mean + model.num_steps * a / v * pull / precision, precision


def log_joint(model: TraceModel, optimum, u, r, xp: Any = np):
    """Log density of (phi*, u, r) of each component, up to a constant."""
    a, v = xp.logaddexp(u, 0.0), model.noise_sd**2 + r**2
    error = model.gradient - a * (optimum - model.parameters)
    squares = model.sgg + 2 * a * model.sxg + a**2 * model.sxx
    squares = squares + model.num_steps * error**2
    of_slope = ((u - model.slope) / model.slope_sd) ** 2 / 2
    # The density of u has the factor d log a / d u = sig(u) / a.
    log_a = xp.log(xp.maximum(a, 1e-300))
    gap = (log_a - model.log_curvature_mean) / model.log_curvature_sd
    of_curvature = gap**2 / 2 + xp.logaddexp(-u, 0.0) + log_a
    has_error = model.sampling_error_sd > 0
    of_error = (r / xp.where(has_error, model.sampling_error_sd, 1.0)) ** 2 / 2
    return (
        -model.num_steps / 2 * xp.log(v)
        - squares / (2 * v)
        - ((optimum - model.optimum_mean) / model.optimum_sd) ** 2 / 2
        - xp.where(model.log_curvature_sd < np.inf, of_curvature, of_slope)
        - of_error
    )


def log_density(model: TraceModel, u, r):
    """Log density of (u, r) of each component, with phi* integrated out."""
    optimum, precision = conditional(model, u, r)
    return log_joint(model, optimum, u, r) - np.log(precision) / 2


def flat(tree) -> np.ndarray:
    """Leaves of a trace side by side, ``(num_chains, num_steps, size)`` float64.

    Each leaf has the axes ``(num_chains, num_steps)`` before its own. The order in
    memory is always the same, so that sums round alike wherever the leaves come from.
    """
    leaves = [np.asarray(leaf, np.float64, order="C") for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], -1)
