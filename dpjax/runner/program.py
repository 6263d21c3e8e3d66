"""The compiled loop of a run, which is the loop that was checked and charged for.

Every run traces its loop afresh (`dpjax.compiled`), so that what runs is what the
functions do now. The algorithm that was traced states what is charged, and runs whose
loops are equal share one compiled program.

`dpjax.runner.check` searches the traced loop for leaks, and `dpjax.runner.loop` calls
it.
"""

import contextlib
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh

from dpjax import compiled
from dpjax.algorithm import Algorithm, Transition
from dpjax.posterior import Posterior
from dpjax.release import on_disk, taint
from dpjax.release.exact_sums import CHAIN_AXIS
from dpjax.release.sealed import sealing
from dpjax.release.self_test import check_arithmetic
from dpjax.release.traced import function_of
from dpjax.runner.check import check_loop, check_start, made, refused_arrays

__all__ = [
    "Draw",
    "Program",
    "arrays_of",
    "charged_releases",
    "check_algorithm",
    "initial",
    "num_words_of",
    "on_auto_axes",
    "scan_steps",
    "trace",
]

MAX_CHAINS_AT_ONCE = 64
"""Chains that one call moves together; more are moved in groups, to bound memory."""


class Draw(NamedTuple):
    """What a run keeps of a step of all chains. Leaves have an axis for the chains.

    position
        Positions of the chains after the step, ``(..., chains, ...)``.
    info
        The infos that the kernel returned, ``(..., chains, ...)``; None if the kernel
        accepts or rejects.
    num_accepted
        How many steps have moved each chain so far, ``(..., chains)``; None if the
        kernel has no accept bits.
    """

    position: Any
    info: Any
    num_accepted: Any


def scan_steps(transition: Transition, chains, words, active):
    """Move the chains once for every row of `words`.

    Parameters
    ----------
    transition
        The step, as the algorithm of the posterior that is sampled has it.
    chains
        A pair: the states of the kernel, leaves ``(chains, ...)``, and the
        `num_accepted` of a `Draw`.
    words
        The random words of all steps, uniform uint32,
        ``(steps, chains, words of a step)``.
    active
        Which chains a step moves, booleans ``(steps, chains)``. The others stay as they
        are.

    Returns
    -------
    chains
        The same pair after the last step.
    history
        The `Draw` of every step, leaves ``(steps, chains, ...)``.
    """

    def step(carry, row):
        (states, num_accepted), memory = carry
        words, active = row
        moved, info, memory = _over_chains(transition.move, words, states, memory)

        def keep(new, old):
            mask = active.reshape(active.shape + (1,) * (new.ndim - 1))
            return jnp.where(mask, new, old)

        states = jax.tree.map(keep, moved, states)
        if num_accepted is not None:
            num_accepted += info.is_accepted & active
            info = None
        chains = states, num_accepted
        return (chains, memory), Draw(states.position, info, num_accepted)

    memory = jax.vmap(transition.recall)(chains[0])
    (chains, _), history = jax.lax.scan(step, (chains, memory), (words, active))
    return chains, history


def _over_chains(function, *arguments):
    """`jax.vmap` over chains, but in groups of them, so that peak memory is bounded."""
    if len(arguments[0]) == 1:
        found = function(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], found)
    if len(arguments[0]) <= MAX_CHAINS_AT_ONCE:
        return jax.vmap(function)(*arguments)
    return jax.lax.map(
        lambda chain: function(*chain), arguments, batch_size=MAX_CHAINS_AT_ONCE
    )


def initial(transition: Transition, states):
    """The chains before the first step, as `scan_steps` takes them, and their `Draw`.

    Parameters
    ----------
    transition
        The step of the algorithm.
    states
        States that the algorithm's `init` made, leaves ``(chains, ...)``.
    """
    # The loop returns states without weak types. If it began with weak types, its
    # second call would be of other types than the first, and would be traced again.
    states = jax.tree.map(
        lambda leaf: lax.convert_element_type(leaf, leaf.dtype), states
    )
    info = jax.vmap(transition.stay)(states)
    num_accepted = None
    if hasattr(info, "is_accepted"):
        num_accepted = jnp.zeros(info.is_accepted.shape, jnp.int32)
        info = None
    return (states, num_accepted), Draw(states.position, info, num_accepted)


