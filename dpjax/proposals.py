"""Proposals that read no data: random walks, one component, guided walk.

All are symmetric, so the log proposal ratio is zero. Each moves the flattened
position; `step_size` is a scalar, or a pytree like the position where it says so.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax.noise import normal

__all__ = [
    "Move",
    "Proposal",
    "fixed_length",
    "gaussian",
    "guided_walk",
    "one_component",
]


class Move(NamedTuple):
    """A proposed position, its distance, and the walk's memory after either answer."""

    position: Any
    distance: Any
    walk_accepted: Any
    walk_rejected: Any


class Proposal(NamedTuple):
    """How a Metropolis-Hastings kernel proposes.

    init
        ``position -> walk``, the public memory of the walk.
    num_words
        ``dimension -> int``, uniform words used by one proposal.
    propose
        ``(words, position, walk, step_size) -> Move``.
    longest
        ``step_size -> float | None``: the distance moved if it is constant.
    """

    init: Callable[[Any], Any]
    num_words: Callable[[int], int]
    propose: Callable[[jax.Array, Any, Any, Any], Move]
    longest: Callable[[Any], float | None]


def _scales(step_size, position):
    """`step_size` for every component of the flattened position."""
    leaves = jax.tree.leaves(step_size)
    if len(leaves) == 1 and jnp.ndim(leaves[0]) == 0:
        return leaves[0]
    filled = jax.tree.map(
        lambda scale, part: jnp.broadcast_to(scale, jnp.shape(part)),
        step_size,
        position,
    )
    return ravel_pytree(filled)[0]


def _scalar(step_size):
    if jnp.ndim(step_size):
        raise ValueError("a proposal of fixed length takes a scalar step_size")
    return step_size


def _memoryless(step, num_words, longest) -> Proposal:
    def propose(words, position, walk, step_size):
        flat, unravel = ravel_pytree(position)
        jump = step(words, flat, _scales(step_size, position))
        constant = longest(step_size)
        distance = jnp.linalg.norm(jump) if constant is None else constant
        return Move(unravel(flat + jump), distance, walk, walk)

    return Proposal(lambda position: (), num_words, propose, longest)


def _gaussian_jump(words, flat, scales):
    return scales * normal(words, flat.dtype)


def _fixed_length_jump(words, flat, scales):
    direction = normal(words, flat.dtype)
    return scales * direction / jnp.linalg.norm(direction)


def _one_component_jump(words, flat, scales):
    chosen = jnp.arange(flat.size) == words[0] % flat.size
    return jnp.where(chosen, scales * normal(words[1], flat.dtype), 0)


def _guided_walk(words, position, walk, step_size):
    flat, unravel = ravel_pytree(position)
    chosen = jnp.arange(flat.size) == words[0] % flat.size
    length = jnp.abs(_scales(step_size, position) * normal(words[1], flat.dtype))
    jump = jnp.where(chosen, walk * length, 0)
    turned = jnp.where(chosen, -walk, walk)
    return Move(unravel(flat + jump), jnp.linalg.norm(jump), walk, turned)


gaussian = _memoryless(_gaussian_jump, lambda dim: dim, lambda step_size: None)
"""Random walk: N(position, step_size^2 I); `step_size` scalar or like the position."""

fixed_length = _memoryless(_fixed_length_jump, lambda dim: dim, _scalar)
"""Random walk in a uniform direction over exactly `step_size`, a scalar."""

one_component = _memoryless(_one_component_jump, lambda dim: 2, lambda step_size: None)
"""One uniformly chosen component moves by N(0, step_size^2) (thesis, section 3.2)."""

guided_walk = Proposal(
    init=lambda position: jnp.ones_like(ravel_pytree(position)[0]),
    num_words=lambda dim: 2,
    propose=_guided_walk,
    longest=lambda step_size: None,
)
"""One component moves by a half-normal step in its own direction, which turns round
when the step is rejected (guided walk Metropolis-Hastings; thesis, section 3.2)."""
