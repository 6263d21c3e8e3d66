"""Checks before a run: that its arguments are right, and that its program is no leak.

A program leaks if what it returns depends on records other than by a release of the
kernel. `dpjax.release.taint` follows the records through traced programs, and
`dpjax.release.captured` finds records among arrays and constants. This file says which
programs of a run are searched, and what is secret in them.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import caller
from dpjax.algorithm import Algorithm
from dpjax.posterior import Posterior
from dpjax.release import captured, on_disk, taint
from dpjax.release.sealed import sealed, sealing
from dpjax.runner import processes

__all__ = [
    "check_arguments",
    "check_key",
    "check_loop",
    "check_start",
    "made",
    "refuse_records",
    "refused_arrays",
    "warn_of_large_delta",
]

EXAMPLE = "functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.01)"
"""An `algorithm_fn` that error messages show."""


def check_arguments(algorithm_fn, posterior) -> None:
    """Refuse a wrong posterior, and an `algorithm_fn` that is no function of one.

    Raises
    ------
    TypeError
        If either argument is of another class, such as an `Algorithm`.
    """
    if isinstance(algorithm_fn, Algorithm):
        raise TypeError(
            "algorithm_fn must be a function that makes an Algorithm, not the Algorithm"
            ": a run makes it itself, so that it is charged for what it executes. Pass "
            f"{EXAMPLE}, for example"
        )
    if isinstance(algorithm_fn, Posterior) or not callable(algorithm_fn):
        raise TypeError(
            "the first argument must be a function of the posterior, such as "
            f"{EXAMPLE}, and the second the posterior; the first is of type "
            f"{type(algorithm_fn).__name__}. There is no key: randomness is the "
            "operating system's, or that of unsafe_key="
        )
    if not isinstance(posterior, Posterior):
        raise TypeError(f"expected a dpjax.Posterior, got {type(posterior).__name__}")


def warn_of_large_delta(budget, posterior) -> None:
    """Warn if delta allows for the publication of a record."""
    if budget.delta >= 1 / posterior.num_records:
        caller.warn(
            f"delta = {budget.delta} is not below 1/n = {1 / posterior.num_records:.2g}"
            ": publishing one record outright would satisfy it"
        )


def made(algorithm_fn, posterior, is_private: bool = True) -> Algorithm:
    """The algorithm that `algorithm_fn` makes of the posterior.

    If `is_private`, this function cannot read the records: see `dpjax.release.sealed`.

    Raises
    ------
    TypeError
        If what it returns is no `Algorithm`, or if it reads sealed records; or as
        `sealed`.
    ValueError
        If `is_private`, and it makes a release.
    """
    if is_private:
        with sealing("making"):
            algorithm = algorithm_fn(sealed(posterior))
    else:
        algorithm = algorithm_fn(posterior)
    if not isinstance(algorithm, Algorithm):
        raise TypeError(
            f"algorithm_fn must return an Algorithm of dpjax, as {EXAMPLE} does, got "
            f"{type(algorithm).__name__}: samplers of other libraries do not say what "
            "they release"
        )
    return algorithm


def check_key(unsafe_key) -> None:
    """Refuse an `unsafe_key` that is neither None nor one JAX key.

    Raises
    ------
    TypeError
        If it is anything else, such as an integer.
    """
    if unsafe_key is None:
        return
    is_key = isinstance(unsafe_key, jax.Array)
    if is_key and jnp.issubdtype(unsafe_key.dtype, jax.dtypes.prng_key):
        is_key = unsafe_key.shape == ()
    elif is_key:  # As `jax.random.PRNGKey` returns it.
        is_key = unsafe_key.dtype == "uint32" and unsafe_key.ndim == 1
    if not is_key:
        raise TypeError(
            "unsafe_key must be one JAX key, such as jax.random.key(0), got "
            f"{type(unsafe_key).__name__}. Leave it out unless the data are generated "
            "or public"
        )


def refuse_records(values, posterior: Posterior, *others: Posterior) -> None:
    """Refuse arrays of an algorithm that hold entries of the data.

    Raises
    ------
    ValueError
        If one does (`dpjax.release.captured`).
    """
    records = captured.Records(posterior, *others)
    named = [(f"of shape {np.shape(value)}", value) for value in values]
    # Without `only_unmistakable`, a metric that has as many entries as the data have
    # records would count as secret.
    for name, why in records.secrets(named, only_unmistakable=True):
        raise ValueError(
            f"the algorithm holds an array {name} that {why}: it may hold public "
            "values only, and reads records through the posterior. If this array is "
            "not private, name it in public="
        )


@processes.agreed()
def check_loop(traced, arrays, posterior: Posterior, *others: Posterior) -> None:
    """Refuse a loop whose results depend on records other than by a release.

    Parameters
    ----------
    traced
        JAX's `Traced` of the loop that a run compiles. Its first arguments are `arrays`
        and those arrays of the data that are in memory. Its other arguments, the chains
        and the random words, are not followed as secrets.
    arrays
        The arrays among the parameters of the algorithm (`program.arrays_of`).
    posterior
        What is sampled. Its data are compared with the arrays and constants of the
        loop.
    others
        Posteriors with the same functions, whose data the loop reads beside those of
        `posterior`.

    Raises
    ------
    ValueError
        If states, draws, infos or accept bits depend on the data by more than the
        kernel releases, or there is a callback (`dpjax.release.taint`).
    """
    program = traced.jaxpr
    # One search for all values, as each search reads all records.
    values = [*arrays, *captured.constants(program, with_literals=False)]
    refuse_records(values, posterior, *others)
    inputs = [False] * len(arrays)
    inputs += [True] * len(on_disk.in_memory(posterior.data))
    inputs += [False] * (len(program.in_avals) - len(inputs))
    depends = taint.tainted(program, inputs)
    structure = jax.tree.structure(traced.out_info)
    (state, bits), draws = jax.tree.unflatten(structure, depends)
    _refuse(dict(state=state, bits=bits, draws=draws.position, infos=draws.info))


@processes.agreed()
def check_start(
    algorithm_fn,
    algorithm: Algorithm,
    posterior: Posterior,
    positions,
    others: Sequence[Posterior] = (),
) -> None:
    """Refuse functions around the loop that read records.

    These are the algorithm's `init` and `sample`, and the posterior's `logprior_fn` and
    `constrain_fn`. They are traced, not executed. Functions of the posterior that hold
    records are refused as well, whatever they do with them. So are records that `init`
    or an argument of a `functools.partial` holds, positions that are entries of the
    data, and examples of a model that were copied from the data
    (`dpjax.release.captured`).

    Parameters
    ----------
    algorithm_fn, posterior
        As in `dpjax.run`.
    algorithm
        What `algorithm_fn` made of the posterior. Its `init` and `sample` are those
        that will be executed.
    positions
        Where the chains start, leaves ``(num_chains, ...)``.
    others
        As in `check_loop`.

    Raises
    ------
    ValueError
        If a function or a position is refused, or an algorithm calls a function outside
        of JAX.
    """
    captured.check_functions(posterior, positions, others)
    captured.check_example(posterior)
    captured.check_arguments(posterior, algorithm_fn, others)

    def parameters(algorithm, position):
        return algorithm.transition.stay(algorithm.init(position)).parameters

    init = jax.make_jaxpr(jax.vmap(algorithm.init))(positions)
    held = captured.constants(init, with_literals=False)
    refuse_records(held, posterior, *others)
    if algorithm.sample is not None:
        start = jax.tree.map(lambda leaf: leaf[0], positions)
        shapes = jax.eval_shape(functools.partial(parameters, algorithm), start)
        captured.check_sample(posterior, algorithm.sample, shapes, others)

    def results(posterior, positions):
        algorithm = made(algorithm_fn, posterior)
        sample = algorithm.sample
        functions = dict(
            init=algorithm.init,
            logprior_fn=posterior.logprior_fn,
            constrain_fn=posterior.constrain_fn or (lambda position: position),
        )
        if sample is not None:
            functions["sample"] = lambda position: sample(
                jax.random.key(0), parameters(algorithm, position), 1
            )
        return {name: jax.vmap(f)(positions) for name, f in functions.items()}

    posterior = dataclasses.replace(posterior, public=())
    with refused_arrays():
        traced = jax.make_jaxpr(results, return_shape=True)
        program, shapes = traced(posterior, positions)
    num_arrays = len(jax.tree.leaves(posterior))
    inputs = [True] * num_arrays + [False] * len(jax.tree.leaves(positions))
    depends = taint.tainted(program, inputs)
    _refuse(jax.tree.unflatten(jax.tree.structure(shapes), depends))


@contextlib.contextmanager
def refused_arrays():
    """Say what is wrong where a parameter that decides what a step costs is an array.

    While an algorithm is traced, such an array is a tracer, whose comparison with a
    number is an error of JAX. JAX's message does not say which arguments to change.

    Raises
    ------
    ValueError
        If an algorithm compares such an array with a number while it is traced.
    """
    try:
        yield
    except jax.errors.ConcretizationTypeError:
        raise ValueError(
            "a parameter that decides what a step costs is an array: pass clip bounds, "
            "clip norms, noise multipliers and sampling probabilities as Python floats"
        ) from None


def _refuse(depends) -> None:
    """Raise an error that names the leaves of a pytree of booleans that are true."""
    leaks = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, leaks in jax.tree_util.tree_leaves_with_path(depends)
        if leaks
    ]
    if leaks:
        raise ValueError(
            f"{', '.join(leaks)} would depend on the data by more than the kernel "
            "releases: a prior, proposal, metric or schedule reads records, or the "
            "kernel returns what it computed from them"
        )
