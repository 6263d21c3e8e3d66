"""A record's gradient taken apart into components, which XLA sums much faster.

Reverse mode writes the gradient of a function that reads ``position[0]``,
``position[1]``, ... as a sum of vectors that are zero but for one entry. Over many
records XLA's CPU compiler stores and adds all of these; the entries as separate numbers
fuse with what is done to them into one pass, as if written by hand.
"""

import jax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

__all__ = ["components"]

MOST = 16
"""Components that are worth one pass each."""


def components(function, position: jax.Array, record) -> list[jax.Array] | None:
    """Components of the gradient with respect to a vector, or None.

    Parameters
    ----------
    function
        ``(position, record) -> scalar``.
    position
        Shape ``(d,)``.

    Returns
    -------
    The d scalars of ``jax.grad(function)(position, record)``; None if there are too
    many, or if the gradient is not made of parts, as that of a dot product.
    """
    if not 1 < position.size <= MOST:
        return None
    closed = jax.make_jaxpr(jax.grad(function))(position, record)
    parts = _parts(closed.jaxpr)
    if any(variable.aval.shape[0] == position.size for variable, _ in parts):
        return None
    jaxpr = closed.jaxpr.replace(outvars=[variable for variable, _ in parts])
    evaluate = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))
    values = evaluate(*jax.tree.leaves((position, record)))
    found = [jax.numpy.zeros((), position.dtype)] * position.size
    for (_, start), value in zip(parts, values, strict=True):
        for k in range(value.shape[0]):
            found[start + k] = found[start + k] + value[k]
    return found


def _parts(jaxpr) -> list:
    """Variables, with the places where they begin, whose sum is the output vector."""
    makers = {variable: eqn for eqn in jaxpr.eqns for variable in eqn.outvars}
    parts = []

    def visit(variable, start):
        made = None if isinstance(variable, Literal) else makers.get(variable)
        name = None if made is None else made.primitive.name
        if name in ("add_any", "add") and _of_one_shape(made):
            for term in made.invars:
                visit(term, start)
        elif name == "pad" and _pads_with_zeros(made):
            visit(made.invars[0], start + made.params["padding_config"][0][0])
        elif name == "concatenate":
            for piece in made.invars:
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
