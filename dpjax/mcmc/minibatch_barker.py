"""DP Barker: Barker's test on a batch, made private by the noise that the test needs.

Barker's rule accepts if l + e > 0, where l is the log ratio and e a standard logistic
variate. Let rbar and v be the mean and variance of the B clipped log ratios in a batch,
n the number of records and T the tempering. The batch estimates l by
Lam = n T rbar + log ratio of prior and proposal, with variance about V = (n T)^2 v / B.
The logistic e is close in law to a sum of N(0, 2) and a correction V_corr. The error of
the estimate stands for the part V of the variance 2, so the test is

    accept if Lam + N(0, 2 - V) + V_corr > 0.

Clipping at .99 sqrt(B) / (n T) keeps V at or below .9801. So Gaussian noise of variance
at least 1.0199 is left, which makes the test private. The code does not draw the noise.
V_corr takes one of seven points m_k with probabilities w_k, so the accept bit is drawn
with the closed-form probability sum_k w_k Phi((Lam + m_k) / sqrt(2 - V)), which
`dpjax.acceptance.barker_test` computes.

No V_corr is exact, because the logistic characteristic function decays more slowly than
that of any Gaussian. The seven points have the least total variation from the logistic
that any V_corr can have, .0038 (`benchmarks/fit_correction.py`). The published mixtures
of 100 normals have .0055.

References: Heikkila, Jalko, Dikmen and Honkela 2019; Seita, Pan, Chen and Canny 2017;
Raisa 2021 (thesis), section 3.3.
"""

import math

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Sampler
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.mcmc import minibatch_step
from dpjax.posterior import Posterior
from dpjax.privacy import BarkerTest
from dpjax.privacy.validate import check_count
from dpjax.proposals import Proposal
from dpjax.release import clip_bounds

__all__ = ["as_top_level_api", "minibatch_barker"]


def _probability(log_ratio, variance, clip_bound):
    return acceptance.barker_test(log_ratio, variance)


def as_top_level_api(
    posterior: Posterior,
    step_size,
    inverse_mass_matrix=None,
    *,
    batch_size: int,
    proposal: Proposal = proposals.gaussian,
) -> Algorithm:
    """DP Barker (Heikkila et al. 2019).

    Parameters
    ----------
    posterior, step_size, inverse_mass_matrix
        As in `dpjax.penalty`.
    batch_size
        B, the number of records in a batch, at most half of all records. Every step
        draws a batch without replacement. The batch size determines the privacy of a
        step, and the clip bound .99 sqrt(B) / (n T) in nats.
    proposal
        One of the proposals of `dpjax.proposals`.

    Raises
    ------
    ValueError
        If a parameter is out of range. `privacy` also raises it under another relation
        than ``REPLACE_ONE``.

    Notes
    -----
    The chain is approximate. For a normal batch mean of variance V the acceptance
    probability is within .0011 of Barker's, and its log odds are within .015 nats of l
    where |l| < 6. But the batch mean is only nearly normal, and V is estimated from the
    batch. V also lacks the factor 1 - B/n, so it overstates the variance. The first
    error to show is that of clipping. The bound is fixed, and log ratios above it make
    the chain accept as if the likelihood were flatter than it is.

    *Formal guarantees.* A step releases the accept bit and nothing else. Replacing a
    record of the batch moves Lam by at most .99 times 2 / sqrt(B), and V by at most
    .9801 times 4 / B, up to rounding in float64. The batch stays secret. The Renyi
    divergence of a step is the smaller of two bounds: that of the bit
    (`bits.batch_renyi`), and that of Lam with its noise (Theorem 3.3 of the thesis).
    Only substitution of one record is accounted for.
    """
    mh.check_posterior(posterior)
    batch_size = check_count("batch_size", batch_size)
    scale = posterior.num_records * posterior.tempering
    largest = math.sqrt(acceptance.MAX_BATCH_VARIANCE * batch_size) / scale
    clip_bound = clip_bounds.Constant(largest)
    proposal = proposals.settled(proposal, step_size, inverse_mass_matrix)

    def event():
        return BarkerTest(batch_size)

    return minibatch_step.algorithm(
        posterior, step_size, proposal, clip_bound, batch_size, _probability, event
    )


minibatch_barker = Sampler.of(as_top_level_api, mh.init)
"""DP Barker: see `as_top_level_api`."""
