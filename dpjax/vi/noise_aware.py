"""Noise-aware DPVI: what the noise of a run leaves unknown about the optimum.

The last or mean parameters of DPVI miss the optimum phi* by what the noise did, which
the guide's own scales do not show. About the optimum the gradient of the ELBO is
linear. So a run of plain DPVI, whose gradients carry Gaussian noise of known sd s, is a
regression of the released gradients on the released parameters,

    g_t = a (phi* - phi_t) + N(0, s^2 + r^2),      a = softplus(u),

in each component of phi, with the priors

    phi* ~ N(mean_t phi_t, optimum_sd^2),    u ~ N(m, tau^2),    r ~ N(0, r_0^2),
    m = |Sxg| / Sxx,  tau = s / sqrt(Sxx),

Sxx and Sxg the centred sums of squares of phi_t and of products with g_t. Here a is the
diagonal of the Hessian of -ELBO, and r the sd of what the sampling of records and the
draws of the guide do. The paper's gradient is the sum over the sample of those of the
loss: minus q times this one, with sds q s and q r. The prior of u is the regression's
own estimate: the run counts twice, and a is known by sqrt(2) too well, as published. It
is meant for a well above one, where u and softplus(u) agree, and draws smaller a up.

The posterior factorises over the components of phi. Given u and r, phi* is normal;
with v = s^2 + r^2, n steps, x their mean parameter and g their mean gradient, it has
precision 1/optimum_sd^2 + n a^2 / v and mean x + (n a / v) g / precision, and

    log p(u, r | run) = -(n - 1)/2 log v - (Sgg + 2 a Sxg + a^2 Sxx) / (2 v)
        - log(v/n + a^2 optimum_sd^2) / 2 - g^2 / (2 (v/n + a^2 optimum_sd^2))
        - (u - m)^2 / (2 tau^2) - r^2 / (2 r_0^2).

A grid that moves to where the mass is makes u and r independent draws, without a Markov
chain. The rounding of released gradients, a sixteenth of s at most, is left out.

Reference: noise-aware differentially private variational inference, AISTATS 2025, arXiv
2410.19371. Its sampler is NUTS over all steps of this posterior.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.vi.guides import Guide

__all__ = ["NoiseAware", "Optima", "noise_aware"]

CURVATURES = 256
"""Points of u on the grid of one component."""

ERRORS = 32
"""Points of r."""

ROUNDS = 4
"""Times that the grid moves to the mass."""


class Optima(NamedTuple):
    """Draws of what the run is informative about.

    parameters
        phi*, like the parameters of the guide, with axes ``(num_chains, num_samples)``
        before theirs.
    curvature
        a, likewise.
    """

    parameters: Any
    curvature: Any


class NoiseAware(NamedTuple):
    """The posterior of phi*, component by component of every chain's parameters.

    structure
        Parameters of one step, for their shapes.
    statistics
        n, s, optimum_sd, mean phi_t and mean g_t; the means ``(num_chains, size)``.
    curvatures
        u on the grid, ``(num_chains, size, CURVATURES)``.
    errors
        r on the grid, ``(num_chains, size, ERRORS or 1)``.
    mass
        Of the cells between curvatures at each r,
        ``(num_chains, size, ERRORS or 1, CURVATURES - 1)``; sums to one.
    """

    structure: Any
    statistics: tuple
    curvatures: np.ndarray
    errors: np.ndarray
    mass: np.ndarray

    def sample(self, rng_key: jax.Array, num_samples: int) -> Optima:
        """Independent draws of the optimum and of the curvature about it."""
        rng = _generator(rng_key)
        num_steps, noise_sd, optimum_sd, center, gradient = self.statistics
        *shape, num_errors, num_cells = self.mass.shape
        count = math.prod(shape)
        cumulative = np.cumsum(self.mass.reshape(count, -1), axis=1)
        cumulative /= cumulative[:, -1:]
        last = cumulative.shape[1] - 1
        # One search for all components: the k-th has the numbers from k to k + 1.
        offset = np.arange(count)[:, None]
        levels = rng.random((count, num_samples)) + offset
        found = np.searchsorted((cumulative + offset).ravel(), levels, side="right")
        cells = np.minimum(found - offset * (last + 1), last)
        error, cell = np.divmod(cells, num_cells)
        curvatures = self.curvatures.reshape(count, -1)
        low = np.take_along_axis(curvatures, cell, axis=1)
        high = np.take_along_axis(curvatures, cell + 1, axis=1)
        a = np.logaddexp(0, low + rng.random(low.shape) * (high - low))
        r = np.take_along_axis(self.errors.reshape(count, num_errors), error, axis=1)
        v = noise_sd.reshape(count, 1) ** 2 + r**2
        precision = optimum_sd**-2 + num_steps * a**2 / v
        mean = center.reshape(count, 1)
        mean = mean + num_steps * a / v * gradient.reshape(count, 1) / precision
        optimum = mean + rng.standard_normal(a.shape) / np.sqrt(precision)
        return Optima(self._unravel(optimum), self._unravel(a))

    def draws(self, rng_key: jax.Array, guide: Guide, num_samples: int):
        """Draws of theta from `guide` at draws of the optimum.

        Returns
        -------
        A pytree like the position, ``(num_chains, num_samples, ...)``.
        """
        optimum_key, normal_key = jax.random.split(rng_key)
        parameters = self.sample(optimum_key, num_samples).parameters
        rho = parameters["rho"]
        shape = (*rho.shape[:2], guide.num_normals)
        normals = jax.random.normal(normal_key, shape, rho.dtype)
        return jax.vmap(jax.vmap(guide.transform))(parameters, normals)

    def _unravel(self, flat):
        """From ``(num_chains * size, num_samples)`` to parameters."""
        vector, unravel = ravel_pytree(self.structure)
        flat = flat.reshape(-1, vector.size, flat.shape[-1])
        flat = jnp.asarray(np.moveaxis(flat, 1, 2), vector.dtype)
        return jax.vmap(jax.vmap(unravel))(flat)


def noise_aware(
    infos, *, optimum_sd: float = 1.0, sampling_error_sd: float = 0.0
) -> NoiseAware:
    """The posterior of the optimum, given what a run of plain DPVI released.

    Parameters
    ----------
    infos
        `Run.infos` of `dpvi` with ``aligned=False``. Steps before the optimum is near
        do not fit the model: leave them out by `warmup_fraction`, .2 in the paper.
    optimum_sd
        Sd of the prior of phi* about the mean parameters, in the units of phi.
    sampling_error_sd
        r_0, in those of the gradient of the ELBO. Zero leaves that error out; the
        paper's code has 1/q.

    Returns
    -------
    NoiseAware
        One posterior for every chain.

    Raises
    ------
    ValueError
        If a number is out of range, the infos hold no noise level or fewer than three
        steps, or a component of the parameters does not move.

    Notes
    -----
    *Formal guarantees.* No data are read: a function of what was released, hence free.
    """
    if not 0 < optimum_sd < math.inf:
        raise ValueError(f"optimum_sd must be positive, got {optimum_sd}")
    if not 0 <= sampling_error_sd < math.inf:
        raise ValueError(
            f"sampling_error_sd must not be negative, got {sampling_error_sd}"
        )
    if infos.noise_sd is None:
        raise ValueError(
            "the noise on these gradients is not Gaussian of one known sd: run dpvi "
            "with aligned=False and noise"
        )
    parameters, gradients = _flat(infos.parameters), _flat(infos.gradient)
    num_steps = parameters.shape[1]
    if num_steps < 3:
        raise ValueError(f"at least three steps are needed, got {num_steps}")
    center, gradient = parameters.mean(axis=1), gradients.mean(axis=1)
    parameters, gradients = parameters - center[:, None], gradients - gradient[:, None]
    sxx = np.sum(parameters**2, axis=1)
    sxg = np.sum(parameters * gradients, axis=1)
    sgg = np.sum(gradients**2, axis=1)
    if not np.all(sxx > 0):
        raise ValueError("a component of the parameters is the same at every step")
    noise_sd = _flat(infos.noise_sd)[:, 0]
    prior_mean, prior_sd = abs(sxg) / sxx, noise_sd / np.sqrt(sxx)

    def log_density(u, r):
        """At all pairs: ``(num_chains, size, len(r), len(u))``."""

        def wide(array):
            return array[..., None, None]

        u, r = u[..., None, :], r[..., :, None]
        a, v = np.logaddexp(0, u), wide(noise_sd) ** 2 + r**2
        of_mean = v / num_steps + (a * optimum_sd) ** 2
        log_prior = -(((u - wide(prior_mean)) / wide(prior_sd)) ** 2) / 2
        if sampling_error_sd:
            log_prior = log_prior - (r / sampling_error_sd) ** 2 / 2
        squares = wide(sgg) + 2 * a * wide(sxg) + a**2 * wide(sxx)
        return (
            log_prior
            - (num_steps - 1) / 2 * np.log(v)
            - squares / (2 * v)
            - np.log(of_mean) / 2
            - wide(gradient) ** 2 / (2 * of_mean)
        )

    # Where u^2 / tau^2 meets the pull g^2 / u^2 of an optimum far from the mean.
    pull = np.sqrt(abs(gradient) * prior_sd / optimum_sd)
    low, high = prior_mean - 8 * prior_sd, prior_mean + 8 * prior_sd + 2 * pull
    u = np.linspace(low, high, CURVATURES, axis=-1)
    r = np.zeros((*sxx.shape, 1))
    if sampling_error_sd:
        largest = 4 * np.sqrt(sgg / num_steps + gradient**2)
        least = 1e-3 * np.minimum(largest, sampling_error_sd)
        r = np.geomspace(least, largest, ERRORS - 1, axis=-1)
        r = np.concatenate([np.zeros((*sxx.shape, 1)), r], axis=-1)
    for _ in range(ROUNDS):
        mass = _mass(log_density(u, r), u, r)
        u = _moved(u, mass.sum(axis=-2))
        if sampling_error_sd:
            of_nodes = mass.sum(axis=-1)
            r = _moved(r, (of_nodes[..., 1:] + of_nodes[..., :-1]) / 2)
    structure = jax.tree.map(lambda leaf: leaf[0, 0], infos.parameters)
    statistics = num_steps, noise_sd, optimum_sd, center, gradient
    return NoiseAware(structure, statistics, u, r, _mass(log_density(u, r), u, r))


def _flat(tree) -> np.ndarray:
    """Leaves side by side, ``(num_chains, num_steps, size)`` float64."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], -1)


