"""DP-Fast MH as published: min(1, e^l), and Gaussian noise where that is not private.

With c M the bound on one record's log ratio at distance M and C = n c, a proposal with
lambda + C M < K is decided on a minibatch, as in TunaMH, and any other on all records.
Each test adds N(-s^2/2, s^2) to its log ratio if a substitution can move that by more
than a threshold, and nothing otherwise:

    minibatch:    2 log(1 + C M / lambda) > e',  s = 2 log(1 + C M / lambda) g(e', d'),
    all records:  2 c M > e,                     s = 2 c M g(e, d),

    e' = e n / (6 K),    d' = d n / (2 K),    g(e, d) = sqrt(2 log(1.25 / d)) / e.

The paper claims (e, d)-differential privacy of every step. That holds where noise is
added, which leaves next to no moves: s is at least sqrt(2 log(1.25 / d)) nats, 4.8 at
d = 1e-5. Where none is, only the total variation is bounded: T steps on all records
whose ratio a substitution moves by D are (e, 1 - exp(-T D))-private for every e >= 0,
and no better. `fast_mh` has neither fault.

This is the code of the paper, but c is public and noise normal. The paper prints two
things that do not keep the posterior: it compares the size of the minibatch drawn, not
lambda + C M, with K, and takes s^2 / 2 off where there is no noise too.

Reference: Zhang and Zhang 2023, Algorithm 2.
"""

import functools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax import custom_batching, lax
from jax.flatten_util import ravel_pytree

from dpjax import acceptance, privacy, proposals
from dpjax.algorithm import Algorithm, Sampler, Transition, take_step
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.mcmc import poisson_step
from dpjax.posterior import Posterior
from dpjax.proposals import Proposal
from dpjax.release import clip_bounds

__all__ = ["as_top_level_api", "build_kernel", "fast_mh_published", "init"]


def init(
    position,
    posterior: Posterior | None = None,
    *,
    proposal: Proposal = proposals.gaussian,
    rng_key: jax.Array | None = None,
) -> mh.MHState:
    """State of a chain at the public `position`; no data are read, no key is used."""
    return mh.init(position, proposal)


