"""Exact and private Metropolis-Hastings that reads a minibatch of Poisson size.

The log ratio is estimated as in TunaMH, and the acceptance is Barker's. With H the
bound on one record's log ratio, a step reads lambda + n H records on average, accepts
with probability c / (1 + e^-l), l the estimate, and releases that bit only. The chain
keeps the posterior exactly, whatever lambda is. A step is purely differentially
private, and where lambda is n H or more it costs about as much as a step of
`dpjax.barker` on all records. No noise is added.

DP-Fast MH as it was published accepts with probability min(1, e^l), for which there is
no such guarantee: see `dpjax.comparisons.fast_mh_published`.

References: Zhang, Cooper and De Sa 2020 (TunaMH); Zhang and Zhang 2023 (DP-Fast MH).
The acceptance, the centre of `Range` and the accounting are this project's.
"""

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Sampler
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.mcmc import poisson_step
from dpjax.posterior import Posterior
from dpjax.proposals import Proposal

__all__ = ["as_top_level_api", "fast_mh"]


def as_top_level_api(
    posterior: Posterior,
    step_size,
    inverse_mass_matrix=None,
    *,
    clip_bound,
    expected_batch_size: float,
    proposal: Proposal = proposals.fixed_length,
    laziness: float = 1.0,
) -> Algorithm:
    """Private TunaMH that releases one Barker bit a step.

    Parameters
    ----------
    posterior, step_size, proposal, inverse_mass_matrix, laziness
        As in `dpjax.barker`.
    clip_bound
        H, a bound in nats on one record's log ratio: a number, `Lipschitz` for a bound
        proportional to the distance, or `Range` for one about a public centre.
    expected_batch_size
        lambda: how many records are read on average beyond the n H that the clip bound
        makes necessary.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the minibatch would be too large; by
        `privacy`, if the cost of a step has no bound.

    Notes
    -----
    *Formal guarantees.* A step releases one bit that is 1 with probability
    c / (1 + e^-l), l a sum of independent Poisson terms of which substituting a record
    changes one. The event is `privacy.PoissonAcceptBit` with the tempered bound H and
    odds 1 + n H / lambda, for the largest H of any proposal; with the same lambda, a
    smaller H costs no more. Only substitution of one record is accounted for, because
    lambda / n is public.
    """
    return poisson_step.algorithm(
        posterior,
        step_size,
        clip_bound,
        expected_batch_size,
        proposal,
        inverse_mass_matrix,
        acceptance.barker(laziness),
    )


fast_mh = Sampler.of(as_top_level_api, mh.init)
"""TunaMH with Barker's acceptance: see `as_top_level_api`."""
