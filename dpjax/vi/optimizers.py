"""Step sizes for DPVI that are derived from its noise.

Gradient descent on noisy gradients makes T steps

    phi <- phi - r * (gradient + noise),    r_j = v / (sqrt(T P) s_j),

where s_j is the sd of the noise on component j of P. The noise alone moves each
component by v / sqrt(T P) in a step and by v / sqrt(P) in the run, so it moves phi by v
in all. This holds for every epsilon, clip norm and preconditioner. So the trace
explores a region of known size, from which `noise_aware` learns the curvature, and the
descent is as fast as that allows.

Reference: the heuristic of noise-aware DPVI, arXiv 2410.19371. Its code has the step
size v w_j / (sqrt(T P) sigma C), because its gradients are sums over the sample.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpjax.privacy.validate import check_count, check_positive

__all__ = ["noise_scaled_sgd"]


def noise_scaled_sgd(
    num_steps: int, distance: Any = 2**0.5
) -> optax.GradientTransformationExtraArgs:
    """Gradient descent whose noise moves the parameters by `distance` in all.

    Parameters
    ----------
    num_steps
        T, the number of steps of the run.
    distance
        v, in the units of the parameters: a positive number, or a pytree of positive
        numbers like the parameters or a prefix of such a pytree.

    Raises
    ------
    ValueError
        If an argument is out of range; from ``update``, if `distance` is no prefix of
        the parameters, or if it is not given the sd of the noise on each component.
        `dpvi` gives it with ``aligned=False`` and noise.
    """
    check_count("num_steps", num_steps)
    check_positive(distance=distance)

    def update(updates, state, params=None, *, noise_sd=None, **_):
        if noise_sd is None:
            raise ValueError(
                "noise_scaled_sgd needs the sd of the noise on each component: run "
                "dpvi with aligned=False and a positive noise_multiplier"
            )
        try:
            distances = jax.tree.broadcast(distance, updates)
        except ValueError as error:
            raise ValueError(
                "distance must be a number, or a pytree like the parameters or a "
                f"prefix of one, {jax.tree.structure(updates)}, got "
                f"{jax.tree.structure(distance)}"
            ) from error
        size = sum(leaf.size for leaf in jax.tree.leaves(updates))
        scale = 1 / math.sqrt(num_steps * size)
        steps = jax.tree.map(
            lambda v, gradient, sd: (-scale * jnp.asarray(v) / sd * gradient).astype(
                gradient.dtype
            ),
            distances,
            updates,
            noise_sd,
        )
        return steps, state

    return optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(), update
    )
