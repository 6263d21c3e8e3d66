"""TunaMH: exact Metropolis-Hastings on minibatches of Poisson size. Not private.

A step draws lambda + n H records on average, H the bound on one record's log ratio,
estimates the log ratio from them as `poisson_log_ratios` says, and accepts with
probability min(1, e^l). The posterior is kept exactly, whatever lambda is; a larger one
makes the estimate less noisy and acceptance more likely. `fast_mh` does the same with
Barker's acceptance, and is private.

Reference: Zhang, Cooper and De Sa 2020.
"""

import jax
from dp_accounting import NeighboringRelation

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Sampler, take_step
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.mcmc import poisson_step
from dpjax.posterior import Posterior
from dpjax.proposals import Proposal

__all__ = ["as_top_level_api", "build_kernel", "init", "tuna"]


def init(
    position,
    posterior: Posterior | None = None,
    *,
    proposal: Proposal = proposals.gaussian,
    rng_key: jax.Array | None = None,
) -> mh.MHState:
    """State of a chain at the public `position`; no data are read, no key is used."""
    return mh.init(position, proposal)


def _transition(
    posterior, step_size, clip_bound, expected_batch_size, proposal, inverse_mass_matrix
):
    return poisson_step.transition(
        posterior,
        step_size,
        proposals.in_metric(proposal, inverse_mass_matrix),
        clip_bound,
        expected_batch_size,
        "metropolis",
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
        expected_batch_size: float,
        proposal: Proposal = proposals.gaussian,
        inverse_mass_matrix=None,
    ) -> tuple[mh.MHState, mh.MHInfo]:
        step = _transition(
            posterior,
            step_size,
            clip_bound,
            expected_batch_size,
            proposal,
            inverse_mass_matrix,
        )
        return take_step(rng_key, state, step)

    return kernel


def as_top_level_api(
    posterior: Posterior,
    step_size,
    *,
    clip_bound,
    expected_batch_size: float,
    proposal: Proposal = proposals.gaussian,
    inverse_mass_matrix=None,
) -> Algorithm:
    """TunaMH (Zhang, Cooper and De Sa 2020), not private.

    Parameters
    ----------
    posterior
        What to sample, and the data.
    step_size
        Scale of the proposal, in the units of the position or of the metric.
    clip_bound
        Bound in nats on one record's log ratio: a number, `Lipschitz` for one
        that grows with the distance, or `Range` about a public centre.
    expected_batch_size
        lambda: what is drawn on average beyond the n H that the bound makes necessary.
    proposal
        One of `dpjax.proposals`.
    inverse_mass_matrix
        The metric, ``(d,)`` or ``(d, d)``: see `proposals.in_metric`.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the minibatch would have no capacity.

    Notes
    -----
    *Formal guarantees.* Next to none: the accept bit has no finite Renyi divergence,
    as a rejection can be impossible on one data set and possible on another. `privacy`
    charges its total variation, which adds up over the steps.
    """
    transition = _transition(
        posterior,
        step_size,
        clip_bound,
        expected_batch_size,
        proposal,
        inverse_mass_matrix,
    )

    def steps(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        bit = poisson_step.event(
            posterior,
            acceptance.metropolis(),
            clip_bound,
            proposal.longest(step_size),
            expected_batch_size,
            neighboring_relation,
        )
        return [(bit, num_steps)]

    return mh.algorithm(transition, proposal, steps)


tuna = Sampler(as_top_level_api, init, build_kernel)
