"""A Metropolis-Hastings step that reads a batch of records of fixed size.

`minibatch_penalty` and `minibatch_barker` make this step. They differ in how the
acceptance probability is computed from the estimates of the batch.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Transition
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.posterior import Posterior
from dpjax.privacy import AcceptBit, BarkerTest, FixedBatch, GaussianRelease
from dpjax.privacy.validate import check_replaced
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
    """The kernel on batches of `batch_size` records, drawn without replacement.

    Parameters
    ----------
    posterior, step_size, proposal, clip_bound
        As in `dpjax.mcmc.metropolis_hastings.transition`.
    batch_size
        B, the number of records in a batch.
    probability
        ``(log_ratio, variance, clip_bound) -> acceptance probability``, all float64
        scalars. Let rbar and v be the mean and variance of the B clipped log ratios, n
        the number of records and T the tempering. Then ``log_ratio`` is the estimate
        n T rbar + log ratio of prior and proposal, ``variance`` is (n T)^2 v / B, the
        estimate of its variance, and ``clip_bound`` is that of the move, untempered.
    event_fn
        ``() -> event``: what a step releases about the batch that it draws.

    Raises
    ------
    ValueError
        If the step size or the batch size is out of range. `privacy` also raises it
        under another relation than ``REPLACE_ONE``.

    Notes
    -----
    *Formal guarantees.* `move` reads the data through one call of `batch_moments`, on a
    uniform secret batch. It releases the bit that `accept_bit.bit` returns, and nothing
    else.
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
        what = "a batch of fixed size is"
        check_replaced("neighboring_relation", neighboring_relation, what)
        return [(FixedBatch(event_fn(), batch_size, num_records), 1)]

    return mh.algorithm(Transition(num_words, move, mh.stay), proposal, events)
