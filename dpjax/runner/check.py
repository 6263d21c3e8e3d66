"""The check that a run's program lets records out through releases only."""

import jax
import jax.numpy as jnp

from dpjax.release import taint
from dpjax.runner.loop import initial, scan_steps

__all__ = ["check_program"]


def check_program(algorithm_fn, posterior, positions) -> None:
    """Refuse a program whose results depend on records other than by a release.

    The program is one step of the loop that `dpjax.run` compiles. It is traced, not
    executed, so the data are not read.

    Parameters
    ----------
    algorithm_fn
        ``posterior -> Algorithm``.
    posterior
        What to sample; of the data only the shapes are used, and the identity of the
        arrays, to find functions that close over them.
    positions
        Where the chains start, ``(chains, ...)``; only the shapes are used.

    Raises
    ------
    ValueError
        If states, draws, infos or accept bits depend on the data by more than the
        kernel releases, the prior or `constrain_fn` reads records, or a callback would
        see them (`dpjax.release.taint`).
    """

    def results(posterior, positions):
        algorithm = algorithm_fn(posterior)
        states = jax.vmap(algorithm.init)(positions)
        num_chains = len(jax.tree.leaves(positions)[0])
        one_chain = jax.tree.map(lambda leaf: leaf[0], states)
        num_words = algorithm.transition.num_words(one_chain)
        words = jnp.zeros((1, num_chains, num_words), jnp.uint32)
        active = jnp.ones((1, num_chains), bool)
        chains, _ = initial(algorithm.transition, states)
        (state, bits), draws = scan_steps(
            algorithm_fn, posterior, chains, words, active
        )
        public = dict(state=state, draws=draws.position, infos=draws.info, bits=bits)
        for name in ("logprior_fn", "constrain_fn"):
            if (function := getattr(posterior, name)) is not None:
                public[name] = jax.vmap(function)(positions)
        return public

    program, shapes = jax.make_jaxpr(results, return_shape=True)(posterior, positions)
    records = jax.tree.leaves(posterior)
    inputs = [True] * len(records) + [False] * len(jax.tree.leaves(positions))
    depends = taint.tainted(program, inputs, records)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(shapes)]
    leaks = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, leaks in zip(paths, depends, strict=True)
        if leaks
    ]
    if leaks:
        raise ValueError(
            f"{', '.join(leaks)} would depend on the data by more than the kernel "
            "releases: a prior, proposal, metric or schedule reads records, or the "
            "kernel returns what it computed from them"
        )
