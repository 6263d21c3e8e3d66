"""A search for records that a user's function holds, instead of taking as its argument.

The log-likelihood of one record may read that record and public values; a prior, a
simulator and a `constrain_fn` may read public values alone. A function can hold records
all the same: in its closure, its globals, its defaults, the attributes of its object,
or as constants of the program that JAX traces. What a function holds is compared with
the data in three ways: by identity and shared memory, by the length of the leading
axis, and by content. The positions where chains start are compared as well, but by
length not at all, and by content only if the match cannot be chance.

`captured` and `constants` list what a function holds, `Records` compares it with the
data, and the functions whose names begin with ``check_`` raise an error. Records that
reach a result through the arguments of a program are found by `dpjax.release.taint`.
"""

import dis
import functools
import math
import sys
import types
from collections import deque
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
    ValuesView,
)
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from scipy.stats import binom

from dpjax.posterior import Posterior
from dpjax.release import taint
from dpjax.release.sealed import SealedRecords
from dpjax.release.traced import equations, parts

__all__ = [
    "Records",
    "captured",
    "check_arguments",
    "check_example",
    "check_functions",
    "check_simulation",
    "constants",
]

LIBRARIES = frozenset(
    {"blackjax", "chex", "dpjax", "flax", "jax", "jaxlib", "numpy", "numpyro"}
    | {"optax", "pandas", "polars", "scipy"}
    | sys.stdlib_module_names
) - {"__main__"}
"""Packages whose code is not the user's. Of their functions, neither the globals nor
defaults that are plain numbers are searched for records, and of their classes nothing
is."""

NUMBERS = int, float, complex

SIGNIFICANT_DIGITS = 5
"""The most decimal digits of a number that could be typed by hand, such as 0.5, which
many data sets hold by chance. A number with more digits is *unmistakable*: if the data
hold it, it was probably taken from them."""

MIN_RUN = 8
"""Length from which on an array that is found in the data, entry after entry, is taken
for records, if its entries are not all equal. If it has two different unmistakable
numbers, any length is enough."""

LONG_RUN = 64
"""Length from which on such an array is not in the data by chance, although each entry
alone could be typed by hand. Most entries must be unevenly spaced (`_is_long_run`)."""

MAX_CHANCE = 1e-3
"""An array is taken for records if all its unmistakable numbers are in the data and the
probability that they are there by chance is below this."""


