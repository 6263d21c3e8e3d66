"""A run's progress on disk, so that a killed run goes on without paying again.

A resumed run continues with the same randomness, so it gives the draws that the
uninterrupted run would have given. A run that has ended gives its draws again. A
checkpoint is therefore not deleted when its run ends: whoever called `dpjax.run`
deletes it when the draws are saved. It holds the randomness key, so it is secret, and
its file has mode 0600.
"""

import contextlib
import fcntl
import functools
import io
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np

from dpjax.runner import processes
from dpjax.runner.files import open_own, replacing

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "check",
    "holding",
    "load",
    "reservation",
    "save",
]


Function = TypeVar("Function", bound=Callable)


class CheckpointError(ValueError):
    """The checkpoint belongs to another run."""


class Checkpoint(NamedTuple):
    """Where a run stands.

    key
        The 32 secret bytes that all randomness of the run comes from.
    reservation
        Nonce of the run's line in the ledger, or "" without a budget.
    num_steps
        Steps of every chain that were charged.
    start
        Active steps that are done (`dpjax.runner.layout`).
    progress
        Pytree of arrays: the chains, and what was read of them so far
        (`dpjax.runner.loop.sample`).
    settings
        What the run was called with. `save` takes it as an argument of its own, and
        only `load` fills this field.
    """

    key: bytes
    reservation: str
    num_steps: int
    start: int
    progress: Any
    settings: dict = {}  # noqa: RUF012


def holding(run: Function) -> Function:
    """`run`, which keeps other runs from its checkpoint until it has ended.

    Two runs that go on from one checkpoint add the same noise to their sums. If the
    sums differ, as they may on two machines, their difference is free of noise.

    Parameters
    ----------
    run
        A function with the keyword `checkpoint`, the path of a file or None. A file
        beside it is locked, and removed at the end.

    Raises
    ------
    CheckpointError
        The function raises it if another run holds the checkpoint.
    """

    @functools.wraps(run)
    def alone(*arguments, checkpoint=None, **keywords):
        with contextlib.ExitStack() as lock:
            if checkpoint is not None:
                processes.first(lambda: lock.enter_context(_locked(checkpoint)))
            return run(*arguments, checkpoint=checkpoint, **keywords)

    return cast(Any, alone)


@contextlib.contextmanager
def _locked(path):
    beside = f"{os.fspath(path)}.lock"
    with os.fdopen(open_own(beside, os.O_RDWR | os.O_CREAT), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The run that held it may have removed it since it was opened.
            is_held = not os.path.samestat(os.fstat(file.fileno()), os.lstat(beside))
        except (BlockingIOError, FileNotFoundError):
            is_held = True
        if is_held:
            raise CheckpointError(
                f"another run is at work on the checkpoint {path}: wait until it has "
                "ended, or give this run another checkpoint"
            )
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(beside)


def save(path, settings: dict, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to `path`, in place of an earlier one and all at once.

    The first process writes the file, and the others wait until it is written.

    Parameters
    ----------
    path
        The file, or None to write nothing.
    settings
        All that the draws and the cost of the run depend on, by name, ready for JSON.
    checkpoint
        What to write.
    """
    if path is None:
        return
    header = dict(
        settings=settings,
        key=checkpoint.key.hex(),
        reservation=checkpoint.reservation,
        num_steps=checkpoint.num_steps,
        start=checkpoint.start,
    )
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(checkpoint.progress)]

    def write():
        with replacing(path) as file:
            np.savez(file, *leaves, header=json.dumps(header))

    processes.first(write)


def load(path, template) -> Checkpoint | None:
    """The checkpoint at `path`, or None if there is no path or no file.

    Parameters
    ----------
    path
        The file, or None.
    template
        A pytree with the structure of `Checkpoint.progress`.

    Raises
    ------
    CheckpointError
        If the progress in the file has another number of arrays, as that of a kernel
        with other states.
    ValueError
        If `path` is a symbolic link.
    """
    content = _content(path)
    if not content:
        return None
    with np.load(io.BytesIO(content)) as stored:
        header = json.loads(str(stored["header"]))
        leaves = [stored[f"arr_{i}"] for i in range(len(stored.files) - 1)]
    structure = jax.tree.structure(template)
    if structure.num_leaves != len(leaves):
        raise CheckpointError(_refusal(path, ["the kernel's state"]))
    header["key"] = bytes.fromhex(header["key"])
    return Checkpoint(**header, progress=jax.tree.unflatten(structure, leaves))


def reservation(path) -> str | None:
    """Nonce of the line in the ledger that paid for the run of the file at `path`.

    It is None if there is no path, no file, or the run had no budget. A symbolic link
    is refused as by `load`.
    """
    content = _content(path)
    if not content:
        return None
    with np.load(io.BytesIO(content)) as stored:
        return json.loads(str(stored["header"]))["reservation"] or None


def _content(path) -> bytes:
    """The bytes of the file at `path`; no bytes if there is no path or no file."""

    def read():
        if os.path.lexists(path):
            with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
                return file.read()

    return b"" if path is None else processes.first(read)


def check(path, checkpoint: Checkpoint, settings: dict) -> None:
    """Refuse to resume the run of a checkpoint with other `settings` than its own.

    Raises
    ------
    CheckpointError
        If some settings differ; the message names them.
    """
    names = [name for name in settings if checkpoint.settings[name] != settings[name]]
    if names:
        raise CheckpointError(_refusal(path, names))


def _refusal(path, names) -> str:
    return (
        f"{path} is the checkpoint of a run with other settings ({', '.join(names)} "
        "differ); resume that run, or delete the file: what the run was charged stays "
        "spent"
    )
