"""A record's gradient as separate components, which XLA sums much faster.

Reverse mode writes the gradient of a function that reads ``position[0]``,
``position[1]``, ... as a sum of vectors that are zero but for one entry. Over many
records XLA's CPU compiler stores and adds all of these; the entries as separate numbers
fuse with what is done to them into one pass, as if written by hand.
"""

import jax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

__all__ = ["gradient_parts"]

MAX_PARTS = 16
"""Components up to which one pass over the records each is worth it."""


def gradient_parts(
    function, position: jax.Array, record, max_parts: int = MAX_PARTS
) -> list[jax.Array]:
    """The gradient of ``function(position, record)``, as vectors that make it up.

    Parameters
    ----------
    function
        ``(position, record) -> scalar``.
    position
        Shape ``(d,)``.
    max_parts
        Components up to which they are separate.

    Returns
    -------
    Vectors whose concatenation is ``jax.grad(function)(position, record)``: d of one
    component, or one of all if there are too many, or if the gradient is not made of
    parts, as that of a dot product.
    """
    gradient_fn = jax.grad(function)
    if not 1 < position.size <= max_parts:
        return [gradient_fn(position, record)]
    closed = jax.make_jaxpr(gradient_fn)(position, record)
    parts = _parts(closed.jaxpr)
    if any(variable.aval.shape[0] == position.size for variable, _ in parts):
        return [gradient_fn(position, record)]
    jaxpr = closed.jaxpr.replace(outvars=[variable for variable, _ in parts])
    evaluate = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))
    values = evaluate(*jax.tree.leaves((position, record)))
    found = [jax.numpy.zeros((), position.dtype)] * position.size
    for (_, start), value in zip(parts, values, strict=True):
        for k in range(value.shape[0]):
            found[start + k] = found[start + k] + value[k]
    return [component[None] for component in found]


def _parts(jaxpr) -> list:
    """Variables, with the places where they begin, whose sum is the output vector."""
    makers = {variable: eqn for eqn in jaxpr.eqns for variable in eqn.outvars}
    parts = []

    def visit(variable, start):
        eqn = None if isinstance(variable, Literal) else makers.get(variable)
        if eqn is None:
            parts.append((variable, start))
        elif eqn.primitive.name in ("add_any", "add") and _of_one_shape(eqn):
            for term in eqn.invars:
                visit(term, start)
        elif eqn.primitive.name == "pad" and _pads_with_zeros(eqn):
            visit(eqn.invars[0], start + eqn.params["padding_config"][0][0])
        elif eqn.primitive.name == "concatenate":
            for piece in eqn.invars:
                visit(piece, start)
                start += piece.aval.shape[0]
        else:
            parts.append((variable, start))

    visit(jaxpr.outvars[0], 0)
    return parts


def _of_one_shape(eqn) -> bool:
    """Whether no term is a number that is added to every component."""
    return all(term.aval.shape == eqn.outvars[0].aval.shape for term in eqn.invars)


def _pads_with_zeros(eqn) -> bool:
    (low, high, interior), *_ = eqn.params["padding_config"]
    value = eqn.invars[1]
    zero = isinstance(value, Literal) and float(value.val) == 0
    return zero and interior == 0 and low >= 0 and high >= 0
