"""Random-walk Metropolis-Hastings with Barker's acceptance: exact, private, noiseless.

A step proposes without reading the data, sums the clipped per-record log ratios and
accepts with probability c / (1 + e^-l). Only that bit is released, so only that bit is
charged; no noise is added and, where no record is clipped, the chain's stationary
distribution is the posterior. With laziness c < 1 a secret coin lets most steps stay
without reading the data, which costs less privacy per accepted move.

References: Barker 1965 (the acceptance function); `dpjax.privacy.bits.renyi` (the
accounting).
"""

import jax
from dp_accounting import NeighboringRelation

from dpjax import acceptance, privacy, proposals
from dpjax.algorithm import Algorithm, Sampler, take_step
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.posterior import Posterior
from dpjax.proposals import Proposal
from dpjax.release import clip_bounds

__all__ = ["as_top_level_api", "barker", "build_kernel", "init"]


def init(
    position,
    posterior: Posterior | None = None,
    *,
    proposal: Proposal = proposals.fixed_length,
    rng_key: jax.Array | None = None,
) -> mh.MHState:
    """State of a chain at the public `position`; no data are read, no key is used."""
    return mh.init(position, proposal)


def _transition(
    posterior, step_size, clip_bound, proposal, inverse_mass_matrix, laziness
):
    proposal = proposals.in_metric(proposal, inverse_mass_matrix)
    return mh.transition(
        posterior, step_size, proposal, clip_bound, "barker", laziness=laziness
    )


def build_kernel():
    """Build the kernel: see `as_top_level_api` for its parameters."""

    def kernel(
        rng_key: jax.Array,
        state: mh.MHState,
        posterior: Posterior,
        step_size,
        *,
        clip_bound,
        proposal: Proposal = proposals.fixed_length,
        inverse_mass_matrix=None,
        laziness: float = 1.0,
    ) -> tuple[mh.MHState, mh.MHInfo]:
        step = _transition(
            posterior, step_size, clip_bound, proposal, inverse_mass_matrix, laziness
        )
        return take_step(rng_key, state, step)

    return kernel


def as_top_level_api(
    posterior: Posterior,
    step_size,
    *,
    clip_bound,
    proposal: Proposal = proposals.fixed_length,
    inverse_mass_matrix=None,
    laziness: float = 1.0,
) -> Algorithm:
    """Private Metropolis-Hastings that releases one Barker bit a step.

    Parameters
    ----------
    posterior
        What to sample, and the data.
    step_size
        Length of the proposed jump, in the units of the position or of the metric.
    clip_bound
        Bound in nats on one record's log ratio: a number, or `Lipschitz` for
        a bound proportional to the distance, with proposals of constant length.
    proposal
        One of `dpjax.proposals`.
    inverse_mass_matrix
        The metric, ``(d,)`` or ``(d, d)``: see `proposals.in_metric`.
    laziness
        c in (0, 1]; the chance that a step reads the data at all.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the sensitivity would have no bound.

    Notes
    -----
    *Formal guarantees.* A step releases one bit drawn with probability c s(l); the
    sensitivity of l is ``tempering * sensitivity(clip_bound, relation)``, that
    is 2 clip bounds under substitution of one record and 1 under its addition or
    removal.
    """
    bit = acceptance.barker(laziness)
    transition = _transition(
        posterior, step_size, clip_bound, proposal, inverse_mass_matrix, laziness
    )
    distance = proposal.longest(step_size)
    if isinstance(clip_bound, clip_bounds.Lipschitz) and distance is None:
        raise ValueError(
            "a Lipschitz clip bound needs a proposal of constant length, such as "
            "proposals.fixed_length: otherwise the sensitivity of a step has no bound"
        )

    def steps(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        bound = mh.clip_at(clip_bound, distance)
        moved = posterior.tempering * clip_bounds.sensitivity(
            bound, neighboring_relation
        )
        return [(privacy.AcceptBit(bit, moved), num_steps)]

    return mh.algorithm(transition, proposal, steps)


barker = Sampler(as_top_level_api, init, build_kernel)
