"""Independent draws from the model of a trace, from a grid of (u, r) per component.

The nodes of each grid are moved to where the posterior mass is. A cell is then drawn
with its mass as probability, and u within the cell; r is that of a node. Given u and r,
phi* is normal. So the draws are independent, and no Markov chain is needed.
"""

import jax
import numpy as np

from dpjax.random.generator import generator
from dpjax.vi.trace_model import TraceModel, conditional, log_density

__all__ = ["draws", "grid"]

CURVATURES = 256
"""Number of values of u on the grid of one component."""

ERRORS = 32
"""Number of values of r on the grid of one component."""

ROUNDS = 4
"""Number of times that the grid is moved towards the mass."""


def grid(model: TraceModel):
    """The posterior of u and r, on a grid for each component.

    Returns
    -------
    The values of u, ``(count, CURVATURES)``; the values of r, ``(count, ERRORS)``; and
    the mass of the cells between neighbouring u at each r,
    ``(count, ERRORS, CURVATURES - 1)``, which sums to one for each component. If no
    component has a sampling error, r is zero, and its axis has length one.
    """
    tau = model.slope_sd
    # If the optimum is far from the mean of the trace, the gradient g pulls u up, until
    # u^2 / tau^2 is as large as the term g^2 / (u sd_0)^2 of the prior of phi*.
    pull = np.sqrt(abs(model.gradient) * tau / model.optimum_sd)
    low, high = model.slope - 8 * tau, model.slope + 8 * tau + 2 * pull
    u = np.linspace(low, high, CURVATURES, axis=-1)
    if np.all(model.log_curvature_sd < np.inf):
        width = 6 * model.log_curvature_sd
        ends = model.log_curvature_mean - width, model.log_curvature_mean + width
        a = np.exp(np.linspace(*ends, CURVATURES // 2, axis=-1))
        guessed = a + np.log(-np.expm1(-a))
        u = np.maximum(u[:, ::2], guessed[:, :1])
        u = np.sort(np.concatenate([u, guessed], axis=-1), axis=-1)
    has_error = np.any(model.sampling_error_sd > 0)
    r = np.zeros((*tau.shape, 1))
    if has_error:
        largest = 4 * np.sqrt(model.sgg / model.num_steps + model.gradient**2)
        least = 1e-3 * np.minimum(largest, model.sampling_error_sd)
        positive = np.geomspace(least, largest, ERRORS - 1, axis=-1)
        r = np.concatenate([r, positive], axis=-1)
    wide = jax.tree.map(lambda field: field[:, None, None], model)

    def mass(u, r):
        return _mass(log_density(wide, u[:, None, :], r[:, :, None]), u, r)

    for _ in range(ROUNDS):
        of_cells = mass(u, r)
        u = _moved(u, of_cells.sum(axis=-2))
        if has_error:
            of_nodes = of_cells.sum(axis=-1)
            r = _moved(r, (of_nodes[..., 1:] + of_nodes[..., :-1]) / 2)
    return u, r, mass(u, r)


def draws(model: TraceModel, rng_key: jax.Array, num_samples: int):
    """Draws of phi* and u, both ``(count, num_samples)``, for `count` components."""
    rng = generator(rng_key)
    u, r, mass = grid(model)
    count, _, num_cells = mass.shape
    cumulative = np.cumsum(mass.reshape(count, -1), axis=1)
    cumulative /= cumulative[:, -1:]
    last = cumulative.shape[1] - 1
    # One search serves all components: component k is searched between k and k + 1.
    offset = np.arange(count)[:, None]
    levels = rng.random((count, num_samples)) + offset
    found = np.searchsorted((cumulative + offset).ravel(), levels, side="right")
    cells = np.minimum(found - offset * (last + 1), last)
    error, cell = np.divmod(cells, num_cells)
    low = np.take_along_axis(u, cell, axis=1)
    high = np.take_along_axis(u, cell + 1, axis=1)
    u = low + rng.random(low.shape) * (high - low)
    r = np.take_along_axis(r, error, axis=1)
    columns = jax.tree.map(lambda field: field[:, None], model)
    mean, precision = conditional(columns, u, r)
    return mean + rng.standard_normal(u.shape) / np.sqrt(precision), u


def _mass(log_density, u, r):
    """Mass of the cells between neighbouring u at each r, by the trapezoid rule.

    It sums to one for each component.
    """
    peak = log_density.max(axis=(-2, -1), keepdims=True)
    density = np.exp(log_density - peak)
    mass = (density[..., 1:] + density[..., :-1]) * np.diff(u)[..., None, :]
    if r.shape[-1] > 1:
        steps = np.diff(r)
        ends = steps[..., :1], steps[..., 1:] + steps[..., :-1], steps[..., -1:]
        mass = mass * np.concatenate(ends, -1)[..., None]
    return mass / mass.sum(axis=(-2, -1), keepdims=True)


def _moved(grid, mass):
    """A grid of the same size that is denser where the mass is.

    The density of its points is proportional to the cube root of the posterior density,
    which is best for the trapezoid rule. But about a tenth of the points stay spread as
    they were, so that no part of the range is lost.
    """
    share = np.cbrt(mass * np.diff(grid) ** 2)
    share = share / share.sum(axis=-1, keepdims=True) + 0.1 / share.shape[-1]
    levels = np.cumsum(share, axis=-1) / share.sum(axis=-1, keepdims=True)
    levels = np.concatenate([np.zeros_like(levels[..., :1]), levels], axis=-1)
    even = np.linspace(0, 1, grid.shape[-1])
    rows = zip(levels, grid, strict=True)
    return np.stack([np.interp(even, level, points) for level, points in rows])
