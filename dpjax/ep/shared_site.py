"""The approximation of stochastic EP: one site, which all records share.

The posterior of n records is approximated by q = p_0 f^n, where p_0 is the prior and f
is a Gaussian factor. In natural parameters this is theta = theta_0 + n theta_f. The
cavity q / f has the natural parameters theta - theta_f. At the fixed point theta_f is
the mean of the sites that the records have at this cavity. So a step of size rho uses
the differences d_i = site_i - theta_f and is

    theta_f <- theta_f + rho mean d_i,    that is    theta <- theta + rho n mean d_i.

The precision of the cavity is (n - 1)/n L + L_0/n, where L is the precision of q and
L_0 that of the prior. It is positive definite if L is, so a floor on the eigenvalues of
L makes every step well defined. By default the floor is half of the smallest eigenvalue
of L_0.

Raising L to the floor adds a precision to q. By default the added precision is centred
at zero. It then acts like a narrower prior and shrinks means. It may also be centred at
the mean before the step. It then only slows the mean down.

Reference: Li, Hernandez-Lobato and Turner 2015 (SEP).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.ep.gaussians import Family
from dpjax.posterior import Posterior
from dpjax.release.nominal import nominal_size

__all__ = ["SharedSite", "SharedSiteInfo", "SharedSiteState", "init", "passes", "start"]


class SharedSiteState(NamedTuple):
    """State of a chain. It is public if the steps are private.

    position
        theta, the natural parameters of q, ``(size,)``.
    num_steps
        Number of steps made so far.
    """

    position: jax.Array
    num_steps: jax.Array


class SharedSiteInfo(NamedTuple):
    """Info of a step. A run draws from q at the mean of the infos that it keeps.

    parameters
        theta after the step, ``(size,)``.
    """

    parameters: jax.Array


class SharedSite:
    """A model of n records that share one site.

    Parameters
    ----------
    posterior
        The posterior that is approximated. Its data are not read.
    family
        Family of q, from `dpjax.ep.gaussians`.
    match
        ``(record, mean, covariance) -> (linear, precision)``, as in `dpjax.ep.sites`.
    least_precision
        Floor on the eigenvalues of L. None is half of the smallest eigenvalue of L_0.
    recentre
        Whether the precision that the floor adds is centred at the mean before the
        step, and not at zero.
    nominal_num_records
        n of the formulas; None is the number of records.

    Attributes
    ----------
    prior
        theta_0, ``(size,)``.
    num_records
        n of the formulas.

    Raises
    ------
    ValueError
        If the prior is not Gaussian, the likelihood is tempered, or `least_precision`
        is infinite or below half of the smallest eigenvalue of L_0.
    """

    def __init__(
        self,
        posterior: Posterior,
        family: Family,
        match: Callable,
        least_precision: float | None = None,
        recentre: bool = False,
        nominal_num_records: int | None = None,
    ):
        if posterior.tempering != 1:
            raise ValueError(
                "sites are those of the likelihood itself: tempering must be 1, got "
                f"{posterior.tempering}"
            )
        self.family, self.match, self.recentre = family, match, recentre
        self.num_records = nominal_size(posterior, nominal_num_records)
        self.prior = family.prior(posterior.logprior_fn)
        with jax.ensure_compile_time_eval():
            half = family.smallest_precision(self.prior) / 2
        if least_precision is None:
            least_precision = half
        elif not half <= least_precision < math.inf:
            raise ValueError(
                "least_precision must be at least half of the prior's, "
                f"{half:g}, and finite, got {least_precision}"
            )
        self.least_precision = least_precision

    def factor(self, theta: jax.Array) -> jax.Array:
        """theta_f, the natural parameters of the site, ``(size,)``."""
        return (theta - self.prior) / self.num_records

    def site_fn(self, theta: jax.Array) -> Callable[[Any], jax.Array]:
        """A function ``record -> site``, ``(size,)``, at the cavity of theta."""
        mean, covariance = self.family.moments(theta - self.factor(theta))
        return lambda record: self.family.pack(*self.match(record, mean, covariance))

    def difference_fn(self, theta: jax.Array) -> Callable[[Any], jax.Array]:
        """A function ``record -> d_i``, ``(size,)``, at the cavity of theta."""
        site, factor = self.site_fn(theta), self.factor(theta)
        return lambda record: site(record) - factor

    def step(self, theta: jax.Array, mean_difference, rate) -> jax.Array:
        """theta after a step of size rho = `rate`, with L raised to the floor.

        `mean_difference` is the mean of d_i, or an estimate of it, ``(size,)``.
        """
        moved = theta + rate * self.num_records * mean_difference
        floored = self.family.floor(moved, self.least_precision)
        if self.recentre:
            _, added = self.family.unpack(floored - moved)
            linear = self.family.product(added, self.family.moments(theta).mean)
            floored += self.family.pack(linear, jnp.zeros_like(added))
        return floored.astype(theta.dtype)


def start(family: Family, prior, position, init_scale: float = 1.0) -> jax.Array:
    """theta of a Gaussian whose mean is the public `position`.

    Its standard deviations are those of the prior times `init_scale`.

    Raises
    ------
    ValueError
        If the position does not have the family's shape, or the scale is not in (0, 1].
    """
    if not 0 < init_scale <= 1:
        raise ValueError(f"init_scale must be in (0, 1], got {init_scale}")
    position = jnp.asarray(position)
    if position.shape != family.shape:
        raise ValueError(
            f"the position has the shape {position.shape}, the family {family.shape}"
        )
    _, precision = family.unpack(jnp.asarray(prior, position.dtype))
    linear = family.product(precision, position)
    return family.pack(linear, precision) / init_scale**2


def init(
    position,
    posterior: Posterior,
    family: Family,
    *,
    init_scale: float = 1.0,
    rng_key: jax.Array | None = None,
) -> SharedSiteState:
    """The state whose q has the public `position` as its mean: see `start`.

    It reads no data and no key.
    """
    theta = start(family, family.prior(posterior.logprior_fn), position, init_scale)
    return SharedSiteState(theta, jnp.zeros((), jnp.int32))


def passes(
    rng_key: jax.Array, num_epochs, num_records: int, visit, carry, batch_size: int = 1
):
    """The carry after `num_epochs` passes over the records, each in a fresh order.

    A pass leaves out the last records of its order if `num_records` is not a multiple
    of `batch_size`.

    Parameters
    ----------
    rng_key
        Key for the orders of the records.
    visit
        ``(carry, batch) -> (carry, None)``, where `batch` holds the indices of
        `batch_size` records.
    carry
        The carry before the first pass, a pytree.
    """

    def epoch(i, carry):
        order = jax.random.permutation(jax.random.fold_in(rng_key, i), num_records)
        kept = order[: num_records // batch_size * batch_size]
        return jax.lax.scan(visit, carry, kept.reshape(-1, batch_size))[0]

    return jax.lax.fori_loop(0, num_epochs, epoch, carry)
