"""Programs that are traced whenever they are made, and compiled once if they are equal.

JAX keeps programs by the identity of their functions. But a function of the user may
read a value that changes between two calls, such as a variable of a notebook, and JAX
would then use the program of the first. Here every function is traced afresh, with the
functions that it calls, and equal programs are compiled once.
"""

import contextvars
import functools
import hashlib
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg  # noqa: F401  JAX's LAPACK, which `_libraries` must find.
import threadpoolctl
from jax.extend.core import ClosedJaxpr

from dpjax.release.captured import constants
from dpjax.release.traced import equations

__all__ = [
    "QUICKLY",
    "compiled",
    "constants_hash",
    "evaluated",
    "lapack_in_one_thread",
    "one_call",
    "options_for",
    "shared",
    "traced",
]

QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 1}
"""Options of XLA for programs that run once or seldom. On a CPU, compilation takes less
time with them, and the programs are about as fast. XLA's older generator of loops
(``xla_cpu_use_fusion_emitters`` off) would take a third less time and half the memory,
but computes wrong scores of beta binomial laws."""

MAX_SHORT, MIN_MANY = 32, 256
"""The most numbers of a sum that `_has_many_short_sums` calls short, and the least
number of sums that it calls many. Short sums of one chain each take no time, and there
are fewer chains than that."""

MAX_PROGRAMS = 128
"""The most programs that a process keeps. The least recently used one goes first."""

Function = TypeVar("Function", bound=Callable)

_programs: OrderedDict[tuple, Callable] = OrderedDict()
_traces = itertools.count(1)
# JAX keeps the traces of nested jitted functions by this context as well, so that
# a function jitted by the user is traced again too.
_trace_number = jax.make_user_context(0)
_number_of_call = contextvars.ContextVar("_number_of_call", default=0)


def one_call(function: Function) -> Function:
    """`function`, whose programs share the traces of the functions that they call.

    What the user has jitted is then traced once in a call, and again in the next one.
    """

    @functools.wraps(function)
    def call(*arguments, **keywords):
        token = _number_of_call.set(_number_of_call.get() or next(_traces))
        try:
            return function(*arguments, **keywords)
        finally:
            _number_of_call.reset(token)

    return cast(Any, call)


def traced(function: Callable, *arguments, **options):
    """JAX's `Traced` of `jax.jit(function, **options)` for these arguments.

    Raises
    ------
    RuntimeError
        Under `jax.disable_jit`.
    """
    config: Any = jax.config  # Its attributes are not annotated.
    if config.jax_disable_jit:
        raise RuntimeError(
            "dpjax compiles all that it runs, which jax.disable_jit() does not allow: "
            "to debug a model, call its functions on made-up records"
        )
    with _trace_number(_number_of_call.get() or next(_traces)):
        return jax.jit(function, **options).trace(*arguments)


def shared(program, arguments, options: dict[str, Any] | None = None) -> Callable:
    """The compiled program, which equal programs share.

    Parameters
    ----------
    program
        JAX's `Traced`.
    arguments
        What it was traced for. A program is compiled for the devices that hold them.
    options
        Options of the XLA compiler by name, as `jax.jit` takes them.
    """
    options = options_for(program, options)
    lowered = program.lower()
    text = lowered.as_text()
    if "callback" in text:
        # The text only names an object of this process. Another one may have the same
        # name later.
        return _compile(lowered, text, options)
    # The text leaves out arguments that are not used. If JAX is set to simplify
    # constants, it leaves these out as well.
    text = f"{options}{lowered.args_info}{lowered.out_tree}{text}"
    held = constants_hash(program.jaxpr, with_literals=False)
    name = hashlib.sha256(text.encode() + held).hexdigest()
    leaves = jax.tree.leaves(arguments)
    places = [getattr(leaf, "sharding", None) for leaf in leaves]
    config: Any = jax.config  # Its attributes are not annotated.
    key = name, config.jax_default_device, tuple(places)
    if key not in _programs:
        _programs[key] = _compile(lowered, text, options)
    _programs.move_to_end(key)
    if len(_programs) > MAX_PROGRAMS:
        _programs.popitem(last=False)
    return _programs[key]


def _compile(lowered, text: str, options: dict[str, Any]) -> Callable:
    program = lowered.compile(options)
    return _InOneThread(program) if "lapack_" in text else program


class _InOneThread:
    """A compiled program that runs in the context of `lapack_in_one_thread`."""

    def __init__(self, program):
        self._program = program

    def __call__(self, *arguments):
        with lapack_in_one_thread():
            return jax.block_until_ready(self._program(*arguments))

    def __getattr__(self, name):
        return getattr(self._program, name)


def lapack_in_one_thread():
    """A context in which calls of LAPACK take one thread each.

    On a CPU, JAX calls SciPy's LAPACK, also from several threads at once. For a matrix
    of more than 32 rows, or for many right sides, every call starts threads of its own.
    These spin while they wait for each other, and on busy cores programs have taken 2
    to 68 times as long. Results must be ready when the context ends.
    """
    return _libraries().limit(limits=1, user_api="blas")


@functools.cache
def _libraries() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


def options_for(program, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Options of XLA by name with which `shared` compiles a program.

    The arguments are those of `shared`.
    """
    options = dict(options or {})
    if _has_many_short_sums(program.jaxpr):
        options |= _without_library()
    return options


@functools.cache
def _without_library() -> dict[str, Any]:
    """Options of XLA for programs with many short sums; none if it does not know them.

    On a CPU, XLA leaves sums and maxima over an axis to the library YNNPACK, which
    takes about 30 ns for each of them, however short. For sums over two numbers XLA's
    own loops take a fortieth of that, and over a hundred numbers twice as long.
    """
    options: dict[str, Any] = {"xla_cpu_experimental_ynn_fusion_type": ""}
    try:
        jax.jit(lambda: 0).lower().compile(options)
    except jax.errors.JaxRuntimeError:
        return {}
    return options


def _has_many_short_sums(program: ClosedJaxpr) -> bool:
    """Whether a program has many sums or maxima of a few numbers, as of one record."""
    for eqn in equations(program):
        if eqn.primitive.name in ("reduce_sum", "reduce_max", "reduce_min"):
            shape = eqn.invars[0].aval.shape
            length = math.prod(shape[axis] for axis in eqn.params["axes"])
            number = math.prod(eqn.outvars[0].aval.shape)
            if 1 < length <= MAX_SHORT and number >= MIN_MANY:
                return True
    return False


def constants_hash(program: ClosedJaxpr, with_literals: bool = True) -> bytes:
    """SHA-256 of the constants of a traced program (`captured.constants`)."""
    found = hashlib.sha256()
    for value in constants(program, with_literals):
        if jnp.issubdtype(jax.typeof(value).dtype, jax.dtypes.prng_key):
            with jax.ensure_compile_time_eval():
                value = jax.random.key_data(value)
        value = np.asarray(value)
        found.update(repr((value.shape, value.dtype.str)).encode() + value.tobytes())
    return found.digest()


def compiled(function: Callable, *arguments) -> Callable:
    """`function`, compiled `QUICKLY` for arguments of these shapes and types.

    Raises
    ------
    RuntimeError
        Under `jax.disable_jit`.
    """
    return shared(traced(function, *arguments), arguments, QUICKLY)


def evaluated(function: Callable, *arguments):
    """The value of `function` for arguments that are no tracers, also within a trace.

    The function is compiled as one program. With `jax.ensure_compile_time_eval` alone,
    each of its operations on constants would be a program of its own.
    """
    program = compiled(function, *arguments)
    with jax.ensure_compile_time_eval():
        return program(*arguments)
