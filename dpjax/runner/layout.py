"""Which steps of a run move its chains, and which states become draws.

A lazy kernel tosses a coin before each step. A step is *active* if its coin says so;
any other step leaves the chain where it is and reads no data. All coins are tossed
before the run, so the sampling loop (`dpjax.runner.loop`) computes active steps only. A
draw after step t of a chain is its state after as many active steps as there are among
its first t.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dpjax.algorithm import bernoulli
from dpjax.random import chacha

__all__ = [
    "COINS_STREAM",
    "NUM_CHUNKS",
    "Layout",
    "check_size",
    "chunk_size",
    "make_layout",
]

NUM_CHUNKS = 20
"""Chunks that a run is expected to take: exactly so many unless the kernel is lazy or
the run shorter. One chunk is one call of a compiled loop, after which the progress bar
moves and a checkpoint is written."""

MAX_NUMBERS = 2**29
"""Most numbers that the largest array of a run may hold: 4 GB of 8 bytes each."""

COINS_STREAM = 0
"""Number of the stream of random words (`dpjax.random.chacha.tape`) that the coins come
from. The chunk after k active steps has the stream k + 1."""


class Layout(NamedTuple):
    """Where the draws lie among a chain's active steps.

    `num_active` and `read_after` are secret if the kernel is lazy, as they show coins.

    num_active
        Active steps of every chain in the whole run, ``(chains,)``.
    read_after
        Active steps that a chain has made when it is read, ``(draws + 1, chains)``. The
        first reading is no draw; the acceptance rate of the first draw counts from it.
    num_between
        Steps, active or not, from one reading to the next, ``(draws,)``.
    chunk_size
        Active steps in one chunk. This number is public, so runs of equal settings
        compile once whatever their coins are.
    is_lazy
        Whether coins are tossed, a public value.
    """

    num_active: np.ndarray
    read_after: np.ndarray
    num_between: np.ndarray
    chunk_size: int
    is_lazy: bool


def check_size(
    num_steps: int,
    num_chains: int,
    words_per_step: float,
    numbers_per_draw: int,
    num_draws: float,
) -> None:
    """Refuse a run that does not fit in memory.

    Three of its arrays may be the largest: the active steps of each chain up to every
    step, the random words of a chunk, and what is read of all chains.

    Parameters
    ----------
    num_steps, num_chains
        Steps of every chain, and chains.
    words_per_step
        Expected random words of one step of one chain: a lazy step that is not active
        takes none.
    numbers_per_draw
        Numbers that one reading of all chains holds.
    num_draws
        Draws of every chain.

    Raises
    ------
    ValueError
        If one of these arrays is larger than `MAX_NUMBERS`. By how much may depend on
        the number of records, so the message does not tell it.
    """
    words = num_steps * num_chains * words_per_step / NUM_CHUNKS
    largest = max(num_steps * num_chains, words, num_draws * numbers_per_draw)
    if largest > MAX_NUMBERS:
        raise ValueError(
            f"{num_steps:,} steps of {num_chains:,} chains do not fit in memory: take "
            "fewer steps, run fewer chains, or raise thinning"
        )


def chunk_size(num_steps: int, laziness: float) -> int:
    """Active steps of one chunk, a public number."""
    return math.ceil(num_steps * laziness / NUM_CHUNKS)


def make_layout(
    key: bytes,
    laziness: float,
    num_steps: int,
    num_chains: int,
    num_discarded: int,
    thinning: int,
) -> Layout:
    """Toss the coins of all steps, and choose the draws.

    Parameters
    ----------
    key
        The run's 32 secret bytes.
    laziness
        Chance in (0, 1] that a step is active.
    num_steps, num_chains
        Steps of every chain, and chains.
    num_discarded
        First steps of every chain, whose states are no draws.
    thinning
        Steps from one draw to the next, counted back from the last step, which is one.
    """
    is_active = np.ones((num_steps, num_chains), bool)
    if laziness < 1:
        words = chacha.tape(key, COINS_STREAM, (num_steps, num_chains, 2))
        is_active = np.asarray(bernoulli(jnp.asarray(words), laziness))
    num_active = np.cumsum(np.pad(is_active, ((1, 0), (0, 0))), axis=0)
    # The first reading lies before the first draw, or at the start of the run if there
    # are too few steps before it. It is where the first acceptance rate begins.
    read = np.arange(num_steps, num_discarded - thinning, -thinning)[::-1].clip(0)
    return Layout(
        num_active=num_active[-1],
        read_after=num_active[read],
        num_between=np.diff(read),
        chunk_size=chunk_size(num_steps, laziness),
        is_lazy=laziness < 1,
    )
