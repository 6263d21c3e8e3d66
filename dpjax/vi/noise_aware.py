"""Noise-aware DPVI: what the noise of a run leaves unknown about the optimum.

The last or mean parameters of DPVI miss the optimum phi* by what the noise did, which
the guide's own scales do not show. A run of plain DPVI, whose gradients carry Gaussian
noise of known sd, is a regression of the released gradients on the released parameters:
`trace_model` has the likelihood and the priors. From it come draws of phi* and of the
curvature there, and from the guide at each phi* a draw of theta. No data are read.

The paper's gradient is the sum over the sample of those of the loss: minus q times this
one, with sds q s and q r. Its prior of the curvature is the regression's own estimate:
the run counts twice, and the curvature is known by sqrt(2) too well. It is meant for
curvatures well above one, where u and softplus(u) agree, and draws smaller ones up. Its
prior of phi* is about the mean of the trace. Priors that do not look at what they are
for are those of theta, and a curvature about a guess: scale^2 a = 1 at the optimum of a
Gaussian mean field (Opper and Archambeau 2009), so the scales of the guide are one. The
curvature then tells the scales of the optimum, of which the trace of rho says little.

The rounding of released gradients, a sixteenth of s at most, is left out.

Reference: noise-aware differentially private variational inference, AISTATS 2025, arXiv
2410.19371. Its sampler is NUTS over all steps of this posterior.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.vi import approximate_draws, exact_draws
from dpjax.vi.guides import Guide
from dpjax.vi.trace_model import TraceModel

__all__ = ["NoiseAware", "Optima", "noise_aware"]

METHODS = ("exact", "nuts", "laplace", "published_laplace")


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
    model
        The regression, in arrays ``(num_chains * size,)``.
    method
        How draws are made.
    has_scales
        Whether the scales of the optimum are those of its curvature.
    """

    structure: Any
    model: TraceModel
    method: str
    has_scales: bool = False

    def sample(self, rng_key: jax.Array, num_samples: int) -> Optima:
        """Draws of the optimum and of the curvature about it."""
        if self.method == "nuts":
            found = approximate_draws.nuts(self.model, rng_key, num_samples)
        else:
            rng = _generator(rng_key)
            if self.method == "exact":
                found = exact_draws.draws(self.model, rng, num_samples)
            else:
                found = approximate_draws.laplace(
                    self.model, rng, num_samples, self.method == "published_laplace"
                )
        optimum, u = found
        parameters = self._unravel(optimum)
        curvature = self._unravel(np.logaddexp(0, u))
        if self.has_scales:
            flatten = jax.vmap(jax.vmap(lambda tree: ravel_pytree(tree)[0]))
            scales = flatten(curvature["location"]) ** -0.5
            rho = scales + jnp.log(-jnp.expm1(-scales))
            parameters = parameters | {"rho": rho}
        return Optima(parameters, curvature)

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
    infos,
    *,
    method: str = "exact",
    optimum_mean: Any = None,
    optimum_sd: Any = 1.0,
    curvature_log_sd: float | None = None,
    curvature: Any = None,
    sampling_error_sd: float = 0.0,
) -> NoiseAware:
    """The posterior of the optimum, given what a run of plain DPVI released.

    Parameters
    ----------
    infos
        `Run.infos` of `dpvi` with ``aligned=False``, or what `dpjax.runner.load_infos`
        finds of them in a file. Steps before the optimum is near do not fit the model:
        leave them out by `warmup_fraction`, .2 in the paper.
    method
        ``"exact"``: independent draws; ``"nuts"``; ``"laplace"``;
        ``"published_laplace"``, with the errors of the paper's code.
    optimum_mean, optimum_sd
        Of the prior of phi*: numbers, or pytrees that are like the parameters or a
        prefix of them. Without a mean, it is that of the trace.
    curvature_log_sd
        Sd of the logarithm of the curvature about what the guide's mean scales say. The
        scales of the optimum are then those of the curvature, not of the trace of rho.
        By default the prior is the regression's own estimate.
    curvature
        What the model expects the curvature to be, in place of what the guide's scales
        say: a pytree like the parameters, with an axis ``(num_chains,)`` before theirs.
        The scales are then those of the trace of rho.
    sampling_error_sd
        r_0, in units of the gradient of the ELBO. Zero leaves that error out; the
        paper's code has 1/q.

    Returns
    -------
    NoiseAware
        One posterior for every chain.

    Raises
    ------
    ValueError
        If an argument is out of range, the infos hold no noise level or fewer than
        three steps, or a component of the parameters does not move.

    Notes
    -----
    *Formal guarantees.* No data are read: a function of what was released, hence free.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if not 0 <= sampling_error_sd < math.inf:
        raise ValueError(
            f"sampling_error_sd must not be negative, got {sampling_error_sd}"
        )
    if not (curvature_log_sd is None or 0 < curvature_log_sd < math.inf):
        raise ValueError(f"curvature_log_sd must be positive, got {curvature_log_sd}")
    if curvature is not None and curvature_log_sd is None:
        raise ValueError("curvature needs curvature_log_sd, how well it is known")
    is_mean_field = set(infos.parameters) == {"location", "rho"}
    if curvature_log_sd is not None and not is_mean_field:
        raise ValueError("curvature_log_sd is for the scales of a mean field")
    if infos.noise_sd is None:
        raise ValueError(
            "the noise on these gradients is not Gaussian of one known sd: run dpvi "
            "with aligned=False and noise"
        )
    parameters, gradients = _flat(infos.parameters), _flat(infos.gradient)
    num_steps = parameters.shape[1]
    if num_steps < 3:
        raise ValueError(f"at least three steps are needed, got {num_steps}")
    structure = jax.tree.map(lambda leaf: leaf[0, 0], infos.parameters)
    center, gradient = parameters.mean(axis=1), gradients.mean(axis=1)
    means = center if optimum_mean is None else _like(structure, optimum_mean, center)
    sds = _like(structure, optimum_sd, center)
    if not (np.all(np.isfinite(means)) and np.all((0 < sds) & (sds < math.inf))):
        raise ValueError(
            "optimum_mean must be finite and optimum_sd positive, got "
            f"{optimum_mean} and {optimum_sd}"
        )
    parameters, gradients = parameters - center[:, None], gradients - gradient[:, None]
    sxx = np.sum(parameters**2, axis=1)
    if not np.all(sxx > 0):
        raise ValueError("a component of the parameters is the same at every step")
    guess = np.zeros_like(center), np.full_like(center, math.inf)
    if curvature_log_sd is not None:
        log_curvature = _guess(infos.parameters)
        if curvature is not None:
            leaves = jax.tree.map(lambda leaf: np.asarray(leaf)[:, None], curvature)
            log_curvature = np.log(_flat(leaves)[:, 0])
        guess = log_curvature, np.full_like(center, curvature_log_sd)
    fields = (
        _flat(infos.noise_sd)[:, 0],
        center,
        gradient,
        sxx,
        np.sum(parameters * gradients, axis=1),
        np.sum(gradients**2, axis=1),
        means,
        sds,
        np.full_like(center, sampling_error_sd),
        *guess,
    )
    model = TraceModel(num_steps, *(field.reshape(-1) for field in fields))
    has_scales = curvature_log_sd is not None and curvature is None
    return NoiseAware(structure, model, method, has_scales)


def _guess(parameters) -> np.ndarray:
    """Log curvatures at which the mean scales would be those of the optimum.

    In a location 1 / s^2; then in rho, 2 (ds / drho)^2 / s^2.
    """
    rho = _flat(parameters["rho"]).mean(axis=1)
    log_scale = np.log(np.logaddexp(0, rho))
    log_slope = -np.logaddexp(0, -rho)
    of_rho = math.log(2) + 2 * (log_slope - log_scale)
    return np.concatenate([-2 * log_scale, of_rho], axis=-1)


def _flat(tree) -> np.ndarray:
    """Leaves side by side, ``(num_chains, num_steps, size)`` float64.

    In one order of memory, so that sums round alike wherever the leaves come from.
    """
    leaves = [np.asarray(leaf, np.float64, order="C") for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], -1)


def _like(structure, part, rows) -> np.ndarray:
    """A pytree of numbers, or a prefix of one, as vectors in all `rows`."""
    whole = jax.tree.broadcast(part, structure)
    leaves = jax.tree.map(
        lambda number, leaf: np.broadcast_to(number, np.shape(leaf)).ravel(),
        whole,
        structure,
    )
    vector = np.concatenate(jax.tree.leaves(leaves)).astype(np.float64)
    return np.broadcast_to(vector, rows.shape)


def _generator(rng_key):
    return np.random.default_rng(np.asarray(jax.random.bits(rng_key, (8,), jnp.uint32)))
