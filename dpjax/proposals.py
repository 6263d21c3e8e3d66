"""Proposals that read no data: random walks, one component at a time, the guided walk.

A proposal moves the flattened position. Its `step_size` is a scalar or, except for
`fixed_length`, a pytree like the position. `in_metric` makes a proposal move in the
units of an inverse mass matrix. `dpjax.fisher` has a proposal whose metric changes with
the position.

References
----------
Räisä (2021), Differentially Private Metropolis-Hastings Algorithms, section 3.2: one
component at a time, and the guided walk.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from dpjax.random.variates import normal

__all__ = [
    "Move",
    "Proposal",
    "check_metric",
    "fixed_length",
    "gaussian",
    "guided_walk",
    "in_metric",
    "one_component",
    "settled",
    "square_root",
    "stretch",
]


class Move(NamedTuple):
    """A proposed move. All fields are public.

    position
        The proposed position, a pytree.
    distance
        Distance from the old position, in the units of the proposal.
    walk_accepted, walk_rejected
        The proposal's memory if the move is accepted, and if it is rejected.
    log_ratio
        log q(old | new) - log q(new | old), which is zero for a symmetric proposal.
    """

    position: Any
    distance: Any
    walk_accepted: Any
    walk_rejected: Any
    log_ratio: Any = 0.0


class Proposal(NamedTuple):
    """The proposal distribution of a Metropolis-Hastings kernel.

    init
        ``position -> walk``: the public memory with which a chain begins.
    num_words
        ``dimension -> int``: the number of uniform uint32 words for one move.
    propose
        ``(words, position, walk, step_size) -> Move``.
    longest
        ``step_size -> float | None``: the distance of every move if all moves have the
        same distance, else None.
    has_metric
        Whether the proposal has a metric of its own.
    """

    init: Callable[[Any], Any]
    num_words: Callable[[int], int]
    propose: Callable[[jax.Array, Any, Any, Any], Move]
    longest: Callable[[Any], float | None]
    has_metric: bool = False


def _scales(step_size, position):
    """`step_size` as a scalar, or as a vector like the flattened position."""
    leaves = jax.tree.leaves(step_size)
    if len(leaves) == 1 and jnp.ndim(leaves[0]) == 0:
        return leaves[0]

    def fill(scale, part):
        return jnp.broadcast_to(scale, jnp.shape(part))

    return ravel_pytree(jax.tree.map(fill, step_size, position))[0]


def _scalar(step_size):
    if not jax.tree_util.all_leaves([step_size]) or jnp.ndim(step_size):
        raise ValueError(
            "a proposal of fixed length takes one number as step_size: give the scales "
            "of components by inverse_mass_matrix, or take another proposal, such as "
            "dpjax.proposals.gaussian"
        )
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
    jump = walk * jnp.where(chosen, length, 0)
    turned = jnp.where(chosen, -walk, walk)
    return Move(unravel(flat + jump), jnp.linalg.norm(jump), walk, turned)


gaussian = _memoryless(_gaussian_jump, lambda dim: dim, lambda step_size: None)
"""Random walk with jumps N(0, step_size^2 I). `step_size` is a scalar, or a pytree like
the position."""

fixed_length = _memoryless(_fixed_length_jump, lambda dim: dim, _scalar)
"""Random walk in a uniformly random direction. Every jump has the length `step_size`, a
scalar."""

one_component = _memoryless(_one_component_jump, lambda dim: 2, lambda step_size: None)
"""Random walk that moves one component, chosen uniformly, by N(0, step_size^2).
`step_size` is a scalar, or a pytree like the position."""

guided_walk = Proposal(
    init=lambda position: jnp.ones_like(ravel_pytree(position)[0]),
    num_words=lambda dim: 2,
    propose=_guided_walk,
    longest=lambda step_size: None,
)
"""Walk that moves one component, chosen uniformly, by a half-normal step of scale
`step_size`. Each component keeps a direction of its own, which turns round when a step
of that component is rejected. `step_size` is a scalar, or a pytree like the position.
"""


def square_root(inverse_mass_matrix):
    """W with W W^T = `inverse_mass_matrix`, for `stretch`.

    A diagonal matrix is given, and returned, as the vector ``(d,)`` of its diagonal.
    """
    inverse_mass_matrix = jnp.asarray(inverse_mass_matrix)
    if inverse_mass_matrix.ndim == 1:
        return jnp.sqrt(inverse_mass_matrix)
    return jnp.linalg.cholesky(inverse_mass_matrix)


def stretch(root, vector):
    """W z: a vector z in the units of the metric, converted to those of the position.

    `root` is W, from `square_root`.
    """
    if root.ndim == 1:
        return root * vector
    return jnp.matmul(root, vector, precision="highest")


def check_metric(inverse_mass_matrix) -> None:
    """Refuse an inverse mass matrix that is not a covariance matrix.

    A traced matrix has no values to check, so it passes. So does None.

    Raises
    ------
    ValueError
        If it is neither a vector of positive numbers nor a symmetric positive definite
        matrix.
    """
    if inverse_mass_matrix is None or isinstance(inverse_mass_matrix, Tracer):
        return
    matrix = np.asarray(inverse_mass_matrix, np.float64)
    is_finite = np.all(np.isfinite(matrix))
    is_square = matrix.ndim == 2 and matrix.shape == matrix.T.shape
    eigenvalues = matrix
    if is_finite and is_square and np.allclose(matrix, matrix.T):
        eigenvalues = np.linalg.eigvalsh(matrix)
    if not (is_finite and eigenvalues.ndim == 1 and np.all(eigenvalues > 0)):
        raise ValueError(
            "inverse_mass_matrix must be a vector of positive numbers or a symmetric "
            f"positive definite matrix, got {inverse_mass_matrix}"
        )


def settled(proposal: Proposal, step_size, inverse_mass_matrix) -> Proposal:
    """`proposal` for one step size, in the metric, with one answer for `longest`.

    A kernel is charged for the length that `longest` gives, and its steps set the
    distance of moves to it. So `longest` is asked here, and nowhere else. `num_words`
    is asked once for each dimension, so that a step takes as many words as the run has
    counted for it.

    Parameters
    ----------
    proposal, inverse_mass_matrix
        As in `in_metric`.
    step_size
        The step size of the kernel. The result is for this step size alone.

    Raises
    ------
    ValueError
        As `in_metric`, and if the step size does not suit the proposal. When words are
        counted, if their number is negative.
    """
    # A subclass could define `longest` as a property.
    proposal = Proposal(*proposal)
    distance = proposal.longest(step_size)
    if not (distance is None or isinstance(distance, Tracer)):
        distance = float(distance)
    proposal = proposal._replace(
        longest=lambda step_size: distance,
        num_words=functools.cache(functools.partial(_num_words, proposal.num_words)),
    )
    return in_metric(proposal, inverse_mass_matrix)


def _num_words(num_words: Callable, dimension: int) -> int:
    count = operator.index(num_words(dimension))
    if count < 0:
        raise ValueError(f"num_words of a proposal must not be negative, got {count}")
    return count


def in_metric(proposal: Proposal, inverse_mass_matrix) -> Proposal:
    """`proposal` with its steps measured in units of `inverse_mass_matrix`.

    Parameters
    ----------
    proposal
        A proposal without a metric of its own, such as those of this module.
    inverse_mass_matrix
        As in BlackJAX: ``(d,)`` or ``(d, d)``, approximately the posterior covariance
        of the flattened position. None leaves the proposal as it is. The matrix must
        not be computed from the data. It may be computed from public values, such as
        the expected Fisher information (`dpjax.fisher`) or released states.

    Returns
    -------
    The proposal whose jump is W z, where z is the jump of `proposal` and W W^T is the
    matrix. Its distance is the length of z.

    Raises
    ------
    ValueError
        If the matrix is not a covariance matrix, or `proposal` has a metric already.
    """
    if inverse_mass_matrix is None:
        return proposal
    if proposal.has_metric:
        raise ValueError("this proposal has a metric and takes no inverse_mass_matrix")
    check_metric(inverse_mass_matrix)

    def propose(words, position, walk, step_size):
        flat, unravel = ravel_pytree(position)
        move = proposal.propose(words, jnp.zeros_like(flat), walk, step_size)
        root = square_root(inverse_mass_matrix).astype(flat.dtype)
        return move._replace(position=unravel(flat + stretch(root, move.position)))

    return proposal._replace(propose=propose)
