"""The check that a run's program lets records out through releases only."""

import jax

from dpjax.release import taint

__all__ = ["check_loop", "check_start"]


def check_loop(traced, arrays, data) -> None:
    """Refuse a loop whose results depend on records other than by a release.

    Parameters
    ----------
    traced
        JAX's `Traced` of the loop that a run compiles. Its first arguments are `arrays`
        and `data`; the others are not secret, or are not to be followed.
    arrays
        Of the algorithm's parameters.
    data
        The records. Only the identity of the arrays is used, to find functions that
        close over them.

    Raises
    ------
    ValueError
        If states, draws, infos or accept bits depend on the data by more than the
        kernel releases, or a callback would see them (`dpjax.release.taint`).
    """
    records = jax.tree.leaves(data)
    inputs = [taint.is_one_of(array, records) for array in arrays]
    inputs += [True] * len(records)
    inputs += [False] * (len(traced.jaxpr.in_avals) - len(inputs))
    depends = taint.tainted(traced.jaxpr, inputs, records)
    structure = jax.tree.structure(traced.out_info)
    (state, bits), draws = jax.tree.unflatten(structure, depends)
    _refuse(dict(state=state, bits=bits, draws=draws.position, infos=draws.info))


def check_start(algorithm_fn, posterior, positions) -> None:
    """Refuse an initial state, a prior or a `constrain_fn` that reads records.

    The functions are traced, not executed. Errors are those of `check_loop`.
    """

    def results(posterior, positions):
        functions = dict(
            init=algorithm_fn(posterior).init,
            logprior_fn=posterior.logprior_fn,
            constrain_fn=posterior.constrain_fn or (lambda position: position),
        )
        return {name: jax.vmap(f)(positions) for name, f in functions.items()}

    program, shapes = jax.make_jaxpr(results, return_shape=True)(posterior, positions)
    records = jax.tree.leaves(posterior)
    inputs = [True] * len(records) + [False] * len(jax.tree.leaves(positions))
    depends = taint.tainted(program, inputs, records)
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
