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
    "local_information",
    "prior_spread",
]

FLOOR = 0.1
"""Least precision of the prior in any direction, in units of its own."""

DRAWS = 1000
"""Draws from the prior that its centre and spread are taken from."""

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
    spread = prior_spread(model)
    of_prior = np.asarray(jax.jit(lambda at: _of_prior(model, spread, at))(position))

    def information(position):
        return of_records(position) + of_prior.astype(jnp.result_type(float))

    return information


def local_information(posterior: Posterior, **options) -> Callable[[Any], jax.Array]:
    """`fisher_information` with the prior's curvature at the same position.

    Not to be differentiated: where eigenvalues are equal, their vectors are not smooth.
    """
    of_records = _of_records(posterior, **options)
    model = model_of(posterior)
    spread = prior_spread(model)
    return lambda position: of_records(position) + _of_prior(model, spread, position)


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
    information = fisher_information(posterior, position, **options)
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(information)(position), np.float64)
    inverse = np.linalg.inv(found)
    return (inverse + inverse.T) / 2


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


def _prior_draws(model):
    keys = jax.random.split(jax.random.key(0), DRAWS)
    return jax.jit(jax.vmap(model.draw))(keys)


def _centre(model):
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), _prior_draws(model))


def prior_spread(model) -> np.ndarray:
    """Standard deviations of the prior, over the flattened position."""
    draws = jax.vmap(lambda draw: ravel_pytree(draw)[0])(_prior_draws(model))
    return np.std(np.asarray(draws, np.float64), axis=0)


def _of_prior(model, spread, position) -> jax.Array:
    """See the module docstring; `spread` is `prior_spread`."""
    flat, unravel = ravel_pytree(position)
    units = jnp.outer(spread, spread).astype(flat.dtype)
    curvature = jax.hessian(lambda x: -model.logprior(unravel(x)))(flat) * units
    values, vectors = jnp.linalg.eigh((curvature + curvature.T) / 2)
    return (vectors * jnp.maximum(values, FLOOR)) @ vectors.T / units
