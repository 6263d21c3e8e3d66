"""A Metropolis-Hastings step that estimates its log ratio from Poisson counts.

The kernels differ in the acceptance function, and in nothing else. Of n records, lambda
are drawn on average by a step in which no record has anything to say, and n H more with
log ratios bounded by H: k = lambda / n in the notation of `poisson_log_ratios`.
"""

import math

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree
from scipy import stats

from dpjax import acceptance, privacy
from dpjax.acceptance import Acceptance
from dpjax.algorithm import Transition
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.posterior import Posterior
from dpjax.proposals import Move, Proposal
from dpjax.random import batches
from dpjax.release import accept_bit, clip_bounds, poisson_log_ratios

__all__ = ["event", "largest", "span", "transition"]

TOO_FAR = 1e-4
"""Chance of a proposal that is rejected for its length, if that has no bound."""

MAX_ODDS = 2.0**16
"""Of 1 + H / k, within which rates are multiples of 2^-32 as good as exactly."""


def span(
    posterior: Posterior, clip_bound, position, move: Move, bound: float
) -> tuple[jax.Array, jax.Array]:
    """Centre and half range that tempered log ratios are clipped to, nats, float64.

    The half range is at most `bound`. Exchanging the positions changes the sign of the
    centre and nothing else.
    """
    if isinstance(clip_bound, clip_bounds.Range):
        low, high = clip_bound.bounds_fn(position, move.position)
    else:
        high = mh.clip_at(clip_bound, move.distance)
        low = -high
    with jax.enable_x64(True):
        low = posterior.tempering * jnp.asarray(low, jnp.float64)
        high = posterior.tempering * jnp.asarray(high, jnp.float64)
        return (low + high) / 2, jnp.minimum((high - low) / 2, bound)


def largest(posterior: Posterior, clip_bound, distance) -> float:
    """The largest half range of moves over `distance`, a Python float of nats."""
    if isinstance(clip_bound, clip_bounds.Range):
        clip_bound = clip_bounds.Lipschitz(clip_bound.half_range)
    return posterior.tempering * mh.clip_at(clip_bound, distance)


def event(
    posterior: Posterior,
    accept: Acceptance,
    clip_bound,
    distance: float | None,
    expected_batch_size: float,
    neighboring_relation: NeighboringRelation,
) -> privacy.PoissonAcceptBit:
    """What the accept bit of one step over the constant `distance` releases.

    Its total variation is that of drawing the bit and of drawing the arrivals, whose
    number is cut off at the capacity.
    """
    if neighboring_relation != NeighboringRelation.REPLACE_ONE:
        raise ValueError(
            "Poisson minibatches are accounted for under substitution of one record "
            "only: use NeighboringRelation.REPLACE_ONE, or a kernel on all records"
        )
    if distance is None and not _is_constant(clip_bound):
        raise ValueError(
            "a clip bound that grows with the distance needs a proposal of constant "
            "length, such as proposals.fixed_length: otherwise the cost of a step has "
            "no bound"
        )
    bound = largest(posterior, clip_bound, distance)
    odds = 1 + posterior.num_records * bound / expected_batch_size
    total_variation = acceptance.TOTAL_VARIATION + batches.TOTAL_VARIATION
    return privacy.PoissonAcceptBit(accept, bound, odds, total_variation)


def _is_constant(clip_bound) -> bool:
    return not isinstance(clip_bound, (clip_bounds.Lipschitz, clip_bounds.Range))


def transition(
    posterior: Posterior,
    step_size,
    proposal: Proposal,
    clip_bound,
    expected_batch_size: float,
    family: str,
    noise_sd=lambda bound: 0.0,
    laziness: float = 1.0,
) -> Transition:
    """The step as `Transition`; `noise_sd` maps H to nats of noise.

    A proposal further than `_reach` is rejected without a look at the data. It is as
    far both ways, so that is exact too.

    Notes
    -----
    *Formal guarantees.* `move` reads the data through one
    `poisson_log_ratios.poisson_log_ratio`; of what follows, only the bit that
    `accept_bit.draw` returns leaves it.
    """
    mh.check_posterior(posterior)
    _check(step_size, clip_bound, expected_batch_size)
    num_records = posterior.num_records
    base_rate = expected_batch_size / num_records

    def limits(dimension):
        """How far a move may go, the largest half range, and the rate of arrivals."""
        reach = math.inf
        if not _is_constant(clip_bound):
            reach = _reach(proposal, step_size, dimension)
        bound = largest(posterior, clip_bound, reach)
        return reach, bound, base_rate + bound

    _, _, least_rate = limits(1)
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
        reach, bound, rate = limits(dimension)
        proposed = proposal.propose(walk_words, state.position, state.walk, step_size)
        centre, half = span(posterior, clip_bound, state.position, proposed, bound)
        estimate = poisson_log_ratios.poisson_log_ratio(
            posterior,
            batches.arrivals(batch_words, rate, num_records),
            rate,
            state.position,
            proposed.position,
            centre,
            half,
            base_rate,
        )
        public = mh.public_ratio(posterior, state, proposed)
        with jax.enable_x64(True):
            log_ratio = estimate + public.astype(jnp.float64)
            log_ratio = jnp.where(proposed.distance <= reach, log_ratio, -jnp.inf)
            sd = noise_sd(half)
        is_accepted = accept_bit.draw(bit_words, family, log_ratio, sd)
        return *mh.answer(is_accepted, state, proposed), memory

    return Transition(num_words, lambda state: None, move, mh.stay, laziness)


def _reach(proposal: Proposal, step_size, dimension: int) -> float:
    """A distance that almost no proposal exceeds."""
    constant = proposal.longest(step_size)
    if constant is not None:
        return constant
    longest = max(jax.tree.leaves(step_size))
    return longest * float(stats.chi(dimension).isf(TOO_FAR))


def _check(step_size, clip_bound, expected_batch_size):
    """Refuse what the kernel cannot run on."""
    mh.check(step_size, getattr(clip_bound, "half_range", clip_bound))
    fixed = [clip_bound] if _is_constant(clip_bound) else jax.tree.leaves(step_size)
    if not all(isinstance(number, (int, float)) for number in fixed):
        raise ValueError(
            "the capacity of a minibatch depends on the clip bound, and on step_size "
            "where the bound grows with the distance: give them as Python numbers, "
            f"not {fixed}"
        )
    if not 0 < expected_batch_size < math.inf:
        raise ValueError(
            "expected_batch_size must be positive and finite, got "
            f"{expected_batch_size}"
        )
