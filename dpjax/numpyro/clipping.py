"""Clip bounds from records that the model draws itself. Nothing here reads data.

What clipping does to the posterior is not seen in what is released. In one logistic
regression on 50,000 records, a norm that clipped the gradients of 9 % of the records
moved the fit of `dpjax.dpvi` by 15 posterior standard deviations. So these bounds clip
one record in a thousand, if records are as the model says.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.numpyro.adapter import model_of
from dpjax.posterior import Posterior

__all__ = ["clip_per_step", "l2_clip_norm"]

QUANTILE, NUM_SIMULATED = 0.999, 20_000
"""The share of made-up records that are not clipped, and their number."""


def clip_per_step(posterior: Posterior, position, inverse_mass_matrix) -> float:
    """Clip bound of log ratios in nats, per unit of step length.

    For kernels like `dpjax.barker`: take `step_size` times this for their `clip_bound`.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`, with an ``example`` if its model does not
        generate all of its records.
    position
        Public position at which records are simulated.
    inverse_mass_matrix
        Metric in which step lengths are measured, ``(d, d)``.

    Notes
    -----
    *Formal guarantees.* No data are read: the records are simulated.
    """
    root = jnp.linalg.cholesky(jnp.asarray(inverse_mass_matrix))

    def slope(rng_key, score):
        direction = jax.random.normal(rng_key, score.shape, score.dtype)
        return score @ (
            root.astype(score.dtype) @ direction / jnp.linalg.norm(direction)
        )

    return _quantile(posterior, position, slope)


def l2_clip_norm(posterior: Posterior, position) -> float:
    """Clip norm of gradients, in nats per unit of the unconstrained parameters.

    For kernels that release gradients, such as `dpjax.dpvi`, `dpjax.sgld` and
    `dpjax.hmc`.

    Parameters
    ----------
    posterior, position
        As in `clip_per_step`. Where gradients far from this position are larger, more
        of them are clipped on the way.

    Notes
    -----
    *Formal guarantees.* No data are read: the records are simulated.
    """
    return _quantile(posterior, position, lambda rng_key, score: jnp.linalg.norm(score))


def _quantile(posterior: Posterior, position, size_of: Callable) -> float:
    """Of the sizes of the scores of records that are simulated at the position."""
    model = model_of(posterior)
    flat, unravel = ravel_pytree(position)

    @jax.jit
    @jax.vmap
    def size(rng_key):
        first, second = jax.random.split(rng_key)
        record = model.simulate(first, position)
        score = jax.grad(lambda x: posterior.loglikelihood_fn(unravel(x), record))
        return jnp.abs(size_of(second, score(flat)))

    sizes = size(jax.random.split(jax.random.key(1), NUM_SIMULATED))
    return float(np.quantile(np.asarray(sizes, np.float64), QUANTILE))
