"""DP minibatch penalty: the penalty method on a fresh batch of records every step.

With rbar and v the mean and variance of the batch's B clipped log ratios, n T rbar
estimates their tempered sum over all n records with variance about V = (n T)^2 v / B.
The penalty test treats batch and privacy noise alike: add N(0, s^2) to the ratio, take
off (s^2 + V) / 2, and compare with the logarithm of a uniform. The noisy ratio is never
formed: the accept bit is drawn with its closed-form probability,
Phi(l/s - s/2) + e^l Phi(-l/s - s/2) of l = n T rbar + log prior ratio - V / 2.

Replacing a record of the batch moves l by at most c, for a clip bound M

    c = 2 n T M / B + 2 (1 - 1/B) (n T M / B)^2,

the first part through rbar and the second through V: v is largest against -M with all
other records at M. The thesis has 3 where 2 suffices (erratum 7).

References: Raisa 2021 (thesis), section 3.4 and Algorithm 3, with its errata; Ceperley
and Dewing 1999; Wang, Balle and Kasiviswanathan 2019 (the batch's amplification).
"""

import jax
from dp_accounting import NeighboringRelation

from dpjax import acceptance, privacy, proposals
from dpjax.algorithm import Algorithm, Sampler, take_step
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.mcmc import minibatch_step
from dpjax.posterior import Posterior
from dpjax.proposals import Proposal
from dpjax.release import clip_bounds

__all__ = ["as_top_level_api", "build_kernel", "init", "minibatch_penalty"]


def init(
    position,
    posterior: Posterior | None = None,
    *,
    proposal: Proposal = proposals.gaussian,
    rng_key: jax.Array | None = None,
) -> mh.MHState:
    """State of a chain at the public `position`; no data are read, no key is used."""
    return mh.init(position, proposal)


def _sensitivity(posterior, batch_size, clip_bound):
    """c in nats, with the rounding of l in float64, which is less than c B 2^-48."""
    moved = posterior.num_records * posterior.tempering * clip_bound / batch_size
    exact = 2 * moved + 2 * (1 - 1 / batch_size) * moved**2
    return exact * (1 + batch_size * 2.0**-48)


def _transition(
    posterior,
    step_size,
    clip_bound,
    noise_multiplier,
    batch_size,
    proposal,
    inverse_mass_matrix,
):
    family = mh.penalty_family(noise_multiplier)

    def probability(log_ratio, variance, bound):
        noise_sd = noise_multiplier * _sensitivity(posterior, batch_size, bound)
        return acceptance.probability(family, log_ratio - variance / 2, noise_sd)

    return minibatch_step.transition(
        posterior,
        step_size,
        proposals.in_metric(proposal, inverse_mass_matrix),
        clip_bound,
        batch_size,
        probability,
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
        batch_size: int,
        proposal: Proposal = proposals.gaussian,
        inverse_mass_matrix=None,
    ) -> tuple[mh.MHState, mh.MHInfo]:
        step = _transition(
            posterior,
            step_size,
            clip_bound,
            noise_multiplier,
            batch_size,
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
    batch_size: int,
    proposal: Proposal = proposals.gaussian,
    inverse_mass_matrix=None,
) -> Algorithm:
    """The DP minibatch penalty algorithm (thesis, Algorithm 3).

    Parameters
    ----------
    posterior
        What to sample, and the data.
    step_size
        Scale of the proposal, in the units of the position or of the metric.
    clip_bound
        M, the bound in nats on one record's log ratio: a number, or
        `Lipschitz` for a bound proportional to the distance (the thesis's
        choice).
    noise_multiplier
        Noise sd over the sensitivity c of the ratio under substitution of a record of
        the batch: sqrt(tau) of the thesis, whose tau multiplies a variance. Zero
        leaves only the batch's noise, which is not private.
    batch_size
        B, at most half of the records; drawn without replacement at every step.
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
    The chain is approximate. The test is exact for a ratio with normal noise of known
    variance; the batch mean is only nearly normal, V is estimated from the batch, and
    without a factor 1 - B/n it overstates the variance. As long as V is well below 1
    this does not show. A large V, from long steps or small batches, costs moves too:
    the chain accepts as if s^2 + V were the noise.

    *Formal guarantees.* A step releases the accept bit, post-processing of a Gaussian
    release with this noise multiplier, on a batch that stays secret. Substitution of
    one record only.
    """
    transition = _transition(
        posterior,
        step_size,
        clip_bound,
        noise_multiplier,
        batch_size,
        proposal,
        inverse_mass_matrix,
    )
    distance = proposal.longest(step_size)

    def steps(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        minibatch_step.check_relation(neighboring_relation)
        if noise_multiplier == 0:
            raise ValueError("without noise the penalty method is not private")
        if isinstance(clip_bound, clip_bounds.Lipschitz) and distance is None:
            release = privacy.GaussianRelease(
                noise_multiplier, acceptance.TOTAL_VARIATION
            )
        else:
            bound = mh.clip_at(clip_bound, distance)
            moved = _sensitivity(posterior, batch_size, bound)
            bit = acceptance.penalty(noise_multiplier * moved)
            release = privacy.AcceptBit(bit, moved)
        batch = privacy.FixedBatch(release, batch_size, posterior.num_records)
        return [(batch, num_steps)]

    return mh.algorithm(transition, proposal, steps)


minibatch_penalty = Sampler(as_top_level_api, init, build_kernel)
