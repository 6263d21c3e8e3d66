"""DP-Fast MH as published: Metropolis's test, with Gaussian noise on some steps.

Let c M be the bound on one record's log ratio at distance M, and C = n c. A proposal
with lambda + C M < K is decided on a minibatch, as in TunaMH. Any other proposal is
decided on all records. Each of the two accept tests adds N(-s^2/2, s^2) to its log
ratio if a substitution can move that ratio by more than a threshold, and adds no noise
otherwise:

    minibatch:    2 log(1 + C M / lambda) > e',  s = 2 log(1 + C M / lambda) g(e', d'),
    all records:  2 c M > e,                     s = 2 c M g(e, d),

    e' = e n / (6 K),    d' = d n / (2 K),    g(e, d) = sqrt(2 log(1.25 / d)) / e.

The paper claims (e, d)-differential privacy of every step. The claim holds for steps
with noise. But their s is at least sqrt(2 log(1.25 / d)) nats, which is 4.8 at
d = 1e-5, so almost no move is accepted. For steps without noise, only the total
variation is bounded. If a substitution moves the log ratio of all records by D, then T
such steps are (e, 1 - exp(-T D))-private for every e >= 0, and no better.
`dpjax.fast_mh` has neither fault.

The code below follows the paper's own code, but c is public and the noise is normal. It
differs from the printed algorithm in two things, because these do not keep the
posterior: the paper compares K with the size of the minibatch that was drawn, in place
of lambda + C M, and it subtracts s^2 / 2 also where there is no noise.

Reference: Zhang and Zhang 2023, Algorithm 2.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import custom_batching, lax
from jax.flatten_util import ravel_pytree

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Sampler, Transition
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.mcmc import poisson_step
from dpjax.posterior import Posterior
from dpjax.privacy import AcceptBit
from dpjax.proposals import Proposal
from dpjax.release import clip_bounds

__all__ = ["as_top_level_api", "fast_mh_published"]


class AcceptTest(NamedTuple):
    """The accept test on a minibatch, or that on all records.

    In its functions, `bound` is c M, tempered, in nats, a float64 scalar.

    epsilon, delta
        The privacy that the noise is calibrated for: e' and d' for the test on a
        minibatch, e and d for that on all records.
    sensitivity
        ``bound -> nats``: how far a substitution can move the log ratio.
    """

    epsilon: float
    delta: float
    sensitivity: Callable

    def is_noisy(self, bound):
        """Whether noise is added; call it under `jax.enable_x64(True)`."""
        return self.sensitivity(bound) > self.epsilon

    def noise_sd(self, bound):
        """s in nats, for a noisy test; call it under `jax.enable_x64(True)`."""
        multiplier = math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon
        return multiplier * self.sensitivity(bound)


def as_top_level_api(
    posterior: Posterior,
    step_size,
    inverse_mass_matrix=None,
    *,
    clip_bound,
    expected_batch_size: float,
    max_batch_size: float,
    epsilon: float,
    delta: float,
    proposal: Proposal = proposals.gaussian,
) -> Algorithm:
    """DP-Fast MH (Zhang and Zhang 2023), which is less private than the paper claims.

    Parameters
    ----------
    posterior, step_size, proposal, inverse_mass_matrix
        As in `dpjax.tuna`.
    clip_bound
        c M, the bound in nats on one record's log ratio: a number, or `Lipschitz` for a
        bound proportional to the distance (the paper's choice).
    expected_batch_size
        lambda, the number of records that a step would draw on average if c M were 0.
    max_batch_size
        K, above d n / 2. A step that would draw K or more records on average reads all
        records.
    epsilon, delta
        e and d: the paper claims that each step is (e, d)-differentially private.

    Raises
    ------
    ValueError
        If a parameter is out of range; from ``privacy``, if the cost of a step has no
        bound, or there is so much noise that nothing is ever accepted.

    Notes
    -----
    *Formal guarantees.* A step releases one bit. The bit is that of Metropolis's test
    or that of the penalty method, on all records or on Poisson counts. The distance of
    the move, which is public, decides which of these four it is. ``privacy`` returns
    the event of that bit, and not the paper's claim.
    """
    mh.check_posterior(posterior)
    num_records = posterior.num_records
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise ValueError(
            "epsilon must be positive and finite and delta in (0, 1), got "
            f"{epsilon} and {delta}"
        )
    # This K keeps d' below 1. With d' = 1.25 the minibatch test would have no noise.
    least = delta * num_records / 2
    if not least < max_batch_size < math.inf:
        raise ValueError(
            f"max_batch_size must be finite and above delta n / 2 = {least:g}, got "
            f"{max_batch_size}"
        )
    clip_bound = clip_bounds.of(clip_bound)
    proposal = proposals.settled(proposal, step_size, inverse_mass_matrix)
    largest = clip_bound.largest(proposal.longest(step_size))
    share = num_records / max_batch_size
    of_minibatch = AcceptTest(
        epsilon * share / 6,
        delta * share / 2,
        lambda bound: 2 * jnp.log1p(num_records * bound / expected_batch_size),
    )
    of_all = AcceptTest(epsilon, delta, lambda bound: 2 * bound)

    def kind_of(bound):
        """The kind of a step, ``2 * reads_all + is_noisy``, for the tempered c M.

        The four kinds are the combinations of the two tests, with and without noise.
        """
        with jax.enable_x64(True):
            bound = jnp.asarray(bound, jnp.float64)
            reads_all = expected_batch_size + num_records * bound >= max_batch_size
            are_noisy = of_all.is_noisy(bound), of_minibatch.is_noisy(bound)
            return 2 * reads_all + jnp.where(reads_all, *are_noisy)

    def kind_of_move(words, state):
        """The kind of the step from `state` that draws its proposal from `words`."""
        dimension = ravel_pytree(state.position)[0].size
        walk_words = words[2 : 2 + proposal.num_words(dimension)]
        proposed = proposal.propose(walk_words, state.position, state.walk, step_size)
        return kind_of(posterior.tempering * clip_bound.at(proposed.distance))

    def step(posterior, kind: int) -> Transition:
        """The step of one kind. Metropolis's rule ignores the standard deviation."""
        reads_all, is_noisy = divmod(kind, 2)
        family = "penalty" if is_noisy else "metropolis"
        if not reads_all:
            return poisson_step.transition(
                posterior,
                step_size,
                proposal,
                clip_bound,
                expected_batch_size,
                family,
                of_minibatch.noise_sd,
            )

        def noise_sd(bound):
            return of_all.noise_sd(posterior.tempering * bound)

        return mh.transition(
            posterior, step_size, proposal, clip_bound, family, noise_sd
        )

    if largest is None:
        # Kind and bound change from step to step. `poisson_step.event` then raises an
        # error when it is asked for a cost.
        kind, bound = 0, math.nan
        transition = _switch(posterior, step, kind_of_move)
    else:
        bound = posterior.tempering * largest
        kind = int(_value(kind_of, bound))
        transition = step(posterior, kind)

    def events(neighboring_relation):
        reads_all, is_noisy = divmod(kind, 2)
        accept = acceptance.metropolis()
        if is_noisy:
            test = of_all if reads_all else of_minibatch
            accept = acceptance.penalty(_value(test.noise_sd, bound))
        if reads_all:
            sensitivity = clip_bounds.log_ratio_sensitivity(bound, neighboring_relation)
            return [(AcceptBit(accept, sensitivity), 1)]
        event = poisson_step.event(
            posterior, accept, largest, expected_batch_size, neighboring_relation
        )
        return [(event, 1)]

    return mh.algorithm(transition, proposal, events)


def _value(function: Callable, bound: float) -> float:
    """``function(bound)`` as a Python float, also while JAX traces the caller."""
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        return float(function(jnp.asarray(bound, jnp.float64)))


def _switch(posterior: Posterior, step: Callable, kind_of_move: Callable) -> Transition:
    """The step whose kind differs from move to move.

    Parameters
    ----------
    step
        ``(posterior, kind) -> Transition``, for the kinds 0 to 3.
    kind_of_move
        ``(words, state) -> kind``.
    """
    leaves, treedef = jax.tree.flatten(posterior)

    # Under `jax.vmap`, a switch would compute all four kinds of step for every chain.
    # `sequential_vmap` computes one kind for each chain, one chain after another.
    @custom_batching.sequential_vmap
    def step_of_kind(leaves, kind, words, state):
        def branch(kind):
            transition = step(treedef.unflatten(leaves), kind)
            used = words[: transition.num_words(state)]
            return lambda: transition.move(used, state, None)[:2]

        return lax.switch(kind, [branch(kind) for kind in range(4)])

    def move(words, state, memory):
        return *step_of_kind(leaves, kind_of_move(words, state), words, state), memory

    return Transition(step(posterior, 0).num_words, move, mh.stay)


fast_mh_published = Sampler.of(as_top_level_api, mh.init)
"""DP-Fast MH as published: see `as_top_level_api`."""
