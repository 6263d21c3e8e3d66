"""A Metropolis-Hastings step that reads a batch of fixed size.

`minibatch_penalty` and `minibatch_barker` differ in the acceptance probability as a
function of the batch's estimates and share everything else, which is here.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Transition
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.posterior import Posterior
from dpjax.privacy import AcceptBit, BarkerTest, FixedBatch, GaussianRelease
from dpjax.privacy.validate import check_relation
from dpjax.proposals import Proposal
from dpjax.random import batches
from dpjax.release import accept_bit, log_ratios
from dpjax.release.clip_bounds import ClipBound

__all__ = ["algorithm"]


def algorithm(
    posterior: Posterior,
    step_size,
    proposal: Proposal,
    clip_bound: ClipBound,
    batch_size: int,
    probability: Callable,
    event_fn: Callable[[], AcceptBit | GaussianRelease | BarkerTest],
) -> Algorithm:
    """The kernel on batches of `batch_size` records.

    Parameters
    ----------
    probability
        ``(log_ratio, variance, clip_bound) -> chance``, all float64: the acceptance
        probability. The batch's mean rbar and variance v of B clipped log ratios give
        the estimate ``log_ratio`` = n T rbar + log prior and proposal ratio, and the
        estimate ``variance`` = (n T)^2 v / B of its variance.
    event_fn
        What a step releases of the batch that it draws.

    Raises
    ------
    ValueError
        By `privacy`, if another relation than substitution is asked for.

    Notes
    -----
    *Formal guarantees.* `move` reads the data through one `batch_moments` of a uniform
    secret batch. Of what follows, only the bit that `accept_bit.bit` returns leaves it.
    """
    mh.check_posterior(posterior)
    mh.check_step_size(step_size)
    num_records = posterior.num_records
    batch_words = batches.num_words(batch_size, num_records)
    scale = num_records * posterior.tempering

    def num_words(state):
        dimension = ravel_pytree(state.position)[0].size
        return 2 + batch_words + proposal.num_words(dimension)

    def move(words, state, memory):
        bit_words, batch_row, rest = jnp.split(words, (2, 2 + batch_words))
        proposed = mh.propose(proposal, rest, state, step_size)
        bound = clip_bound.at(proposed.distance)
        batch = batches.without_replacement(batch_row, batch_size, num_records)
        mean, variance = log_ratios.batch_moments(
            posterior, batch, state.position, proposed.position, bound
        )
        public = mh.public_log_ratio(posterior, state, proposed)
        with jax.enable_x64(True):
            log_ratio = scale * mean + public.astype(jnp.float64)
            chance = probability(
                log_ratio,
                scale**2 * variance / batch_size,
                jnp.asarray(bound, jnp.float64),
            )
        is_accepted = accept_bit.bit(bit_words, log_ratio, chance)
        return *mh.move_if(is_accepted, state, proposed), memory

    def events(neighboring_relation):
        relation = check_relation("neighboring_relation", neighboring_relation)
        if relation != NeighboringRelation.REPLACE_ONE:
            raise ValueError(
                "a batch of fixed size is accounted for under substitution of one "
                "record only: use NeighboringRelation.REPLACE_ONE, or a kernel on all "
                "records"
            )
        return [(FixedBatch(event_fn(), batch_size, num_records), 1)]

    return mh.algorithm(Transition(num_words, move, mh.stay), proposal, events)
