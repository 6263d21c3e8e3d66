"""Which steps of a run move its chains, and which states become draws.

A lazy kernel tosses a coin before each step. A step is *active* if its coin says so;
any other step leaves the chain where it is and reads no data. All coins are tossed
before the run, so the sampling loop computes active steps only, and the draws are read
after as many active steps as the chain has made by then.
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
"""Numbers in the largest array of a run, 4 GB."""

COINS_STREAM = 0
"""Stream of the tape that the coins come from. The streams after it are the steps'."""


class Layout(NamedTuple):
    """Where the draws lie among a chain's active steps. Secret if the kernel is lazy.

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
    """

    num_active: np.ndarray
    read_after: np.ndarray
    num_between: np.ndarray
    chunk_size: int


def check_size(
    num_steps: int,
    num_chains: int,
    words_per_step: float,
    numbers_per_draw: int,
    num_draws: float,
) -> None:
    """Refuse a run that does not fit in memory.

    Its largest arrays hold where each chain stands after every step, the words of a
    chunk, and what is read of all chains.

    Raises
    ------
    ValueError
        If one of them is too large. How much too large may depend on the number of
        records, which the message does not tell.
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
        Steps from one draw to the next, counted back from the last step.
    """
    is_active = np.ones((num_steps, num_chains), bool)
    if laziness < 1:
        words = chacha.tape(key, COINS_STREAM, (num_steps, num_chains, 2))
        is_active = np.asarray(bernoulli(jnp.asarray(words), laziness))
    num_active = np.cumsum(np.pad(is_active, ((1, 0), (0, 0))), axis=0)
    # One reading before the first draw, at the start of the run if need be.
    read = np.arange(num_steps, num_discarded - thinning, -thinning)[::-1].clip(0)
    return Layout(
        num_active=num_active[-1],
        read_after=num_active[read],
        num_between=np.diff(read),
        chunk_size=chunk_size(num_steps, laziness),
    )
