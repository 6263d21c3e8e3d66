"""The step that SGLD, SGHMC and SGNHT share: a noisy gradient and an optax update.

A step of size eta computes

    G = (grad log prior + T/q (sum over the sample of clip(grad l_i) + noise)) / N

and adds eta G to the position or to a velocity. Here l_i is the log-likelihood of
record i, N the number of records, and T the tempering. Each record enters the sample
with chance q, independently of the others. The divisor q N is public. The gradient of
the prior is exact and is not clipped.

The noise multiplier sigma is the standard deviation of the noise over the clip norm C.
It gives the update eta G noise of the standard deviation

    s = eta sigma T C / (q N).

The temperature of a sampler determines s, and sigma follows from s. So the noise that
protects the records is the noise that the dynamics need anyway. An optax transformation
makes the update of the position from G.

The random choice of the sample adds variance to the update too. In a direction in which
the clipped gradients of single records have the mean square v, it adds
(eta T)^2 v / (q N). If this is not small beside s^2, the chain is hotter than it should
be. It is a tenth of s^2 if sigma^2 = 10 q N v / C^2. As v <= C^2, sigma^2 >= 10 q N is
always enough. `temperature.excess_temperature` estimates this excess from a run.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Transition
from dpjax.posterior import Posterior
from dpjax.privacy.step_size import round_down
from dpjax.privacy.validate import check_count, check_positive_number
from dpjax.release.gaussian import MAX_NOISE_MULTIPLIER
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.gradient_parts import gradient_parts
from dpjax.release.nominal import nominal_size
from dpjax.release.traced import equations

__all__ = [
    "MAX_SCHEDULED_STEPS",
    "SGMCMCInfo",
    "SGMCMCState",
    "Scales",
    "algorithm",
    "check_friction",
]

MAX_SCHEDULED_STEPS = 10**7
"""The most steps of a run whose step size follows a schedule. The size of each of them
is evaluated for the accountant."""

STEP_SIZE_TOLERANCE, MAX_ROUNDING = 2.0**-20, 2.0**-10
"""Two relative differences of step sizes. The accountant evaluates a schedule itself,
and the result may be rounded in another way than in the step. The first number is the
least difference for which the charge allows. The charge allows for more if uncompiled
evaluations, or those in float64, differ. If they differ by the second number or more,
the schedule is refused."""

ARITHMETIC = frozenset(
    # Of each number by itself.
    "abs acos acosh add and asin asinh atan atan2 atanh cbrt ceil clamp "
    "convert_element_type cos cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt "
    "integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg "
    "nextafter not or pow rem round rsqrt select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor "
    # Of the numbers of an array.
    "argmax argmin broadcast_in_dim concatenate copy cummax cummin cumprod cumsum "
    "dot_general dynamic_slice gather iota pad reduce_and reduce_max reduce_min "
    "reduce_or reduce_prod reduce_sum reshape rev slice split squeeze stack transpose "
    # These consist of other operations.
    "closed_call cond custom_jvp_call custom_vjp_call jit pjit remat2 scan "
    "while".split()
)
"""Primitives of which a schedule may consist. Up to rounding, each has the same value
on all devices, and for one number of steps as for many at once. This does not hold for
random numbers, callbacks and functions with rules of their own for batches."""


class SGMCMCState(NamedTuple):
    """The state of a chain. All fields are public.

    position
        The sampled parameters, a pytree.
    optimizer_state
        State of the optax transformation, such as a velocity and a friction. It is
        computed from released gradients.
    num_steps
        Number of steps made, int32.
    """

    position: Any
    optimizer_state: Any
    num_steps: jax.Array


class SGMCMCInfo(NamedTuple):
    """What a step releases. Both fields are public, and zero for a step that stays.

    gradient
        N G, the noisy gradient of the log posterior, a pytree like the position.
    noise_sd
        Standard deviation of the noise in each component of `gradient`, a scalar.
    """

    gradient: Any
    noise_sd: jax.Array


@dataclass(frozen=True)
class Scales:
    """The step sizes of a sampler, and conversions between sigma and s.

    sigma is the noise multiplier and s the standard deviation of the noise in an update
    (see the module docstring).

    Parameters
    ----------
    posterior
        The posterior to sample. Only its number of records and its tempering are used.
    step_size
        eta, a positive number, or a schedule ``count -> eta`` such as those of optax.
    l2_clip_norm, sampling_prob
        C and q, as in `GaussianSum`.
    nominal_num_records
        N. If it is None, N is the number of records.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    posterior: Posterior
    step_size: float | Callable
    l2_clip_norm: float
    sampling_prob: float
    nominal_num_records: int | None = None

    def __post_init__(self):
        for name in ("l2_clip_norm", "sampling_prob"):
            object.__setattr__(self, name, getattr(self.release, name))
        self.sizes(1)
        nominal_size(self.posterior, self.nominal_num_records)

    @property
    def num_records(self) -> int:
        """N of the module docstring."""
        return nominal_size(self.posterior, self.nominal_num_records)

    @property
    def release(self) -> GaussianSum:
        """The noisy sum that releases gradients; it is given its noise at each call."""
        return GaussianSum(self.l2_clip_norm, None, self.sampling_prob)

    @functools.cached_property
    def schedule(self) -> ClosedJaxpr:
        """The schedule, traced once, for the accountant and for the steps alike."""
        return self._traced(jnp.int32)

    @functools.cached_property
    def _in_float64(self) -> ClosedJaxpr:
        """The schedule in float64, in which JAX divides integers of 64 bits."""
        return self._traced(jnp.int64)

    def _traced(self, dtype) -> ClosedJaxpr:
        """The schedule, traced for a number of steps that is an integer of `dtype`."""
        step_size_fn: Any = self.step_size

        def step_size(count):
            return jnp.asarray(step_size_fn(count), jnp.float64)

        with jax.enable_x64(True):
            program = jax.make_jaxpr(step_size)(jax.ShapeDtypeStruct((), dtype))
        _check_schedule(program)
        return program

    def at(self, count):
        """eta of the step after `count` steps, float64. `count` is an int32.

        Call it under `jax.enable_x64(True)`.
        """
        if not callable(self.step_size):
            return jnp.asarray(self.step_size, jnp.float64)
        (step_size,) = jaxpr_as_fun(self.schedule)(count)
        return step_size

    def sizes(self, num_steps: int) -> tuple[np.ndarray, float]:
        """Evaluate the step sizes of the first `num_steps` steps.

        Returns
        -------
        sizes
            eta of each step, float64 ``(num_steps,)``, or ``(1,)`` if the step size is
            a number.
        tolerance
            Bound on the relative difference between these and the step sizes that the
            steps take, because both are rounded.

        Raises
        ------
        ValueError
            If a step size is not one positive and finite number, if it depends too much
            on rounding (`MAX_ROUNDING`), if a schedule is asked for more than
            `MAX_SCHEDULED_STEPS` steps, or if it does not consist of `ARITHMETIC`.
        """
        if callable(self.step_size) and num_steps > MAX_SCHEDULED_STEPS:
            raise ValueError(
                "step sizes of a schedule are accounted for up to "
                f"{MAX_SCHEDULED_STEPS:g} steps: "
                "give num_steps, or a step size that does not change"
            )
        varies = callable(self.step_size)
        with jax.ensure_compile_time_eval(), jax.enable_x64(True):
            counts = jnp.arange(num_steps if varies else 1, dtype=jnp.int32)
            found = np.asarray(jax.vmap(self.at)(counts))
            others = []
            if varies:
                others.append(found)
                found = np.asarray(jax.jit(jax.vmap(self.at))(counts))
                in_float64 = jax.vmap(jaxpr_as_fun(self._in_float64))
                others += map(np.asarray, in_float64(counts.astype(jnp.int64)))
        if found.shape != counts.shape:
            raise ValueError("step_size must be one number in every step, not an array")
        if not np.all((found > 0) & (found < np.inf)):
            raise ValueError(
                "step_size must be positive and finite at all steps, got "
                f"{found.min():g} to {found.max():g}; give a schedule that decays to "
                "more than zero, and whose integers stay below 2^31"
            )
        # The program of a step may round in another way than all of these.
        apart = np.max([np.abs(other / found - 1) for other in others], initial=0.0)
        if not apart < MAX_ROUNDING:
            raise ValueError(
                f"step_size depends on how it is rounded, by {apart:.1g} of itself: "
                "give a schedule that does not subtract numbers that are nearly equal, "
                "whose integers stay below 2^31, and that does not change"
            )
        return found, STEP_SIZE_TOLERANCE + 8 * apart

    def multiplier(self, noise_sd, step_size):
        """sigma, the noise multiplier with which an update of size eta has noise s."""
        return noise_sd / (step_size * self._unit)

    def noise_sd(self, noise_multiplier, step_size):
        """s, the noise in an update of size eta whose noise multiplier is sigma."""
        return noise_multiplier * step_size * self._unit

    @property
    def _unit(self) -> float:
        """T C / (q N): one clip norm in the sum of gradients, in the units of G."""
        sampled = self.sampling_prob * self.num_records
        return self.posterior.tempering * self.l2_clip_norm / sampled


