"""Noise-aware DPVI: a posterior of the optimum, given the noisy trace of a run.

The last or the mean parameters of DPVI miss the optimum phi* because of the noise, and
the guide's own scales do not show by how much. A run of plain DPVI has gradients with
Gaussian noise of known sd, so it is a regression of the released gradients on the
released parameters. `trace_model` has the likelihood and the priors of this regression.
Its posterior gives draws of phi* and of the curvature there, and the guide at each phi*
gives a draw of theta. No data are read.

*Priors.* The default prior of the curvature a = softplus(u) is that of the paper, which
is the regression's own estimate. So the run is counted twice, and the curvature seems
to be known better than it is, by a factor of sqrt(2). That prior is meant for
curvatures well above one, for which u and softplus(u) agree. It makes smaller
curvatures larger. The default prior of phi* has its centre at the mean of the trace.

Two other priors do not count the regression twice. For phi*, the mean and the sd of the
prior of theta can be given. For the curvature, there is a guess from the guide's
scales: at the optimum of a Gaussian mean field, scale^2 a = 1 (Opper and Archambeau
2009). With this guess, the scales of the optimum are in turn computed from the
curvature, as the trace of rho says little about them.

The paper's gradient is the sum, over the sample, of the gradients of the loss. It is
minus q times the gradient here, and the sd of its noise is q times that here. The
rounding of released gradients, which is at most a sixteenth of s, is neglected.

Reference: noise-aware differentially private variational inference, AISTATS 2025, arXiv
2410.19371. Its sampler is NUTS over all steps of this posterior.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.vi import approximate_draws, exact_draws
from dpjax.vi.guides import Guide
from dpjax.vi.trace_model import TraceModel, flat

__all__ = ["NoiseAware", "Optima", "noise_aware"]

METHODS = {
    "exact": exact_draws.draws,
    "nuts": approximate_draws.nuts,
    "laplace": approximate_draws.laplace,
    "published_laplace": functools.partial(
        approximate_draws.laplace, is_published=True
    ),
}
"""The methods of drawing, by name: ``(model, rng_key, num_samples) -> (phi*, u)``."""


class Optima(NamedTuple):
    """Draws of the optimum and of the curvature of -ELBO there.

    parameters
        phi*, a pytree like the parameters of the guide, with the axes
        ``(num_chains, num_samples)`` before those of each leaf.
    curvature
        a, a pytree with the same structure and shapes.
    """

    parameters: Any
    curvature: Any


class NoiseAware(NamedTuple):
    """The posterior of phi*, for each component of every chain's parameters.

    structure
        Parameters of the guide at one step, for their structure and shapes.
    model
        The regression, in arrays ``(num_chains * size,)``, where ``size`` is the number
        of entries of the parameters.
    method
        How draws are made, one of `METHODS`.
    has_scales
        Whether the scales of the optimum follow from the curvature; otherwise they are
        draws of phi* like its other components.
    """

    structure: Any
    model: TraceModel
    method: str
    has_scales: bool = False

    def sample(self, rng_key: jax.Array, num_samples: int) -> Optima:
        """`num_samples` draws of the optimum and of the curvature, for every chain."""
        optimum, u = METHODS[self.method](self.model, rng_key, num_samples)
        parameters = self._unravel(optimum)
        curvature = self._unravel(np.logaddexp(0, u))
        if self.has_scales:
            flatten = jax.vmap(jax.vmap(lambda tree: ravel_pytree(tree)[0]))
            scales = flatten(curvature["location"]) ** -0.5
            rho = scales + jnp.log(-jnp.expm1(-scales))
            parameters = parameters | {"rho": rho}
        return Optima(parameters, curvature)

    def draws(self, rng_key: jax.Array, guide: Guide, num_samples: int):
        """Draws of theta from `guide`, each with another draw of the optimum.

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

    def _unravel(self, vectors):
        """A pytree like the parameters, from ``(num_chains * size, num_samples)``.

        Its leaves have the axes ``(num_chains, num_samples)`` before their own.
        """
        vector, unravel = ravel_pytree(self.structure)
        vectors = vectors.reshape(-1, vector.size, vectors.shape[-1])
        vectors = jnp.asarray(np.moveaxis(vectors, 1, 2), vector.dtype)
        return jax.vmap(jax.vmap(unravel))(vectors)


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
        `Run.infos` of `dpvi` with ``aligned=False``. The run may be one that
        `dpjax.load` has read. The model does not hold for the first steps, which are
        far from the optimum. Leave them out with `warmup_fraction` of the run, which is
        .2 in the paper, or by their number, `dpjax.vi.num_warmup`.
    method
        ``"exact"`` for independent draws, ``"nuts"``, ``"laplace"``, or
        ``"published_laplace"`` for the paper's code with its errors.
    optimum_mean, optimum_sd
        Mean and sd of the prior of phi*: numbers, or pytrees of numbers like the
        parameters or a prefix of them. The default mean is that of the trace.
    curvature_log_sd
        Sd of the logarithm of the curvature in its prior. The centre of this prior is
        the value that follows from the guide's mean scales. The scales of the optimum
        are then computed from the curvature, not from the trace of rho. It is for mean
        fields only. None is the default: the prior of the curvature is then the
        regression's own estimate.
    curvature
        The centre of that prior, in place of the value that follows from the guide's
        scales: a pytree like the parameters, with an axis ``(num_chains,)`` before
        those of each leaf. The scales of the optimum are then taken from the trace of
        rho.
    sampling_error_sd
        r_0, the prior sd of the sampling error of a gradient, in units of the gradient
        of the ELBO. Zero leaves that error out. The paper's code has 1/q.

    Returns
    -------
    NoiseAware
        One posterior for every chain.

    Raises
    ------
    ValueError
        If an argument is out of range, if the infos hold no sd of the noise or fewer
        than three steps, or if a component of the parameters does not move.

    Notes
    -----
    *Formal guarantees.* The posterior is a function of what the run released. No data
    are read, so it costs no privacy.
    """
    if not hasattr(infos, "parameters"):
        raise ValueError("infos must be Run.infos of dpjax.dpvi with aligned=False")
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
    parameters, gradients = flat(infos.parameters), flat(infos.gradient)
    num_steps = parameters.shape[1]
    if num_steps < 3:
        raise ValueError(f"at least three steps are needed, got {num_steps}")
    structure = jax.tree.map(lambda leaf: leaf[0, 0], infos.parameters)
    center, gradient = parameters.mean(axis=1), gradients.mean(axis=1)
    means = center if optimum_mean is None else _like(structure, optimum_mean)
    sds = _like(structure, optimum_sd)
    if not (np.all(np.isfinite(means)) and np.all((0 < sds) & (sds < math.inf))):
        raise ValueError(
            "optimum_mean must be finite and optimum_sd positive, got "
            f"{optimum_mean} and {optimum_sd}"
        )
    parameters, gradients = parameters - center[:, None], gradients - gradient[:, None]
    sxx = np.sum(parameters**2, axis=1)
    if not np.all(sxx > 0):
        raise ValueError("a component of the parameters is the same at every step")
    log_curvature = 0.0
    if curvature is not None:
        leaves = jax.tree.map(lambda leaf: np.asarray(leaf)[:, None], curvature)
        log_curvature = np.log(flat(leaves)[:, 0])
    elif curvature_log_sd is not None:
        log_curvature = _log_curvature(infos.parameters)
    model = TraceModel(
        num_steps=num_steps,
        noise_sd=flat(infos.noise_sd)[:, 0],
        parameters=center,
        gradient=gradient,
        sxx=sxx,
        sxg=np.sum(parameters * gradients, axis=1),
        sgg=np.sum(gradients**2, axis=1),
        optimum_mean=means,
        optimum_sd=sds,
        sampling_error_sd=sampling_error_sd,
        log_curvature_mean=log_curvature,
        log_curvature_sd=curvature_log_sd or math.inf,
    )
    shape = sxx.shape
    model = jax.tree.map(
        lambda field: np.broadcast_to(field, shape).astype(np.float64).ravel(), model
    )
    has_scales = curvature_log_sd is not None and curvature is None
    return NoiseAware(structure, model, method, has_scales)


def _log_curvature(parameters) -> np.ndarray:
    """Log curvatures that make the mean scales s those of the optimum.

    The curvature is 1 / s^2 in the location and 2 (ds / drho)^2 / s^2 in rho.
    """
    rho = flat(parameters["rho"]).mean(axis=1)
    log_scale = np.log(np.logaddexp(0, rho))
    log_slope = -np.logaddexp(0, -rho)
    of_rho = math.log(2) + 2 * (log_slope - log_scale)
    return np.concatenate([-2 * log_scale, of_rho], axis=-1)


def _like(structure, part) -> np.ndarray:
    """A pytree of numbers, or a prefix of one, as a vector ``(size,)``."""
    numbers = jax.tree.leaves(jax.tree.broadcast(part, structure))
    pairs = zip(numbers, jax.tree.leaves(structure), strict=True)
    vectors = [np.broadcast_to(number, leaf.shape).ravel() for number, leaf in pairs]
    return np.concatenate(vectors, dtype=np.float64)
