"""TunaMH: exact Metropolis-Hastings on minibatches of Poisson size. Not private.

Let H be the bound on one record's log ratio. A step draws lambda + n H records on
average, estimates the log ratio l from them (`dpjax.release.poisson_log_ratios`), and
accepts with probability min(1, e^l). The posterior is kept exactly for every lambda; a
larger lambda makes the estimate less noisy and acceptance more likely. `dpjax.fast_mh`
does the same with Barker's acceptance function, and is private.

Reference: Zhang, Cooper and De Sa 2020.
"""

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Sampler
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.mcmc import poisson_step
from dpjax.posterior import Posterior
from dpjax.proposals import Proposal

__all__ = ["as_top_level_api", "tuna"]


def as_top_level_api(
    posterior: Posterior,
    step_size,
    inverse_mass_matrix=None,
    *,
    clip_bound,
    expected_batch_size: float,
    proposal: Proposal = proposals.gaussian,
) -> Algorithm:
    """TunaMH (Zhang, Cooper and De Sa 2020), not private.

    Parameters
    ----------
    posterior, clip_bound, expected_batch_size, proposal, inverse_mass_matrix
        As in `dpjax.fast_mh`.
    step_size
        Scale of the proposal, in the units of the position, or of the metric if there
        is one.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the minibatch would be too large; from
        ``privacy``, if the cost of a step has no bound.

    Notes
    -----
    *Formal guarantees.* A step releases one accept bit, which is hardly private. The
    bit has no finite Renyi divergence, because a rejection can be impossible on one
    data set and possible on a neighbouring one. ``privacy`` charges the bit's total
    variation, which adds up over the steps.
    """
    return poisson_step.algorithm(
        posterior,
        step_size,
        clip_bound,
        expected_batch_size,
        proposal,
        inverse_mass_matrix,
        acceptance.metropolis(),
    )


tuna = Sampler.of(as_top_level_api, mh.init)
"""TunaMH, which is not private: see `as_top_level_api`."""
