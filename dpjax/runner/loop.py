"""The sampling loop of `dpjax.run`, which runs on the host.

It calls the compiled loop (`dpjax.runner.program`) once for every chunk of active
steps, keeps what `dpjax.runner.layout` says is read, and writes a checkpoint after each
chunk.
"""

from collections.abc import Callable

import jax
import numpy as np
from tqdm import tqdm

from dpjax.random import chacha
from dpjax.runner import processes, signals
from dpjax.runner.checkpoint import Checkpoint
from dpjax.runner.layout import COINS_STREAM, NUM_CHUNKS, Layout
from dpjax.runner.program import Draw, Program

__all__ = ["advance", "begin", "sample"]

KEY_BYTES = 32
"""Length of the secret key of one run."""


def advance(program: Program, chains, words, active):
    """Make one chunk of steps; returns what `dpjax.runner.program.scan_steps` does."""
    return program.advance(chains, words, active)


def begin(
    key: bytes, reservation: str, num_steps: int, layout: Layout, initial
) -> Checkpoint:
    """The checkpoint of a run before its first step.

    Parameters
    ----------
    key
        The secret keys of the runs that the loop makes, one after another: one key in
        `dpjax.run`, many in `dpjax.runner.batch`.
    reservation
        Nonce of the run's line in the ledger, or "".
    num_steps
        Steps of every chain.
    layout
        When the chains are read. All places for these readings hold the initial one.
    initial
        What `dpjax.runner.program.initial` returns.
    """
    chains, draw = initial
    readings = len(layout.read_after)
    read = jax.tree.map(
        lambda leaf: np.repeat(np.asarray(leaf)[None], readings, 0), draw
    )
    return Checkpoint(key, reservation, num_steps, 0, (chains, read))


def sample(
    program: Program,
    checkpoint: Checkpoint,
    layout: Layout,
    save: Callable[[Checkpoint], None],
    verbose: bool,
):
    """Make the remaining active steps of every chain, and return the draws.

    Parameters
    ----------
    program
        The compiled loop.
    checkpoint
        Where the run stands. Its `progress` is a pair: the chains, and what was read of
        them so far, a `Draw` with leaves ``(draws + 1, chains, ...)``, which are filled
        in place.
    layout
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
    # How many steps of a lazy kernel are active is secret: its bar shows no parts.
    title = "sampling; how far it is stays secret" if layout.is_lazy else "compiling"
    done = 0 if layout.is_lazy else checkpoint.start // layout.chunk_size
    # A signal that came while the bar is made would leave one that cannot be closed.
    with signals.deferred():
        bar = tqdm(total=NUM_CHUNKS, initial=done, disable=not verbose, unit="part")
    with bar, processes.watched():
        bar.set_description(title)
        for start in range(
            checkpoint.start, layout.num_active.max(), layout.chunk_size
        ):
            words, active = _inputs(checkpoint.key, layout, start, program.num_words)
            chains, history = advance(program, chains, words, active)
            _store(history, layout, start, read)
            stop = start + layout.chunk_size
            save(checkpoint._replace(start=stop, progress=(chains, read)))
            signals.check()
            if not layout.is_lazy:
                bar.set_description("sampling")
                bar.update()
        bar.update(NUM_CHUNKS - bar.n)
    drawn = jax.tree.map(lambda leaf: np.moveaxis(leaf[1:], 0, 1), read)
    if drawn.num_accepted is None:
        return drawn.position, None, drawn.info
    num_moved = np.diff(read.num_accepted, axis=0).T
    return drawn.position, num_moved / layout.num_between, None


def _inputs(key: bytes, layout: Layout, start: int, num_words: int):
    """Random words of the chunk after `start` active steps, and which chains it moves.

    `key` holds the keys of all runs in the loop, one after another. Their chains lie in
    the same order, and every run has as many.
    """
    keys = [key[i : i + KEY_BYTES] for i in range(0, len(key), KEY_BYTES)]
    shape = layout.chunk_size, layout.num_active.size // len(keys), num_words
    tapes = [chacha.tape(key, COINS_STREAM + 1 + start, shape) for key in keys]
    words = tapes[0] if len(tapes) == 1 else np.concatenate(tapes, axis=1)
    steps = np.arange(start, start + layout.chunk_size)
    return words, steps[:, None] < layout.num_active


def _store(history: Draw, layout: Layout, start: int, read: Draw) -> None:
    """Copy the readings that fall into the chunk after `start` active steps to `read`.

    `history` holds every step of the chunk; `layout` says after which of them each
    chain is read.
    """
    step = layout.read_after - start - 1
    row, chain = np.nonzero((0 <= step) & (step < layout.chunk_size))
    step = step[row, chain]

    def write(stored, leaf):
        stored[row, chain] = np.asarray(leaf)[step, chain]

    jax.tree.map(write, read, history)
