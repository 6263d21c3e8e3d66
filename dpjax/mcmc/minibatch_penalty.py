"""DP minibatch penalty: the penalty method on a fresh batch of records every step.

Let rbar and v be the mean and variance of the B clipped log ratios in the batch, n the
number of records and T the tempering. Then n T rbar estimates the tempered sum of the
log ratios of all n records, with variance about V = (n T)^2 v / B. The penalty test
treats the error of this estimate like noise that was added for privacy. It adds
N(0, s^2) to the log ratio, subtracts (s^2 + V) / 2, and compares the result with the
logarithm of a uniform variate. This kernel does not compute the noisy ratio. It draws
the accept bit with the probability that the noisy test would accept,

    Phi(l/s - s/2) + e^l Phi(-l/s - s/2),
    l = n T rbar + log ratio of prior and proposal - V / 2.

With the clip bound M, replacing a record of the batch moves l by at most

    c = 2 n T M / B + 2 (1 - 1/B) (n T M / B)^2.

The first term bounds the change of n T rbar, the second that of V / 2. The variance v
changes most if all log ratios are M and one of them becomes -M. The thesis has the
factor 3 where 2 suffices.

References: Raisa 2021 (thesis), section 3.4 and Algorithm 3; Ceperley and Dewing 1999;
Wang, Balle and Kasiviswanathan 2019 (amplification by sampling the batch).
"""

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Sampler
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.mcmc import minibatch_step
from dpjax.posterior import Posterior
from dpjax.privacy import AcceptBit, GaussianRelease
from dpjax.privacy.validate import check_count
from dpjax.proposals import Proposal
from dpjax.release import clip_bounds

__all__ = ["as_top_level_api", "minibatch_penalty"]


def _sensitivity(posterior, batch_size, clip_bound):
    """c of the module docstring in nats, for the clip bound M in nats.

    It includes the rounding of l in float64, which is less than c B 2^-48.
    """
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
        Standard deviation s of the accept test's noise, divided by c, the sensitivity
        of the log ratio under substitution of a record of the batch. It is sqrt(tau) of
        the thesis, whose tau multiplies a variance. Zero leaves only the error of the
        batch's estimate, which is not private.
    batch_size
        B, the number of records in a batch, at most half of all records. Every step
        draws a batch without replacement.

    Raises
    ------
    ValueError
        If a parameter is out of range. `privacy` also raises it if there is no noise,
        or under another relation than ``REPLACE_ONE``.

    Notes
    -----
    The chain is approximate. The test is exact for a log ratio with normal noise of
    known variance. But the batch mean is only nearly normal, and V is estimated from
    the batch. V also lacks the factor 1 - B/n, so it overstates the variance. As long
    as V is well below 1, these errors do not show. A large V, from long steps or small
    batches, makes accepted moves rarer too: the chain accepts as if its noise had the
    variance s^2 + V.

    *Formal guarantees.* A step releases the accept bit. The bit is post-processing of a
    Gaussian release with the noise multiplier `test_noise_multiplier`, on a batch that
    stays secret. Only substitution of one record is accounted for.
    """
    batch_size = check_count("batch_size", batch_size)
    clip_bound = clip_bounds.of(clip_bound)
    family, test_noise_multiplier = mh.penalty_family(test_noise_multiplier)
    proposal = proposals.settled(proposal, step_size, inverse_mass_matrix)
    largest = clip_bound.largest(proposal.longest(step_size))

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
