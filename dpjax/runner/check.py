"""The check that a run's program lets records out through releases only."""

import dataclasses

import jax

from dpjax.posterior import Posterior
from dpjax.release import captured, taint

__all__ = ["check_loop", "check_start"]


def check_loop(traced, arrays, posterior: Posterior) -> None:
    """Refuse a loop whose results depend on records other than by a release.

    Parameters
    ----------
    traced
        JAX's `Traced` of the loop that a run compiles. Its first arguments are `arrays`
        and the data; the others are not secret, or are not to be followed.
    arrays
        Of the algorithm's parameters.
    posterior
        What is sampled. Its data are compared with the arrays and constants of the
        loop.

    Raises
    ------
    ValueError
        If states, draws, infos or accept bits depend on the data by more than the
        kernel releases, or there is a callback (`dpjax.release.taint`).
    """
    records = captured.Records(posterior)
    inputs = [bool(records.why_secret(array)) for array in arrays]
    inputs += [True] * records.num_arrays
    inputs += [False] * (len(traced.jaxpr.in_avals) - len(inputs))
    depends = taint.tainted(
        traced.jaxpr, inputs, lambda value: bool(records.why_secret(value))
    )
    structure = jax.tree.structure(traced.out_info)
    (state, bits), draws = jax.tree.unflatten(structure, depends)
    _refuse(dict(state=state, bits=bits, draws=draws.position, infos=draws.info))


def check_start(algorithm_fn, posterior: Posterior, positions) -> None:
    """Refuse an initial state, a prior or a `constrain_fn` that reads records.

    Functions of the posterior that hold records are refused as well, whatever they do
    with them (`dpjax.release.captured`). All are traced, not executed. Errors are those
    of `check_loop`.
    """
    captured.check_functions(posterior, positions)

    def results(posterior, positions):
        functions = dict(
            init=algorithm_fn(posterior).init,
            logprior_fn=posterior.logprior_fn,
            constrain_fn=posterior.constrain_fn or (lambda position: position),
        )
        return {name: jax.vmap(f)(positions) for name, f in functions.items()}

    posterior = dataclasses.replace(posterior, public=())
    program, shapes = jax.make_jaxpr(results, return_shape=True)(posterior, positions)
    num_arrays = len(jax.tree.leaves(posterior))
    inputs = [True] * num_arrays + [False] * len(jax.tree.leaves(positions))
    depends = taint.tainted(program, inputs)
    _refuse(jax.tree.unflatten(jax.tree.structure(shapes), depends))


def _refuse(depends) -> None:
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
