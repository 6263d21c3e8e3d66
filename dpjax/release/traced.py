"""What JAX's traced programs hold, in all versions of JAX that dpjax takes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

__all__ = ["equations", "function_of", "parts", "scan_sizes"]

PROGRAMS = (ClosedJaxpr, Jaxpr)


def equations(program: ClosedJaxpr | Jaxpr) -> Iterator[Any]:
    """The equations of a traced program and of the programs inside it."""
    for eqn in getattr(program, "jaxpr", program).eqns:
        yield eqn
        for part in parts(eqn):
            yield from equations(part)


def parts(eqn) -> list[ClosedJaxpr | Jaxpr]:
    """The programs that an equation holds, such as the branches of a condition."""
    found = jax.tree.leaves(
        eqn.params, is_leaf=lambda value: isinstance(value, PROGRAMS)
    )
    return [value for value in found if isinstance(value, PROGRAMS)]


def function_of(program: ClosedJaxpr, result) -> Callable:
    """The function that was traced, as it was then.

    It reads no variable that the traced function read, which may since have changed.

    Parameters
    ----------
    program
        The traced program.
    result
        A pytree with the structure of what the function returns.
    """
    evaluate, structure = jaxpr_as_fun(program), jax.tree.structure(result)

    def function(*arguments):
        return jax.tree.unflatten(structure, evaluate(*jax.tree.leaves(arguments)))

    return function


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a scan's inputs are constants, and how many are its carry.

    A scan with these parameters takes its constants first, then its carry, and then
    what it scans over.
    """
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    # From JAX 0.11 on, trees of the three kinds of inputs.
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)
