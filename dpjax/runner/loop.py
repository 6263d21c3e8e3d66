"""The sampling loop of `dpjax.run`: compiled chunks of active steps, checkpointed."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from dpjax.algorithm import Transition
from dpjax.random import chacha
from dpjax.runner.checkpoint import Checkpoint
from dpjax.runner.plan import COINS_STREAM, NUM_CHUNKS, Plan

__all__ = ["Recipe", "advance", "begin", "outline", "recipe", "sample", "scan_steps"]

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

    function: Callable = field(metadata=dict(static=True))
    structure: Any = field(metadata=dict(static=True))
    constants: tuple = field(metadata=dict(static=True))
    arrays: tuple

    def __call__(self, posterior):
        pairs = zip(self.constants, self.arrays, strict=True)
        leaves = [constant if array is None else array for constant, array in pairs]
        arguments, keywords = jax.tree.unflatten(self.structure, leaves)
        return self.function(posterior, *arguments, **keywords)


def recipe(algorithm_fn: Callable) -> Recipe:
    """`algorithm_fn` in a form that equal ones share."""
    # A partial of a partial is one partial, and that of a function has no arguments.
    whole = functools.partial(algorithm_fn)
    leaves, structure = jax.tree.flatten((whole.args, whole.keywords))
    is_array = [isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves]
    split = list(zip(leaves, is_array, strict=True))
    return Recipe(
        whole.func,
        structure,
        constants=tuple(None if array else leaf for leaf, array in split),
        arrays=tuple(leaf if array else None for leaf, array in split),
    )


def scan_steps(recipe, posterior, states, words, active):
    """Move the chains once for every row of `words`.

    Parameters
    ----------
    recipe
        ``posterior -> Algorithm``.
    posterior
        What to sample, and the data.
    states
        Of the chains, leaves ``(chains, ...)``.
    words
        Uniform uint32, ``(steps, chains, words of a step)``.
    active
        Which chains a step moves, ``(steps, chains)``.

    Returns
    -------
    states
        After the last step.
    history
        What a run keeps of every step, as `_kept` has it, leaves ``(steps, ...)``.
    """
    transition = recipe(posterior).transition

    def step(carry, row):
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
    (states, _), history = jax.lax.scan(step, (states, memory), (words, active))
    return states, history


advance = jax.jit(scan_steps)


def _over_chains(function, *arguments):
    """`jax.vmap`, in groups of chains so that peak memory stays bounded."""
    if len(arguments[0]) <= MAX_CHAINS_AT_ONCE:
        return jax.vmap(function)(*arguments)
    return jax.lax.map(
        lambda chain: function(*chain), arguments, batch_size=MAX_CHAINS_AT_ONCE
    )


def _kept(states, info):
    """What a run keeps: position and info at draws, the accept bit of every step.

    The info is None where there is a bit, and the bit is None where there is none.
    """
    if hasattr(info, "is_accepted"):
        return (states.position, None), info.is_accepted
    return (states.position, info), None


def outline(transition: Transition, states):
    """The structure of a checkpoint's progress, with one draw: the initial states."""
    return states, *_kept(states, jax.vmap(transition.stay)(states))


def begin(key: bytes, num_steps: int, outlined, plan: Plan) -> Checkpoint:
    """The checkpoint of a run that has not made a step; `outlined` is of `outline`."""
    states, draw, bit = outlined
    num_draws, num_chains = plan.read_after.shape
    # A draw that is read before the first active step is the initial state.
    draws = jax.tree.map(
        lambda leaf: np.array(np.broadcast_to(leaf, (num_draws, *leaf.shape))), draw
    )
    num_chunks = math.ceil(plan.num_active.max() / plan.chunk_size)
    num_rows = num_chunks * plan.chunk_size + 1
    bits = None if bit is None else np.zeros((num_rows, num_chains), bool)
    return Checkpoint(key, num_steps, 0, (states, draws, bits))


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
        Of `begin`, or of a run that was killed. Its draws and bits are filled in place.
    plan
        Which steps are active, and where the draws lie.
    save
        Called with the checkpoint after every chunk.
    verbose
        Show a progress bar.

    Returns
    -------
    positions
        Leaves ``(chains, draws, ...)``.
    acceptance_rate
        ``(chains, draws)``, or None if the kernel has no accept bits.
    infos
        Leaves ``(chains, draws, ...)``, or None if the kernel has accept bits.
    """
    states, draws, bits = checkpoint.progress
    transition = recipe(posterior).transition
    num_words = transition.num_words(jax.tree.map(lambda leaf: leaf[0], states))
    # The bar ends at a public number: how many steps were active is secret.
    done = min(checkpoint.start // plan.chunk_size, NUM_CHUNKS)
    with tqdm(total=NUM_CHUNKS, initial=done, disable=not verbose, unit="part") as bar:
        for start in range(checkpoint.start, plan.num_active.max(), plan.chunk_size):
            words, active = _inputs(checkpoint.key, plan, start, num_words)
            states, history = advance(recipe, posterior, states, words, active)
            _store(history, plan, start, draws, bits)
            stop = start + plan.chunk_size
            save(checkpoint._replace(start=stop, progress=(states, draws, bits)))
            bar.update(min(1, NUM_CHUNKS - bar.n))
        bar.update(NUM_CHUNKS - bar.n)
    positions, infos = jax.tree.map(lambda leaf: np.moveaxis(leaf, 0, 1), draws)
    return positions, None if bits is None else _acceptance_rate(bits, plan), infos


def _inputs(key: bytes, plan: Plan, start: int, num_words: int):
    """Words of the chunk after `start` active steps, and which chains still move."""
    shape = plan.chunk_size, plan.num_active.size, num_words
    words = chacha.tape(key, COINS_STREAM + 1 + start, shape)
    steps = np.arange(start, start + plan.chunk_size)
    return words, steps[:, None] < plan.num_active


def _store(history, plan: Plan, start: int, draws, bits) -> None:
    """Write the chunk after `start` active steps into the arrays of draws and bits.

    Row k of `bits` is the accept bit of a chain's k-th active step; row 0 stays False.
    """
    found, accepted = history
    first, last = start + 1, start + plan.chunk_size
    if bits is not None:
        bits[first : last + 1] = accepted
    row, chain = np.nonzero((first <= plan.read_after) & (plan.read_after <= last))
    step = plan.read_after[row, chain] - first
    for stored, leaf in zip(
        jax.tree.leaves(draws), jax.tree.leaves(found), strict=True
    ):
        stored[row, chain] = np.asarray(leaf)[step, chain]


def _acceptance_rate(bits: np.ndarray, plan: Plan) -> np.ndarray:
    """Share of the steps since the draw before that moved, ``(chains, draws)``."""
    num_accepted = np.cumsum(bits, axis=0)
    gained = np.take_along_axis(num_accepted, plan.read_after, 0)
    gained -= np.take_along_axis(num_accepted, plan.counted_after, 0)
    return gained.T / plan.num_counted
