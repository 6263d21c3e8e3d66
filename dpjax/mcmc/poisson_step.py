"""A Metropolis-Hastings step that estimates its log ratio from Poisson counts.

`fast_mh`, `tuna` and `fast_mh_published` make this step. They differ in the acceptance
function. Let H be the bound on the tempered log ratio of one record, the same for all
moves. A step reads lambda + n H of the n records on average. In the notation of
`dpjax.release.poisson_log_ratios`, k = lambda / n.
"""

import math
import numbers
from collections.abc import Callable

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree
from scipy import stats

from dpjax import proposals
from dpjax.acceptance import Acceptance
from dpjax.algorithm import Algorithm, Transition
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.posterior import Posterior
from dpjax.privacy import PoissonAcceptBit
from dpjax.privacy.validate import check_positive_number, check_replaced
from dpjax.proposals import Move, Proposal
from dpjax.random import batches
from dpjax.release import accept_bit, clip_bounds, poisson_log_ratios
from dpjax.release.clip_bounds import ClipBound

__all__ = ["algorithm", "centre_and_half_range", "event", "transition"]

BEYOND_REACH_PROB = 1e-4
"""Probability that a Gaussian proposal is longer than `_reach` and so is rejected. This
matters only if the length of proposals varies and the clip bound grows with it."""

MAX_ODDS = 2.0**16
"""Largest 1 + H / k that is allowed. All rates are rounded to multiples of 2^-32 of the
largest rate. Up to this ratio, that does not change any rate noticeably."""


def algorithm(
    posterior: Posterior,
    step_size,
    clip_bound,
    expected_batch_size: float,
    proposal: Proposal,
    inverse_mass_matrix,
    accept: Acceptance,
) -> Algorithm:
    """The kernel with the acceptance function `accept`, which must have no noise.

    The other parameters are those of `dpjax.fast_mh`.
    """
    clip_bound = clip_bounds.of(clip_bound, has_centre=True)
    proposal = proposals.settled(proposal, step_size, inverse_mass_matrix)
    largest = clip_bound.largest(proposal.longest(step_size))
    step = transition(
        posterior,
        step_size,
        proposal,
        clip_bound,
        expected_batch_size,
        accept.family,
        laziness=accept.laziness,
    )

    def events(relation):
        bit = event(posterior, accept, largest, expected_batch_size, relation)
        return [(bit, 1)]

    return mh.algorithm(step, proposal, events)


def centre_and_half_range(
    posterior: Posterior, clip_bound: ClipBound, position, move: Move, largest: float
) -> tuple[jax.Array, jax.Array]:
    """The interval to which the tempered log ratios of a move are clipped.

    Exchanging the positions changes the sign of the centre and nothing else.

    Parameters
    ----------
    posterior
        Only its tempering is used.
    clip_bound, position, move
        The move and where it starts, of which `ClipBound.limits` gives the interval.
    largest
        The largest half range that is allowed, in nats, tempered.

    Returns
    -------
    centre, half_range
        Float64 scalars in nats: the interval is ``centre +- half_range``.
    """
    low, high = clip_bound.limits(position, move)
    with jax.enable_x64(True):
        low = posterior.tempering * jnp.asarray(low, jnp.float64)
        high = posterior.tempering * jnp.asarray(high, jnp.float64)
        return (low + high) / 2, jnp.clip((high - low) / 2, 0.0, largest)


