"""What a data set's releases have spent, in a file that survives the process.

A line of the file is one reservation in JSON. It is written and synced to disk before
the first step of a run, and stays spent whether or not the run finishes. Each line
carries the hash of the line before it, so a file that was damaged or edited is refused.
A last line without its end is dropped, because the run that wrote it never began.
"""

import fcntl
import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from dpjax.privacy.events import event_from_json

__all__ = ["LedgerError", "read", "reserve"]


class LedgerError(ValueError):
    """The ledger file is damaged; its spend cannot be known."""


def _lines(content: bytes) -> list[bytes]:
    return content.split(b"\n")[:-1]


def _events(lines: list[bytes], relation: str, path) -> list:
    previous, events = "", []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            intact = record["previous"] == previous
            same_relation = record["relation"] == relation
            entries = [(event_from_json(e), count) for e, count in record["events"]]
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"line {number} of {path} is not a ledger line"
            ) from error
        if not intact:
            raise LedgerError(
                f"line {number} of {path} does not follow the line before it: the file "
                "was edited or damaged, so what it has spent is unknown"
            )
        if not same_relation:
            raise LedgerError(
                f"{path} counts spending under {record['relation']}, this run under "
                f"{relation}: the two do not add up, so use one relation a ledger"
            )
        events += entries
        previous = hashlib.sha256(line).hexdigest()
    return events


def read(path, relation: str) -> list:
    """The (event, count) pairs spent so far; an absent file has spent nothing.

    Parameters
    ----------
    path
        The ledger file.
    relation
        Name of the neighbouring relation that the caller accounts for.

    Raises
    ------
    LedgerError
        If a line is damaged, out of order, or under another relation.
    """
    path = Path(path)
    if not path.exists():
        return []
    return _events(_lines(path.read_bytes()), relation, path)


def reserve(path, events, relation: str, approve) -> None:
    """Append a reservation, once `approve` accepts what was spent before.

    Parameters
    ----------
    path
        The ledger file; created with mode 0600.
    events
        The (event, count) pairs about to be released.
    relation
        Name of the neighbouring relation of their sensitivities.
    approve
        Called with the pairs spent before, while the file is locked. It refuses the
        reservation by raising an error, and then nothing is written.

    Raises
    ------
    LedgerError
        As in `read`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = _lines(file.read())
        approve(_events(lines, relation, path))
        record = {
            "previous": hashlib.sha256(lines[-1]).hexdigest() if lines else "",
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "relation": relation,
            "events": [[event.to_json(), count] for event, count in events],
        }
        file.seek(sum(len(line) + 1 for line in lines))
        file.truncate()
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
