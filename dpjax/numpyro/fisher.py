"""Where a chain on a NumPyro model starts, and in which units it steps: no data read.

The information of the posterior at z, in unconstrained space, is that of the records,
expected under the model (`dpjax.fisher`), plus that of the prior. The latter is the
curvature H of minus the log prior at the position the metric is for. H may be
indefinite, so it is diagonalised in units of the prior's standard deviations and its
eigenvalues are raised to at least `FLOOR`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax import fisher
from dpjax.numpyro.adapter import model_of
from dpjax.posterior import Posterior

__all__ = [
    "fisher_information",
    "fisher_metric",
    "initial_position",
    "inverse",
    "local_information",
    "prior_information",
    "prior_spread",
]

FLOOR = 0.1
"""Least precision of the prior in any direction, in units of its own."""

POOLED = 100
"""Draws from the prior whose mean a chain starts at."""


def initial_position(
    posterior: Posterior, num_chains: int, seed: int = 0
) -> dict[str, jax.Array]:
    """Starts near the centre of the prior, a tenth of its spread apart.

    Each is the mean of 100 unconstrained draws from the prior.

    Returns
    -------
    Dict of ``(num_chains, ...)`` as `dpjax.run` takes it.
    """
    keys = jax.random.split(jax.random.key(seed), (num_chains, POOLED))
    draws = jax.jit(jax.vmap(jax.vmap(model_of(posterior).draw)))(keys)
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=1), draws)


def fisher_information(
    posterior: Posterior,
    position: Any = None,
    *,
    num_simulated: int = 1000,
    seed: int = 0,
) -> Callable[[Any], jax.Array]:
    """Information of the posterior, for `dpjax.fisher.geodesic`.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`. What its model does not generate, such as
        regressors, is drawn from the rows of ``example``: a public design.
    position
        Public, where the prior's curvature is taken; default the prior's centre.
    num_simulated, seed
        As in `dpjax.fisher.information`.

    Returns
    -------
    ``position -> (d, d)`` over the flattened position.

    Raises
    ------
    ValueError
        If the observations cannot be simulated, or regressors have no public design.

    Notes
    -----
    *Formal guarantees.* As of `dpjax.fisher.information`: no data are read.
    """
    model = model_of(posterior)
    position = _centre(model) if position is None else position
    of_records = _of_records(posterior, num_simulated=num_simulated, seed=seed)
    of_prior = np.asarray(jax.jit(prior_information(model))(position))

    def information(position):
        return of_records(position) + of_prior.astype(jnp.result_type(float))

    return information


def local_information(posterior: Posterior, **options) -> Callable[[Any], jax.Array]:
    """`fisher_information` with the prior's curvature at the same position.

    Not to be differentiated: where eigenvalues are equal, their vectors are not smooth.
    """
    of_records = _of_records(posterior, **options)
    of_prior = prior_information(model_of(posterior))
    return lambda position: of_records(position) + of_prior(position)


def _of_records(posterior, **options):
    model = model_of(posterior)
    _check_simulated(model)
    return fisher.information(posterior, model.simulate, **options)


def fisher_metric(posterior: Posterior, position: Any = None, **options) -> np.ndarray:
    """Inverse information at one public position, an ``inverse_mass_matrix``.

    Parameters
    ----------
    posterior, options
        As in `fisher_information`.
    position
        Default the prior's centre.

    Returns
    -------
    Shape ``(d, d)``: about the posterior covariance of the flattened position.
    """
    if position is None:
        position = _centre(model_of(posterior))
    return inverse(fisher_information(posterior, position, **options), position)


def inverse(information_fn: Callable[[Any], jax.Array], position) -> np.ndarray:
    """Of the information at one position, ``(d, d)`` float64."""
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(lambda at: information_fn(at))(position), np.float64)
    found = np.linalg.inv(found)
    return (found + found.T) / 2


def _check_simulated(model):
    for site, name in model.observed.items():
        if name is None:
            raise ValueError(
                f"site {site!r} observes a function of the data, or is a factor: its "
                "records cannot be simulated. Pass a simulate_fn of your own to "
                "dpjax.fisher.information"
            )
    if inputs := sorted(model.unspecified - set(model.observed.values())):
        raise ValueError(
            f"the model does not generate {inputs}: pass a public design of them to "
            "dpjax.numpyro.posterior as example=, values made up from their public "
            "range or law and not from the data (in a configuration, give their range "
            "or categories)"
        )


def _centre(model):
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), model.prior_draws)


def prior_spread(model) -> np.ndarray:
    """Standard deviations of the prior, over the flattened position."""
    draws = jax.tree.leaves(model.prior_draws)
    flat = [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in draws]
    return np.concatenate(flat, axis=1).std(axis=0)


def prior_information(model) -> Callable[[Any], jax.Array]:
    """That of the prior; see the module docstring."""
    spread = prior_spread(model)
    squares = np.outer(spread, spread)

    def information(position):
        flat, unravel = ravel_pytree(position)
        units = jnp.asarray(squares, flat.dtype)
        curvature = jax.hessian(lambda x: -model.logprior(unravel(x)))(flat) * units
        values, vectors = jnp.linalg.eigh((curvature + curvature.T) / 2)
        return (vectors * jnp.maximum(values, FLOOR)) @ vectors.T / units

    return information
