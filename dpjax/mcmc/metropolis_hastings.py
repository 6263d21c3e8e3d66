"""One Metropolis-Hastings step whose only release is its accept bit.

The kernels differ in the acceptance function, and in nothing else.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from dpjax import acceptance, privacy
from dpjax.algorithm import Algorithm, Transition, take_step
from dpjax.posterior import Posterior
from dpjax.proposals import Move, Proposal
from dpjax.release import accept_bit, clip_bounds, log_ratios

__all__ = [
    "MHInfo",
    "MHState",
    "algorithm",
    "answer",
    "check",
    "check_posterior",
    "clip_at",
    "init",
    "penalty_event",
    "penalty_family",
    "penalty_noise_sd",
    "public_ratio",
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
    """Public information on a step.

    acceptance_rate
        The accept bit as a float. The acceptance probability itself is secret; the
        bit is an unbiased estimate of it, which is what adaptation needs.
    is_accepted
        The accept bit.
    """

    acceptance_rate: jax.Array
    is_accepted: jax.Array


def init(position, proposal: Proposal) -> MHState:
    """State of a chain at `position`."""
    position = jax.tree.map(jnp.asarray, position)
    return MHState(position, proposal.init(position))


def algorithm(step: Transition, proposal: Proposal, steps_fn) -> Algorithm:
    """The top-level algorithm of a transition and its cost."""
    return Algorithm(
        init=lambda position, rng_key=None: init(position, proposal),
        step=lambda rng_key, state: take_step(rng_key, state, step),
        privacy=steps_fn,
        transition=step,
    )


def clip_at(clip_bound, distance):
    """The clip bound in nats for a move over `distance`."""
    if isinstance(clip_bound, clip_bounds.Lipschitz):
        return clip_bound.constant * distance
    return clip_bound


def check_posterior(posterior) -> None:
    """Refuse what does not name its records."""
    if not isinstance(posterior, Posterior):
        raise TypeError(
            "expected a dpjax.Posterior, which separates the prior from the records' "
            f"log-likelihoods, got {type(posterior).__name__}"
        )


def check(step_size, clip_bound) -> None:
    """Refuse values that are not positive; traced ones cannot be checked."""
    sizes = [leaf for leaf in jax.tree.leaves(step_size) if not _traced(leaf)]
    if not all(np.all(np.isfinite(size)) and np.all(size > 0) for size in sizes):
        raise ValueError(f"step_size must be positive and finite, got {step_size}")
    value = getattr(clip_bound, "constant", clip_bound)
    if not _traced(value) and not value > 0:
        raise ValueError(
            f"clip_bound must be positive, got {value}: it bounds, in nats, what one "
            "record adds to the log ratio"
        )


def _traced(value) -> bool:
    return isinstance(value, Tracer)


def penalty_family(noise_multiplier) -> str:
    """The acceptance family of a noise multiplier, checked; without noise Metropolis's.

    Raises
    ------
    ValueError
        If it is negative or not finite.
    """
    if _traced(noise_multiplier):
        return "penalty"
    if not 0 <= noise_multiplier < float("inf"):
        raise ValueError(
            "noise_multiplier, the noise sd over the sensitivity, must be finite and "
            f"not negative, got {noise_multiplier}"
        )
    return "penalty" if noise_multiplier > 0 else "metropolis"


def penalty_noise_sd(posterior: Posterior, noise_multiplier, clip_bound):
    """Nats of noise: the multiplier times the sensitivity under substitution."""
    return posterior.tempering * noise_multiplier * 2.0 * clip_bound


def penalty_event(
    posterior: Posterior, noise_multiplier, clip_bound, distance, neighboring_relation
) -> privacy.AcceptBit | privacy.GaussianRelease:
    """What the accept test of one step of the penalty method releases.

    A bit where the clip bound is constant; where it varies with the `distance`, here
    None, the Gaussian release whose post-processing the bit is.
    """
    if noise_multiplier == 0:
        raise ValueError("without noise the penalty method is not private")
    if isinstance(clip_bound, clip_bounds.Lipschitz) and distance is None:
        multiplier = noise_multiplier * 2.0
        multiplier /= clip_bounds.sensitivity(1.0, neighboring_relation)
        return privacy.GaussianRelease(multiplier, acceptance.TOTAL_VARIATION)
    bound = clip_at(clip_bound, distance)
    moved = posterior.tempering * clip_bounds.sensitivity(bound, neighboring_relation)
    noise_sd = penalty_noise_sd(posterior, noise_multiplier, bound)
    return privacy.AcceptBit(acceptance.penalty(noise_sd), moved)


def transition(
    posterior: Posterior,
    step_size,
    proposal: Proposal,
    clip_bound,
    family: str,
    noise_sd=lambda bound: 0.0,
    laziness: float = 1.0,
) -> Transition:
    """The step as `Transition`; `noise_sd` maps the clip bound to nats of noise.

    Notes
    -----
    *Formal guarantees.* `move` reads the data through one `log_ratio_sum`; of
    what follows, only the bit that `accept_bit.draw` returns leaves it. The memory
    stays inside the runner.
    """
    check_posterior(posterior)
    check(step_size, clip_bound)

    def num_words(state):
        return 2 + proposal.num_words(ravel_pytree(state.position)[0].size)

    def recall(state):
        return log_ratios.remember(posterior, state.position)

    def move(words, state, memory):
        proposed = proposal.propose(words[2:], state.position, state.walk, step_size)
        bound = clip_at(clip_bound, proposed.distance)
        total, memory_proposed = log_ratios.log_ratio_sum(
            posterior, state.position, proposed.position, bound, memory
        )
        public = public_ratio(posterior, state, proposed)
        with jax.enable_x64(True):
            log_ratio = posterior.tempering * total + public.astype(jnp.float64)
            sd = noise_sd(jnp.asarray(bound, jnp.float64))
        is_accepted = accept_bit.draw(words[:2], family, log_ratio, sd)
        memory = jax.tree.map(
            lambda new, old: jnp.where(is_accepted, new, old), memory_proposed, memory
        )
        return *answer(is_accepted, state, proposed), memory

    return Transition(num_words, recall, move, stay, laziness)


def public_ratio(posterior: Posterior, state: MHState, proposed: Move) -> jax.Array:
    """The part of the log ratio that reads no data: prior and proposal."""
    prior = posterior.logprior_fn
    return prior(proposed.position) - prior(state.position) + proposed.log_ratio


def answer(is_accepted, state: MHState, proposed: Move) -> tuple[MHState, MHInfo]:
    """State and info after the accept bit."""
    accepted = MHState(proposed.position, proposed.walk_accepted)
    rejected = MHState(state.position, proposed.walk_rejected)
    state = jax.tree.map(
        lambda new, old: jnp.where(is_accepted, new, old), accepted, rejected
    )
    return state, _info(is_accepted)


def stay(state) -> MHInfo:
    """Info of a step that does nothing."""
    return _info(jnp.zeros((), bool))


def _info(is_accepted):
    return MHInfo(is_accepted.astype(jnp.result_type(float)), is_accepted)
