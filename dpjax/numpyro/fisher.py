"""Where chains on a NumPyro model start, and their metric: public, no data are read.

The information of the posterior at z, in unconstrained space, is the expected Fisher
information of the records under the model (`dpjax.fisher`) plus the precision of the
prior. That precision is H, the Hessian of minus the log prior density. As H may be
indefinite, it is diagonalised in units of the prior's standard deviations, and its
eigenvalues are raised to at least `MIN_PRIOR_PRECISION`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax import fisher
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.model import Model
from dpjax.numpyro.nodes import check_drawable, generated
from dpjax.posterior import Posterior

__all__ = [
    "fisher_information",
    "initial_position",
    "is_log_concave",
    "prior_precision",
    "prior_sd",
    "record_information",
]

MIN_PRIOR_PRECISION = 0.1
"""Least precision of the prior in any direction, in units of the prior's sds."""

NUM_TRIED = 100
"""Draws of the prior at which its curvature is looked at."""

DRAWS_PER_START = 100
"""Draws from the prior whose mean is one start."""


def initial_position(
    posterior: Posterior, num_chains: int, seed: int = 0
) -> dict[str, jax.Array]:
    """Starts near the centre of the prior.

    Each start is the mean of 100 unconstrained draws from the prior, so the starts
    spread by a tenth of the prior's standard deviation.

    Returns
    -------
    dict
        Arrays of shape ``(num_chains, ...)`` by latent, as `dpjax.run` takes them.
    """
    keys = jax.random.split(jax.random.key(seed), (num_chains, DRAWS_PER_START))
    draws = jax.jit(jax.vmap(jax.vmap(model_of(posterior).draw)))(keys)
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=1), draws)


def fisher_information(
    posterior: Posterior,
    position: Any = None,
    *,
    num_simulated: int = 1000,
    seed: int = 0,
    nominal_num_records: int | None = None,
) -> Callable[[Any], jax.Array]:
    """Expected information of the posterior of a NumPyro model.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`. What its model does not generate, such as
        regressors, is drawn from the rows of ``example``: a public design.
    position
        Public position at which the precision of the prior is taken; by default the
        centre of the prior.
    num_simulated, seed, nominal_num_records
        As in `dpjax.fisher.fisher_information`.

    Returns
    -------
    Callable
        ``position -> (d, d)`` over the flattened position, for
        `dpjax.fisher.geodesic` and `dpjax.fisher.inverse_fisher_information`.

    Raises
    ------
    ValueError
        If the observations cannot be simulated, or regressors have no public design.

    Notes
    -----
    *Formal guarantees.* No data are read, as in `dpjax.fisher.fisher_information`.
    """
    model = model_of(posterior)
    if position is None:
        position = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), model.prior_draws)
    of_records = record_information(
        posterior,
        num_simulated=num_simulated,
        seed=seed,
        nominal_num_records=nominal_num_records,
    )
    precision = np.asarray(jax.jit(prior_precision(model))(position))
    return lambda at: of_records(at) + precision.astype(jnp.result_type(float))


def prior_sd(model: Model) -> np.ndarray:
    """Standard deviations of the prior, over the flattened position."""
    draws = jax.tree.leaves(model.prior_draws)
    flat = [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in draws]
    return np.concatenate(flat, axis=1).std(axis=0)


def is_log_concave(model: Model) -> bool:
    """Whether the prior's density is about log-concave at draws from it.

    It is not where the scale of some latents is another latent. The density may then
    have no mode.
    """
    scaled = _hessian(model)
    draws = jax.tree.map(lambda leaf: leaf[:NUM_TRIED], model.prior_draws)
    least = jax.lax.map(lambda draw: jnp.linalg.eigvalsh(scaled(draw)[0])[0], draws)
    return bool(jnp.min(least) > -MIN_PRIOR_PRECISION)


def prior_precision(model: Model) -> Callable[[Any], jax.Array]:
    """``position -> (d, d)``: the precision of the prior; see the module docstring."""
    scaled = _hessian(model)

    def precision(position):
        hessian, units = scaled(position)
        values, vectors = jnp.linalg.eigh(hessian)
        return (vectors * jnp.maximum(values, MIN_PRIOR_PRECISION)) @ vectors.T / units

    return precision


def _hessian(model: Model) -> Callable:
    """``position -> (hessian, units)`` of minus the log prior, both ``(d, d)``.

    The Hessian is over the sds of the prior; over the units it is that of the position.
    """
    sd = prior_sd(model)
    squares = np.outer(sd, sd)

    def scaled(position):
        flat, unravel = ravel_pytree(position)
        units = jnp.asarray(squares, flat.dtype)
        hessian = jax.hessian(lambda x: -model.logprior(unravel(x)))(flat) * units
        return (hessian + hessian.T) / 2, units

    return scaled


def record_information(posterior: Posterior, **options):
    """`fisher_information` without the prior's precision; the options are its own."""
    model = model_of(posterior)
    check_drawable(model)
    if inputs := sorted(model.unspecified - generated(model)):
        raise ValueError(
            f"the model does not generate {inputs}: pass a public design of them to "
            "dpjax.numpyro.posterior as example=, values made up from their public "
            "range or law and not from the data (in a configuration, give their range "
            "or categories)"
        )
    return fisher.fisher_information(posterior, model.simulate, **options)
