"""A run's progress on disk, so that a killed run goes on without paying again.

A checkpoint holds the randomness key, so it is secret: mode 0600, deleted when the run
ends. Nothing is released before then, and a resumed run continues the same randomness,
so it gives the draws that the uninterrupted run would have given.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

__all__ = ["Checkpoint", "CheckpointError", "load", "save"]


class CheckpointError(ValueError):
    """The checkpoint belongs to another run."""


class Checkpoint(NamedTuple):
    """Where a run stands.

    key
        The 32 secret bytes that all its randomness comes from.
    num_steps
        Steps that were charged.
    start
        Active steps done.
    progress
        Pytree of arrays: the chains' states, the draws and the accept bits so far.
    """

    key: bytes
    num_steps: int
    start: int
    progress: Any


def save(path, checkpoint: Checkpoint, fingerprint: str) -> None:
    """Replace the file at `path` in one step; `fingerprint` names the run."""
    path = Path(path)
    header = {
        "fingerprint": fingerprint,
        "key": checkpoint.key.hex(),
        "num_steps": checkpoint.num_steps,
        "start": checkpoint.start,
    }
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(checkpoint.progress)]
    partial = path.with_name(path.name + ".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        np.savez(file, *leaves, header=json.dumps(header))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def load(path, progress, fingerprint: str) -> Checkpoint | None:
    """The checkpoint at `path`, or None if there is no file.

    Parameters
    ----------
    progress
        A pytree of the structure to restore.
    fingerprint
        Of the run that wants to resume.

    Raises
    ------
    CheckpointError
        If the file belongs to a run with other settings.
    """
    if not Path(path).exists():
        return None
    with np.load(path) as stored:
        header = json.loads(str(stored["header"]))
        leaves = [stored[f"arr_{i}"] for i in range(len(stored.files) - 1)]
    if header["fingerprint"] != fingerprint:
        raise CheckpointError(
            f"{path} is the checkpoint of a run with other settings; resume that run, "
            "or delete the file: what the run was charged stays spent"
        )
    return Checkpoint(
        key=bytes.fromhex(header["key"]),
        num_steps=header["num_steps"],
        start=header["start"],
        progress=jax.tree.unflatten(jax.tree.structure(progress), leaves),
    )
