"""Step sizes of DPVI that follow from its noise.

Gradient descent on noisy gradients,

    phi <- phi - r * (gradient + noise),    r_j = v / (sqrt(T P) s_j),

s_j the sd of the noise on component j of P, over T steps. The noise alone moves each
component by v / sqrt(T P) a step and by v / sqrt(P) over the run, and phi by v in all,
whatever epsilon, the clip norm and the preconditioner are. So the trace explores a
region of known size, from which `noise_aware` learns the curvature, and the descent is
as fast as that allows.

Reference: the heuristic of noise-aware DPVI, arXiv 2410.19371, whose code states it as
v w_j / (sqrt(T P) sigma C) for sums over the sample of gradients.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

__all__ = ["noise_scaled_sgd"]


def noise_scaled_sgd(
    num_steps: int, distance: Any = 2**0.5
) -> optax.GradientTransformationExtraArgs:
    """Gradient descent whose noise moves the parameters by `distance` in all.

    Parameters
    ----------
    num_steps
        T, the steps of the run.
    distance
        v, in the units of the parameters: a positive number, or a pytree of them that
        is like the parameters or a prefix of them.

    Raises
    ------
    ValueError
        If an argument is out of range; later, if the optimiser is not told the noise of
        each component, as `dpvi` does with ``aligned=False`` and noise.
    """
    if not (isinstance(num_steps, int) and num_steps >= 1):
        raise ValueError(f"num_steps must be a positive integer, got {num_steps}")
    lengths = [np.asarray(leaf) for leaf in jax.tree.leaves(distance)]
    if not all(np.all((0 < v) & (v < math.inf)) for v in lengths):
        raise ValueError(f"distance must hold positive numbers, got {distance}")

    def update(updates, state, params=None, *, noise_sd=None, **_):
        if noise_sd is None:
            raise ValueError(
                "noise_scaled_sgd needs the sd of the noise on each component: run "
                "dpvi with aligned=False and a positive noise_multiplier"
            )
        size = sum(leaf.size for leaf in jax.tree.leaves(updates))
        scale = 1 / math.sqrt(num_steps * size)
        steps = jax.tree.map(
            lambda v, gradient, sd: (-scale * jnp.asarray(v) / sd * gradient).astype(
                gradient.dtype
            ),
            jax.tree.broadcast(distance, updates),
            updates,
            noise_sd,
        )
        return steps, state

    return optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(), update
    )
