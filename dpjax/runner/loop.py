"""The sampling loop of `dpjax.run`: compiled chunks of active steps, checkpointed."""

import functools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from dpjax.algorithm import Transition, bernoulli
from dpjax.random import chacha
from dpjax.release import taint
from dpjax.runner import checkpoint as checkpoints
from dpjax.runner.checkpoint import Checkpoint

__all__ = [
    "Schedule",
    "begin",
    "check",
    "outline",
    "recipe",
    "sample",
    "schedule",
]

CHUNKS = 20
"""Compiled loops that a run is cut into; bar and checkpoints move with them."""


CHAINS_AT_ONCE = 64
"""Chains that are moved together."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recipe:
    """``posterior -> Algorithm``, compared by value, so that equal runs compile once.

    The arrays among the arguments of a `functools.partial` are traced, the rest static.
    """

    function: Any = field(metadata=dict(static=True))
    structure: Any = field(metadata=dict(static=True))
    constants: tuple = field(metadata=dict(static=True))
    arrays: list

    def __call__(self, posterior):
        arrays = iter(self.arrays)
        leaves = [next(arrays) if c is _ARRAY else c for c in self.constants]
        arguments, keywords = jax.tree.unflatten(self.structure, leaves)
        return self.function(posterior, *arguments, **keywords)


_ARRAY = object()


def recipe(algorithm_fn) -> Recipe:
    """`algorithm_fn` in a form that equal ones share."""
    function, arguments = algorithm_fn, ((), {})
    if isinstance(algorithm_fn, functools.partial):
        function = algorithm_fn.func
        arguments = (algorithm_fn.args, algorithm_fn.keywords)
    leaves, structure = jax.tree.flatten(arguments)
    is_array = [isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves]
    constants = tuple(
        _ARRAY if array else leaf for leaf, array in zip(leaves, is_array, strict=True)
    )
    arrays = [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]
    return Recipe(function, structure, constants, arrays)


class Schedule(NamedTuple):
    """Which steps are active, and which states are kept. Secret if the run is lazy.

    clock
        Active steps of every chain after 0, 1, ... steps, ``(num_steps + 1, chains)``.
    kept
        Numbers, from 1, of the steps whose states are drawn.
    earlier
        For each of them, the step that its accept rate counts from.
    chunk
        Active steps in one compiled loop; a public number, so that runs of equal
        settings compile once whatever the coins.
    """

    clock: np.ndarray
    kept: np.ndarray
    earlier: np.ndarray
    chunk: int


def schedule(
    key: bytes,
    laziness: float,
    num_steps: int,
    num_chains: int,
    warmup_fraction: float,
    thinning: int,
) -> Schedule:
    """Toss the coins of all steps, and pick the steps kept, thinned from the end."""
    coins = np.ones((num_steps, num_chains), bool)
    if laziness < 1:
        words = chacha.tape(key, 0, (num_steps, num_chains, 2))
        coins = np.asarray(bernoulli(jnp.asarray(words), laziness))
    first = math.floor(num_steps * warmup_fraction)
    kept = np.arange(num_steps, first, -thinning)[::-1]
    return Schedule(
        clock=np.cumsum(np.pad(coins, ((1, 0), (0, 0))), axis=0),
        kept=kept,
        earlier=np.maximum(kept - thinning, 0),
        chunk=math.ceil(num_steps * laziness / CHUNKS),
    )


def _over_chains(function, *arguments):
    """`jax.vmap`, in groups of chains so that peak memory stays bounded."""
    if len(arguments[0]) <= CHAINS_AT_ONCE:
        return jax.vmap(function)(*arguments)
    return jax.lax.map(
        lambda chain: function(*chain), arguments, batch_size=CHAINS_AT_ONCE
    )


def _advance(recipe, posterior, states, words, active):
    """Move all chains along ``words (steps, chains, width)`` where `active`."""
    transition = recipe(posterior).transition

    def one(carry, row):
        states, memory = carry
        words, active = row
        moved, info, memory = _over_chains(transition.move, words, states, memory)

        def keep(new, old):
            mask = active.reshape(active.shape + (1,) * (new.ndim - 1))
            return jnp.where(mask, new, old)

        states = jax.tree.map(keep, moved, states)
        draw, bit = _kept(states, info)
        return (states, memory), (draw, None if bit is None else bit & active)

    memory = jax.vmap(transition.recall)(states)
    (states, _), history = jax.lax.scan(one, (states, memory), (words, active))
    return states, history


advance = jax.jit(_advance)


def check(algorithm_fn, posterior, positions) -> None:
    """Refuse what lets the records out by anything but a release.

    Parameters
    ----------
    algorithm_fn
        ``posterior -> Algorithm``.
    positions
        Where the chains start, ``(chains, ...)``; of them and of the data only shapes
        are used, and which arrays they are.

    Raises
    ------
    ValueError
        If states, draws or infos depend on the data otherwise (`dpjax.release.taint`).
    """

    def run(posterior, positions):
        algorithm = algorithm_fn(posterior)
        states = jax.vmap(algorithm.init)(positions)
        num_chains = len(jax.tree.leaves(positions)[0])
        one = jax.tree.map(lambda leaf: leaf[0], states)
        width = algorithm.transition.num_words(one)
        words = jnp.zeros((1, num_chains, width), jnp.uint32)
        active = jnp.ones((1, num_chains), bool)
        states, ((draws, infos), bits) = _advance(
            algorithm_fn, posterior, states, words, active
        )
        public = dict(state=states, draws=draws, infos=infos, bits=bits)
        for name in ("logprior_fn", "constrain_fn"):
            if (function := getattr(posterior, name)) is not None:
                public[name] = jax.vmap(function)(positions)
        return public

    program, shapes = jax.make_jaxpr(run, return_shape=True)(posterior, positions)
    records = jax.tree.leaves(posterior)
    inputs = [True] * len(records) + [False] * len(jax.tree.leaves(positions))
    found = taint.tainted(program, inputs, records)
    outputs = jax.tree_util.tree_leaves_with_path(shapes)
    leaks = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for (path, _), leaks in zip(outputs, found, strict=True)
        if leaks
    ]
    if leaks:
        raise ValueError(
            f"{', '.join(leaks)} would depend on the data by more than the kernel "
            "releases: a prior, proposal, metric or schedule reads records, or the "
            "kernel returns what it computed from them"
        )


def _kept(states, info):
    """What a run keeps of a step: position and info, or position and accept bit."""
    if hasattr(info, "is_accepted"):
        return (states.position, None), info.is_accepted
    return (states.position, info), None


def outline(transition: Transition, states):
    """The structure of a checkpoint's progress, with one draw."""
    return states, *_kept(states, jax.vmap(transition.stay)(states))