class Program(NamedTuple):
    """The loop of a run, traced.

    outline
        What the `outline_fn` of `trace` says of the algorithm whose steps were traced,
        such as what they release.
    num_words
        Number of uniform words of one step of one chain.
    identity
        SHA-256 of what the program computes, in hex: the same for equal programs on
        other devices and in other processes. The program holds shapes and constants,
        not the data.
    advance
        ``(chains, words, active) -> (chains, history)``: `scan_steps`, compiled.
    evaluate
        The same function, not compiled, to be traced as a part of another program.
    """

    outline: Any
    num_words: int
    identity: str
    advance: Callable
    evaluate: Callable


def _traced(sources, mesh, is_private, *arguments):
    """JAX's `Traced` of the loop, and the outline of the algorithm that was traced."""
    algorithm_fn, posterior, outline_fn, over_data_sets = sources
    outlines = []

    def loop(arrays, data, chains, words, active):
        def steps(data, *arguments):
            data = on_disk.joined(posterior.data, data)
            each = dataclasses.replace(posterior, data=data)
            algorithm = made(with_arrays(algorithm_fn, arrays), each, is_private)
            with refused_arrays(), jax.ensure_compile_time_eval():
                outlines.append(outline_fn(algorithm))
            with sealing("stepping", each) if is_private else contextlib.nullcontext():
                return scan_steps(algorithm.transition, *arguments)

        chains = _chains_spread(mesh, chains)
        words, active = _chains_spread(mesh, (words, active), axis=1)
        return over_data_sets(steps)(data, chains, words, active)

    # A run stores its chains, so every process gets them whole.
    whole = None if mesh is None else jax.NamedSharding(mesh, jax.P())
    return compiled.traced(loop, *arguments, out_shardings=whole), outlines[-1]


