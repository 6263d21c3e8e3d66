"""The sampling loop of `dpjax.run`: compiled chunks of active steps, checkpointed."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from dpjax.algorithm import Transition
from dpjax.random import chacha
from dpjax.runner.checkpoint import Checkpoint
from dpjax.runner.plan import COINS_STREAM, NUM_CHUNKS, Plan

__all__ = ["advance", "begin", "initial", "recipe", "sample", "scan_steps"]

MAX_CHAINS_AT_ONCE = 64
"""Chains that one call moves together; more are moved in groups, to bound memory."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recipe:
    """``posterior -> Algorithm``, compared by value, so that equal runs compile once.

    The arguments of a `functools.partial` are flattened. Those that are arrays are
    traced and stand in `arrays`; the others are static and stand in `constants`. The
    place of an argument in the other tuple is None.
    """

    structure: Any = field(metadata=dict(static=True))
    constants: tuple = field(metadata=dict(static=True))
    arrays: tuple

    def __call__(self, posterior):
        pairs = zip(self.constants, self.arrays, strict=True)
        leaves = [constant if array is None else array for constant, array in pairs]
        return jax.tree.unflatten(self.structure, leaves)(posterior)


def recipe(algorithm_fn: Callable) -> Recipe:
    """`algorithm_fn` in a form that equal ones share."""
    # Python merges a partial of a partial into one.
    partial = functools.partial(algorithm_fn)
    tree = jax.tree_util.Partial(partial.func, *partial.args, **partial.keywords)
    leaves, structure = jax.tree.flatten(tree)
    is_array = [isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves]
    pairs = list(zip(leaves, is_array, strict=True))
    constants = tuple(None if traced else leaf for leaf, traced in pairs)
    arrays = tuple(leaf if traced else None for leaf, traced in pairs)
    return Recipe(structure, constants, arrays)


class Draw(NamedTuple):
    """What a run keeps of a step, leaves ``(..., chains, ...)``.

    position
        Of the chains.
    info
        Of the step; None if the kernel accepts or rejects.
    num_accepted
        Steps that moved each chain so far; None if the kernel has no accept bits.
    """

    position: Any
    info: Any
    num_accepted: Any


def scan_steps(recipe, posterior, chains, words, active):
    """Move the chains once for every row of `words`.

    Parameters
    ----------
    recipe
        ``posterior -> Algorithm``.
    posterior
        What to sample, and the data.
    chains
        States of the kernel, leaves ``(chains, ...)``, and how many steps moved each
        chain, as in `Draw`.
    words
        Uniform uint32, ``(steps, chains, words of a step)``.
    active
        Which chains a step moves, ``(steps, chains)``.

    Returns
    -------
    chains
        After the last step.
    history
        `Draw` of every step, leaves ``(steps, chains, ...)``.
    """
    transition = recipe(posterior).transition

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


advance = jax.jit(scan_steps)


def _over_chains(function, *arguments):
    """`jax.vmap`, in groups of chains so that peak memory stays bounded."""
    if len(arguments[0]) <= MAX_CHAINS_AT_ONCE:
        return jax.vmap(function)(*arguments)
    return jax.lax.map(
        lambda chain: function(*chain), arguments, batch_size=MAX_CHAINS_AT_ONCE
    )


def initial(transition: Transition, states):
    """The chains before the first step, as of `scan_steps`, and their `Draw`."""
    info = jax.vmap(transition.stay)(states)
    num_accepted = None
    if hasattr(info, "is_accepted"):
        num_accepted = jnp.zeros(info.is_accepted.shape, jnp.int32)
        info = None
    return (states, num_accepted), Draw(states.position, info, num_accepted)


def begin(key: bytes, num_steps: int, plan: Plan, initial) -> Checkpoint:
    """The checkpoint of a run without a step; every reading is the `initial` one."""
    chains, draw = initial
    readings = len(plan.read_after)
    read = jax.tree.map(
        lambda leaf: np.repeat(np.asarray(leaf)[None], readings, 0), draw
    )
    return Checkpoint(key, num_steps, 0, (chains, read))


def sample(
    recipe: Recipe,
    posterior,
    checkpoint: Checkpoint,
    plan: Plan,
    save: Callable[[Checkpoint], None],
    verbose: bool,
):
    """Make the active steps of every chain, from where `checkpoint` stands.

    Parameters
    ----------
    recipe, posterior
        As of `scan_steps`.
    checkpoint
        The chains, and what was read of them so far: `Draw` with leaves
        ``(draws + 1, chains, ...)``, which are filled in place.
    plan
        Which steps are active, and after which of them the chains are read.
    save
        Called with the checkpoint after every chunk.
    verbose
        Show a progress bar.

    Returns
    -------
    positions
        Leaves ``(chains, draws, ...)``.
    acceptance_rate
        ``(chains, draws)``: the share of the steps since the draw before that moved the
        chain. None if the kernel has no accept bits.
    infos
        Leaves ``(chains, draws, ...)``. None if the kernel accepts or rejects.
    """
    chains, read = checkpoint.progress
    transition = recipe(posterior).transition
    num_words = transition.num_words(jax.tree.map(lambda leaf: leaf[0], chains[0]))
    # The bar ends at a public number: how many steps were active is secret.
    done = min(checkpoint.start // plan.chunk_size, NUM_CHUNKS)
    with tqdm(total=NUM_CHUNKS, initial=done, disable=not verbose, unit="part") as bar:
        for start in range(checkpoint.start, plan.num_active.max(), plan.chunk_size):
            words, active = _inputs(checkpoint.key, plan, start, num_words)
            chains, history = advance(recipe, posterior, chains, words, active)
            _store(history, plan, start, read)
            stop = start + plan.chunk_size
            save(checkpoint._replace(start=stop, progress=(chains, read)))
            bar.update(min(1, NUM_CHUNKS - bar.n))
        bar.update(NUM_CHUNKS - bar.n)
    drawn = jax.tree.map(lambda leaf: np.moveaxis(leaf[1:], 0, 1), read)
    if drawn.num_accepted is None:
        return drawn.position, None, drawn.info
    num_moved = np.diff(read.num_accepted, axis=0).T
    return drawn.position, num_moved / plan.num_between, None


def _inputs(key: bytes, plan: Plan, start: int, num_words: int):
    """Words of the chunk after `start` active steps, and which chains still move."""
    shape = plan.chunk_size, plan.num_active.size, num_words
    words = chacha.tape(key, COINS_STREAM + 1 + start, shape)
    steps = np.arange(start, start + plan.chunk_size)
    return words, steps[:, None] < plan.num_active


def _store(history: Draw, plan: Plan, start: int, read: Draw) -> None:
    """Write what is read in the chunk after `start` active steps into `read`."""
    step = plan.read_after - start - 1
    row, chain = np.nonzero((0 <= step) & (step < plan.chunk_size))
    step = step[row, chain]

    def write(stored, leaf):
        stored[row, chain] = np.asarray(leaf)[step, chain]

    jax.tree.map(write, read, history)