class Records:
    """The records of one or more posteriors, to tell them from public constants.

    The posteriors have the same functions. Values that a posterior names in its
    `public` are not taken for records.
    """

    def __init__(self, posterior: Posterior, *others: Posterior):
        together = posterior, *others
        self._leaves = jax.tree.leaves([each.data for each in together])
        public = [each.public for each in together]
        lists = jax.tree.leaves(public, is_leaf=_are_numbers)
        self._public = jax.tree.leaves(public) + list(map(_together, lists))

    @np.errstate(all="ignore")
    def secrets(
        self, named: Iterable[tuple[str, Any]], only_unmistakable: bool = False
    ) -> list[tuple[str, str]]:
        """The values that are taken for records, as (name, why) pairs.

        Parameters
        ----------
        named
            (name, value) pairs; a value is a number or an array.
        only_unmistakable
            Whether to leave out the weaker signs: a leading axis as long as that of the
            data, and a run of entries that could be typed by hand, unless it is as long
            as `LONG_RUN`.
        """
        named = [pair for pair in named if not self._is_public(pair[1])]
        arrays = [_numbers(value) for _, value in named]
        chances, found = self._chances(arrays), []
        for (name, value), array, chance in zip(named, arrays, chances, strict=True):
            if taint.is_one_of(value, self._leaves):
                found.append((name, "is an array of the data"))
            elif chance < MAX_CHANCE:
                found.append((name, "holds entries of the data"))
            elif (
                not only_unmistakable
                and np.shape(value)[:1] == self._leaves[0].shape[:1]
            ):
                found.append((name, "has one entry for each of the records"))
            elif only_unmistakable and not _is_long_run(array):
                continue
            elif chance <= 1 and self._holds_run(array):
                found.append((name, "holds entries of the data"))
        return found

    def holds_in_order(self, value) -> bool:
        """Whether the entries of an array follow each other in the data, not by chance.

        For that the array must have at least `MIN_RUN` different unmistakable numbers.
        """
        array = _numbers(value)
        is_telling = _unmistakable(array, array.dtype).size >= MIN_RUN
        return is_telling and self._holds_run(array)

    def _is_public(self, value) -> bool:
        numbers = _numbers(value)
        # JAX may have rounded the constant.
        return any(
            value is leaf
            or (
                numbers.size > 0
                and np.array_equal(numbers, _numbers(leaf).astype(numbers.dtype))
            )
            for leaf in self._public
        )

    def _chances(self, arrays: list[np.ndarray]) -> list[float]:
        """For each array, the chance that the data hold all its unmistakable numbers.

        It is the probability that public numbers would all be found in the data. It is
        1 for an array without unmistakable numbers, and infinite if some are not in the
        data. The data are read once for all arrays.

        If the data are spread over processes, each sees its part of them. One of P
        processes has at least one in P of the numbers of an array, and finding these is
        enough. That k of n numbers are in the data by chance has at most the
        probability (e n / k)^k times that of k given numbers.
        """
        sought = [_unmistakable(array, array.dtype) for array in arrays]
        chances = [math.inf if numbers.size else 1.0 for numbers in sought]
        for leaf in self._leaves:
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                continue
            dtypes = [_coarser(numbers.dtype, leaf.dtype) for numbers in sought]
            for dtype in set(dtypes):
                rounded = {
                    i: numbers.astype(dtype)
                    for i, numbers in enumerate(sought)
                    if dtypes[i] == dtype
                }
                everything = np.unique(np.concatenate([*rounded.values()]))
                everything = everything[np.isfinite(everything) & (everything != 0)]
                if not everything.size:
                    continue
                found = everything[_are_found(everything, _blocks(leaf))]
                parts = jax.process_count() if _is_spread(leaf) else 1
                choices = math.e * parts if parts > 1 else 1.0
                chance = 2 * float(jnp.finfo(dtype).eps) * leaf.size * choices
                for i, numbers in rounded.items():
                    num_found = np.count_nonzero(np.isin(numbers, found))
                    if 0 < numbers.size <= num_found * parts:
                        chances[i] = min(chances[i], min(1.0, chance) ** num_found)
        return chances

    def _holds_run(self, array: np.ndarray) -> bool:
        """Whether the entries of an array follow each other in the data.

        They may do so along a row or down a column. An array that is too short
        (`MIN_RUN`) is not looked for. If the data are spread over processes, the array
        may lie on both sides of an end of this process's part. So one of its pieces is
        enough, which are so short that one of them lies on one side.
        """
        if not _is_run(array):
            return False
        pairs = ((leaf, part) for leaf in self._leaves for part in _blocks(leaf))
        for leaf, block in pairs:
            is_float = jnp.issubdtype(block.dtype, jnp.floating)
            if is_float:
                block = block.astype(_coarser(array.dtype, block.dtype), copy=False)
            run = array.astype(block.dtype).ravel()
            if not is_float and not np.array_equal(run, array.ravel()):
                continue
            size = run.size
            if _is_spread(leaf):
                size = max(min(run.size, len(block)) // 3, MIN_RUN)
            starts = range(0, max(run.size - size, 0) + 1, size)
            pieces = [run[start : start + size] for start in starts]
            lines = block.flat, *block.reshape(len(block), -1).T
            if any(_occurs(p, line) for p in filter(_is_run, pieces) for line in lines):
                return True
        return False


def check_functions(
    posterior: Posterior, positions, others: Sequence[Posterior] = ()
) -> None:
    """Refuse functions of a posterior that hold records, and starts that are records.

    The functions are traced, not executed.

    Parameters
    ----------
    posterior
        Its data are compared with what its functions hold, apart from `public`.
    positions
        Where chains start, ``(chains, ...)``.
    others
        Posteriors with the same functions, which must not hold their data either.

    Raises
    ------
    ValueError
        If a function holds an array of the data, an array with one entry for each
        record, or entries of the data, or a chain starts at entries of the data. If a
        function makes a print or a callback (`dpjax.release.taint.check_call`).
    """
    records = Records(posterior, *others)
    first = functools.partial(jax.tree.map, lambda leaf: leaf[0])
    position, record = jax.eval_shape(first, (positions, posterior.data))
    functions: dict[str, tuple] = dict(
        logprior_fn=(position,), loglikelihood_fn=(position, record)
    )
    if posterior.constrain_fn is not None:
        functions["constrain_fn"] = (position,)
    for kind, arguments in functions.items():
        allowed = "the record that it is given" if len(arguments) > 1 else "no record"
        _check(records, kind, getattr(posterior, kind), arguments, allowed)
    starts = [
        (jax.tree_util.keystr(path), start)
        for path, leaf in jax.tree_util.tree_leaves_with_path(positions)
        # NumPyro calls this within a trace if it has several devices. Positions that
        # are traced have no values to compare.
        if not isinstance(leaf, Tracer)
        for start in np.asarray(leaf)
    ]
    for name, why in records.secrets(starts, only_unmistakable=True):
        raise ValueError(
            f"a chain starts at an initial_position{name} that {why}, so its first "
            "draws would publish them: start from the prior, or from an earlier run"
        )


def check_arguments(posterior: Posterior, algorithm_fn: Callable, others=()) -> None:
    """Refuse records in what makes an algorithm, or in what it gives to the sampler.

    It gives functions and values, such as a proposal, a `dpjax.Range` or a number that
    is computed from a variable.

    Raises
    ------
    ValueError
        If `algorithm_fn` holds an array of the data, or entries of the data, as its
        variables or as arguments of a `functools.partial`.
    """
    given, function = [], algorithm_fn
    while isinstance(function, functools.partial):
        given += [function.args, function.keywords]
        function = function.func
    # A library's own function, such as that of a fit, may hold the posterior.
    if not _is_of_library(function):
        given.append(function)
    held = captured(given)
    found = Records(posterior, *others).secrets(held, only_unmistakable=True)
    for name, why in found:
        raise ValueError(
            f"the function that makes the algorithm holds {name!r}, which {why}: it "
            "and what it gives to the sampler may hold public values only, such as the "
            "num_records of its argument. If this value is not private, name it in "
            "public="
        )


def check_sample(posterior: Posterior, sample: Callable, parameters, others=()) -> None:
    """Refuse an algorithm's function `sample` that holds records.

    Parameters
    ----------
    posterior, others
        As in `check_functions`.
    sample
        The field of `dpjax.algorithm.Algorithm`: it draws positions from the fitted
        distribution. It is traced, not executed.
    parameters
        Shapes and dtypes of the parameters that `sample` takes, a pytree.

    Raises
    ------
    ValueError
        As `check_functions` does.
    """
    records = Records(posterior, *others)
    draw = functools.partial(sample, num_samples=2)
    _check(records, "sample", draw, (jax.random.key(0), parameters), "no record")


def check_simulation(
    posterior: Posterior, simulate_fn: Callable, prior_sample_fn: Callable
) -> None:
    """Refuse a simulator, or a sampler of the prior, that holds records.

    Parameters
    ----------
    posterior
        As in `check_functions`.
    simulate_fn, prior_sample_fn
        As in `dpjax.sample`. They are traced, not executed.

    Raises
    ------
    ValueError
        As `check_functions` does.
    """
    records, key = Records(posterior), jax.random.key(0)
    position = jax.eval_shape(prior_sample_fn, key)
    _check(records, "prior_sample_fn", prior_sample_fn, (key,), "no record")
    _check(records, "simulate_fn", simulate_fn, (key, position), "no record")


def check_example(posterior: Posterior) -> None:
    """Refuse made-up records, `Posterior.example`, that were copied from the data.

    An array counts as copied if its entries follow each other in the data
    (`Records.holds_in_order`), and the example as a whole if all its records are in the
    data, in any order, and not by chance. Made-up records may share single numbers with
    the data, such as an age. If the data are spread over processes, whole records are
    not looked for.

    Raises
    ------
    ValueError
        If an array of `example` is a run of entries of the data, or if the records of
        `example` are records of the data.
    """
    records, example = Records(posterior), posterior.example
    found = [
        f"example[{name!r}] holds entries of the data in their order"
        for name, value in example.items()
        if records.holds_in_order(value)
    ]
    if _are_records(example, posterior.data):
        found.append("all records of the example are records of the data")
    if found:
        raise ValueError(
            f"{found[0]}, and what is released depends on it: make these records up, "
            "as the example of a dpjax.records.Schema does"
        )


def _check(
    records: Records, kind: str, function: Callable, arguments, allowed: str
) -> None:
    """Refuse a function that holds records, or that calls code which may read them.

    It is traced on `arguments`. The message calls it `kind`, and says in the words of
    `allowed` which records it may read.
    """
    held = [(f"{name!r}", value) for name, value in captured(function)]
    # JAX keeps traces by function. If this one was traced before, its variables may
    # have had other values, so a new function is traced.
    program = jax.make_jaxpr(lambda *given: function(*given))(*arguments)
    for eqn in equations(program):
        taint.check_call(eqn)
    held += [
        (f"a constant of shape {np.shape(value)}", value)
        for value in constants(program)
    ]
    for name, why in records.secrets(held):
        raise ValueError(
            f"{kind} holds {name}, which {why}: it may read {allowed} and public "
            "values only. Compute with its arguments instead, or, if this value is not "
            "private, name it in public="
        )


def captured(function: Any) -> list[tuple[str, Any]]:
    """Numbers and arrays that reach a function other than as arguments.

    They come from closures, globals, defaults, `functools.partial`, bound methods, and
    attributes of functions, of objects and of their classes. Records with a seal, which
    the function cannot read, are left out.

    Returns
    -------
    A ``(name, value)`` pair for each number and array. A list, tuple or set of numbers
    is one array.
    """
    found, seen, waiting = [], {}, [("", function)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, SealedRecords):
            continue
        is_array = hasattr(value, "__array__") and not isinstance(value, type)
        if is_array or isinstance(value, NUMBERS):
            found.append((name, value))
        elif _are_numbers(value):
            found.append((name, _together(value)))
        elif id(value) not in seen:
            seen[id(value)] = value
            waiting += [(key or name, part) for key, part in _parts(value)]
    return found


def _are_numbers(value) -> bool:
    """Whether a value is a list of numbers, or a tuple or a set of them."""
    is_list = isinstance(value, list | tuple | set | frozenset) and len(value) > 0
    return is_list and all(isinstance(each, NUMBERS) for each in value)


def _together(value):
    """A list, tuple or set of numbers as one array; any other value unchanged."""
    return np.asarray(list(value)) if _are_numbers(value) else value


def _parts(value) -> Iterator[tuple[str, Any]]:
    """What an object holds, as (name, value) pairs; parts without a name have ""."""
    match value:
        case functools.partial():
            yield "", value.func
            yield from ((str(i), part) for i, part in enumerate(value.args))
            yield from value.keywords.items()
        case types.MethodType():
            yield from (("", value.__func__), ("", value.__self__))
        case types.FunctionType():
            yield from _parts_of_function(value)
        case types.ModuleType() | str() | bytes():
            pass
        case Mapping():
            yield from ((str(key), part) for key, part in value.items())
        case Sequence() | Set() | deque() | ValuesView():
            yield from (("", part) for part in value)
        case type():
            if not _is_of_library(value):
                yield from _named(vars(value))
        case _:
            yield "", getattr(value, "__wrapped__", None)
            yield from _named(getattr(value, "__dict__", {}))
            for kind in type(value).__mro__:
                for name in np.atleast_1d(vars(kind).get("__slots__", ())):
                    yield name, getattr(value, name, None)
                yield "", kind


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code, is_of_library = function.__code__, _is_of_library(function)
    names = code.co_varnames[: code.co_argcount]
    values = function.__defaults__ or ()
    defaults = dict(zip(names[len(names) - len(values) :], values, strict=True))
    for name, value in (defaults | (function.__kwdefaults__ or {})).items():
        if not (is_of_library and isinstance(value, NUMBERS)):
            yield name, value
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # An empty cell is a name without a value yet.
            yield name, cell.cell_contents
    yield "", getattr(function, "__wrapped__", None)
    yield from _named(vars(function))
    if not is_of_library:
        for inner in _codes(code):
            yield from _globals(inner, function.__globals__)


def _named(attributes) -> Iterator[tuple[str, Any]]:
    for name, value in attributes.items():
        if name == "__call__" or not name.startswith("__"):
            yield name, value


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and that of the functions defined inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _globals(code: types.CodeType, variables: dict) -> Iterator[tuple[str, Any]]:
    """Globals that the code looks up.

    A module of the user stands for those of its attributes whose names are in the code;
    a module of a library stands for nothing.
    """
    for step in dis.get_instructions(code):
        value = variables.get(step.argval) if step.opname in _LOADS else None
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] not in LIBRARIES:
                held = vars(value)
                yield from ((k, held[k]) for k in code.co_names if k in held)
        elif value is not None:
            yield step.argval, value


