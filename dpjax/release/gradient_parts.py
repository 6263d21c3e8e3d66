"""A record's gradient in parts, which XLA sums much faster than the whole.

*Outer products.* Where a log-likelihood reads numbers x of the record through products
with parameters only, such as x . b of a generalized linear model or W x of the first
layer of a network, that part of the gradient is an outer product of weights and x. Its
norm is the product of their norms, and its sum over records is a product of two
matrices, so that no record's gradient is stored. (These are the ghost norms of
Goodfellow 2015, arXiv:1510.01799, and Li et al. 2022, arXiv:2110.05679.)

*Components.* Reverse mode writes the gradient of a function that reads ``position[0]``,
``position[1]``, ... as a sum of vectors that are zero but for one entry. Over many
records XLA's CPU compiler stores and adds all of these; the entries as separate numbers
fuse with what is done to them into one pass, as if written by hand.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jax.flatten_util import ravel_pytree

__all__ = ["Outer", "gradient_parts", "whole"]

MAX_PARTS = 16
"""Components up to which one pass over the records each is worth it."""

COPIES = frozenset(
    {"broadcast_in_dim", "concatenate", "convert_element_type", "reshape", "slice"}
    | {"squeeze", "transpose"}
)
"""Primitives whose result holds entries of their arguments."""


class Outer(NamedTuple):
    """The vector ``(weights * direction).ravel()``.

    weights, direction
        Shapes ``(p, 1)`` and ``(1, q)``, or ``(1, p)`` and ``(q, 1)``. The direction
        holds entries of the record and numbers, times numbers at most: then XLA finds
        the same values however often it evaluates them.
    """

    weights: jax.Array
    direction: jax.Array


def whole(part) -> jax.Array:
    """A part as a vector."""
    return (part.weights * part.direction).ravel() if isinstance(part, Outer) else part


def gradient_parts(function, position, record, max_parts: int = MAX_PARTS) -> list:
    """The gradient of ``function(position, record)``, as what makes it up.

    Parameters
    ----------
    function
        ``(position, record) -> scalar``.
    position
        Pytree of d numbers.
    max_parts
        Components up to which they are separate.

    Returns
    -------
    `Outer` products and vectors, whose concatenation as vectors is the flattened
    ``jax.grad(function)(position, record)``. The components before, between and after
    the products are vectors of one component, or one vector if they are too many, or if
    they are not made of parts.
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


def _parts(jaxpr) -> list:
    """Variables whose sum is the output vector, after the places where they begin."""
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
    """What returns the equation that makes a variable, or None."""
    makers = {variable: eqn for eqn in jaxpr.eqns for variable in eqn.outvars}
    return lambda atom: None if isinstance(atom, Literal) else makers.get(atom)


def _of_one_shape(eqn) -> bool:
    """Whether no term is a number that is added to every component."""
    return all(term.aval.shape == eqn.outvars[0].aval.shape for term in eqn.invars)


def _pads_with_zeros(eqn) -> bool:
    (low, high, interior), *_ = eqn.params["padding_config"]
    value = eqn.invars[1]
    zero = isinstance(value, Literal) and float(value.val) == 0
    return zero and interior == 0 and low >= 0 and high >= 0


def _products(jaxpr, parts) -> dict:
    """Parts that are outer products, in order, and that no other part overlaps.

    Returns
    -------
    ``{start: (weights, direction, axis)}``: two variables, and the axis of the product
    along which the direction lies.
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
    """Variables that hold entries of the stored ones, or of these times numbers."""
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
    """Whether it multiplies by a number, or divides by one."""
    numbers = [isinstance(atom, Literal) for atom in eqn.invars]
    name = eqn.primitive.name
    return (name == "mul" and any(numbers)) or (name == "div" and numbers[1])


def _factors(variable, makers):
    """Two variables whose flattened outer product is that variable, or None."""
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
