"""DP penalty: Metropolis-Hastings whose log ratio carries Gaussian noise.

With noise N(0, s^2) on the log ratio l and the correction -s^2/2 the accept test is
exact (Ceperley and Dewing 1999; Yildirim and Ermis 2019). The noisy ratio is never
formed. Instead the accept bit is drawn with the probability that the noisy test has,

    Phi(l/s - s/2) + e^l Phi(-l/s - s/2),

so the step can be charged as a Gaussian release or as a bit, whichever is less.

Reference: Raisa 2021 (thesis), sections 3.1 and 3.2.
"""

from dpjax import proposals
from dpjax.algorithm import Algorithm, Sampler
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.posterior import Posterior
from dpjax.proposals import Proposal
from dpjax.release import clip_bounds

__all__ = ["as_top_level_api", "penalty"]


def as_top_level_api(
    posterior: Posterior,
    step_size,
    inverse_mass_matrix=None,
    *,
    clip_bound,
    test_noise_multiplier: float,
    proposal: Proposal = proposals.gaussian,
) -> Algorithm:
    """The DP penalty algorithm (thesis, Algorithm 1).

    Parameters
    ----------
    posterior, inverse_mass_matrix
        As in `dpjax.barker`.
    step_size
        Scale of the proposal, in the units of the position, or of the metric if there
        is one.
    clip_bound
        Bound in nats on one record's log ratio: a number, or `Lipschitz` for a bound
        proportional to the distance (the thesis's choice).
    test_noise_multiplier
        Sd of the accept test's noise over the sensitivity of the log ratio under
        substitution, which is two tempered clip bounds; tau sqrt(n) in the thesis. Zero
        gives Metropolis's rule, which is not private.
    proposal
        One of `dpjax.proposals`; `one_component` and `guided_walk` give the thesis's
        OCU and GWMH variants.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    *Formal guarantees.* A step releases the accept bit, which is post-processing of
    the Gaussian release of the clipped log ratio with this noise multiplier. If a
    blank takes the place of one record, the sensitivity is half as large, so the
    multiplier of that release is twice as large. With a constant clip bound the step
    is charged as that release or as a bit, whichever is cheaper for the run.
    """
    clip_bound = clip_bounds.of(clip_bound)
    distance = proposal.longest(step_size)
    proposal = proposals.in_metric(proposal, inverse_mass_matrix)

    def noise_sd(bound):
        return mh.penalty_noise_sd(posterior, test_noise_multiplier, bound)

    family = mh.penalty_family(test_noise_multiplier)
    transition = mh.transition(
        posterior, step_size, proposal, clip_bound, family, noise_sd
    )

    def events(neighboring_relation):
        event = mh.penalty_event(
            posterior, test_noise_multiplier, clip_bound, distance, neighboring_relation
        )
        return [(event, 1)]

    return mh.algorithm(transition, proposal, events)


penalty = Sampler.of(as_top_level_api, mh.init)
"""The DP penalty algorithm: see `as_top_level_api`."""