_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")


def _is_of_library(value) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in LIBRARIES


def constants(
    program: ClosedJaxpr | Jaxpr, with_literals: bool = True
) -> Iterator[Any]:
    """Constants of a traced program and of the programs inside it.

    Literals are constants that are written into the equations of a program. They are
    numbers, except where JAX is set to simplify constants: then arrays are literals
    too. Without `with_literals` the numbers are left out, but not these arrays.
    """
    if isinstance(program, ClosedJaxpr):
        yield from program.consts
        program = program.jaxpr
    for eqn in program.eqns:
        literals = [atom.val for atom in eqn.invars if isinstance(atom, Literal)]
        yield from (each for each in literals if with_literals or np.ndim(each))
        for part in parts(eqn):
            yield from constants(part, with_literals)


def _numbers(value) -> np.ndarray:
    """A number or an array as a NumPy array; an empty one if it is not numeric.

    Raises
    ------
    ValueError
        If the array is one that a function kept while JAX traced it.
    """
    if isinstance(value, Tracer):
        raise ValueError(
            "a function keeps what it was called with in a variable outside of itself, "
            "as by seen.append(x): return values in place of storing them"
        )
    if not jnp.issubdtype(getattr(value, "dtype", float), jax.dtypes.extended):
        array = np.asarray(value)
        if jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool:
            return array
    return np.zeros(0)


