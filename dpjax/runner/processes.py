"""One run in several processes, which `jax.distributed` has joined.

Every process makes the same calls on the same arguments. The system's entropy, the
ledger, the checkpoint and the output belong to the first process, and the others are
told what they need to know of them. An error of one process in these matters is raised
in all of them.

What the processes tell each other is not encrypted: their network is trusted like the
memory of one process.
"""

import contextlib
import contextvars
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

__all__ = [
    "Lost",
    "agreed",
    "are_many",
    "begin_again",
    "blocks",
    "check_same",
    "first",
    "is_first",
    "is_spread",
    "leave",
    "watched",
]

BLOCK_BYTES = 2**24
"""Bytes of the records that are hashed, or sent to other processes, at a time."""

SHARED = "all processes of the run ended with this error"


TIMEOUT = 30
"""Seconds without a sign of life after which the processes give one of them up."""

JOINED = """
import json
import sys
import jax

try:
    jax.distributed.initialize(**json.loads(sys.argv.pop(1)))
except Exception as error:
    sys.exit(
        f"dpjax: this process could not join the others of its run: {error}\\n"
        "The processes need the same --processes and --coordinator, a --process-id of "
        "their own from 0 on, and a network on which they reach the coordinator, which "
        "is process 0; --processes auto works where jax.distributed knows the cluster, "
        "such as SLURM and Kubernetes"
    )
from dpjax.cli import main

sys.exit(main())
"""
"""A process of ``dpjax``. It joins the others before it imports dpjax, because BlackJAX
computes when it is imported, and JAX knows its devices from then on."""


_is_alone = contextvars.ContextVar("_is_alone", default=False)
"""Whether the first process is doing something alone, for which the others wait."""


class Lost(RuntimeError):
    """Another process of the run has ended, or cannot be reached."""


def are_many() -> bool:
    """Whether there are other processes, which do the same now."""
    return jax.process_count() > 1 and not _is_alone.get()


def is_first() -> bool:
    """Whether this is the process that ledger, checkpoint and output belong to."""
    return jax.process_index() == 0


def first(function: Callable[[], bytes | None]) -> bytes:
    """What `function` returns in the first process; the others do not call it.

    None is returned as no bytes. The function may call `first` as well.

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
        alone = _is_alone.set(True)
        try:
            content = function() or b""
        except Exception as found:
            error = found
        finally:
            _is_alone.reset(alone)
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


def check_same(known: dict, remedy: str) -> None:
    """Refuse what differs from what the first process knows.

    Parameters
    ----------
    known
        What must be the same, in JSON, by name.
    remedy
        What makes it the same, for the message.

    Raises
    ------
    ValueError
        In all processes, if any differs in one; the message says which.
    """
    if not are_many():
        return
    mine = json.loads(json.dumps(known))
    theirs = json.loads(first(lambda: json.dumps(known).encode()))
    with agreed():
        names = [name for name in mine if mine[name] != theirs.get(name)]
        if names:
            raise ValueError(
                f"{', '.join(names)} of process {jax.process_index()} and process 0 "
                f"differ: {remedy}"
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
        rows = np.atleast_1d(np.asarray(array))
        count = max(BLOCK_BYTES * len(rows) // max(rows.nbytes, 1), 1)
        for start in range(0, len(rows), count):
            yield _bytes(rows[start : start + count])
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


def begin_again(
    arguments: list[str],
    processes: str | None,
    process_id: int | None,
    coordinator: str | None,
) -> NoReturn:
    """Replace this process by one of ``dpjax`` that has joined the others.

    Parameters
    ----------
    arguments
        Of the command.
    processes
        How many there are, or ``"auto"`` to ask the cluster for this and the others.
    process_id
        Which one this is.
    coordinator
        ``HOST:PORT`` where process 0 listens to the others.

    Raises
    ------
    ValueError
        If they do not go together.
    """
    options = dict(heartbeat_timeout_seconds=TIMEOUT, shutdown_timeout_seconds=TIMEOUT)
    if processes == "auto":
        if (process_id, coordinator) != (None, None):
            raise ValueError(
                "--processes auto asks the cluster for --process-id and --coordinator: "
                "leave them out, or state the number of processes"
            )
    else:
        count = int(processes) if processes and processes.isdecimal() else 0
        host, _, port = (coordinator or "").rpartition(":")
        if not (count and process_id is not None and host and port.isdecimal()):
            raise ValueError(
                "several processes need --processes N --process-id I --coordinator "
                "HOST:PORT with I from 0 to N - 1 and the address of process 0, or "
                "--processes auto on a cluster that JAX knows; got "
                f"--processes {processes} --process-id {process_id} --coordinator "
                f"{coordinator}"
            )
        if not 0 <= process_id < count:
            raise ValueError(
                f"--process-id must be from 0 to {count - 1}, got {process_id}"
            )
        options |= dict(
            num_processes=count,
            process_id=process_id,
            coordinator_address=coordinator,
            # By default, process 0 would listen on all its networks.
            coordinator_bind_address=coordinator,
        )
    sys.stdout.flush()
    program = [sys.executable, "-P", "-c", JOINED, json.dumps(options), *arguments]
    os.execv(sys.executable, program)


def leave(status: int, error: BaseException) -> int:
    """The exit status after an error, if all processes have ended with it.

    Otherwise this process exits at once, which the others notice: JAX would wait for
    them, and they wait for this one.
    """
    if not jax.distributed.is_initialized() or SHARED in getattr(
        error, "__notes__", ()
    ):
        return status
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


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
