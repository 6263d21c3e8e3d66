"""A run's progress on disk, so that a killed run goes on without paying again.

A checkpoint holds the randomness key, so it is secret: mode 0600, deleted when the run
ends. Nothing is released before then, and a resumed run goes on with the same
randomness, so it gives the draws that the uninterrupted run would have given.
"""

import json
import os
from typing import Any, NamedTuple

import jax
import numpy as np

__all__ = ["Checkpoint", "CheckpointError", "load", "save"]


class CheckpointError(ValueError):
    """The checkpoint belongs to another run."""


class Checkpoint(NamedTuple):
    """Where a run stands.

    key
        The 32 secret bytes that all randomness of the run comes from.
    num_steps
        Steps of every chain that were charged.
    start
        Active steps that are done (`dpjax.runner.plan`).
    progress
        Pytree of arrays: the chains' states, and the draws and accept bits so far.
    """

    key: bytes
    num_steps: int
    start: int
    progress: Any


def save(path, fingerprint: str, checkpoint: Checkpoint) -> None:
    """Replace the file at `path` in one step; without a path, do nothing.

    Parameters
    ----------
    path
        The file, or None.
    fingerprint
        Names the run, by everything public that its draws depend on.
    checkpoint
        What to write.
    """
    if path is None:
        return
    header = dict(
        fingerprint=fingerprint,
        key=checkpoint.key.hex(),
        num_steps=checkpoint.num_steps,
        start=checkpoint.start,
    )
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(checkpoint.progress)]
    partial = f"{os.fspath(path)}.partial"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        np.savez(file, *leaves, header=json.dumps(header))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def load(path, fingerprint: str, template) -> Checkpoint | None:
    """The checkpoint at `path`, or None if there is no path or no file.

    Parameters
    ----------
    path, fingerprint
        As in `save`; the fingerprint is that of the run that wants to resume.
    template
        A pytree of the structure of the progress.

    Raises
    ------
    CheckpointError
        If the file belongs to a run with other settings.
    """
    if path is None or not os.path.exists(path):
        return None
    with np.load(path) as stored:
        header = json.loads(str(stored["header"]))
        leaves = [stored[f"arr_{i}"] for i in range(len(stored.files) - 1)]
    if header.pop("fingerprint") != fingerprint:
        raise CheckpointError(
            f"{path} is the checkpoint of a run with other settings; resume that run, "
            "or delete the file: what the run was charged stays spent"
        )
    header["key"] = bytes.fromhex(header["key"])
    progress = jax.tree.unflatten(jax.tree.structure(template), leaves)
    return Checkpoint(**header, progress=progress)
