"""One Metropolis-Hastings step on all records, which releases its accept bit.

`transition` is the step of `barker`, `penalty` and `hmc`, which differ only in the
proposal and the acceptance function. The minibatch kernels use the state, the info and
those parts of the step that read no data.
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
        The sampled parameters, a pytree.
    walk
        The memory of the proposal (`Proposal.init`), ``()`` for a random walk.
    """

    position: Any
    walk: Any


class MHInfo(NamedTuple):
    """Public outcome of a step.

    acceptance_rate
        The accept bit as a float. It is an unbiased estimate of the acceptance
        probability, which is secret, and adaptation needs no more than that.
    is_accepted
        The accept bit, a boolean scalar.
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
    """State of a chain that starts at the public `position`.

    Parameters
    ----------
    position
        The sampled parameters, a pytree.
    posterior, rng_key
        Not used; BlackJAX's `init` functions take them.
    proposal
        The proposal of the kernel, if its memory is not empty, as that of
        `proposals.guided_walk`.
    """
    position = jax.tree.map(jnp.asarray, position)
    return MHState(position, proposal.init(position))


def algorithm(step: Transition, proposal: Proposal, events_fn: Callable) -> Algorithm:
    """The algorithm that makes the step of a transition.

    Parameters
    ----------
    step
        The step of the kernel.
    proposal
        The proposal of the kernel, which makes the first `walk` of a chain.
    events_fn
        ``neighboring_relation -> [(event, count), ...]``: what one step releases.
    """

    def init_chain(position, rng_key=None):
        return init(position, proposal=proposal)

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        return repeat(events_fn(neighboring_relation), num_steps)

    return Algorithm.of(init_chain, step, privacy)


def propose(proposal: Proposal, words, state: MHState, step_size) -> Move:
    """Draw the move of a step from its proposal.

    If `Proposal.longest` gives one length for all moves, the step is charged for that
    length. The distance of the move is then set to it, because a clip bound that grows
    with the distance must not exceed the one that is charged. Without that, a proposal
    of the user could state one length and move farther.
    """
    move = proposal.propose(words, state.position, state.walk, step_size)
    distance = proposal.longest(step_size)
    return move if distance is None else move._replace(distance=distance)


def check_posterior(posterior) -> None:
    """Raise `TypeError` if the target is not a `Posterior`."""
    if not isinstance(posterior, Posterior):
        raise TypeError(
            "expected a dpjax.Posterior, which separates the prior from the records' "
            f"log-likelihoods, got {type(posterior).__name__}"
        )


def check_step_size(step_size) -> None:
    """Refuse a step size that is not positive and finite.

    `step_size` is a scalar or a pytree. Traced leaves have no values to check.
    """
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
    """The Metropolis-Hastings step on all records.

    Parameters
    ----------
    posterior, step_size
        As in the kernels, such as `dpjax.barker`.
    proposal, clip_bound
        The proposal, with its metric if there is one, and the bound on the log ratio of
        one record.
    family
        Family of the acceptance function, as in `dpjax.acceptance.Acceptance`.
    noise_sd
        ``clip_bound -> noise_sd``: standard deviation of the acceptance function's
        noise in nats, for a move with this untempered clip bound. Both are float64.
    laziness
        Probability that a step does anything.

    Notes
    -----
    *Formal guarantees.* `move` reads the data through one call of `log_ratio_sum`. It
    releases the bit that `accept_bit.draw` returns, and nothing else. The memory is
    secret and stays inside the runner.
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
        return *move_if(is_accepted, state, proposed, laziness), memory

    return Transition(num_words, move, stay, recall, laziness)


def public_log_ratio(posterior: Posterior, state: MHState, proposed: Move) -> jax.Array:
    """The log ratio of the prior and the proposal, which reads no data."""
    prior = posterior.logprior_fn
    change = prior(proposed.position) - prior(state.position)
    return jnp.asarray(change + proposed.log_ratio)


def move_if(
    is_accepted, state: MHState, proposed: Move, laziness: float = 1.0
) -> tuple[MHState, MHInfo]:
    """The next state and the info, given the accept bit.

    Raises
    ------
    ValueError
        If `laziness` is below one and the proposal has a memory. The coin of a lazy
        step is secret, so a step that does nothing must look like a rejected one, and
        the memory could tell the two apart.
    """
    if laziness < 1 and jax.tree.leaves(state.walk):
        raise ValueError(
            f"with laziness {laziness:.3g}, a step that does nothing must look like a "
            "rejected one, but the proposal has a memory that may tell them apart, as "
            "guided_walk has: take laziness=1, or a proposal without a memory"
        )
    accepted = MHState(proposed.position, proposed.walk_accepted)
    rejected = MHState(state.position, proposed.walk_rejected)
    state = jax.tree.map(partial(jnp.where, is_accepted), accepted, rejected)
    return state, info_of(is_accepted)


def stay(state) -> MHInfo:
    """The info of a lazy step that does nothing: a rejection."""
    return info_of(jnp.zeros((), bool))


def info_of(is_accepted) -> MHInfo:
    """The info of a step with this accept bit."""
    return MHInfo(is_accepted.astype(jnp.result_type(float)), is_accepted)


def penalty_family(test_noise_multiplier) -> tuple[str, Any]:
    """The acceptance family of the penalty method; "metropolis" if there is no noise.

    The multiplier is returned beside it, as a Python float unless it is traced. A NumPy
    scalar of half precision would round the products that it enters to half precision.

    Raises
    ------
    ValueError
        If the multiplier is negative or not finite.
    """
    if isinstance(test_noise_multiplier, Tracer):
        return "penalty", test_noise_multiplier
    if not 0 <= test_noise_multiplier < float("inf"):
        raise ValueError(
            "test_noise_multiplier, the sd of the accept test's noise over the "
            "sensitivity of the log ratio, must be finite and not negative, got "
            f"{test_noise_multiplier}"
        )
    family = "penalty" if test_noise_multiplier > 0 else "metropolis"
    return family, float(test_noise_multiplier)


def penalty_noise_sd(posterior: Posterior, test_noise_multiplier, bound):
    """Standard deviation of the accept test's noise, in nats.

    It is the multiplier times the sensitivity of the log ratio under substitution.
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
    """The event of the accept bit of one step of the penalty method.

    The event is an accept bit if one clip bound holds for all moves. Otherwise it is
    the Gaussian release of the log ratio, of which the bit is post-processing. The
    noise grows in proportion to the clip bound, so the noise multiplier of that release
    is known.

    Parameters
    ----------
    posterior, test_noise_multiplier, clip_bound, neighboring_relation
        As in the kernels; only the tempering of the posterior is used.
    distance
        The distance of all moves of the proposal, `Proposal.longest`; None if it
        varies.

    Raises
    ------
    ValueError
        If there is no noise, or if records are added or removed.
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
