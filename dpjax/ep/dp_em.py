"""DP-EM for Gaussian mixtures: noisy sufficient statistics, followed by a MAP step.

Let r_j(x) be the probability that record x belongs to component j at the public
parameters. A step releases, in one vector with noise,

    (N_j, S_j / R, Q_j / R^2) = sum over records of (r_j, r_j x / R, r_j x x^T / R^2),

j = 1, ..., J. The vector that a record adds to this sum has a norm of at most sqrt 3 if
|x| <= R, because r is on the simplex. The matrix x x^T is stored in the coordinates of
`gaussians`, in which its Euclidean norm is the Frobenius norm. The inner product of the
vectors that two records x and y add is

    sum_j r_j(x) r_j(y) (1 + t + t^2),    t = x^T y / R^2,

which is not negative. So a substitution moves the sum by at most sqrt 6, up to the
truncation of the vectors to a grid. Because records are in units of R, the noise is
shared alike by the three kinds of statistics. In other units the counts would get the
noise of Q_j, whose norm is R^2.

The MAP step reads no data. Counts below one are raised to one. The prior adds kappa
records to every component, with mean zero and the covariance C_0 of the start:

    pi_j ~ N_j + kappa,    m_j = S_j / (N_j + kappa),
    C_j = (Q_j + kappa C_0) / (N_j + kappa) - m_j m_j^T.

The eigenvalues of C_j are then raised to at least a hundredth of those of C_0.

Reference: Park, Foulds, Chaudhuri and Welling 2017, DP-EM. Their algorithm has no
prior, and records of norm one.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.scipy.stats import multivariate_normal

from dpjax.algorithm import Algorithm, Sampler, Transition
from dpjax.ep.gaussians import Full, Moments
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_positive
from dpjax.release.exact_sums import GRID
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.nominal import nominal_size

__all__ = [
    "DPEMInfo",
    "DPEMState",
    "Mixture",
    "as_top_level_api",
    "dp_em",
    "init",
]


class Mixture(NamedTuple):
    """A mixture of J Gaussians.

    Its fields are the weights ``(J,)``, means ``(J, d)`` and covariances
    ``(J, d, d)``.
    """

    weights: jax.Array
    means: jax.Array
    covariances: jax.Array


class DPEMState(NamedTuple):
    """State of a chain: `position` is the mixture. It is public."""

    position: Mixture


class DPEMInfo(NamedTuple):
    """Info of a step: `parameters` is the mixture after it. It is public."""

    parameters: Mixture


def init(
    position,
    posterior: Posterior | None = None,
    *,
    component_sd: float,
    rng_key: jax.Array | None = None,
) -> DPEMState:
    """The state at the start; it reads no data.

    All components have the same weight. Their means are the public `position`,
    ``(J, d)``, and their covariances are component_sd^2 I.
    """
    means = jnp.asarray(position)
    num_components, dim = means.shape
    weights = jnp.full(num_components, 1 / num_components, means.dtype)
    covariance = component_sd**2 * jnp.eye(dim, dtype=means.dtype)
    covariances = jnp.tile(covariance, (num_components, 1, 1))
    return DPEMState(Mixture(weights, means, covariances))


def as_top_level_api(
    posterior: Posterior,
    *,
    family: Full,
    component_sd: float,
    record_norm: float,
    noise_multiplier: float,
    prior_strength: float = 1.0,
    nominal_num_records: int | None = None,
) -> Algorithm:
    """Differentially private EM for a mixture of Gaussians.

    Parameters
    ----------
    posterior
        The data, whose records x are ``(d,)``. The log densities of the posterior are
        not used.
    family
        `Full` with the shape of the means, ``(J, d)``.
    component_sd
        Sd of the components at the start and in the prior: C_0 is component_sd^2 I.
    record_norm
        R, a public bound on the norm of a record. The statistics of longer records are
        clipped.
    noise_multiplier
        Sd of the noise on the statistics over their clip norm, which is sqrt 3. Zero is
        not private.
    prior_strength
        kappa, a number of records.
    nominal_num_records
        The n of the algorithm's `sample`, which takes pi_j n for N_j: a public number.
        None is the number of records.

    Raises
    ------
    ValueError
        If a parameter is out of range. The algorithm's `privacy` raises it if
        neighbours differ in their number of records (ADD_OR_REMOVE_ONE).

    Notes
    -----
    *Formal guarantees.* A step releases one sum over all records of vectors clipped to
    norm sqrt 3, with Gaussian noise. If a record is substituted, the sum moves by about
    sqrt 6 at most. State and info are functions of the released sums and are public.
    """
    check_positive(component_sd=component_sd, record_norm=record_norm)
    check_positive(prior_strength=prior_strength)
    # The bound on what a record adds is that of this class, and of no other one.
    if not (type(family) is Full and len(family.shape) == 2):
        raise ValueError(f"family must be Full of a shape (J, d), got {family}")
    num_components, dim = family.shape
    size = num_components + family.size
    num_records = nominal_size(posterior, nominal_num_records)
    # Truncation to the grid lowers the inner product of two vectors by at most the sum
    # of the absolute values of their entries, times the size of a grid cell. This takes
    # half of the excess over 2; the other half covers rounding in float32.
    diameter = math.sqrt(2 + 8 * math.sqrt(size) / GRID)
    release = GaussianSum(math.sqrt(3), noise_multiplier, diameter=diameter)

    def statistics(mixture, record):
        log_density = jax.vmap(multivariate_normal.logpdf, (None, 0, 0))(
            record, mixture.means, mixture.covariances
        )
        shares = jax.nn.softmax(jnp.log(mixture.weights) + log_density)
        scaled = record / record_norm
        first = jnp.outer(shares, scaled)
        second = first[:, :, None] * scaled[None, None, :]
        return jnp.concatenate([shares, family.pack(first, second)])

    def maximum(total):
        counts = jnp.maximum(total[:num_components], 1.0) + prior_strength
        first, second = family.unpack(total[num_components:])
        prior = prior_strength * component_sd**2 * jnp.eye(dim, dtype=total.dtype)[None]
        second = record_norm**2 * second + prior
        means = record_norm * first / counts[:, None]
        squares = means[:, :, None] * means[:, None, :]
        covariances = second / counts[:, None, None] - squares
        floored = family.floor(family.pack(means, covariances), component_sd**2 / 100)
        return Mixture(counts / jnp.sum(counts), means, family.unpack(floored)[1])

    def move(words, state, memory):
        noisy = release(words, posterior, functools.partial(statistics, state.position))
        mixture = maximum(noisy)
        return DPEMState(mixture), DPEMInfo(mixture), memory

    def sample(rng_key, mixture, num_samples):
        """Draws ``(num_samples, J, d)`` of the means of the components.

        A mean is normal about m_j with the covariance C_j / (N_j + kappa).
        """
        counts = mixture.weights * num_records + prior_strength
        covariances = mixture.covariances / counts[:, None, None]
        natural = family.natural(Moments(mixture.means, covariances))
        return family.sample(rng_key, natural, num_samples)

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        return [(release.event(size, neighboring_relation), num_steps)]

    def start(position, rng_key=None):
        return init(position, component_sd=component_sd)

    transition = Transition(
        num_words=lambda state: release.num_words(size, posterior.num_records),
        move=move,
        stay=lambda state: DPEMInfo(state.position),
    )
    return Algorithm.of(start, transition, privacy, sample)


dp_em = Sampler.of(as_top_level_api, init)
"""Differentially private EM for Gaussian mixtures: see `as_top_level_api`."""
