"""DP penalty: Metropolis-Hastings on all records, with Gaussian noise in its test.

The penalty method adds noise N(0, s^2) to the log ratio l and subtracts s^2/2, which
makes the test exact (Ceperley and Dewing 1999; Yildirim and Ermis 2019). This kernel
does not compute the noisy ratio. It draws the accept bit with the probability that the
noisy test would accept,

    Phi(l/s - s/2) + e^l Phi(-l/s - s/2).

So the step can be charged as a Gaussian release or as a bit, whichever costs less.

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
        Bound in nats on the log ratio of one record: a number, or `Lipschitz` for a
        bound proportional to the distance of the move (the thesis's choice).
    test_noise_multiplier
        Standard deviation s of the accept test's noise, divided by the sensitivity of
        the log ratio under substitution, which is two tempered clip bounds. It is
        tau sqrt(n) in the thesis. Zero gives Metropolis's rule, which is not private.
    proposal
        One of the proposals of `dpjax.proposals`. The default is the thesis's; that of
        `dpjax.barker` is `fixed_length`. `one_component` and `guided_walk` give the
        thesis's variants OCU and GWMH.

    Raises
    ------
    ValueError
        If a parameter is out of range. `privacy` also raises it if there is no noise.

    Notes
    -----
    *Formal guarantees.* A step releases the accept bit. The bit is post-processing of a
    Gaussian release of the clipped log ratio, whose noise multiplier is
    `test_noise_multiplier`. If a blank takes the place of one record, the sensitivity
    is half as large, so the multiplier of that release is twice as large. If one clip
    bound holds for all moves, the step is charged as that release or as a bit,
    whichever is cheaper for the run.
    """
    clip_bound = clip_bounds.of(clip_bound)
    proposal = proposals.settled(proposal, step_size, inverse_mass_matrix)
    distance = proposal.longest(step_size)

    def noise_sd(bound):
        return mh.penalty_noise_sd(posterior, test_noise_multiplier, bound)

    family, test_noise_multiplier = mh.penalty_family(test_noise_multiplier)
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
