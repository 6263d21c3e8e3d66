"""Programs of functions that are made anew in every fit.

JAX tells programs apart by the identity of their functions. A function of the user may
read what changes between two fits, such as a variable of a notebook, so it is traced in
every fit. Only programs of the same text are compiled once.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable

import jax

__all__ = ["compiled"]

MAX_PROGRAMS = 64
"""Programs that a process keeps."""

_programs: OrderedDict[str, Callable] = OrderedDict()


def compiled(function: Callable, *arguments) -> Callable:
    """`function`, compiled for arguments of these shapes and types."""
    lowered = jax.jit(function).lower(*arguments)
    text = f"{lowered.in_tree}{lowered.out_tree}{lowered.as_text()}"
    name = hashlib.sha256(text.encode()).hexdigest()
    if name not in _programs:
        _programs[name] = lowered.compile()
    _programs.move_to_end(name)
    if len(_programs) > MAX_PROGRAMS:
        _programs.popitem(last=False)
    return _programs[name]
