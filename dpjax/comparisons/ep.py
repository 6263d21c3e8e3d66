"""Expectation propagation with a site for each record; not private.

The approximation is q = p_0 prod_i f_i, with the prior p_0 and one Gaussian site f_i
for each record. For each record in turn, the site f_i is divided out of q, and the
tilted density p(y_i | w) q / f_i is matched by a Gaussian. Then the site is replaced by
the one with which q is this Gaussian. Every site reveals its record. Stochastic EP
approximates this method by one site that all records share.

Reference: Minka 2001, Expectation Propagation for approximate Bayesian inference.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax.ep.gaussians import Family, Moments
from dpjax.ep.shared_site import SharedSite, start
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_count

__all__ = ["ep"]


def ep(
    posterior: Posterior,
    match: Callable,
    *,
    family: Family,
    initial_position,
    num_sweeps: int = 20,
) -> Moments:
    """Gaussian approximation of a posterior; not private.

    Parameters
    ----------
    posterior
        What to approximate, and the data; its prior is Gaussian.
    match
        The function of `dpjax.ep.sites` that matches the tilted density of this
        likelihood.
    family
        Family of the Gaussians, from `dpjax.ep.gaussians`.
    initial_position
        Mean of q at the start. For a mixture it must differ between the components.
    num_sweeps
        Number of passes over the records.

    Raises
    ------
    ValueError
        If an argument is out of range, or the prior is not Gaussian.

    Returns
    -------
    Moments
        Mean and covariance of q.

    Notes
    -----
    The site of a record is left as it is if the update would make q improper, that is,
    give it a mean that is not finite. The sites of all records are held in memory.
    """
    check_count("num_sweeps", num_sweeps)
    return _sweeps(posterior, match, family, initial_position, num_sweeps)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _sweeps(posterior, match, family, initial_position, num_sweeps):
    model = SharedSite(posterior, family, match)
    theta = start(family, model.prior, initial_position)
    sites = jnp.broadcast_to(model.factor(theta), (model.num_records, family.size))

    def visit(theta, item):
        record, site = item
        cavity = theta - site
        found = family.pack(*match(record, *family.moments(cavity)))
        proper = jnp.all(jnp.isfinite(family.moments(cavity + found).mean))
        found = jnp.where(proper, found, site)
        return cavity + found, found

    def sweep(_, carry):
        theta, sites = carry
        return jax.lax.scan(visit, theta, (posterior.data, sites))

    theta, _ = jax.lax.fori_loop(0, num_sweeps, sweep, (theta, sites))
    return family.moments(theta)