@dataclass(frozen=True)
class Tests:
    """The two accept tests, by `is_full`, and when noise is added to which of them.

    Bounds, c M above, are tempered, in nats.
    """

    num_records: int
    expected_batch_size: float
    max_batch_size: float
    epsilon: float
    delta: float

    def __post_init__(self):
        if not (0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise ValueError(
                "epsilon must be positive and finite and delta in (0, 1), got "
                f"{self.epsilon} and {self.delta}"
            )
        least = self.delta * self.num_records / 2
        if not least < self.max_batch_size < math.inf:
            raise ValueError(
                f"max_batch_size must be finite and above delta n / 2 = {least:g}, got "
                f"{self.max_batch_size}"
            )

    def claim(self, is_full: bool) -> tuple[float, float]:
        """The epsilon and delta that noise is calibrated for."""
        if is_full:
            return self.epsilon, self.delta
        share = self.num_records / self.max_batch_size
        return self.epsilon * share / 6, self.delta * share / 2

    def moved(self, is_full: bool, bound):
        """How far the log ratio can move, in nats."""
        if is_full:
            return 2 * bound
        return 2 * jnp.log1p(self.num_records * bound / self.expected_batch_size)

    def noise_sd(self, is_full: bool, bound):
        """s in nats."""
        epsilon, delta = self.claim(is_full)
        multiplier = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
        return multiplier * self.moved(is_full, bound)

    def kind(self, bound):
        """Which test decides: ``2 * is_full + is_noisy``, a public integer."""
        with jax.enable_x64(True):
            bound = jnp.asarray(bound, jnp.float64)
            drawn = self.expected_batch_size + self.num_records * bound
            is_full = drawn >= self.max_batch_size
            noisy = [self.moved(i, bound) > self.claim(i)[0] for i in (False, True)]
            return 2 * is_full + jnp.where(is_full, noisy[True], noisy[False])


def _constant_bound(posterior, step_size, clip_bound, proposal) -> float | None:
    """The tempered bound if it is the same for all proposals."""
    distance = proposal.longest(step_size)
    if isinstance(clip_bound, clip_bounds.Lipschitz) and distance is None:
        return None
    return poisson_step.largest(posterior, clip_bound, distance)


def _evaluate(function, bound: float) -> float:
    """A function of `Tests` at a number, in float64, also while JAX traces."""
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        return float(function(jnp.asarray(bound, jnp.float64)))


def _transition(posterior, step_size, clip_bound, tests, proposal) -> Transition:
    def of_kind(posterior, kind):
        is_full, is_noisy = divmod(kind, 2)
        family = "penalty" if is_noisy else "metropolis"

        def noise_sd(bound):
            if is_full:
                bound = posterior.tempering * bound
            return tests.noise_sd(is_full, bound) if is_noisy else 0.0

        if is_full:
            return mh.transition(
                posterior, step_size, proposal, clip_bound, family, noise_sd
            )
        return poisson_step.transition(
            posterior,
            step_size,
            proposal,
            clip_bound,
            tests.expected_batch_size,
            family,
            noise_sd,
        )

    bound = _constant_bound(posterior, step_size, clip_bound, proposal)
    if bound is not None:
        return of_kind(posterior, int(_evaluate(tests.kind, bound)))

    leaves, treedef = jax.tree.flatten(posterior)

    # Chain after chain: side by side, every chain would make every kind of step.
    @custom_batching.sequential_vmap
    def step(leaves, kind, words, state):
        posterior = treedef.unflatten(leaves)
        used = 2 + proposal.num_words(ravel_pytree(state.position)[0].size)

        def branch(kind):
            move = of_kind(posterior, kind).move
            return lambda: move(words[:used] if kind >= 2 else words, state, None)[:2]

        return lax.switch(kind, [branch(kind) for kind in range(4)])

    def move(words, state, memory):
        dimension = ravel_pytree(state.position)[0].size
        walk_words = words[2 : 2 + proposal.num_words(dimension)]
        proposed = proposal.propose(walk_words, state.position, state.walk, step_size)
        bound = posterior.tempering * mh.clip_at(clip_bound, proposed.distance)
        return *step(leaves, tests.kind(bound), words, state), memory

    return Transition(
        num_words=of_kind(posterior, 0).num_words,
        recall=lambda state: None,
        move=move,
        stay=mh.stay,
    )


def build_kernel():
    """Build the kernel: see `as_top_level_api` for its parameters."""

    def kernel(
        rng_key: jax.Array,
        state: mh.MHState,
        posterior: Posterior,
        step_size,
        *,
        clip_bound,
        expected_batch_size: float,
        max_batch_size: float,
        epsilon: float,
        delta: float,
        proposal: Proposal = proposals.gaussian,
        inverse_mass_matrix=None,
    ) -> tuple[mh.MHState, mh.MHInfo]:
        algorithm = as_top_level_api(
            posterior,
            step_size,
            clip_bound=clip_bound,
            expected_batch_size=expected_batch_size,
            max_batch_size=max_batch_size,
            epsilon=epsilon,
            delta=delta,
            proposal=proposal,
            inverse_mass_matrix=inverse_mass_matrix,
        )
        return take_step(rng_key, state, algorithm.transition)

    return kernel


def as_top_level_api(
    posterior: Posterior,
    step_size,
    *,
    clip_bound,
    expected_batch_size: float,
    max_batch_size: float,
    epsilon: float,
    delta: float,
    proposal: Proposal = proposals.gaussian,
    inverse_mass_matrix=None,
) -> Algorithm:
    """DP-Fast MH (Zhang and Zhang 2023), which is less private than it claims.

    Parameters
    ----------
    posterior
        What to sample, and the data.
    step_size
        Scale of the proposal, in the units of the position or of the metric.
    clip_bound
        c M, the bound in nats on one record's log ratio: a number, or
        `Lipschitz` for one that grows with the distance (the paper's choice).
    expected_batch_size
        lambda.
    max_batch_size
        K, above d n / 2: a step expected to draw as many records or more reads all.
    epsilon, delta
        e and d, what the paper claims of each step.
    proposal
        One of `dpjax.proposals`.
    inverse_mass_matrix
        The metric, ``(d,)`` or ``(d, d)``: see `proposals.in_metric`.

    Raises
    ------
    ValueError
        If a parameter is out of range; by `privacy`, if the cost of a step has no
        bound, or noise is so loud that nothing is ever accepted.

    Notes
    -----
    *Formal guarantees.* A step releases one bit, Metropolis's or the penalty method's,
    of all records or of Poisson counts. `privacy` returns that event, not the claim.
    Which of the four it is follows from the distance, which is public.
    """
    mh.check_posterior(posterior)
    if isinstance(clip_bound, clip_bounds.Range):
        raise ValueError(
            "DP-Fast MH as published has no centre: clip_bound must be a number or "
            "clip_bounds.Lipschitz"
        )
    tests = Tests(
        posterior.num_records, expected_batch_size, max_batch_size, epsilon, delta
    )
    transition = _transition(
        posterior,
        step_size,
        clip_bound,
        tests,
        proposals.in_metric(proposal, inverse_mass_matrix),
    )

    def steps(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        bound = _constant_bound(posterior, step_size, clip_bound, proposal)
        accept, is_full = acceptance.metropolis(), False
        if bound is not None:
            is_full, is_noisy = divmod(int(_evaluate(tests.kind, bound)), 2)
            if is_noisy:
                noise_sd = _evaluate(functools.partial(tests.noise_sd, is_full), bound)
                accept = acceptance.penalty(noise_sd)
        if is_full:
            moved = clip_bounds.sensitivity(bound, neighboring_relation)
            return [(privacy.AcceptBit(accept, moved), num_steps)]
        event = poisson_step.event(
            posterior,
            accept,
            clip_bound,
            proposal.longest(step_size),
            expected_batch_size,
            neighboring_relation,
        )
        return [(event, num_steps)]

    return mh.algorithm(transition, proposal, steps)


fast_mh_published = Sampler(as_top_level_api, init, build_kernel)
