"""Random-walk Metropolis-Hastings with Barker's acceptance: exact, private, noiseless.

A step proposes without reading the data, sums the clipped log ratios of the records to
l, and accepts with probability c / (1 + e^-l). The step releases the accept bit and
nothing else, so only that bit is charged. No noise is added, and the stationary
distribution of the chain is the posterior if no record is clipped.

c is the laziness. With c < 1 a secret coin lets most steps stay where they are without
reading the data, which costs less privacy per accepted move.

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
        What to sample, and the data.
    step_size
        Length of the proposed jump, in the units of the position, or of the metric if
        there is one.
    inverse_mass_matrix
        The metric, ``(d,)`` or ``(d, d)``: see `proposals.in_metric`.
    clip_bound
        Bound in nats on one record's log ratio: a number, or `Lipschitz` for a bound
        proportional to the distance, with proposals of constant length.
    proposal
        One of `dpjax.proposals`.
    laziness
        c in (0, 1]: the chance that a step reads the data at all.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the sensitivity would have no bound.

    Notes
    -----
    *Formal guarantees.* A step releases one bit that is 1 with probability
    c / (1 + e^-l). The sensitivity of l is two tempered clip bounds under substitution
    of one record, one if a blank takes its place, and the rounding of l: see
    `dpjax.release.clip_bounds.log_ratio_sensitivity`.
    """
    clip_bound = clip_bounds.of(clip_bound)
    bound = clip_bound.largest(proposal.longest(step_size))
    if bound is None:
        raise ValueError(
            "a Lipschitz clip bound needs a proposal of constant length, such as "
            "proposals.fixed_length: otherwise the sensitivity of a step has no bound"
        )
    accept = acceptance.barker(laziness)
    proposal = proposals.in_metric(proposal, inverse_mass_matrix)
    transition = mh.transition(
        posterior, step_size, proposal, clip_bound, "barker", laziness=laziness
    )

    def events(neighboring_relation):
        tempered = posterior.tempering * bound
        sensitivity = clip_bounds.log_ratio_sensitivity(tempered, neighboring_relation)
        return [(AcceptBit(accept, sensitivity), 1)]

    return mh.algorithm(transition, proposal, events)


barker = Sampler.of(as_top_level_api, mh.init)
"""Metropolis-Hastings with Barker's acceptance: see `as_top_level_api`."""
