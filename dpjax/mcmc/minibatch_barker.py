"""DP Barker: Barker's test on a batch, private by the noise that the test needs.

Barker's rule accepts if l + e > 0, l the log ratio and e standard logistic. A batch of
B records estimates l by Lam = n T rbar + log prior ratio with variance about
V = (n T)^2 v / B, rbar and v the mean and variance of the batch's clipped log ratios.
Splitting e into N(0, 2) and a correction V_corr, the batch's noise stands for the part
V of the 2:

    accept if Lam + N(0, 2 - V) + V_corr > 0.

Clipping at .99 sqrt(B) / (n T) keeps V below .9801, so Gaussian noise of variance at
least 1.0199 is left, which makes the test private. The noise is never drawn: V_corr is
a choice of seven points m_k with chances w_k, so the accept bit has the closed-form
probability sum_k w_k Phi((Lam + m_k) / sqrt(2 - V)).

No V_corr is exact, as the logistic characteristic function decays more slowly than any
Gaussian's. These points have the least total variation from the logistic that any
V_corr can have, .0038 (`benchmarks/fit_correction.py`); the published mixtures of 100
normals have .0055.

References: Heikkila, Jalko, Dikmen and Honkela 2019; Seita, Pan, Chen and Canny 2017;
Raisa 2021 (thesis), section 3.3, with its errata.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.scipy.special import ndtr

from dpjax import privacy, proposals
from dpjax.algorithm import Algorithm, Sampler, take_step
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.mcmc import minibatch_step
from dpjax.posterior import Posterior
from dpjax.proposals import Proposal

__all__ = ["CORRECTION", "as_top_level_api", "build_kernel", "init", "minibatch_barker"]

NOISE_VARIANCE = 2.0

_PAIRS = np.array(
    [
        [0.0, 0.857992140612],
        [2.7734, 0.135135889574],
        [5.9050, 0.006642498886],
        [9.4127, 0.000229470928],
    ]
)
CORRECTION = np.stack(
    [
        np.concatenate([-_PAIRS[:0:-1, 0], _PAIRS[:, 0]]),
        np.concatenate([_PAIRS[:0:-1, 1] / 2, _PAIRS[:1, 1], _PAIRS[1:, 1] / 2]),
    ]
)
"""Points and chances of V_corr, ``(2, 7)``: N(0, 2) + V_corr is within total variation
.00385 of Logistic(0, 1)."""


def init(
    position,
    posterior: Posterior | None = None,
    *,
    proposal: Proposal = proposals.gaussian,
    rng_key: jax.Array | None = None,
) -> mh.MHState:
    """State of a chain at the public `position`; no data are read, no key is used."""
    return mh.init(position, proposal)


def _probability(log_ratio, variance, clip_bound):
    """P(Lam + N(0, 2 - V) + V_corr > 0), in float64."""
    noise_sd = jnp.sqrt(NOISE_VARIANCE - variance)
    terms = [
        chance * ndtr((log_ratio + point) / noise_sd)
        for point, chance in CORRECTION.T.tolist()
    ]
    return jnp.minimum(sum(terms), 1.0)


def _transition(posterior, step_size, batch_size, proposal, inverse_mass_matrix):
    mh.check_posterior(posterior)
    scale = posterior.num_records * posterior.tempering
    return minibatch_step.transition(
        posterior,
        step_size,
        proposals.in_metric(proposal, inverse_mass_matrix),
        0.99 * math.sqrt(batch_size) / scale,
        batch_size,
        _probability,
    )


def build_kernel():
    """Build the kernel: see `as_top_level_api` for its parameters."""

    def kernel(
        rng_key: jax.Array,
        state: mh.MHState,
        posterior: Posterior,
        step_size,
        *,
        batch_size: int,
        proposal: Proposal = proposals.gaussian,
        inverse_mass_matrix=None,
    ) -> tuple[mh.MHState, mh.MHInfo]:
        step = _transition(
            posterior, step_size, batch_size, proposal, inverse_mass_matrix
        )
        return take_step(rng_key, state, step)

    return kernel


def as_top_level_api(
    posterior: Posterior,
    step_size,
    *,
    batch_size: int,
    proposal: Proposal = proposals.gaussian,
    inverse_mass_matrix=None,
) -> Algorithm:
    """DP Barker (Heikkila et al. 2019).

    Parameters
    ----------
    posterior
        What to sample, and the data.
    step_size
        Scale of the proposal, in the units of the position or of the metric.
    batch_size
        B, at most half of the records; drawn without replacement at every step. It
        sets the privacy of a step, and the clip bound .99 sqrt(B) / (n T) in nats.
    proposal
        One of `dpjax.proposals`.
    inverse_mass_matrix
        The metric, ``(d,)`` or ``(d, d)``: see `proposals.in_metric`.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    The chain is approximate. For a normal batch mean of variance V the acceptance
    probability is within .0011 of Barker's, and its log odds within .015 nats of l
    where |l| < 6. The batch mean is only nearly normal, V is estimated from the batch
    and, without a factor 1 - B/n, overstates its variance. What shows first is
    clipping: the bound is fixed, and ratios above it make the chain accept as if the
    likelihood were flatter than it is.

    *Formal guarantees.* A step releases the accept bit, post-processing of Lam with
    Gaussian noise of variance 2 - V, because V_corr is independent of the data.
    Replacing a record of the batch moves Lam by at most 2 / sqrt(B) and V by at most
    4 / B, both with a factor .99 or .9801 that covers rounding in float64: the Renyi
    divergence of the thesis's Theorem 3.3, on a batch that stays secret. Substitution
    of one record only.
    """
    transition = _transition(
        posterior, step_size, batch_size, proposal, inverse_mass_matrix
    )

    def steps(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        minibatch_step.check_relation(neighboring_relation)
        test = privacy.BarkerTest(batch_size)
        batch = privacy.FixedBatch(test, batch_size, posterior.num_records)
        return [(batch, num_steps)]

    return mh.algorithm(transition, proposal, steps)


minibatch_barker = Sampler(as_top_level_api, init, build_kernel)
