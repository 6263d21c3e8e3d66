"""A record's gradient in parts, which XLA sums much faster than the whole.

`gradient_parts` traces the gradient of one record's log-likelihood and finds two kinds
of parts in it. `vector_sums` clips the parts together and sums them over the records.

*Outer products.* Suppose that a log-likelihood reads the numbers x of a record only in
products with parameters, such as x . b in a generalized linear model or W x in the
first layer of a network. The gradient with respect to those parameters is then an outer
product of some weights and x. Its norm is the product of their norms, and its sum over
records is a product of two matrices, so that no record's gradient is stored. (These are
the ghost norms of Goodfellow 2015, arXiv:1510.01799, and Li et al. 2022,
arXiv:2110.05679.)

*Components.* If a function reads ``position[0]``, ``position[1]``, ... one by one,
reverse mode writes its gradient as a sum of vectors that are zero but for one entry.
Over many records XLA's CPU compiler would store and add all of these vectors. If the
entries are separate numbers, it fuses their evaluation, clipping and summation into one
pass, as if written by hand.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.flatten_util import ravel_pytree

__all__ = ["Outer", "gradient_parts", "mean_gradient_parts", "whole"]

MAX_PARTS = 16
"""The most components that are kept apart. Each of them may take a pass over the
records, so more components are faster as one vector."""

COPIES = frozenset(
    {"broadcast_in_dim", "concatenate", "convert_element_type", "reshape", "slice"}
    | {"squeeze", "transpose"}
)
"""Primitives whose results hold entries of their arguments and no other numbers."""


class Outer(NamedTuple):
    """The vector ``(weights * direction).ravel()``.

    weights, direction
        Shapes ``(p, 1)`` and ``(1, q)``, or ``(1, p)`` and ``(q, 1)``. An entry of the
        direction is an entry of the record or a constant, or one of these times a
        constant. Then XLA finds the same bits however often it evaluates it
        (`exact_sums.directions` needs that).
    """

    weights: jax.Array
    direction: jax.Array


def whole(part) -> jax.Array:
    """A part of a gradient as a vector: an `Outer` is multiplied out."""
    return (part.weights * part.direction).ravel() if isinstance(part, Outer) else part


def gradient_parts(function, position, record, max_parts: int = MAX_PARTS) -> list:
    """The gradient of ``function(position, record)`` in the position, as parts.

    Parameters
    ----------
    function
        ``(position, record) -> scalar``.
    position
        Pytree of d numbers.
    max_parts
        The most neighbouring components that are returned as separate parts.

    Returns
    -------
    A list of `Outer` products and vectors. Made vectors by `whole` and concatenated,
    they are the flattened ``jax.grad(function)(position, record)``. The components
    before, between and after the products each come as a vector of one component. They
    come as one vector instead if they are more than `max_parts`, or if the program
    computes them as one vector.
    """
    start, unravel = ravel_pytree(position)

    def flat_function(flat, record):
        return function(unravel(flat), record)

    closed = jax.make_jaxpr(jax.grad(flat_function))(start, record)
    parts = _parts(closed.jaxpr)
    products = _products(closed.jaxpr, parts)
    vectors = [(at, variable) for at, variable in parts if at not in products]
    wanted = [variable for _, variable in vectors]
    wanted += [variable for pair in products.values() for variable in pair[:2]]
    jaxpr = closed.jaxpr.replace(outvars=wanted)
    evaluate = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))
    values = iter(evaluate(*jax.tree.leaves((start, record))))
    terms = [(at, next(values).ravel()) for at, _ in vectors]

    def between(low, high):
        here = [(at - low, value) for at, value in terms if low <= at < high]
        size = high - low
        if size > max_parts or any(value.size == size > 1 for _, value in here):
            padded = [jnp.pad(v, (at, size - at - v.size)) for at, v in here]
            return [functools.reduce(jnp.add, padded or [jnp.zeros(size)])]
        found = [jnp.zeros((), start.dtype)] * size
        for at, value in here:
            for k in range(value.size):
                found[at + k] = found[at + k] + value[k]
        return [component[None] for component in found]

    pieces, end = [], 0
    for at, (*_, axis) in products.items():
        weights, direction = next(values).ravel(), next(values).ravel()
        pieces += between(end, at)
        pieces.append(
            Outer(jnp.expand_dims(weights, axis), jnp.expand_dims(direction, 1 - axis))
        )
        end = at + weights.size * direction.size
    return pieces + between(end, start.size)


def mean_gradient_parts(function, positions: jax.Array, record) -> list:
    """The gradient of the mean over positions of ``function(position, record)``.

    A generalized linear model has one outer product for all positions together. A
    network has products for each position only, because its layers are not neighbours
    in a matrix of positions.

    Parameters
    ----------
    function
        As in `gradient_parts`, of a position ``(d,)``.
    positions
        K positions, ``(K, d)``.

    Returns
    -------
    As `gradient_parts`, for the flattened gradient ``(K, d)``.
    """

    def mean(positions, record):
        return jnp.mean(jax.vmap(function, (0, None))(positions, record))

    def share(position, record):
        return function(position, record) / len(positions)

    first, *others = positions
    parts = gradient_parts(share, first, record)
    if others:
        together = gradient_parts(mean, positions, record)
        if _has_products(together) or not _has_products(parts):
            return together
    for position in others:
        parts += gradient_parts(share, position, record)
    return parts


def _has_products(parts) -> bool:
    return any(isinstance(part, Outer) for part in parts)


def _parts(jaxpr) -> list:
    """Vectors whose sum is the output vector of a program, as (start, variable) pairs.

    A vector stands at the components from ``start`` on; elsewhere it counts as zero.
    """
    makers = _makers(jaxpr)
    parts = []

    def visit(variable, start):
        eqn = makers(variable)
        if eqn is None:
            parts.append((start, variable))
        elif eqn.primitive.name in ("add_any", "add") and _of_one_shape(eqn):
            for term in eqn.invars:
                visit(term, start)
        elif eqn.primitive.name == "pad" and _pads_with_zeros(eqn):
            visit(eqn.invars[0], start + eqn.params["padding_config"][0][0])
        elif eqn.primitive.name == "concatenate":
            for piece in eqn.invars:
                visit(piece, start)
                start += piece.aval.shape[0]
        elif eqn.primitive.name == "stack":
            for place, component in enumerate(eqn.invars):
                visit(component, start + place)
        else:
            parts.append((start, variable))

    visit(jaxpr.outvars[0], 0)
    return parts


def _makers(jaxpr):
    """A function from a variable to the equation that makes it, or None."""
    makers = {variable: eqn for eqn in jaxpr.eqns for variable in eqn.outvars}
    return lambda atom: None if isinstance(atom, Literal) else makers.get(atom)


def _of_one_shape(eqn) -> bool:
    """Whether all terms of a sum have its shape: none is a broadcast scalar."""
    return all(term.aval.shape == eqn.outvars[0].aval.shape for term in eqn.invars)


def _pads_with_zeros(eqn) -> bool:
    (low, high, interior), *_ = eqn.params["padding_config"]
    value = eqn.invars[1]
    zero = isinstance(value, Literal) and float(value.val) == 0
    return zero and interior == 0 and low >= 0 and high >= 0


def _products(jaxpr, parts) -> dict:
    """The parts that are outer products and that no other part overlaps.

    Returns
    -------
    ``{start: (weights, direction, axis)}`` in the order of ``start``: two variables,
    and the axis of their product along which the direction lies.
    """
    makers, copies = _makers(jaxpr), _copies(jaxpr, set(jaxpr.invars[1:]))
    products, end = {}, 0
    ordered = sorted(parts, key=lambda part: part[0])
    starts = [start for start, _ in ordered[1:]] + [math.inf]
    for (start, variable), following in zip(ordered, starts, strict=True):
        size = variable.aval.size
        factors = _factors(variable, makers)
        if factors and end <= start and start + size <= following:
            for axis in (1, 0):
                direction = factors[axis]
                if direction.aval.size > 1 and direction in copies:
                    products[start] = (factors[1 - axis], direction, axis)
                    break
        end = max(end, start + size)
    return products


def _copies(jaxpr, stored: set) -> set:
    """Variables whose entries are entries of `stored`, constants, or scaled ones."""
    found = set(stored)

    def is_copy(atom):
        return isinstance(atom, Literal) or atom in found

    for eqn in jaxpr.eqns:
        name, given = eqn.primitive.name, list(map(is_copy, eqn.invars))
        if name == "jit":
            inner = eqn.params["jaxpr"].jaxpr
            copied = itertools.compress(inner.invars, given)
            inside = _copies(inner, set(copied))
            kept = [isinstance(v, Literal) or v in inside for v in inner.outvars]
            found.update(itertools.compress(eqn.outvars, kept))
        elif all(given) and (name in COPIES or _is_scaling(eqn)):
            found.update(eqn.outvars)
    return found


def _is_scaling(eqn) -> bool:
    """Whether an equation multiplies by a number, or divides by one."""
    numbers = [isinstance(atom, Literal) for atom in eqn.invars]
    name = eqn.primitive.name
    return (name == "mul" and any(numbers)) or (name == "div" and numbers[1])


def _factors(variable, makers):
    """Two variables whose flattened outer product is `variable`, or None."""
    eqn = makers(variable)
    match eqn and eqn.primitive.name:
        case "reshape":
            return _factors(eqn.invars[0], makers)
        case "transpose":
            factors = _factors(eqn.invars[0], makers)
            sizes = factors and tuple(factor.aval.size for factor in factors)
            if sizes == eqn.invars[0].aval.shape:
                return factors[::-1]
        case "dot_general":
            (contracted, _), (batched, _) = eqn.params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            if not batched and all(shape[axis] == 1 for axis in contracted):
                return tuple(eqn.invars)
        case "mul":
            for one, other in (eqn.invars, eqn.invars[::-1]):
                made = makers(one)
                if made and made.primitive.name == "broadcast_in_dim":
                    if made.invars[0].aval.size == 1:
                        return made.invars[0], other
    return None
