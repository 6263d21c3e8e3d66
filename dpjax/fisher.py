"""Expected Fisher information: a metric of the model that reads no data.

A step delta changes one record's log-likelihood by about sqrt(delta' F delta), F the
information of one record, so steps measured in G = T n F (T the tempering) need a clip
bound near ``h / sqrt(n)`` for steps of h posterior standard deviations, whatever the
scales, the correlations and the dimension. F is an expectation over records drawn from
the *model* at a public position, never over the data, so it costs no privacy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax.posterior import Posterior

__all__ = ["Information", "information"]


@dataclass(frozen=True)
class Information:
    """``position -> (d, d)``: the information of all records; see `information`."""

    loglikelihood_fn: Callable[[Any, Any], jax.Array]
    simulate_fn: Callable[[jax.Array, Any], Any]
    num_records: int
    tempering: float
    prior_precision: float
    num_simulated: int
    seed: int

    def __call__(self, position) -> jax.Array:
        flat, unravel = ravel_pytree(position)

        def score(rng_key):
            record = jax.lax.stop_gradient(self.simulate_fn(rng_key, position))
            return jax.grad(lambda x: self.loglikelihood_fn(unravel(x), record))(flat)

        keys = jax.random.split(jax.random.key(self.seed), self.num_simulated)
        scores = jax.vmap(score)(keys)
        product = jnp.matmul(scores.T, scores, precision="highest")
        weight = self.tempering * self.num_records / self.num_simulated
        return weight * product + self.prior_precision * jnp.eye(flat.size)


def information(
    posterior: Posterior,
    simulate_fn: Callable[[jax.Array, Any], Any],
    *,
    prior_precision: float = 0.0,
    num_simulated: int = 1000,
    seed: int = 0,
) -> Information:
    """Fisher information of the model, from records simulated by it.

    Parameters
    ----------
    posterior
        Its log-likelihood, tempering and number of records are used, not its data.
    simulate_fn
        ``(rng_key, position) -> record``: one record of the model, with regressors
        from a public range or design. It must not read the data.
    prior_precision
        Added to the diagonal; positive where records alone may not inform a direction.
    num_simulated
        Records simulated, a few times the number of parameters or more. The error
        this makes leaves chains exact: the same records are drawn at every position.
    seed
        Of their randomness.

    Returns
    -------
    ``position -> (d, d)`` over the flattened position, for `proposals.fisher`; its
    inverse at one public position is an ``inverse_mass_matrix``.

    Raises
    ------
    ValueError
        If `num_simulated` is not positive or `prior_precision` is negative.

    Notes
    -----
    *Formal guarantees.* No data are read: the result depends on the data set through
    its number of records only, which substitution of a record does not change.
    """
    if not (isinstance(num_simulated, int) and num_simulated >= 1):
        raise ValueError(f"num_simulated must be a positive integer, {num_simulated=}")
    if not prior_precision >= 0:
        raise ValueError(f"prior_precision must not be negative, {prior_precision=}")
    return Information(
        posterior.loglikelihood_fn,
        simulate_fn,
        posterior.num_records,
        posterior.tempering,
        prior_precision,
        num_simulated,
        seed,
    )