def _mass(log_density, u, r):
    """Of the cells between the u at each r, by the trapezoid rule; sums to one."""
    peak = log_density.max(axis=(-2, -1), keepdims=True)
    density = np.exp(log_density - peak)
    mass = (density[..., 1:] + density[..., :-1]) * np.diff(u)[..., None, :]
    if r.shape[-1] > 1:
        steps = np.diff(r)
        ends = steps[..., :1], steps[..., 1:] + steps[..., :-1], steps[..., -1:]
        mass = mass * np.concatenate(ends, -1)[..., None]
    return mass / mass.sum(axis=(-2, -1), keepdims=True)


def _moved(grid, mass):
    """As many points, dense as the cube root of the density: best for trapezoids.

    A tenth of the points stay as they were, so that no part of the range is lost.
    """
    share = np.cbrt(mass * np.diff(grid) ** 2)
    share = share / share.sum(axis=-1, keepdims=True) + 0.1 / share.shape[-1]
    levels = np.cumsum(share, axis=-1) / share.sum(axis=-1, keepdims=True)
    levels = np.concatenate([np.zeros_like(levels[..., :1]), levels], axis=-1)
    even = np.linspace(0, 1, grid.shape[-1])
    moved = [
        np.interp(even, level, points)
        for level, points in zip(
            levels.reshape(-1, grid.shape[-1]),
            grid.reshape(-1, grid.shape[-1]),
            strict=True,
        )
    ]
    return np.reshape(moved, grid.shape)


def _generator(rng_key):
    return np.random.default_rng(np.asarray(jax.random.bits(rng_key, (8,), jnp.uint32)))
