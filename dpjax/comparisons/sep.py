"""Stochastic EP: one site that all records share, fitted on batches; not private.

In the notation of `dpjax.ep.shared_site`, step k is

    theta <- theta + rho_k n mean over the batch of clip(d_i).

The published step size is rho_k = B/n, with B the number of records in a batch. Every
record then moves theta by its whole difference d_i. If the batch holds all records and
rho_k is 1, the method is averaged EP.

Reference: Li, Hernandez-Lobato and Turner 2015.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax.ep.gaussians import Family, Moments
from dpjax.ep.shared_site import SharedSite, passes, start
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_count

__all__ = ["sep"]


def sep(
    rng_key: jax.Array,
    posterior: Posterior,
    match: Callable,
    *,
    family: Family,
    initial_position,
    num_epochs: int,
    batch_size: int = 1,
    schedule: Callable | None = None,
    l2_clip_norm: float = math.inf,
    init_scale: float = 1.0,
) -> Moments:
    """Gaussian approximation of a posterior; not private.

    Parameters
    ----------
    rng_key
        JAX key for the order of the records.
    posterior, match, family, initial_position
        As in `ep`.
    num_epochs
        Number of passes over the records, each in a fresh order. A pass leaves out the
        last records if their number is not a multiple of `batch_size`.
    batch_size
        B, the number of records in a batch.
    schedule
        ``k -> rho_k``: the step size, given the number k of earlier steps. None is the
        constant B/n.
    l2_clip_norm
        Bound on the norm of every difference d_i.
    init_scale
        As in `dpjax.dp_sep`.

    Raises
    ------
    ValueError
        If an argument is out of range, or the prior is not Gaussian.

    Returns
    -------
    Moments
        Mean and covariance of q.
    """
    check_count("num_epochs", num_epochs)
    if check_count("batch_size", batch_size) > posterior.num_records:
        raise ValueError(
            f"batch_size must be from 1 to the {posterior.num_records} records, got "
            f"{batch_size}"
        )
    if not l2_clip_norm > 0:
        raise ValueError(f"l2_clip_norm must be positive, got {l2_clip_norm}")
    return _epochs(
        posterior, match, family, schedule, batch_size,
        rng_key, initial_position, num_epochs, l2_clip_norm, init_scale,
    )  # fmt: skip


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4, 9))
def _epochs(
    posterior, match, family, schedule, batch_size,
    rng_key, initial_position, num_epochs, l2_clip_norm, init_scale,
):  # fmt: skip
    model = SharedSite(posterior, family, match)

    def visit(carry, indices):
        theta, num_steps = carry
        batch = jax.tree.map(lambda leaf: leaf[indices], posterior.data)
        differences = jax.vmap(model.difference_fn(theta))(batch)
        norms = jnp.linalg.norm(differences, axis=1, keepdims=True)
        shrink = jnp.minimum(1, l2_clip_norm / jnp.maximum(norms, 1e-30))
        differences = jnp.where(jnp.isfinite(norms), shrink * differences, 0)
        rate = schedule(num_steps) if schedule else batch_size / model.num_records
        theta = model.step(theta, jnp.mean(differences, axis=0), rate)
        return (theta, num_steps + 1), None

    theta = start(family, model.prior, initial_position, init_scale)
    carry = theta, jnp.zeros((), jnp.int32)
    theta, _ = passes(rng_key, num_epochs, model.num_records, visit, carry, batch_size)
    return family.moments(theta)
