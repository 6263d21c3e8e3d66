"""DP penalty: Metropolis-Hastings whose log ratio carries Gaussian noise.

With noise N(0, s^2) and the correction -s^2/2 the accept test is exact (Ceperley and
Dewing 1999; Yildirim and Ermis 2019). The noisy ratio is never formed: the bit is drawn
with its closed-form probability, Phi(l/s - s/2) + e^l Phi(-l/s - s/2), so it can be
charged as a Gaussian release or as a bit, whichever is less.

Reference: Raisa 2021 (thesis), sections 3.1 and 3.2, with its errata.
"""

import jax
from dp_accounting import NeighboringRelation

from dpjax import proposals
from dpjax.algorithm import Algorithm, Sampler, take_step
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.posterior import Posterior
from dpjax.proposals import Proposal

__all__ = ["as_top_level_api", "build_kernel", "init", "penalty"]


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
    posterior, step_size, clip_bound, noise_multiplier, proposal, inverse_mass_matrix
):
    return mh.transition(
        posterior,
        step_size,
        proposals.in_metric(proposal, inverse_mass_matrix),
        clip_bound,
        mh.penalty_family(noise_multiplier),
        noise_sd=lambda bound: mh.penalty_noise_sd(posterior, noise_multiplier, bound),
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
        noise_multiplier,
        proposal: Proposal = proposals.gaussian,
        inverse_mass_matrix=None,
    ) -> tuple[mh.MHState, mh.MHInfo]:
        step = _transition(
            posterior,
            step_size,
            clip_bound,
            noise_multiplier,
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
    noise_multiplier: float,
    proposal: Proposal = proposals.gaussian,
    inverse_mass_matrix=None,
) -> Algorithm:
    """The DP penalty algorithm (thesis, Algorithm 1).

    Parameters
    ----------
    posterior
        What to sample, and the data.
    step_size
        Scale of the proposal, in the units of the position or of the metric.
    clip_bound
        Bound in nats on one record's log ratio: a number, or `Lipschitz` for
        a bound proportional to the distance (the thesis's choice).
    noise_multiplier
        Noise sd over the sensitivity under substitution, 2 clip bounds; tau sqrt(n) in
        the thesis. Zero gives Metropolis's rule, which is not private.
    proposal
        One of `dpjax.proposals`; `one_component` and `guided_walk` give the thesis's
        OCU and GWMH variants.
    inverse_mass_matrix
        The metric, ``(d,)`` or ``(d, d)``: see `proposals.in_metric`.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    *Formal guarantees.* A step releases the accept bit, which is post-processing of
    the Gaussian release of the clipped log ratio with this noise multiplier (half of
    the sensitivity, hence twice the multiplier, under addition or removal of one
    record). With a constant clip bound it is charged as that release or as a bit,
    whichever is cheaper for the run.
    """
    transition = _transition(
        posterior,
        step_size,
        clip_bound,
        noise_multiplier,
        proposal,
        inverse_mass_matrix,
    )
    distance = proposal.longest(step_size)

    def steps(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        event = mh.penalty_event(
            posterior, noise_multiplier, clip_bound, distance, neighboring_relation
        )
        return [(event, num_steps)]

    return mh.algorithm(transition, proposal, steps)


penalty = Sampler(as_top_level_api, init, build_kernel)