def _is_spread(leaf) -> bool:
    """Whether an array of the data is spread over processes."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def _blocks(leaf) -> Iterator[np.ndarray]:
    """The parts of an array of the data that this process holds, ``(rows, ...)``.

    It is one part, unless the array is spread over processes.
    """
    if _is_spread(leaf):
        yield from (_numbers(part.data) for part in leaf.addressable_shards)
    elif isinstance(leaf, jax.Array | np.ndarray):
        yield _numbers(leaf)


def _is_run(array: np.ndarray) -> bool:
    """Whether an array is long enough to be looked for in the data, entry by entry."""
    is_long = array.size >= MIN_RUN and np.any(array != array.flat[0])
    return bool(is_long or _unmistakable(array, array.dtype).size >= 2)


def _unmistakable(array: np.ndarray, dtype) -> np.ndarray:
    """The unmistakable numbers of an array, distinct, sorted and in `dtype`.

    A number is unmistakable if rounding it to `SIGNIFICANT_DIGITS` decimal digits
    changes it. Only floats can be; zero, NaN and infinity are not.
    """
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return np.zeros(0, dtype)
    numbers = np.unique(array.astype(dtype))
    numbers = numbers[np.isfinite(numbers) & (numbers != 0)]
    exact = numbers.astype(float)
    digits = SIGNIFICANT_DIGITS - 1 - np.floor(np.log10(np.abs(exact)))
    # Only 10^k with k >= 0 is computed: 10^-k is not exact in floating point, and with
    # it a short number would not be found again to the last bit.
    up, down = 10.0 ** digits.clip(0, 300), 10.0 ** (-digits).clip(0, 300)
    return numbers[(np.round(exact * up / down) / up * down).astype(dtype) != numbers]


def _coarser(first, second) -> np.dtype:
    """The type with fewer digits of two, or the second if one is no type of floats.

    A copy of the records may have been rounded, as JAX rounds float64 to float32.
    """
    if not jnp.issubdtype(first, jnp.floating):
        return np.dtype(second)
    return np.dtype(max(first, second, key=lambda dtype: float(jnp.finfo(dtype).eps)))


def _is_long_run(array: np.ndarray) -> bool:
    """Whether an array is so long and irregular that data do not hold it by chance.

    It has at least `LONG_RUN` entries, and at most half of the steps between
    neighbouring entries are as large as the step before. So a range, a step function or
    an identity matrix of some size does not count, as data that are sorted or one-hot
    hold those by chance. Arrays in uint32 do not count either: they are random words
    and tables for them, and to compare them all records would be read.
    """
    if array.size < LONG_RUN or array.dtype == np.uint32:
        return False
    with np.errstate(all="ignore"):
        turns = np.diff(array.ravel() + 0.0, 2)
    return bool(np.count_nonzero(turns) >= turns.size / 2)


def _are_records(example: Mapping[str, Any], data) -> bool:
    """Whether all records of an example are in the data, and not by chance.

    Records of few values, such as two indicators, are in any data. What tells are those
    that are in the data exactly once. If n records are drawn from any law, one that was
    made up without them is among them exactly once with at most the probability
    (1 - 1/n)^(n - 1), which is near 1/e. So an example with many such records, and none
    that the data lack, was copied.
    """
    if not example or not set(data) <= set(example):
        return False
    leaves = [data[name] for name in sorted(data)]
    if any(map(_is_spread, leaves)):
        return False
    everything, counts = np.unique(_hashes(leaves), return_counts=True)
    sought = np.unique(_hashes([example[name] for name in sorted(data)]))
    where = np.searchsorted(everything, sought).clip(max=len(everything) - 1)
    num_once = np.count_nonzero(counts[where] == 1)
    n = np.sum(counts)
    chance = binom.sf(num_once - 1, len(sought), (1 - 1 / n) ** (n - 1))
    return bool(np.all(everything[where] == sought) and chance < MAX_CHANCE)


@np.errstate(all="ignore")
def _hashes(leaves: Iterable) -> np.ndarray:
    """A hash of each record, ``(n,)`` uint64, of its numbers in float32."""
    rng, total = np.random.default_rng(0), np.uint64(0)
    for leaf in leaves:
        array = _numbers(leaf)
        size = math.prod(array.shape[1:])
        odd = 2 * rng.integers(2**63, size=size, dtype=np.uint64) + 1
        # Adding zero makes -0 the same as 0.
        blocks = (
            (rows.astype(np.float32).reshape(len(rows), size) + 0).view(np.uint32)
            for rows in np.array_split(array, 1 + array.size // 2**20)
        )
        total += np.concatenate([rows.astype(np.uint64) @ odd for rows in blocks])
    return np.asarray(total)


def _are_found(numbers: np.ndarray, blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Which of the sorted `numbers` are entries of the blocks, booleans."""
    are_found = np.zeros(len(numbers), bool)
    for block in blocks:
        for rows in np.array_split(np.atleast_1d(block), 1 + block.size // 2**20):
            part = rows.ravel().astype(numbers.dtype, copy=False)
            where = np.searchsorted(numbers, part).clip(max=len(numbers) - 1)
            are_found[where[numbers[where] == part]] = True
    return are_found


def _occurs(run: np.ndarray, line) -> bool:
    """Whether the entries of `run` follow each other in `line`, bit for bit."""
    size = 2**20
    return any(
        run.tobytes() in line[start : start + size + run.size].tobytes()
        for start in range(0, len(line), size)
    )
