"""Starts and metric of chains on a NumPyro model. They are public: no data are read.

The information of the posterior at an unconstrained position z is the expected Fisher
information of the records under the model (`dpjax.fisher`), plus the precision of the
normal law that fits draws from the prior.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax import fisher
from dpjax.compiled import evaluated
from dpjax.fit.normal_laws import PriorLaw
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.model import Model
from dpjax.numpyro.nodes import check_drawable, generated
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_count

__all__ = [
    "check_simulable",
    "fisher_information",
    "initial_position",
    "prior_law",
    "prior_mean",
]

DRAWS_PER_START = 100
"""Number of draws from the prior whose mean is one start."""


def initial_position(
    posterior: Posterior, num_chains: int, seed: int = 0
) -> dict[str, jax.Array]:
    """Starts near the centre of the prior.

    Each start is the mean of 100 unconstrained draws from the prior, so the starts
    spread by a tenth of the prior's standard deviation.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`.
    num_chains
        The number of starts.
    seed
        Of the draws. It need not be secret.

    Returns
    -------
    dict
        Arrays of shape ``(num_chains, ...)`` by latent, as `dpjax.run` takes them.

    Raises
    ------
    ValueError
        If the posterior is another one, or `num_chains` is no positive integer.
    """
    num_chains = check_count("num_chains", num_chains)
    draw = model_of(posterior).draw

    def starts(seed):
        keys = jax.random.split(jax.random.key(seed), (num_chains, DRAWS_PER_START))
        draws = jax.vmap(jax.vmap(draw))(keys)
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=1), draws)

    return evaluated(starts, np.uint32(seed))


def fisher_information(
    posterior: Posterior,
    *,
    num_simulated: int = 1000,
    seed: int = 0,
    nominal_num_records: int | None = None,
) -> Callable[[Any], jax.Array]:
    """Expected information of the posterior of a NumPyro model.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`. Arrays that its model does not generate, such as
        regressors, are drawn from the rows of ``example``, a public design.
    num_simulated, seed, nominal_num_records
        As in `dpjax.fisher.fisher_information`.

    Returns
    -------
    Callable
        ``position -> information``, a matrix ``(d, d)`` over the flattened position,
        for `dpjax.fisher.geodesic` and `dpjax.fisher.inverse_fisher_information`.

    Raises
    ------
    ValueError
        If observations cannot be drawn from the model, or arrays that it does not
        generate are not in ``example``.

    Notes
    -----
    *Formal guarantees.* No data are read, as in `dpjax.fisher.fisher_information`.
    """
    model = model_of(posterior)
    check_simulable(model)
    of_records = fisher.fisher_information(
        posterior,
        model.simulate,
        num_simulated=num_simulated,
        seed=seed,
        nominal_num_records=nominal_num_records,
    )
    _, precision = prior_law(model)
    return lambda at: of_records(at) + precision.astype(jnp.result_type(float))


def prior_law(model: Model) -> PriorLaw:
    """The normal law that fits the prior of the flattened unconstrained position."""
    draws = jax.tree.leaves(model.prior_draws)
    flat = [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in draws]
    return PriorLaw.of(np.concatenate(flat, axis=1))


def prior_mean(model: Model) -> dict[str, jax.Array]:
    """The mean of `prior_law`, as an unconstrained position."""
    first = jax.tree.map(lambda leaf: leaf[0], model.prior_draws)
    flat, unravel = ravel_pytree(first)
    return unravel(jnp.asarray(prior_law(model)[0], flat.dtype))


def check_simulable(model: Model) -> None:
    """Refuse a model of which no records can be made up.

    Raises
    ------
    ValueError
        As `dpjax.numpyro.nodes.check_drawable`; or if there is an array that the model
        does not generate and of which the posterior has no public values.
    """
    check_drawable(model)
    if inputs := sorted(model.unspecified - generated(model)):
        raise ValueError(
            f"the model does not generate {inputs}: pass a public design of them to "
            "dpjax.numpyro.posterior as example=, values made up from their public "
            "range or law and not from the data (in a configuration, give their range "
            "or categories)"
        )