def transition(
    posterior: Posterior,
    step_size,
    proposal: Proposal,
    clip_bound: ClipBound,
    expected_batch_size: float,
    family: str,
    noise_sd: Callable = lambda bound: 0.0,
    laziness: float = 1.0,
) -> Transition:
    """The Metropolis-Hastings step on a minibatch of Poisson size.

    Parameters
    ----------
    posterior, step_size, proposal, clip_bound
        As in `dpjax.mcmc.metropolis_hastings.transition`.
    expected_batch_size
        lambda of the module docstring.
    family
        Family of the acceptance function, as in `dpjax.acceptance.Acceptance`.
    noise_sd
        ``half_range -> noise_sd``: standard deviation of the acceptance function's
        noise in nats, for a move with this tempered half range. Both are float64.
    laziness
        Probability that a step does anything.

    Notes
    -----
    A proposal farther away than `_reach` is rejected, whatever the data are. The move
    back would be as long and is rejected too, so the chain stays exact.

    *Formal guarantees.* `move` reads the data through one call of
    `poisson_log_ratios.poisson_log_ratio`. It releases the bit that `accept_bit.draw`
    returns, and nothing else.
    """
    mh.check_posterior(posterior)
    mh.check_step_size(step_size)
    _check(step_size, clip_bound)
    expected_batch_size = check_positive_number(
        "expected_batch_size", expected_batch_size
    )
    num_records = posterior.num_records
    base_rate = expected_batch_size / num_records

    def extent(dimension):
        """How far a move may go, the largest half range, and the rate of arrivals.

        The half range is in nats, tempered. The rate is the mean number of arrivals of
        one record.
        """
        reach = math.inf
        if not clip_bound.is_constant:
            reach = _reach(proposal, step_size, dimension)
        largest = posterior.tempering * clip_bound.at(reach)
        return reach, largest, base_rate + largest

    _, _, least_rate = extent(1)
    batches.capacity(least_rate, num_records)
    if least_rate > MAX_ODDS * base_rate:
        raise ValueError(
            f"expected_batch_size = {expected_batch_size} is too small beside the "
            f"{least_rate * num_records:.4g} records that the clip bound asks for"
        )

    def num_words(state):
        dimension = ravel_pytree(state.position)[0].size
        return 2 + proposal.num_words(dimension) + batches.ARRIVAL_WORDS

    def move(words, state, memory):
        dimension = ravel_pytree(state.position)[0].size
        bit_words, walk_words, batch_words = jnp.split(
            words, (2, 2 + proposal.num_words(dimension))
        )
        reach, largest, rate = extent(dimension)
        proposed = proposal.propose(walk_words, state.position, state.walk, step_size)
        centre, half_range = centre_and_half_range(
            posterior, clip_bound, state.position, proposed, largest
        )
        estimate = poisson_log_ratios.poisson_log_ratio(
            posterior,
            batches.arrivals(batch_words, rate, num_records),
            rate,
            state.position,
            proposed.position,
            centre,
            half_range,
            base_rate,
        )
        public = mh.public_log_ratio(posterior, state, proposed)
        with jax.enable_x64(True):
            # The public numbers are added first. Then only one rounding, that of the
            # sum with the estimate, depends on the data.
            log_ratio = num_records * centre + public.astype(jnp.float64) + estimate
            log_ratio = jnp.where(proposed.distance <= reach, log_ratio, -jnp.inf)
            sd = noise_sd(half_range)
        is_accepted = accept_bit.draw(bit_words, family, log_ratio, sd)
        return *mh.move_if(is_accepted, state, proposed, laziness), memory

    return Transition(num_words, move, mh.stay, laziness=laziness)


def _reach(proposal: Proposal, step_size, dimension: int) -> float:
    """The distance beyond which a proposal is rejected.

    It is the length of a proposal of constant length. A Gaussian proposal exceeds it
    with a probability of at most `BEYOND_REACH_PROB`.
    """
    constant = proposal.longest(step_size)
    if constant is not None:
        return constant
    largest_scale = max(jax.tree.leaves(step_size))
    return largest_scale * float(stats.chi(dimension).isf(BEYOND_REACH_PROB))


def _check(step_size, clip_bound: ClipBound) -> None:
    """Refuse parameters that do not determine the capacity of a minibatch.

    Raises
    ------
    ValueError
        If a number that determines the capacity is not a Python number. These are the
        clip bound if it is constant, else the step size.
    """
    decisive = clip_bound.number if clip_bound.is_constant else step_size
    fixed = jax.tree.leaves(decisive)
    if not all(isinstance(number, numbers.Real) for number in fixed):
        raise ValueError(
            "the capacity of a minibatch depends on the clip bound, and on step_size "
            "where the bound grows with the distance: give them as Python numbers, "
            f"not {fixed}"
        )


def event(
    posterior: Posterior,
    accept: Acceptance,
    clip_bound: float | None,
    expected_batch_size: float,
    neighboring_relation: NeighboringRelation,
) -> PoissonAcceptBit:
    """The event of the accept bit of one step.

    Parameters
    ----------
    posterior
        Only its tempering and its number of records are used.
    accept, expected_batch_size
        The acceptance function, and lambda of the module docstring.
    clip_bound
        `ClipBound.largest` for the moves of the proposal, in nats, untempered.
    neighboring_relation
        Must be ``REPLACE_ONE``.

    Raises
    ------
    ValueError
        If `clip_bound` is None, or under another relation than ``REPLACE_ONE``.
    """
    what = "Poisson minibatches are"
    check_replaced("neighboring_relation", neighboring_relation, what)
    if clip_bound is None:
        raise ValueError(
            "a clip bound that grows with the distance needs a proposal of constant "
            "length, such as proposals.fixed_length: otherwise the cost of a step has "
            "no bound"
        )
    bound = posterior.tempering * clip_bound
    odds = 1 + posterior.num_records * bound / float(expected_batch_size)
    return PoissonAcceptBit(accept, bound, odds)