def trace(
    algorithm_fn: Callable,
    posterior: Posterior,
    chains,
    num_words: int,
    *,
    chunk_size: int,
    is_private: bool,
    num_releases: float | None = None,
    outline_fn: Callable = lambda algorithm: None,
    over_data_sets: Callable = lambda steps: steps,
    num_loops: int = 1,
    posteriors: Sequence[Posterior] = (),
    compiler_options: dict[str, Any] | None = None,
) -> Program:
    """Trace the loop of `chunk_size` steps, to be compiled when it is first called.

    Tracing reads no data. When the loop is first executed it makes a copy of them, and
    reads that one. With `is_private`, the arrays and constants of the traced loop are
    compared with the data.

    Parameters
    ----------
    algorithm_fn
        ``posterior -> Algorithm``. Arrays among the arguments of a
        `functools.partial` are arguments of the program, not constants in it.
    posterior
        What to sample, and the data.
    chains
        The chains before the first step, as in `scan_steps`.
    num_words
        Number of uniform words of one step of one chain, from `num_words_of`.
    chunk_size
        Number of steps of the loop.
    is_private
        Whether to refuse a loop that lets records out other than by releases, and a
        device whose arithmetic is not exact.
    num_releases
        The number of releases of a step of one chain that are charged. None if they are
        not counted. If `is_private`, a loop that makes more of them is refused.
    outline_fn
        ``Algorithm -> anything``: what the caller wants to know of the algorithm that
        is traced, such as its cost. The result is `Program.outline`.
    over_data_sets
        ``steps -> loop``. Both functions take the data, the chains, the words and the
        active chains; `steps` is the loop over one data set, which the loop may call
        for each of several. By default the loop is `steps` itself.
    num_loops
        How often it calls `steps`, each time for one data set or a batch of them.
    posteriors
        If `posterior` holds several data sets, along a leading axis: the posteriors of
        each of them. By default it holds one.
    compiler_options
        Options of the XLA compiler by name, as `jax.jit` takes them.

    Raises
    ------
    ValueError
        If `is_private`, and the loop would let records out (see `check.check_loop`) or
        make more releases than `num_releases` in a step; or if a mesh of devices does
        not fit the chains or the data.
    RuntimeError
        If `is_private`, and sums would not be exact here: see `check_arithmetic`.
    """
    states, _ = chains
    num_chains = len(jax.tree.leaves(states)[0])
    words = jax.ShapeDtypeStruct((chunk_size, num_chains, num_words), jnp.uint32)
    active = jax.ShapeDtypeStruct((chunk_size, num_chains), bool)
    arrays = arrays_of(algorithm_fn)
    data = list(map(on_disk.canonical, on_disk.in_memory(posterior.data)))
    mesh = _mesh(data)
    num_parts = 1 if mesh is None else mesh.shape.get(CHAIN_AXIS, 1)
    if num_chains % num_parts:
        raise ValueError(
            f"the axis {CHAIN_AXIS!r} of the mesh spreads chains over {num_parts} "
            f"devices, which do not divide {num_chains} chains evenly: change one of "
            "these numbers"
        )
    if mesh is not None and on_disk.is_any(posterior.data):
        raise ValueError(
            "some arrays of data are spread over devices and others are on disk, which "
            "one device reads: leave all on disk, or spread all, as "
            "jax.make_array_from_callback does from parts of a file"
        )
    sources = algorithm_fn, posterior, outline_fn, over_data_sets
    given = arrays, data, _beside(data, chains), words, active
    traced, outline = _traced(sources, mesh, is_private, *given)
    if is_private:
        check_arithmetic(**compiled.options_for(traced, compiler_options))
        check_loop(traced, arrays, *(posteriors or [posterior]))
        num_groups = -(-num_chains // max(len(posteriors), 1) // MAX_CHAINS_AT_ONCE)
        if num_releases is not None:
            num_moves = num_groups * chunk_size
            _check_counts(traced.jaxpr, num_loops, num_moves, num_releases)
    program = functools.cache(lambda: compiled.shared(traced, given, compiler_options))

    owned = functools.cache(lambda: list(map(on_disk.owned, data)))
    replay = function_of(traced.jaxpr, traced.out_info)

    def advance(chains, words, active):
        return program()(arrays, owned(), _beside(data, chains), words, active)

    def evaluate(chains, words, active):
        return replay(arrays, owned(), chains, words, active)

    on_one = traced
    if mesh is not None:
        # On a mesh, JAX adds operations that move arrays between devices. The identity
        # is that of the loop on one device, so that it is the same on any mesh.
        shapes = jax.eval_shape(lambda *given: given, data, chains)
        on_one, _ = _traced(sources, None, is_private, arrays, *shapes, words, active)
    identity = _identity(on_one.jaxpr)
    return Program(outline, num_words, identity, advance, evaluate)


def _check_counts(
    program: ClosedJaxpr, num_loops: int, num_moves: int, num_releases: float
) -> None:
    """Refuse a loop that reads the records more often than its releases account for.

    Parameters
    ----------
    program
        The traced loop.
    num_loops, num_releases
        As in `trace`.
    num_moves
        How many steps each of these loops makes, of all groups of chains.
    """
    marks = taint.num_marks(program)
    for mark, what in (taint.RELEASED, "releases"), (taint.SUMMED, "sums of records"):
        found = marks[mark] / (num_loops * num_moves)
        if found > num_releases:
            raise ValueError(
                f"a step makes {found:g} {what} and is charged for {num_releases:g} "
                "releases: what a sampler is given may not make steps of another one"
            )
    if marks[taint.REMEMBERED] > num_loops:
        raise ValueError(
            "a step reads the memory of a kernel, which only the run may: what a "
            "sampler is given may not call Transition.recall"
        )


def _identity(program: ClosedJaxpr) -> str:
    """SHA-256 of what a program computes, in hex: `Program.identity`."""
    # A function among the parameters is printed with its address in this process.
    text = re.sub("0x[0-9a-f]+", "", str(program))
    # The text leaves constants out, or shortens them.
    held = compiled.constants_hash(program)
    # Nor does it tell by which of two rules threefry numbers an array of random words.
    config: Any = jax.config  # Its attributes are not annotated.
    if not config.jax_threefry_partitionable:
        text += "not partitionable"
    return hashlib.sha256(text.encode() + held).hexdigest()


def _beside(data, chains):
    """The chains, copied to all devices that the records are spread over.

    A loop returns its chains on these devices, and is compiled for them.
    """
    mesh = _mesh(data)
    if mesh is None:
        return chains
    return jax.device_put(chains, jax.NamedSharding(mesh, jax.P()))


def _chains_spread(mesh, leaves, axis=0):
    """Arrays with the chains along `axis`, spread over the mesh by its `CHAIN_AXIS`.

    They are returned as they are if the mesh has no such axis.
    """
    if mesh is None or CHAIN_AXIS not in mesh.axis_names:
        return leaves
    sharding = jax.NamedSharding(mesh, jax.P(*[None] * axis, CHAIN_AXIS))
    return lax.with_sharding_constraint(leaves, sharding)


def on_auto_axes(posterior: Posterior) -> Posterior:
    """The posterior with its records on a mesh whose axes are all of type ``Auto``.

    Each record stays on its device. Axes of type ``Auto`` are needed because kernels
    leave it to JAX how intermediate arrays are spread over the devices.
    """

    def moved(leaf):
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, jax.NamedSharding):
            return leaf
        if sharding.mesh.are_all_axes_auto:
            return leaf
        mesh = Mesh(np.asarray(sharding.mesh.devices), sharding.mesh.axis_names)
        return jax.device_put(leaf, jax.NamedSharding(mesh, sharding.spec))

    data = jax.tree.map(moved, posterior.data)
    return dataclasses.replace(posterior, data=data)


