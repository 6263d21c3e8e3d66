"""Expectation propagation, one site a record: what the tied methods approximate.

q = p_0 prod_i f_i. For every record in turn its site f_i leaves q, the tilted density
p(y_i | w) q / f_i is matched by a Gaussian, and the site that makes q that Gaussian
takes the old one's place. Not private: every site shows its record.

Reference: Minka 2001, Expectation Propagation for approximate Bayesian inference.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax.ep.gaussians import Family, Moments
from dpjax.ep.shared_site import Tied
from dpjax.posterior import Posterior

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
        Of the likelihood, from `dpjax.ep.sites`.
    family
        From `dpjax.ep.gaussians`.
    initial_position
        Where q begins; for a mixture, not the same for all components.
    num_sweeps
        Passes over the records.

    Raises
    ------
    ValueError
        If an argument is out of range, or the prior is not Gaussian.

    Returns
    -------
    Moments
        Of q. Memory holds a site of every record.

    Notes
    -----
    A record whose cavity or tilted density is not proper keeps its site.
    """
    if not (isinstance(num_sweeps, int) and num_sweeps >= 1):
        raise ValueError(f"num_sweeps must be a positive integer, got {num_sweeps}")
    return _sweeps(posterior, match, family, initial_position, num_sweeps)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _sweeps(posterior, match, family, initial_position, num_sweeps):
    model = Tied.of(posterior, family, match)
    theta = model.start(initial_position)
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
