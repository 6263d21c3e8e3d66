"""Exact and private Metropolis-Hastings that reads a minibatch of Poisson size.

The log ratio is estimated as in TunaMH, and the acceptance function is Barker's. Let n
be the number of records and H the bound on the tempered log ratio of one record. A step
reads lambda + n H records on average and estimates the log ratio l from them. It
accepts with probability c / (1 + e^-l), where c is the laziness, and releases the
accept bit and nothing else. No noise is added.

The chain keeps the posterior exactly, for every lambda, if no record is clipped. A step
is purely differentially private. If lambda is at least n H, it costs about as much as a
step of `dpjax.barker` on all records.

DP-Fast MH as it was published accepts with probability min(1, e^l), for which there is
no such guarantee: see `dpjax.comparisons.fast_mh_published`.

References: Zhang, Cooper and De Sa 2020 (TunaMH); Zhang and Zhang 2023 (DP-Fast MH).
The acceptance function, the centre of `Range` and the accounting are this project's.
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
        Bound in nats on the log ratio of one record; H is this bound times the
        tempering. It is a number, `Lipschitz` for a bound proportional to the distance
        of the move, or `Range` for an interval about a public centre.
    expected_batch_size
        lambda: the mean number of records that a step reads beyond the n H that the
        clip bound makes necessary.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the minibatch would be too large. `privacy`
        also raises it if the cost of a step has no bound, or under another relation
        than ``REPLACE_ONE``. A step raises it as that of `dpjax.barker` does.

    Notes
    -----
    *Formal guarantees.* A step releases one bit that is 1 with probability
    c / (1 + e^-l). The estimate l is a sum of independent Poisson terms, one for each
    record, and substituting a record changes its term. The event is
    `privacy.PoissonAcceptBit` with bound H and odds 1 + n H / lambda, for the largest H
    of any move. With the same lambda, a smaller H costs no more. Only substitution of
    one record is accounted for, because lambda / n is public.
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
"""TunaMH with Barker's acceptance function: see `as_top_level_api`."""
