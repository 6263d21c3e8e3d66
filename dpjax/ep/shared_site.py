"""The approximation of stochastic EP: one site, shared by all records.

The posterior of n records is approximated by q = p_0 f^n, f a Gaussian factor: in
natural parameters theta = theta_0 + n theta_f, with theta_0 the prior's. The cavity
q / f has theta - theta_f. At the fixed point the sites of the records at that cavity
have the mean theta_f, so with differences d_i = site_i - theta_f and weights that sum
to rho, a step is

    theta_f <- theta_f + rho mean d_i,    that is    theta <- theta + rho n mean d_i.

Where L of q is positive definite, that of the cavity is, (n - 1)/n L + L_0/n: a floor
on the eigenvalues of L keeps every step defined. It is half of the prior's smallest,
if no other is given. The precision that it adds is about zero, as that of a narrower
prior, and shrinks means; or about the mean before the step, which it then only slows.

Reference: Li, Hernandez-Lobato and Turner 2015 (SEP).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.ep.gaussians import Family
from dpjax.posterior import Posterior

__all__ = ["Tied", "TiedInfo", "TiedState", "init"]


class TiedState(NamedTuple):
    """Where the approximation stands. Public, if the steps are private.

    position
        theta, the natural parameters of q.
    num_steps
        Steps made.
    """

    position: jax.Array
    num_steps: jax.Array


class TiedInfo(NamedTuple):
    """What a step leaves; a run draws from the mean of those it keeps.

    parameters
        theta after the step.
    """

    parameters: jax.Array


@dataclass(frozen=True)
class Tied:
    """A model of n records whose sites are tied together.

    Parameters
    ----------
    family
        Of the Gaussians, in `dpjax.ep.gaussians`.
    match
        ``(record, mean, covariance) -> (linear, precision)``, as in `dpjax.ep.sites`.
    prior
        theta_0, a concrete array ``(size,)``.
    least
        Floor on the eigenvalues of L.
    num_records
        n.
    recentre
        Whether the floor's precision is about the mean.
    """

    family: Family
    match: Callable
    prior: Any
    least: float
    num_records: int
    recentre: bool

    @classmethod
    def of(
        cls,
        posterior: Posterior,
        family: Family,
        match: Callable,
        least: float | None = None,
        recentre: bool = False,
    ) -> "Tied":
        """The model of `posterior`, whose data are not read.

        Raises
        ------
        ValueError
            If the prior is not Gaussian, the likelihood is tempered, or `least` below
            half of the prior's smallest precision.
        """
        if posterior.tempering != 1:
            raise ValueError(
                "sites are those of the likelihood itself: tempering must be 1, got "
                f"{posterior.tempering}"
            )
        prior = family.prior(posterior.logprior_fn)
        with jax.ensure_compile_time_eval():
            half = family.least_precision(prior) / 2
        if least is None:
            least = half
        elif not half <= least < math.inf:
            raise ValueError(
                "least_precision must be at least half of the prior's, "
                f"{half:g}, and finite, got {least}"
            )
        return cls(family, match, prior, least, posterior.num_records, recentre)

    def start(self, position, init_scale: float = 1.0) -> jax.Array:
        """theta about the public `position`, of `init_scale` times the prior's sd.

        Raises
        ------
        ValueError
            If the position has not the family's shape, or the scale is not in (0, 1].
        """
        if not 0 < init_scale <= 1:
            raise ValueError(f"init_scale must be in (0, 1], got {init_scale}")
        position = jnp.asarray(position)
        if position.shape != self.family.shape:
            raise ValueError(
                f"the position has the shape {position.shape}, the family "
                f"{self.family.shape}"
            )
        _, precision = self.family.unpack(jnp.asarray(self.prior, position.dtype))
        linear = self.family.product(precision, position)
        return self.family.pack(linear, precision) / init_scale**2

    def factor(self, theta: jax.Array) -> jax.Array:
        """theta_f."""
        return (theta - self.prior) / self.num_records

    def site_fn(self, theta: jax.Array) -> Callable[[Any], jax.Array]:
        """``record -> site`` ``(size,)`` at the cavity of theta."""
        mean, covariance = self.family.moments(theta - self.factor(theta))
        return lambda record: self.family.pack(*self.match(record, mean, covariance))

    def difference_fn(self, theta: jax.Array) -> Callable[[Any], jax.Array]:
        """``record -> d_i`` ``(size,)``."""
        site, factor = self.site_fn(theta), self.factor(theta)
        return lambda record: site(record) - factor

    def step(self, theta: jax.Array, mean_difference, rate) -> jax.Array:
        """theta after a step of the size rho = `rate`, with its eigenvalues floored."""
        moved = theta + rate * self.num_records * mean_difference
        floored = self.family.floor(moved, self.least)
        if self.recentre:
            _, added = self.family.unpack(floored - moved)
            linear = self.family.product(added, self.family.moments(theta).mean)
            floored += self.family.pack(linear, jnp.zeros_like(added))
        return floored.astype(theta.dtype)


def init(
    position,
    posterior: Posterior,
    family: Family,
    *,
    init_scale: float = 1.0,
    rng_key: jax.Array | None = None,
) -> TiedState:
    """A Gaussian about the public `position`; no data are read, no key is used."""
    theta = Tied.of(posterior, family, None).start(position, init_scale)
    return TiedState(theta, jnp.zeros((), jnp.int32))
