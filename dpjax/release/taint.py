"""Data flow: what a program returns may depend on records only through a release.

The functions that sum clipped terms over records pass the sum through `summed`, and
those that release, in `accept_bit` and `gaussian`, pass the released value through
`released`. Both mark the value in the traced program. `tainted` follows the records
through such a program. A value is *tainted* if it depends on records, and *raw* if it
does so other than through marked sums. A value that is computed from a tainted or raw
value is so, too, unless it is marked; nothing else clears it. A raw value must not
reach a release, as nothing bounds how far one record moves it. If a tainted value
decides a loop or a branch, everything that comes out of the loop or branch is tainted.
How long a loop takes is not checked. `dpjax.run` checks the loop that it runs. Records
that are read from disk (`dpjax.release.on_disk`) are raw where they enter the program.

The check says where the data go. Whether enough noise is added where a mark stands is a
matter of the accounting and its tests. `num_marks` says how often a program marks a
value, such as how many releases it makes.
"""

import functools
import operator
from collections import Counter

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import ClosedJaxpr, Literal
from jax.extend.source_info_util import summarize

from dpjax.release import separate
from dpjax.release.on_disk import Reader
from dpjax.release.traced import parts, scan_sizes

__all__ = [
    "RELEASED",
    "REMEMBERED",
    "SUMMED",
    "is_one_of",
    "num_marks",
    "released",
    "remembered",
    "summed",
    "tainted",
]

RELEASED, SUMMED = "dpjax_released", "dpjax_summed"
REMEMBERED = "dpjax_remembered"
"""The marks of `released`, `summed` and `remembered`."""

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


def summed(value: jax.Array) -> jax.Array:
    """`value`, marked as a function of sums of clipped terms of the records."""
    return checkpoint_name(value, SUMMED)


def remembered(value: jax.Array) -> jax.Array:
    """`value`, marked as a memory of the records, which is secret and not bounded."""
    return checkpoint_name(value, REMEMBERED)


def check_call(eqn) -> None:
    """Refuse an equation of a traced program that runs code outside of the program.

    Raises
    ------
    ValueError
        If its primitive is one of `CALLS_OUT`.
    """
    if eqn.primitive.name in CALLS_OUT:
        raise ValueError(
            f"the program makes a {eqn.primitive.name}, which may see records or bring "
            f"them in, at {summarize(eqn.source_info)}: take prints and callbacks out "
            "of the model and the kernel"
        )


def num_marks(program) -> Counter[str]:
    """How many values a traced program marks with each mark, at least.

    Of several branches, that with the most marks counts. A loop of an unknown number of
    turns counts as one turn.
    """
    total = Counter()
    for eqn in getattr(program, "jaxpr", program).eqns:
        found = [num_marks(part) for part in parts(eqn)]
        match eqn.primitive.name:
            case "name":
                total[eqn.params["name"]] += 1
            case "cond":
                total += functools.reduce(operator.or_, found)
            case "scan":
                for mark, number in sum(found, Counter()).items():
                    total[mark] += eqn.params["length"] * number
            case _:
                total += sum(found, Counter())
    return total


PUBLIC, BOUNDED, RAW = range(3)
"""How a value depends on records: not at all, through marked sums alone, otherwise."""


def tainted(program: ClosedJaxpr, inputs: list[bool]) -> list[bool]:
    """Which outputs of a program are tainted, one boolean for each output.

    Parameters
    ----------
    program
        A traced program, from `jax.make_jaxpr`.
    inputs
        Which inputs of the program are raw, one boolean for each input. The others, and
        constants of the program, are public.

    Raises
    ------
    ValueError
        If a raw value reaches a release, and no output is tainted. If the program has
        an operation that `check_call` or `separate.why_not` refuses.
    """

    # A loop is followed several times, until its carry settles. The results are kept,
    # or every loop inside it would be followed anew each time.
    @functools.cache
    def follow(program, inputs):
        jaxpr = getattr(program, "jaxpr", program)
        known = dict(zip(jaxpr.invars, inputs, strict=True))
        known.update(dict.fromkeys(jaxpr.constvars, PUBLIC))

        def of(atom):
            return PUBLIC if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            found = passed(eqn, tuple(of(atom) for atom in eqn.invars))
            known.update(zip(eqn.outvars, found, strict=True))
        return tuple(of(atom) for atom in jaxpr.outvars)

    def passed(eqn, inputs):
        name, params = eqn.primitive.name, eqn.params
        if name == "name" and params["name"] == RELEASED:
            raw_releases.append(max(inputs) == RAW)
            return [PUBLIC]
        if name == "name" and params["name"] == SUMMED:
            return [min(level, BOUNDED) for level in inputs]
        if name == "pure_callback" and type(params["callback"].callback_func) is Reader:
            return [RAW] * len(eqn.outvars)
        check_call(eqn)
        if why := separate.why_not(eqn, list(map(bool, inputs))):
            raise ValueError(f"{why}. It is at {summarize(eqn.source_info)}")
        match name:
            case "jit":
                return follow(params["jaxpr"], inputs)
            case "scan":
                return scan(params, inputs)
            case "while":
                return loop(params, inputs)
            case "cond":
                decided, rest = inputs[0], inputs[1:]
                branches = [follow(branch, rest) for branch in params["branches"]]
                return [max(decided, *one) for one in zip(*branches, strict=True)]
        decided = max(inputs, default=PUBLIC)
        for program in parts(eqn):
            everything = (decided,) * len(getattr(program, "jaxpr", program).invars)
            decided = max([decided, *follow(program, everything)])
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
            return tuple(max(decided, one) for one in moved)

        return _settle(turn, carry)

    raw_releases: list[bool] = []
    levels = follow(program, tuple(RAW if each else PUBLIC for each in inputs))
    if any(raw_releases) and not any(levels):
        raise ValueError(
            "a release reads records other than through sums of clipped terms: what a "
            "sampler is given may read public values only"
        )
    return [level != PUBLIC for level in levels]


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
    """How carried values depend on records after any number of turns of a loop.

    That is the least fixed point above `carry` of `function`, which maps the levels
    before a turn to those after it.
    """
    while True:
        moved = tuple(max(a, b) for a, b in zip(carry, function(carry), strict=True))
        if moved == carry:
            return carry
        carry = moved
