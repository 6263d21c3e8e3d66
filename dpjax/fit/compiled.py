"""A cache of compiled programs, for functions that are traced in every fit.

JAX caches programs by the identity of their functions. But a function of the user may
read a value that changes between two fits, such as a variable of a notebook. So it is
traced in every fit, and programs with the same text are compiled only once.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax

__all__ = ["QUICKLY", "compiled", "evaluated"]

QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 1}
"""Options of XLA for programs that run once or seldom. On a CPU, compilation takes half
the time with them, and the programs are about as fast."""

if jax.__version_info__[:2] == (0, 10):
    # XLA raises an error for an option that it does not know.
    QUICKLY["xla_cpu_use_fusion_emitters"] = False

MAX_PROGRAMS = 64
"""The most programs that a process keeps. The least recently used one goes first."""

_programs: OrderedDict[str, Callable] = OrderedDict()


def compiled(function: Callable, *arguments) -> Callable:
    """`function`, compiled `QUICKLY` for arguments of these shapes and types.

    Raises
    ------
    RuntimeError
        Under `jax.disable_jit`.
    """
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        raise RuntimeError(
            "dpjax compiles all that it runs, which jax.disable_jit() does not allow: "
            "to debug a model, call its functions on made-up records"
        )
    lowered = jax.jit(function).lower(*arguments)
    if getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
        # The text leaves out constants.
        return lowered.compile(QUICKLY)
    # The text leaves out arguments that are not used.
    text = f"{lowered.args_info}{lowered.out_tree}{lowered.as_text()}"
    name = hashlib.sha256(text.encode()).hexdigest()
    if name not in _programs:
        _programs[name] = lowered.compile(QUICKLY)
    _programs.move_to_end(name)
    if len(_programs) > MAX_PROGRAMS:
        _programs.popitem(last=False)
    return _programs[name]


def evaluated(function: Callable, *arguments):
    """The value of `function` for arguments that are no tracers, also within a trace.

    The function is compiled as one program. With `jax.ensure_compile_time_eval` alone,
    each of its operations on constants would be a program of its own.
    """
    program = compiled(function, *arguments)
    with jax.ensure_compile_time_eval():
        return program(*arguments)
