"""One Metropolis-Hastings step on all records whose only release is its accept bit.

`barker`, `penalty` and `hmc` differ in the proposal and in the acceptance function and
share everything else, which is here. Minibatch kernels share the state, the info and
the parts of the step that read no data.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Transition
from dpjax.posterior import Posterior
from dpjax.privacy import AcceptBit, GaussianRelease
from dpjax.privacy.events import repeat
from dpjax.proposals import Move, Proposal
from dpjax.release import accept_bit, clip_bounds, log_ratios
from dpjax.release.clip_bounds import ClipBound

__all__ = [
    "MHInfo",
    "MHState",
    "algorithm",
    "check_posterior",
    "check_step_size",
    "init",
    "move_if",
    "penalty_event",
    "penalty_family",
    "penalty_noise_sd",
    "propose",
    "public_log_ratio",
    "stay",
    "transition",
]


class MHState(NamedTuple):
    """Public state of a chain.

    position
        Pytree, the sampled parameters.
    walk
        The proposal's memory, ``()`` for a random walk.
    """

    position: Any
    walk: Any


class MHInfo(NamedTuple):
    """Public outcome of a step.

    acceptance_rate
        The accept bit as a float. The acceptance probability itself is secret. The bit
        is an unbiased estimate of it, which is what adaptation needs.
    is_accepted
        The accept bit.
    """

    acceptance_rate: jax.Array
    is_accepted: jax.Array


def init(
    position,
    posterior: Posterior | None = None,
    *,
    proposal: Proposal = proposals.gaussian,
    rng_key: jax.Array | None = None,
) -> MHState:
    """State of a chain at the public `position`; no data are read, no key is used.

    `proposal` is that of the kernel; all but `proposals.guided_walk` start alike.
    """
    position = jax.tree.map(jnp.asarray, position)
    return MHState(position, proposal.init(position))


def algorithm(step: Transition, proposal: Proposal, events_fn: Callable) -> Algorithm:
    """The algorithm of a transition, whose chains start with the walk of `proposal`.

    `events_fn` maps a neighbouring relation to the events of one step and their counts.
    """

    def init_chain(position, rng_key=None):
        return init(position, proposal=proposal)

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        return repeat(events_fn(neighboring_relation), num_steps)

    return Algorithm.of(init_chain, step, privacy)


def propose(proposal: Proposal, words, state: MHState, step_size) -> Move:
    """The proposal's move, with the distance for which a step is charged.

    If `Proposal.longest` says that all moves are as long, this is that length, however
    far the move goes: a user's proposal may say so and move farther, and clip bounds
    that grow with the distance must not grow beyond the one that is charged.
    """
    move = proposal.propose(words, state.position, state.walk, step_size)
    distance = proposal.longest(step_size)
    return move if distance is None else move._replace(distance=distance)


def check_posterior(posterior) -> None:
    """Refuse a target that does not name its records."""
    if not isinstance(posterior, Posterior):
        raise TypeError(
            "expected a dpjax.Posterior, which separates the prior from the records' "
            f"log-likelihoods, got {type(posterior).__name__}"
        )


def check_step_size(step_size) -> None:
    """Refuse step sizes that are not positive; traced ones cannot be checked."""
    leaves = jax.tree.leaves(step_size)
    sizes = [np.asarray(leaf) for leaf in leaves if not isinstance(leaf, Tracer)]
    if not all(np.all(np.isfinite(size)) and np.all(size > 0) for size in sizes):
        raise ValueError(f"step_size must be positive and finite, got {step_size}")


def transition(
    posterior: Posterior,
    step_size,
    proposal: Proposal,
    clip_bound: ClipBound,
    family: str,
    noise_sd: Callable = lambda bound: 0.0,
    laziness: float = 1.0,
) -> Transition:
    """The step on all records.

    Parameters
    ----------
    family
        Of the acceptance function, as in `dpjax.acceptance.Acceptance`.
    noise_sd
        ``clip_bound -> nats``: how much noise the acceptance function has for a clip
        bound, untempered, in float64.
    laziness
        Chance that a step moves.

    Notes
    -----
    *Formal guarantees.* `move` reads the data through one `log_ratio_sum`. Of what
    follows, only the bit that `accept_bit.draw` returns leaves it. The memory stays
    inside the runner.
    """
    check_posterior(posterior)
    check_step_size(step_size)

    def num_words(state):
        return 2 + proposal.num_words(ravel_pytree(state.position)[0].size)

    def recall(state):
        return log_ratios.remember(posterior, state.position)

    def move(words, state, memory):
        proposed = propose(proposal, words[2:], state, step_size)
        bound = clip_bound.at(proposed.distance)
        total, memory_proposed = log_ratios.log_ratio_sum(
            posterior, state.position, proposed.position, bound, memory
        )
        public = public_log_ratio(posterior, state, proposed)
        with jax.enable_x64(True):
            log_ratio = posterior.tempering * total + public.astype(jnp.float64)
            sd = noise_sd(jnp.asarray(bound, jnp.float64))
        is_accepted = accept_bit.draw(words[:2], family, log_ratio, sd)
        memory = jax.tree.map(partial(jnp.where, is_accepted), memory_proposed, memory)
        return *move_if(is_accepted, state, proposed), memory

    return Transition(num_words, move, stay, recall, laziness)


def public_log_ratio(posterior: Posterior, state: MHState, proposed: Move) -> jax.Array:
    """The part of the log ratio that reads no data: of the prior and the proposal."""
    prior = posterior.logprior_fn
    return prior(proposed.position) - prior(state.position) + proposed.log_ratio


def move_if(is_accepted, state: MHState, proposed: Move) -> tuple[MHState, MHInfo]:
    """State and info after the accept bit."""
    accepted = MHState(proposed.position, proposed.walk_accepted)
    rejected = MHState(state.position, proposed.walk_rejected)
    state = jax.tree.map(partial(jnp.where, is_accepted), accepted, rejected)
    return state, info_of(is_accepted)


def stay(state) -> MHInfo:
    """Info of a step that does nothing."""
    return info_of(jnp.zeros((), bool))


def info_of(is_accepted) -> MHInfo:
    """The info that holds the bit."""
    return MHInfo(is_accepted.astype(jnp.result_type(float)), is_accepted)


def penalty_family(test_noise_multiplier) -> str:
    """Acceptance family of the penalty method: Metropolis's rule if there is no noise.

    Raises
    ------
    ValueError
        If the multiplier is negative or not finite.
    """
    if isinstance(test_noise_multiplier, Tracer):
        return "penalty"
    if not 0 <= test_noise_multiplier < float("inf"):
        raise ValueError(
            "test_noise_multiplier, the sd of the accept test's noise over the "
            "sensitivity of the log ratio, must be finite and not negative, got "
            f"{test_noise_multiplier}"
        )
    return "penalty" if test_noise_multiplier > 0 else "metropolis"


def penalty_noise_sd(posterior: Posterior, test_noise_multiplier, bound):
    """Nats of noise: the multiplier times the sensitivity under substitution.

    `bound` is the clip bound in nats, untempered.
    """
    return posterior.tempering * test_noise_multiplier * 2.0 * bound


def penalty_event(
    posterior: Posterior,
    test_noise_multiplier,
    clip_bound: ClipBound,
    distance: float | None,
    neighboring_relation: NeighboringRelation,
) -> AcceptBit | GaussianRelease:
    """What the accept test of one step of the penalty method releases.

    An accept bit if one clip bound holds for all moves of a proposal over `distance`.
    Otherwise the Gaussian release of the log ratio, of which the bit is
    post-processing: clip bound and noise grow alike, so their ratio is known.
    """
    if test_noise_multiplier == 0:
        raise ValueError("without noise the penalty method is not private")
    bound = clip_bound.largest(distance)
    if bound is None:
        multiplier = test_noise_multiplier * 2.0
        multiplier /= clip_bounds.log_ratio_sensitivity(1.0, neighboring_relation)
        return GaussianRelease(multiplier, acceptance.FAILURE_PROB)
    tempered = posterior.tempering * bound
    sensitivity = clip_bounds.log_ratio_sensitivity(tempered, neighboring_relation)
    noise_sd = penalty_noise_sd(posterior, test_noise_multiplier, bound)
    return AcceptBit(acceptance.penalty(noise_sd), sensitivity)