def _mesh(data):
    """The mesh of devices that the records are spread over, or None without a mesh."""
    for leaf in jax.tree.leaves(data):
        if isinstance(sharding := getattr(leaf, "sharding", None), jax.NamedSharding):
            return sharding.mesh
    return None


def charged_releases(algorithm: Algorithm, events) -> int:
    """The number of releases that `events`, ``[(event, count), ...]``, pay for."""
    return algorithm.transition.num_disjoint * sum(count for _, count in events)


def check_algorithm(
    algorithm_fn: Callable,
    posterior: Posterior,
    positions,
    outline_fn: Callable = lambda algorithm: None,
) -> Program:
    """Refuse an algorithm that lets records out other than by releases.

    It is for callers that run the algorithm without `dpjax.run`, such as
    `dpjax.numpyro.MCMCKernel`.

    Parameters
    ----------
    algorithm_fn, posterior, outline_fn
        As in `trace`.
    positions
        Where the chains start, leaves ``(chains, ...)``.

    Returns
    -------
    The program of one step.

    Raises
    ------
    ValueError
        As in `trace` and `check.check_start`.
    RuntimeError
        As in `trace`.
    """
    algorithm = made(algorithm_fn, posterior)
    check_start(algorithm_fn, algorithm, posterior, positions)
    chains, _ = initial(algorithm.transition, jax.vmap(algorithm.init)(positions))
    num_words = num_words_of(algorithm.transition, chains)
    return trace(
        algorithm_fn,
        posterior,
        chains,
        num_words,
        chunk_size=1,
        is_private=True,
        num_releases=charged_releases(algorithm, algorithm.privacy(1)),
        outline_fn=outline_fn,
    )


def num_words_of(transition: Transition, chains) -> int:
    """Number of uniform words of one step of one chain."""
    states, _ = chains
    return transition.num_words(jax.tree.map(lambda leaf: leaf[0], states))


def arrays_of(algorithm_fn: Callable) -> list:
    """The arrays among the arguments that a `functools.partial` holds.

    They become arguments of the compiled program. Without a partial there are none.
    """
    leaves = jax.tree.leaves(_arguments(algorithm_fn))
    return [leaf for leaf in leaves if isinstance(leaf, (np.ndarray, jax.Array))]


def with_arrays(algorithm_fn: Callable, arrays: list) -> Callable:
    """`algorithm_fn` with the arrays that `arrays_of` lists replaced by `arrays`."""
    rest = iter(arrays)
    args, keywords = jax.tree.map(
        lambda leaf: next(rest) if isinstance(leaf, (np.ndarray, jax.Array)) else leaf,
        _arguments(algorithm_fn),
    )
    function = getattr(algorithm_fn, "func", algorithm_fn)
    return functools.partial(function, *args, **keywords)


def _arguments(algorithm_fn):
    if isinstance(algorithm_fn, functools.partial):
        return algorithm_fn.args, algorithm_fn.keywords
    return (), {}
