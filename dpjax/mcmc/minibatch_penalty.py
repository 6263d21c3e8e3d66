"""DP minibatch penalty: the penalty method on a fresh batch of records every step.

With rbar and v the mean and variance of the batch's B clipped log ratios, n T rbar
estimates the tempered sum of all n records' log ratios with variance about
V = (n T)^2 v / B. The penalty test treats the noise of the batch like that of privacy:
it adds N(0, s^2) to the ratio, takes off (s^2 + V) / 2, and compares the result with
the logarithm of a uniform. The noisy ratio is never formed. Instead the accept bit is
drawn with the probability that the noisy test has,

    Phi(l/s - s/2) + e^l Phi(-l/s - s/2),    l = n T rbar + log prior ratio - V / 2.

Replacing a record of the batch moves l by at most c, for a clip bound M

    c = 2 n T M / B + 2 (1 - 1/B) (n T M / B)^2.

The first part is what rbar adds. The second is what V adds: v changes most between a
batch with all records at M and a batch with one of them at -M. The thesis has the
factor 3 where 2 suffices.

References: Raisa 2021 (thesis), section 3.4 and Algorithm 3; Ceperley and Dewing 1999;
Wang, Balle and Kasiviswanathan 2019 (the batch's amplification).
"""

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Sampler
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.mcmc import minibatch_step
from dpjax.posterior import Posterior
from dpjax.privacy import AcceptBit, GaussianRelease
from dpjax.proposals import Proposal
from dpjax.release import clip_bounds

__all__ = ["as_top_level_api", "minibatch_penalty"]


def _sensitivity(posterior, batch_size, clip_bound):
    """c in nats, with the rounding of l in float64, which is less than c B 2^-48."""
    moved = posterior.num_records * posterior.tempering * clip_bound / batch_size
    exact = 2 * moved + 2 * (1 - 1 / batch_size) * moved**2
    return exact * (1 + batch_size * 2.0**-48)


def as_top_level_api(
    posterior: Posterior,
    step_size,
    inverse_mass_matrix=None,
    *,
    clip_bound,
    test_noise_multiplier: float,
    batch_size: int,
    proposal: Proposal = proposals.gaussian,
) -> Algorithm:
    """The DP minibatch penalty algorithm (thesis, Algorithm 3).

    Parameters
    ----------
    posterior, step_size, clip_bound, proposal, inverse_mass_matrix
        As in `dpjax.penalty`; M is the clip bound.
    test_noise_multiplier
        Sd of the accept test's noise over the sensitivity c of the log ratio under
        substitution of a record of the batch: sqrt(tau) of the thesis, whose tau
        multiplies a variance. Zero leaves only the noise of the batch, which is not
        private.
    batch_size
        B, at most half of the records, drawn without replacement at every step.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    The chain is approximate. The test is exact for a ratio with normal noise of known
    variance, but the batch mean is only nearly normal and V is estimated from the
    batch, without a factor 1 - B/n, so it overstates the variance. As long as V is well
    below 1 this does not show. A large V, from long steps or small batches, costs moves
    too: the chain accepts as if s^2 + V were the noise.

    *Formal guarantees.* A step releases the accept bit, which is post-processing of a
    Gaussian release with this noise multiplier, on a batch that stays secret. Only
    substitution of one record is accounted for.
    """
    clip_bound = clip_bounds.of(clip_bound)
    family = mh.penalty_family(test_noise_multiplier)
    largest = clip_bound.largest(proposal.longest(step_size))
    proposal = proposals.in_metric(proposal, inverse_mass_matrix)

    def probability(log_ratio, variance, bound):
        noise_sd = test_noise_multiplier * _sensitivity(posterior, batch_size, bound)
        return acceptance.probability(family, log_ratio - variance / 2, noise_sd)

    def event():
        if test_noise_multiplier == 0:
            raise ValueError("without noise the penalty method is not private")
        if largest is None:
            return GaussianRelease(test_noise_multiplier, acceptance.FAILURE_PROB)
        sensitivity = _sensitivity(posterior, batch_size, largest)
        accept = acceptance.penalty(test_noise_multiplier * sensitivity)
        return AcceptBit(accept, sensitivity)

    return minibatch_step.algorithm(
        posterior, step_size, proposal, clip_bound, batch_size, probability, event
    )


minibatch_penalty = Sampler.of(as_top_level_api, mh.init)
"""The DP minibatch penalty algorithm: see `as_top_level_api`."""
