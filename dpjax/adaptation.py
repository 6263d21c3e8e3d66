"""Step size and metric tuned while the chain runs, at no cost in privacy.

Tuning reads the accept bit and the state that a step releases, and nothing else. The
tuned values are therefore post-processing of releases that are charged already, and
they are public. A step that tunes costs as much as any other step, if the cost of a
step does not depend on the tuned values.

*Step size* h: the recursion of Robbins and Monro on the bits of steps t = 0, 1, ...,

    log h <- log h + (1 + t)^-1/2 (bit - target).

BlackJAX's dual averaging has twenty times that gain. It is made for acceptance
probabilities. With accept bits, a single bit would still change the step size by a
factor of about e at step 100.

*Metric* M, the inverse mass matrix: it is replaced at the end of each of Stan's
windows. The new metric is a weighted mean of two covariances. One is that of the n
states of the window. The other is h^2 M / d, that of the jumps, which has the weight of
`PRIOR_STATES` states. Tuned jumps are about as long as acceptance allows, so their
covariance has the right size in any units. (Stan shrinks towards 1e-3 I. With many
records the variance of the posterior is far smaller and would be lost in that.) The
step size is then rescaled to the units of the new metric,

    h <- h sqrt(tr(M_new^-1 M) / d),

so that jumps keep their mean square in the units of the metric, and with it their
acceptance rate.

*Target*: if the clip bound is proportional to h, a budget pays for about 1 / h^2 steps.
The squared distance that these steps travel is proportional to the acceptance rate. So
short steps serve privacy, while the work grows as 1 / h^2. Barker's rule accepts at
most half of the steps, in the limit of short steps. At a rate of .4 a budget still pays
for four fifths of the squared distance that it pays for at that limit. Random walks
have the rate .4 at h = 1 posterior standard deviation in any dimension. There, a
`clip_bound` of 3 / sqrt(T n) nats, with T the tempering and n the number of records,
clips little. Hamiltonian paths have the rate .4 where Metropolis's rule would accept
with a rate of .62.

References: Robbins and Monro 1951; Andrieu and Thoms 2008, section 5; Hoffman and
Gelman 2014; the Stan reference manual (windows).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.base import AdaptationInfo, AdaptationResults
from blackjax.adaptation.mass_matrix import WelfordAlgorithmState, welford_algorithm
from blackjax.adaptation.window_adaptation import build_schedule
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Sampler, Transition, bernoulli
from dpjax.posterior import Posterior
from dpjax.privacy import AcceptBit
from dpjax.privacy.validate import check_count

__all__ = [
    "AdaptationState",
    "AdaptedState",
    "WindowAdaptation",
    "adapted",
    "window_adaptation",
]

PRIOR_STATES = 5
"""Weight of the covariance of the jumps in a new metric, in numbers of states. Stan
gives its 1e-3 I the same weight."""


class AdaptationState(NamedTuple):
    """The public memory of the tuning of one chain.

    step_size
        Tuned step size, a scalar in units of the metric.
    inverse_mass_matrix
        Tuned metric, ``(d,)`` or ``(d, d)``.
    window
        Running mean and sum of squared deviations of the positions in the current
        window.
    num_steps
        Number of steps that the chain has tuned with.
    """

    step_size: jax.Array
    inverse_mass_matrix: jax.Array
    window: WelfordAlgorithmState
    num_steps: jax.Array


class AdaptedState(NamedTuple):
    """Public state of a chain that tunes itself.

    kernel
        State of the sampler's kernel.
    adaptation
        Memory of the tuning.
    """

    kernel: Any
    adaptation: AdaptationState

    @property
    def position(self):
        return self.kernel.position


class WindowAdaptation(NamedTuple):
    """What `window_adaptation` returns, in the form of BlackJAX's AdaptationAlgorithm.

    run
        ``(rng_key, position, num_steps) -> (AdaptationResults, AdaptationInfo)``.
    privacy
        ``(num_steps, neighboring_relation) -> [(event, count), ...]``: the privacy
        events of that many steps of `run`.
    """

    run: Callable[..., tuple[AdaptationResults, AdaptationInfo]]
    privacy: Callable[..., list]


def _where(condition, new, old):
    return jax.tree.map(lambda one, other: jnp.where(condition, one, other), new, old)


def _close_window(state: AdaptationState) -> AdaptationState:
    """Replace the metric and rescale the step size, as the module docstring says."""
    old = state.inverse_mass_matrix
    covariance, count, _ = welford_algorithm(old.ndim == 1)[2](state.window)
    jump = state.step_size**2 / len(old) * old
    new = (count * covariance + PRIOR_STATES * jump) / (count + PRIOR_STATES)
    ratio = old / new if old.ndim == 1 else jnp.diagonal(jnp.linalg.solve(new, old))
    return state._replace(
        step_size=state.step_size * jnp.sqrt(jnp.mean(ratio)),
        inverse_mass_matrix=new,
        window=jax.tree.map(jnp.zeros_like, state.window),
    )


def _learn(state: AdaptationState, stage, position, error, laziness):
    """The memory of the tuning after a step.

    Parameters
    ----------
    stage
        The row of BlackJAX's schedule for this step.
    position
        Position after the step.
    error
        The accept bit less its target, which is the laziness times the target rate.
    laziness
        Share of the steps that move. Only this share of the steps made so far counts in
        the gain.
    """
    is_slow, is_window_end = stage[0] == 1, stage[1] == 1
    gain = (1 + laziness * state.num_steps) ** -0.5
    step_size = state.step_size * jnp.exp(gain * error)
    _, add, _ = welford_algorithm(state.inverse_mass_matrix.ndim == 1)
    window = add(state.window, ravel_pytree(position)[0])
    state = state._replace(
        step_size=step_size.astype(state.step_size.dtype),
        window=_where(is_slow, window, state.window),
        num_steps=state.num_steps + 1,
    )
    return _where(is_window_end, _close_window(state), state)


def _cost(events_fn, step_size, target_acceptance_rate):
    """The events of steps of the size `step_size`, which those of all sizes have.

    Raises
    ------
    ValueError
        If the cost depends on the step size, or the target is out of reach. The cost
        depends on it if it cannot be computed from a traced step size, which has no
        value, or differs from that of `step_size`.
    """
    events, of_any_size = events_fn(step_size), None

    def of_traced(step_size):
        nonlocal of_any_size
        of_any_size = events_fn(step_size)

    reason = None
    try:
        jax.eval_shape(of_traced, jnp.asarray(step_size, float))
    except Exception as error:
        reason = error
    if events != of_any_size:
        raise ValueError(
            "the cost of a step would change with its tuned size: give clip_bound in "
            "nats instead of per distance (or, to dpjax.penalty, a proposal of varying "
            "length)"
        ) from reason
    for event, _ in events:
        bit = getattr(event, "event", event)
        if isinstance(bit, AcceptBit):
            most = math.exp(bit.acceptance.log_accept(np.zeros(())))
            if target_acceptance_rate >= most:
                raise ValueError(
                    f"target_acceptance_rate = {target_acceptance_rate} is out of "
                    f"reach: even the shortest steps are accepted at a rate of "
                    f"{most:.3g}; four fifths of that is a good target"
                )
    return events


def _check_alike(algorithm: Algorithm, charged: Algorithm, state) -> None:
    """Refuse steps of another cost than those that are charged.

    A sampler of the user's could make them once it is given a metric, or when it is
    called again.

    Raises
    ------
    ValueError
        If the cost of a step, its laziness or its number of words differs.
    """

    def seen(algorithm):
        transition = algorithm.transition
        try:
            events = algorithm.privacy(1)
        except Exception:  # It is not private, or depends on a step size without value.
            events = None
        return transition.laziness, transition.num_words(state), events

    if seen(algorithm) != seen(charged):
        raise ValueError(
            "the sampler makes steps of another cost with a tuned step size and metric "
            "than without: they may decide where its steps go, and not what is released"
        )


def adapted(
    posterior: Posterior,
    sampler: Sampler,
    *,
    num_warmup: int,
    is_mass_matrix_diagonal: bool = True,
    initial_inverse_mass_matrix=None,
    initial_step_size: float = 1.0,
    target_acceptance_rate: float = 0.4,
    **parameters,
) -> Algorithm:
    """`sampler` with step size and metric tuned over its first steps, then frozen.

    Pass it to `dpjax.run`, which warms up and samples within one budget::

        algorithm = functools.partial(
            dpjax.adaptation.adapted,
            sampler=dpjax.barker,
            num_warmup=1000,
            clip_bound=0.01,
        )

    Parameters
    ----------
    posterior
        What to sample, and the data.
    sampler
        A sampler of dpjax that takes `step_size` and `inverse_mass_matrix`, and whose
        steps are accepted or rejected.
    num_warmup
        Number of steps that tune: enough for a few hundred moves or more. Fewer than 20
        steps tune the step size only. `dpjax.run` refuses to keep these steps as draws,
        because a chain that tunes does not keep its target.
    is_mass_matrix_diagonal
        Whether the metric is ``(d,)`` or ``(d, d)``.
    initial_inverse_mass_matrix
        The metric to begin with; None is the identity. It must not come from the data.
    initial_step_size
        The step size to begin with, in units of that metric. Prefer one that is too
        long to one that is too short, because steps shrink faster than they grow.
    target_acceptance_rate
        The acceptance rate that tuning aims at, in (0, 1). For a lazy sampler it is the
        rate of the active steps. The default suits Barker's rule; see the module
        docstring.
    parameters
        The other parameters of `sampler`.

    Raises
    ------
    ValueError
        If a parameter is out of range; from ``privacy``, if the cost of a step would
        depend on the tuned values or the target cannot be reached.

    Notes
    -----
    Which steps of a lazy sampler were active is secret, so tuning must not depend on
    it. Tuning learns from every step. It takes an inactive step for a rejection, and
    aims at an acceptance rate of the laziness times the target over all steps. For this
    the coin is tossed inside the step, so every step takes as long as an active one,
    also after warm-up.

    *Formal guarantees.* ``num_steps`` steps, tuning or not, release what as many steps
    of `sampler` release. The tuned values are functions of the released states and
    bits.
    """
    num_warmup = check_count("num_warmup", num_warmup)
    if not 0 < target_acceptance_rate < 1:
        raise ValueError(
            f"target_acceptance_rate must be in (0, 1), got {target_acceptance_rate}"
        )

    def tuned(step_size, inverse_mass_matrix=initial_inverse_mass_matrix):
        return sampler(
            posterior,
            step_size=step_size,
            inverse_mass_matrix=inverse_mass_matrix,
            **parameters,
        )

    initial = tuned(initial_step_size)
    laziness = initial.transition.laziness
    schedule = build_schedule(num_warmup)

    def init(position, rng_key=None):
        kernel = initial.init(position)
        flat = ravel_pytree(kernel.position)[0]
        shape = (flat.size,) if is_mass_matrix_diagonal else (flat.size, flat.size)
        metric = initial_inverse_mass_matrix
        if metric is None:
            metric = jnp.ones(shape) if is_mass_matrix_diagonal else jnp.eye(flat.size)
        if jnp.shape(metric) != shape:
            raise ValueError(
                f"initial_inverse_mass_matrix must have shape {shape}, got "
                f"{jnp.shape(metric)}"
            )
        window = welford_algorithm(is_mass_matrix_diagonal)[0](flat.size)
        step_size, metric, window = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, flat.dtype),
            (initial_step_size, metric, window),
        )
        known = AdaptationState(step_size, metric, window, jnp.zeros((), int))
        return AdaptedState(kernel, known)

    def move(words, state, memory):
        kernel, known = state
        algorithm = tuned(known.step_size, known.inverse_mass_matrix)
        _check_alike(algorithm, initial, kernel)
        step = algorithm.transition
        active = bernoulli(words[:2], laziness)
        kernel, info, memory = _where(
            active,
            step.move(words[2:], kernel, memory),
            (kernel, step.stay(kernel), memory),
        )
        error = info.is_accepted - laziness * target_acceptance_rate
        stage = schedule[known.num_steps]
        learned = _learn(known, stage, kernel.position, error, laziness)
        known = _where(known.num_steps < num_warmup, learned, known)
        return AdaptedState(kernel, known), info, memory

    transition = Transition(
        num_words=lambda state: 2 + initial.transition.num_words(state.kernel),
        move=move,
        stay=lambda state: initial.transition.stay(state.kernel),
        recall=lambda state: initial.transition.recall(state.kernel),
        num_warmup=num_warmup,
    )

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        def events_fn(step_size):
            return tuned(step_size).privacy(num_steps, neighboring_relation)

        return _cost(events_fn, initial_step_size, target_acceptance_rate)

    return Algorithm.of(init, transition, privacy)


def window_adaptation(
    sampler: Sampler,
    posterior: Posterior,
    *,
    is_mass_matrix_diagonal: bool = True,
    initial_inverse_mass_matrix=None,
    initial_step_size: float = 1.0,
    target_acceptance_rate: float = 0.4,
    **extra_parameters,
) -> WindowAdaptation:
    """`blackjax.window_adaptation` for samplers of dpjax: the warm-up of `adapted`.

    The parameters are those of `adapted`; `extra_parameters` are the other parameters
    of `sampler`, and ValueError is raised as there.

    Returns
    -------
    WindowAdaptation
        As in BlackJAX, ``run(rng_key, position, num_steps)`` returns the last state
        with the parameters to call `sampler` with, and the history of all steps.

    Notes
    -----
    *Formal guarantees.* What ``run`` returns is released at the cost of the events of
    ``privacy``, as for `adapted`. Nothing is charged here: there is no budget and no
    ledger.
    """

    algorithm = functools.partial(
        adapted,
        posterior,
        sampler,
        is_mass_matrix_diagonal=is_mass_matrix_diagonal,
        initial_inverse_mass_matrix=initial_inverse_mass_matrix,
        initial_step_size=initial_step_size,
        target_acceptance_rate=target_acceptance_rate,
        **extra_parameters,
    )

    def run(rng_key, position, num_steps=1000):
        init, step, *_ = algorithm(num_warmup=num_steps)

        def one(state, rng_key):
            state, info = step(rng_key, state)
            return state, AdaptationInfo(state.kernel, info, state.adaptation)

        keys = jax.random.split(rng_key, num_steps)
        (kernel, known), history = jax.lax.scan(one, init(position), keys)
        parameters = dict(
            step_size=known.step_size,
            inverse_mass_matrix=known.inverse_mass_matrix,
            **extra_parameters,
        )
        return AdaptationResults(kernel, parameters), history

    return WindowAdaptation(run, algorithm(num_warmup=1).privacy)
