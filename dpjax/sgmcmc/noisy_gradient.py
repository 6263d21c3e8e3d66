"""The step that samplers along noisy gradients share.

A step of size eta takes

    G = (grad log prior + T/q (sum over the sample of clip(grad l_i) + noise)) / N

and adds eta G to the position or to a velocity. Each of the N records enters the sample
with chance q; T is the tempering. The divisor q N is public. The gradient of the prior
is exact and is not clipped. A noise multiplier sigma, the standard deviation of the
noise over the clip norm C, puts noise of standard deviation

    s = eta sigma T C / (q N)

into the update. A sampler's temperature determines s, and sigma follows from s: the
noise that the dynamics need anyway pays for privacy. What a step does with eta G is an
optax transformation.

The choice of the sample adds variance too: (eta T)^2 v / (q N) in a direction in which
the gradients of one record have the mean square v. If this is not small beside s^2, the
chain is hotter than it should be. s^2 is ten times as large if sigma^2 is
10 q N v / C^2. As v <= C^2, sigma^2 >= 10 q N is always enough.
`temperature.excess_temperature` estimates the excess of a run.
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
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Transition
from dpjax.posterior import Posterior
from dpjax.privacy.step_size import round_down
from dpjax.privacy.validate import check_count, check_positive
from dpjax.release.gaussian import MAX_NOISE_MULTIPLIER
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.gradient_parts import gradient_parts
from dpjax.release.nominal import nominal_size

__all__ = [
    "MAX_SCHEDULED_STEPS",
    "SGMCMCInfo",
    "SGMCMCState",
    "Scales",
    "algorithm",
    "check_friction",
]

MAX_SCHEDULED_STEPS = 10**7
"""Steps up to which the sizes of a schedule are accounted for one by one."""

STEP_SIZE_TOLERANCE, MAX_ROUNDING = 2.0**-20, 2.0**-10
"""Relative difference that is allowed for between a step size as a step evaluates it
and as the accountant does, a few float32 digits; and the largest one between two ways
of rounding it. What is allowed for grows with the difference that is found."""


class SGMCMCState(NamedTuple):
    """Where a chain stands. Public.

    position
        Pytree.
    optimizer_state
        What the optax transformation remembers of the released gradients: a velocity,
        a friction.
    num_steps
        Steps made, int32.
    """

    position: Any
    optimizer_state: Any
    num_steps: jax.Array


class SGMCMCInfo(NamedTuple):
    """What a step releases.

    gradient
        N G, the noisy gradient of the log posterior, a pytree like the position.
    noise_sd
        Standard deviation of the noise in each of its components.
    """

    gradient: Any
    noise_sd: jax.Array


@dataclass(frozen=True)
class Scales:
    """Step sizes, and what noise in the update means for the noise multiplier.

    Parameters
    ----------
    posterior
        What is sampled; only its size and tempering are used.
    step_size
        eta, a positive number, or a schedule ``count -> eta`` such as optax's.
    l2_clip_norm, sampling_prob
        C and q, as in `GaussianSum`.
    nominal_num_records
        N; None is the number of records.

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
        object.__setattr__(self, "sampling_prob", self.release.sampling_prob)
        self.sizes(1)
        nominal_size(self.posterior, self.nominal_num_records)

    @property
    def num_records(self) -> int:
        """N."""
        return nominal_size(self.posterior, self.nominal_num_records)

    @property
    def release(self) -> GaussianSum:
        """How gradients are released."""
        return GaussianSum(self.l2_clip_norm, None, self.sampling_prob)

    def at(self, count):
        """eta of a step, float64; call it under `jax.enable_x64(True)`."""
        eta = self.step_size(count) if callable(self.step_size) else self.step_size
        return jnp.asarray(eta, jnp.float64)

    def sizes(self, num_steps: int) -> tuple[np.ndarray, float]:
        """eta of the first steps, ``(num_steps,)``, or ``(1,)`` if it does not vary.

        The second number is by how much of itself the eta of a step may differ from
        these, because it is rounded in another way.
        """
        if callable(self.step_size) and num_steps > MAX_SCHEDULED_STEPS:
            raise ValueError(
                "step sizes of a schedule are accounted for up to "
                f"{MAX_SCHEDULED_STEPS:g} steps: "
                "give num_steps, or a step size that does not change"
            )
        varies = callable(self.step_size)
        with jax.ensure_compile_time_eval(), jax.enable_x64(True):
            # A step counts in this type, in which powers overflow.
            counts = jnp.arange(num_steps if varies else 1, dtype=jnp.int32)
            found = again = np.asarray(jax.vmap(self.at)(counts))
            if varies:
                found = np.asarray(jax.jit(jax.vmap(self.at))(counts))
        if not np.all((found > 0) & (found < np.inf)):
            raise ValueError(
                "step_size must be positive and finite at all steps, got "
                f"{found.min():g} to {found.max():g}; give a schedule that decays to "
                "more than zero, and whose integers stay below 2^31"
            )
        # Compiled or not, a step size is rounded in two ways. A step may take a third.
        apart = float(np.max(np.abs(again / found - 1)))
        if not apart < MAX_ROUNDING:
            raise ValueError(
                f"step_size depends on how it is rounded, by {apart:.1g} of itself: "
                "give a schedule that does not subtract numbers that are nearly equal"
            )
        return found, STEP_SIZE_TOLERANCE + 8 * apart

    def multiplier(self, noise_sd, step_size):
        """sigma that gives updates of size eta the noise s."""
        return noise_sd / (step_size * self._unit)

    def noise_sd(self, noise_multiplier, step_size):
        """s of updates of size eta whose noise multiplier is sigma."""
        return noise_multiplier * step_size * self._unit

    @property
    def _unit(self) -> float:
        """T C / (q N): what a clip norm in the sum of gradients is in G."""
        sampled = self.sampling_prob * self.num_records
        return self.posterior.tempering * self.l2_clip_norm / sampled


def check_friction(friction: float, noise_multiplier: float) -> None:
    """Refuse friction outside (0, 1] and negative noise."""
    check_positive(friction=friction)
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
    """The sampler whose updates are those of `optimizer`.

    Parameters
    ----------
    scales
        Data, step sizes and the scale of noise.
    optimizer
        Transformation of -G, which multiplies by the step size.
    noise_sd_fn
        ``eta -> s``, elementwise in float64.
    dim
        Components of the position. Each of them adds to the numerical error charged.

    Raises
    ------
    ValueError
        If `dim` is not a positive integer; later, if a position has not `dim`
        components.

    Notes
    -----
    *Formal guarantees.* A step releases one noisy sum of clipped gradients, which is a
    Poisson sampled Gaussian release. State and info follow from it. The number of
    records in the sample stays secret.
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
    """Refuse steps so small that their noise is more than a release can have."""
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
