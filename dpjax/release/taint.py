"""Data flow: what a program returns may depend on records only through a release.

The functions that release, in `accept_bit` and `gaussian`, pass the released value
through `released`, which marks it as public in the traced program. `tainted` follows
the records through such a program. A value is *tainted* if it depends on records. A
value that is computed from a tainted value is tainted, unless it is marked; nothing
else clears it. If a tainted value decides a loop or a branch, everything that comes out
of the loop or branch is tainted. How long a loop takes is not checked. `dpjax.run`
checks the loop that it runs. Records that are read from disk (`dpjax.release.on_disk`)
are tainted where they enter the program.

The check says where the data go. Whether enough noise is added where a mark stands is a
matter of the accounting and its tests.
"""

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import ClosedJaxpr, Literal

from dpjax.release import separate
from dpjax.release.on_disk import Reader
from dpjax.release.traced import is_program, scan_sizes

__all__ = ["is_one_of", "released", "tainted"]

RELEASED = "dpjax_released"
CALLS_OUT = frozenset(
    {"buffer_callback", "debug_callback", "io_callback", "pure_callback"}
    | {"debug_print", "infeed", "outfeed", "ffi_call", "call_exported", "call_tf"}
    | {"custom_partitioning", "mosaic_gpu_p", "tpu_custom_call"}
)
"""Primitives that run code or have effects outside of the program, where the records
cannot be followed."""


def released(value: jax.Array) -> jax.Array:
    """`value`, marked as public: an accept bit, or a sum with noise."""
    return checkpoint_name(value, RELEASED)


def tainted(program: ClosedJaxpr, inputs: list[bool]) -> list[bool]:
    """Which outputs of a program are tainted, one boolean for each output.

    Parameters
    ----------
    program
        A traced program, from `jax.make_jaxpr`.
    inputs
        Which inputs of the program are tainted, one boolean for each input. Constants
        of the program are not.

    Raises
    ------
    ValueError
        If the program has a primitive of `CALLS_OUT`, whose function may know the
        records, or an operation on tainted values that `separate.why_not` refuses.
    """

    def follow(program, inputs):
        jaxpr = getattr(program, "jaxpr", program)
        known = dict(zip(jaxpr.invars, inputs, strict=True))
        known.update(dict.fromkeys(jaxpr.constvars, False))

        def of(atom):
            return not isinstance(atom, Literal) and known[atom]

        for eqn in jaxpr.eqns:
            found = passed(eqn, [of(atom) for atom in eqn.invars])
            known.update(zip(eqn.outvars, found, strict=True))
        return [of(atom) for atom in jaxpr.outvars]

    def passed(eqn, inputs):
        name, params = eqn.primitive.name, eqn.params
        if name == "name" and params["name"] == RELEASED:
            return [False]
        if name == "pure_callback" and type(params["callback"].callback_func) is Reader:
            return [True] * len(eqn.outvars)
        if name in CALLS_OUT:
            raise ValueError(
                f"the program makes a {name}, which may see records or bring them in: "
                "take prints and callbacks out of the model and the kernel"
            )
        if why := separate.why_not(eqn, inputs):
            raise ValueError(why)
        match name:
            case "jit":
                return follow(params["jaxpr"], inputs)
            case "scan":
                return scan(params, inputs)
            case "while":
                return loop(params, inputs)
            case "cond":
                decided, *rest = inputs
                branches = [follow(branch, rest) for branch in params["branches"]]
                return [decided or any(one) for one in zip(*branches, strict=True)]
        decided = any(inputs)
        for program in jax.tree.leaves(params, is_leaf=is_program):
            if is_program(program):
                everything = [decided] * len(getattr(program, "jaxpr", program).invars)
                decided |= any(follow(program, everything))
        return [decided] * len(eqn.outvars)

    def scan(params, inputs):
        num_consts, size = scan_sizes(params)
        consts, carry, rows = _split(inputs, num_consts, size)

        def turn(carry):
            return follow(params["jaxpr"], consts + carry + rows)

        carry = _settle(lambda carry: turn(carry)[:size], carry)
        return carry + turn(carry)[size:]

    def loop(params, inputs):
        size = params["cond_nconsts"]
        condition, consts, carry = _split(inputs, size, params["body_nconsts"])

        def turn(carry):
            (decided,) = follow(params["cond_jaxpr"], condition + carry)
            moved = follow(params["body_jaxpr"], consts + carry)
            return [decided or one for one in moved]

        return _settle(turn, carry)

    return follow(program, inputs)


def is_one_of(value, arrays) -> bool:
    """Whether `value` is one of `arrays`, or shares memory with one.

    Shared memory is looked for between two NumPy arrays only. Where one of the two is
    on a device, they must be the same object.
    """

    def is_same(array):
        on_device = isinstance(value, jax.Array) or isinstance(array, jax.Array)
        return value is array if on_device else np.may_share_memory(value, array)

    return any(is_same(array) for array in arrays)


def _split(inputs, first, second):
    return inputs[:first], inputs[first : first + second], inputs[first + second :]


def _settle(function, carry):
    """Which carried values are tainted after any number of turns of a loop.

    That is the least fixed point above `carry` of `function`, which maps the taints
    before a turn to those after it.
    """
    while True:
        moved = [a or b for a, b in zip(carry, function(carry), strict=True)]
        if moved == carry:
            return carry
        carry = moved
