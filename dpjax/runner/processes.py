"""One run in several processes, which `jax.distributed` has joined.

Every process makes the same calls on the same arguments. The system's entropy, the
ledger, the checkpoint and the output belong to the first process, and the others are
told what they need to know of them. An error of one process in these matters is raised
in all of them.

What the processes tell each other is not encrypted: their network is trusted like the
memory of one process.
"""

import contextlib
import json
import struct
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

__all__ = [
    "Lost",
    "agreed",
    "are_many",
    "blocks",
    "check_same",
    "first",
    "is_first",
    "is_spread",
    "watched",
]

BLOCK_BYTES = 2**24
"""Of the records that pass from one process to the others at a time."""

SHARED = "all processes of the run ended with this error"


class Lost(RuntimeError):
    """Another process of the run has ended, or cannot be reached."""


def are_many() -> bool:
    """Whether there is more than one process."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this is the process that ledger, checkpoint and output belong to."""
    return jax.process_index() == 0


def first(function: Callable[[], bytes | None]) -> bytes:
    """What `function` returns in the first process; the others do not call it.

    None is returned as no bytes.

    Raises
    ------
    Exception
        What it raises in the first process is raised in all.
    Lost
        If a process has ended.
    """
    if not are_many():
        return function() or b""
    content, error = b"", None
    if is_first():
        try:
            content = function() or b""
        except Exception as found:
            error = found
    return _exchange(content, error)


@contextlib.contextmanager
def agreed():
    """Raise an error in all processes if the block raises it in some of them.

    The block is one in which processes do not exchange anything.
    """
    error = None
    try:
        yield
    except Exception as found:
        if not are_many():
            raise
        error = found
    if are_many():
        _exchange(b"", error)


def check_same(arguments: dict) -> None:
    """Refuse calls that differ from that of the first process.

    Parameters
    ----------
    arguments
        What must be the same, in JSON, by name.

    Raises
    ------
    ValueError
        In all processes, if any differs in one; the message says which.
    """
    if not are_many():
        return
    mine = json.loads(json.dumps(arguments))
    theirs = json.loads(first(lambda: json.dumps(arguments).encode()))
    with agreed():
        names = [name for name in mine if mine[name] != theirs.get(name)]
        if names:
            raise ValueError(
                f"{', '.join(names)} of process {jax.process_index()} and process 0 "
                "differ: all processes must make the same call, on records that are "
                "one array of all processes, or the same array in each; "
                "jax.make_array_from_process_local_data makes one of the parts"
            )


def is_spread(array) -> bool:
    """Whether no process holds all of an array."""
    is_local = not isinstance(array, jax.Array) or array.is_fully_addressable
    return not (is_local or array.is_fully_replicated)


def blocks(array) -> Iterator[np.ndarray]:
    """The contents of an array in order, as arrays of bytes.

    Parameters
    ----------
    array
        If it is spread over processes, then along its leading axis. Its parts then pass
        from process to process, one after another.

    Raises
    ------
    ValueError
        If it is spread along other axes.
    """
    if not is_spread(array):
        yield _bytes(np.asarray(array))
        return
    owners = {}
    for device, (rows, *others) in array.sharding.devices_indices_map(
        array.shape
    ).items():
        if any(index != slice(None) for index in others):
            raise ValueError("records must be spread along their leading axis only")
        start, stop, _ = rows.indices(array.shape[0])
        owners[start, stop] = device
    parts = {shard.device: shard.data for shard in array.addressable_shards}
    for (start, stop), device in sorted(owners.items(), key=lambda item: item[0]):
        size = (stop - start) * array.nbytes // array.shape[0]
        mine = _bytes(np.asarray(parts[device])) if device in parts else None
        for at in range(0, size, BLOCK_BYTES):
            block = np.zeros(min(BLOCK_BYTES, size - at), np.uint8)
            if mine is not None:
                block = mine[at : at + len(block)]
            yield _sent(block, device.process_index)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@contextlib.contextmanager
def watched():
    """Say what has happened if an exchange fails because a process has ended."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        is_exchange = isinstance(error, jax.errors.JaxRuntimeError)
        if not (are_many() and (is_exchange or "Gloo" in str(error))):
            raise
        raise Lost(
            "another process of the run has ended or cannot be reached, and its own "
            f"output says why ({str(error).splitlines()[0]}). What was charged stays "
            "in the ledger; a run with a checkpoint goes on without another charge if "
            "all processes make the same call again"
        ) from error


def _exchange(content: bytes, error: Exception | None) -> bytes:
    """The content of the first process, unless a process has an error."""
    if isinstance(error, Lost):
        raise error
    message = content if error is None else _text(error)
    header = struct.pack("<QQ", len(message), error is not None)
    with watched():
        headers = multihost_utils.process_allgather(np.frombuffer(header, np.uint32))
    sizes, failed = np.ascontiguousarray(headers).view(np.uint64).T
    sender = int(np.argmax(failed))
    buffer = np.zeros(sizes[sender], np.uint8)
    if jax.process_index() == sender:
        buffer = np.frombuffer(message, np.uint8)
    message = _sent(buffer, sender).tobytes() if buffer.size else b""
    if failed.any():
        error = error or _error(message)
        error.add_note(SHARED)
        raise error
    return message


def _sent(buffer: np.ndarray, sender: int) -> np.ndarray:
    with watched():
        return multihost_utils.broadcast_one_to_all(
            buffer, is_source=jax.process_index() == sender
        )


def _text(error: Exception) -> bytes:
    return json.dumps([type(error).__name__, str(error)]).encode()


def _error(text: bytes) -> Exception:
    """The error of another process, if it is of a class that dpjax raises."""
    name, message = json.loads(text)
    for kind in (ValueError, TypeError, *ValueError.__subclasses__()):
        is_known = kind.__module__.partition(".")[0] in ("builtins", "dpjax")
        if kind.__name__ == name and is_known:
            return kind(message)
    return RuntimeError(f"{name}: {message}")