def begin(key: bytes, num_steps: int, outlined, plan: Schedule) -> Checkpoint:
    """The checkpoint of a run that has not made a step."""
    states, draw, bit = outlined
    draws = jax.tree.map(
        lambda leaf: np.array(np.broadcast_to(leaf, (len(plan.kept), *leaf.shape))),
        draw,
    )
    rows = math.ceil(plan.clock[-1].max() / plan.chunk) * plan.chunk + 1
    bits = None if bit is None else np.zeros((rows, plan.clock.shape[1]), bool)
    return Checkpoint(key, num_steps, 0, (states, draws, bits))


def sample(
    recipe,
    posterior,
    checkpoint: Checkpoint,
    plan: Schedule,
    path,
    fingerprint: str,
    verbose: bool,
):
    """Loop over the active steps of every chain and repeat states for the others.

    Returns
    -------
    Positions, a pytree of ``(chains, draws, ...)``; accept rates, ``(chains, draws)``,
    and None, or, of a kernel without accept bits, None and infos like the positions.
    """
    transition: Transition = recipe(posterior).transition
    key, num_steps, begun, (states, draws, bits) = checkpoint
    clock, kept, earlier, chunk = plan
    counts, read_at = clock[-1], clock[kept]
    width = transition.num_words(jax.tree.map(lambda leaf: leaf[0], states))
    # The bar counts chunks, not passes: how many steps were active is secret too.
    with tqdm(total=CHUNKS, disable=not verbose, unit="part") as bar:
        bar.update(min(begun // chunk, CHUNKS))
        for start in range(begun, int(counts.max()), chunk):
            stop = start + chunk
            words = chacha.tape(key, 1 + start, (chunk, counts.size, width))
            active = np.arange(start, stop)[:, None] < counts
            states, (found, accepted) = advance(
                recipe, posterior, states, words, active
            )
            if bits is not None:
                bits[start + 1 : stop + 1] = accepted
            row, chain = np.nonzero((read_at > start) & (read_at <= stop))
            source = read_at[row, chain] - start - 1
            for store, leaf in zip(
                jax.tree.leaves(draws), jax.tree.leaves(found), strict=True
            ):
                store[row, chain] = np.asarray(leaf)[source, chain]
            if path is not None:
                done = Checkpoint(key, num_steps, stop, (states, draws, bits))
                checkpoints.save(path, done, fingerprint)
            bar.update(min(1, CHUNKS - bar.n))
        bar.update(CHUNKS - bar.n)
    positions, infos = jax.tree.map(lambda leaf: np.moveaxis(leaf, 0, 1), draws)
    if bits is None:
        return positions, None, infos
    moves = np.cumsum(bits, axis=0)
    gained = np.take_along_axis(moves, read_at, 0) - np.take_along_axis(
        moves, clock[earlier], 0
    )
    return positions, (gained / (kept - earlier)[:, None]).T, None