def _check_schedule(program: ClosedJaxpr) -> None:
    """Refuse a schedule that does not consist of `ARITHMETIC`."""
    for eqn in equations(program):
        if eqn.primitive.name not in ARITHMETIC:
            raise ValueError(
                f"step_size does the operation {eqn.primitive.name!r}, which may have "
                "another value in a step than where the step is charged: give a "
                "schedule that is made of arithmetic with the number of steps"
            )


def check_friction(friction: float, noise_multiplier: float) -> None:
    """Refuse a friction outside (0, 1] and a negative noise multiplier."""
    check_positive_number("friction", friction)
    if friction > 1 or not noise_multiplier >= 0:
        raise ValueError(
            "friction must be at most 1 and noise_multiplier not negative, got "
            f"{friction} and {noise_multiplier}"
        )


def algorithm(
    scales: Scales,
    optimizer: optax.GradientTransformation,
    noise_sd_fn: Callable,
    dim: int,
) -> Algorithm:
    """The sampler that adds the updates of an optax transformation to the position.

    Parameters
    ----------
    scales
        The posterior, the step sizes and the release of gradients.
    optimizer
        Transformation of -G into the update of the position. It multiplies by the step
        size.
    noise_sd_fn
        ``eta -> s``: the noise that an update of size eta needs, elementwise in
        float64.
    dim
        Number of components of the position. Each of them adds to the numerical error
        that is charged.

    Raises
    ------
    ValueError
        If `dim` is not a positive integer. A step also raises it if the position does
        not have `dim` components.

    Notes
    -----
    *Formal guarantees.* A step releases one noisy sum of clipped gradients, which is a
    Poisson sampled Gaussian release. State and info are post-processing of it. The
    number of records in the sample stays secret.
    """
    dim = check_count("dim", dim)
    posterior, release = scales.posterior, scales.release
    num_records = scales.num_records

    def multiplier_fn(step_size):
        return scales.multiplier(noise_sd_fn(step_size), step_size)

    def num_words(state):
        size = ravel_pytree(state.position)[0].size
        if size != dim:
            raise ValueError(f"the position has {size} components, not dim = {dim}")
        return release.num_words(dim, posterior.num_records)

    def move(words, state, memory):
        position = state.position
        with jax.enable_x64(True):
            step_size = scales.at(state.num_steps)
            multiplier = multiplier_fn(step_size)
            noise_sd = scales.noise_sd(multiplier, 1.0) * num_records
        gradient_fn = functools.partial(
            gradient_parts, posterior.loglikelihood_fn, position
        )
        parts = release(words, posterior, gradient_fn, noise_multiplier=multiplier)
        _, unravel = ravel_pytree(position)
        noisy = unravel(jnp.concatenate(parts))
        scale = posterior.tempering / release.sampling_prob
        prior = jax.grad(posterior.logprior_fn)(position)
        gradient = jax.tree.map(lambda g, p: scale * g + p, noisy, prior)
        descent = jax.tree.map(lambda leaf: -leaf / num_records, gradient)
        updates, optimizer_state = optimizer.update(
            descent, state.optimizer_state, position
        )
        # With x64 on, a float64 step size would make these traces float64.
        optimizer_state = jax.tree.map(
            lambda new, old: new.astype(old.dtype),
            optimizer_state,
            state.optimizer_state,
        )
        position = optax.apply_updates(position, updates)
        moved = SGMCMCState(position, optimizer_state, state.num_steps + 1)
        return moved, SGMCMCInfo(gradient, noise_sd.astype(float)), memory

    def stay(state):
        nothing = jax.tree.map(jnp.zeros_like, state.position)
        return SGMCMCInfo(nothing, jnp.zeros(()))

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        sizes, tolerance = scales.sizes(num_steps)
        with jax.enable_x64(True):
            multipliers = np.asarray(multiplier_fn(sizes)) * (1 - tolerance)
        _check_noise(multipliers)
        repeated = num_steps // sizes.size
        return [
            (release.event(dim, neighboring_relation, noise), count * repeated)
            for noise, count in round_down(multipliers)
        ]

    def init(position, rng_key=None):
        position = jax.tree.map(jnp.asarray, position)
        return SGMCMCState(position, optimizer.init(position), jnp.zeros((), jnp.int32))

    return Algorithm.of(init, Transition(num_words, move, stay), privacy)


def _check_noise(multipliers: np.ndarray) -> None:
    """Refuse a step whose noise multiplier is larger than a release can have.

    `multipliers` are those of the first steps, in order. The smaller a step is, the
    larger its noise multiplier.
    """
    (beyond,) = np.nonzero(multipliers > MAX_NOISE_MULTIPLIER)
    if not beyond.size:
        return
    remedy = "raise step_size"
    if beyond[0]:
        remedy = (
            f"give num_steps, at most {beyond[0]}, or a schedule that falls more "
            "slowly or not below some size"
        )
    raise ValueError(
        f"steps are so small from the step {beyond[0] + 1} on that their noise would "
        f"be {multipliers[beyond[0]]:.3g} clip norms, more than the "
        f"{MAX_NOISE_MULTIPLIER:g} that a release can have; such steps hardly move, "
        f"and a budget may never be spent by them: {remedy}"
    )
