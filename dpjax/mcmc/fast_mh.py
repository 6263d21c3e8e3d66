"""Exact and private Metropolis-Hastings that reads a minibatch of Poisson size.

TunaMH's estimate of the log ratio with Barker's acceptance: a step reads lambda + n H
records on average, H the bound on one record's log ratio, accepts with probability
c / (1 + e^-l) and releases that bit only. The chain keeps the posterior exactly,
whatever lambda is, and a step is purely differentially private, at about the price of
`dpjax.barker` on all records where lambda is n H or more. No noise is added.

DP-Fast MH as it was published accepts with probability min(1, e^l), for which there is
no such guarantee: `fast_mh_published`.

References: Zhang, Cooper and De Sa 2020 (TunaMH); Zhang and Zhang 2023 (DP-Fast MH);
the acceptance, the centre of `Range` and the accounting are this project's.
"""

import jax
from dp_accounting import NeighboringRelation

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Sampler, take_step
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.mcmc import poisson_step
from dpjax.posterior import Posterior
from dpjax.proposals import Proposal

__all__ = ["as_top_level_api", "build_kernel", "fast_mh", "init"]


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
    posterior,
    step_size,
    clip_bound,
    expected_batch_size,
    proposal,
    inverse_mass_matrix,
    laziness,
):
    return poisson_step.transition(
        posterior,
        step_size,
        proposals.in_metric(proposal, inverse_mass_matrix),
        clip_bound,
        expected_batch_size,
        "barker",
        laziness=laziness,
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
        proposal: Proposal = proposals.fixed_length,
        inverse_mass_matrix=None,
        laziness: float = 1.0,
    ) -> tuple[mh.MHState, mh.MHInfo]:
        step = _transition(
            posterior,
            step_size,
            clip_bound,
            expected_batch_size,
            proposal,
            inverse_mass_matrix,
            laziness,
        )
        return take_step(rng_key, state, step)

    return kernel


def as_top_level_api(
    posterior: Posterior,
    step_size,
    *,
    clip_bound,
    expected_batch_size: float,
    proposal: Proposal = proposals.fixed_length,
    inverse_mass_matrix=None,
    laziness: float = 1.0,
) -> Algorithm:
    """Private TunaMH that releases one Barker bit a step.

    Parameters
    ----------
    posterior
        What to sample, and the data.
    step_size
        Length of the proposed jump, in the units of the position or of the metric.
    clip_bound
        H, a bound in nats on one record's log ratio: a number, `Lipschitz` for
        one that grows with the distance, or `Range` about a public centre.
    expected_batch_size
        lambda: what is drawn on average beyond the n H that the bound makes necessary.
    proposal
        One of `dpjax.proposals`.
    inverse_mass_matrix
        The metric, ``(d,)`` or ``(d, d)``: see `proposals.in_metric`.
    laziness
        c in (0, 1]; the chance that a step reads the data at all.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the minibatch would have no capacity; by
        `privacy`, if the cost of a step has no bound.

    Notes
    -----
    *Formal guarantees.* A step releases one bit drawn with probability c s(l), l the
    sum of independent Poisson terms of which substituting a record changes one:
    `privacy.PoissonAcceptBit` with the tempered bound H and odds 1 + n H / lambda, for
    the largest H of any proposal. It costs no less than that of a smaller H at the same
    lambda. Substitution of one record only, as lambda / n is public.
    """
    bit = acceptance.barker(laziness)
    transition = _transition(
        posterior,
        step_size,
        clip_bound,
        expected_batch_size,
        proposal,
        inverse_mass_matrix,
        laziness,
    )

    def steps(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        released = poisson_step.event(
            posterior,
            bit,
            clip_bound,
            proposal.longest(step_size),
            expected_batch_size,
            neighboring_relation,
        )
        return [(released, num_steps)]

    return mh.algorithm(transition, proposal, steps)


fast_mh = Sampler(as_top_level_api, init, build_kernel)
