"""Metropolis-Hastings on all records with Barker's acceptance function and no noise.

A step proposes a move without reading the data. The log ratio l of the move is the sum
of the records' clipped log ratios, times the tempering, plus the log ratio of the prior
and the proposal. The move is accepted with probability c / (1 + e^-l). The step
releases the accept bit and nothing else, so only that bit is charged. The stationary
distribution of the chain is the posterior if no record is clipped.

c is the laziness. With c < 1 a secret coin decides at every step whether the chain
stays where it is without reading the data. Most steps then do nothing, and an accepted
move costs less privacy.

References: Barker 1965 (the acceptance function); `dpjax.privacy.bits.renyi` (the
accounting).
"""

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Sampler
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.posterior import Posterior
from dpjax.privacy import AcceptBit
from dpjax.proposals import Proposal
from dpjax.release import clip_bounds

__all__ = ["as_top_level_api", "barker"]


def as_top_level_api(
    posterior: Posterior,
    step_size,
    inverse_mass_matrix=None,
    *,
    clip_bound,
    proposal: Proposal = proposals.fixed_length,
    laziness: float = 1.0,
) -> Algorithm:
    """Private Metropolis-Hastings that releases one Barker bit a step.

    Parameters
    ----------
    posterior
        The posterior to sample, with its data.
    step_size
        Length of the proposed jump, or the scale of a proposal whose length varies. It
        is in the units of the position, or of the metric if there is one.
    inverse_mass_matrix
        The metric, ``(d,)`` or ``(d, d)``: see `proposals.in_metric`.
    clip_bound
        Bound in nats on the log ratio of one record: a number, or `Lipschitz` for a
        bound proportional to the distance of the move. `Lipschitz` needs a proposal of
        constant length.
    proposal
        One of the proposals of `dpjax.proposals`.
    laziness
        c in (0, 1]: the probability that a step reads the data at all. If c < 1, the
        proposal may not have a memory, such as the directions of `guided_walk`.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the sensitivity would have no bound. A step
        raises it, when it is traced, if c < 1 and the proposal has a memory.

    Notes
    -----
    *Formal guarantees.* A step releases one bit that is 1 with probability
    c / (1 + e^-l). The sensitivity of l is two tempered clip bounds under substitution
    of one record, and one if a blank takes the place of a record. Both grow by the
    rounding of l: see `dpjax.release.clip_bounds.log_ratio_sensitivity`.
    """
    clip_bound = clip_bounds.of(clip_bound)
    proposal = proposals.settled(proposal, step_size, inverse_mass_matrix)
    bound = clip_bound.largest(proposal.longest(step_size))
    if bound is None:
        raise ValueError(
            "a Lipschitz clip bound needs a proposal of constant length, such as "
            "proposals.fixed_length: otherwise the sensitivity of a step has no bound"
        )
    accept = acceptance.barker(laziness)
    transition = mh.transition(
        posterior, step_size, proposal, clip_bound, "barker", laziness=laziness
    )

    def events(neighboring_relation):
        tempered = posterior.tempering * bound
        sensitivity = clip_bounds.log_ratio_sensitivity(tempered, neighboring_relation)
        return [(AcceptBit(accept, sensitivity), 1)]

    return mh.algorithm(transition, proposal, events)


barker = Sampler.of(as_top_level_api, mh.init)
"""Metropolis-Hastings with Barker's acceptance function: see `as_top_level_api`."""
