"""What a data set's releases have spent, in a file that survives the process.

A line of the file is one reservation in JSON. It is written and synced to disk before
the first step of a run, and stays spent whether or not the run finishes. A line holds

- its number, and the hash of the line before it;
- a nonce, which no other reservation has, and which the run's randomness depends on;
- a hash, keyed by the nonce of the first line, of the data file that the ledger lies
  beside (`beside`), as runs may read different columns of it; without such a file, of
  the records;
- the neighbouring relation, the events, and whether the user chose the randomness;
- whether it is a plan, of `dpjax.reserve`: events without a run, from which later runs
  take theirs without a further charge;
- the rule by which runs add up, which the first line sets (`privacy.AdaptiveRule`);
- the time, and a hash of all this.

The number and the hash of the last line are also in a file beside the ledger, its
*head*. A reservation writes its line first and the head second. So a crash leaves the
ledger at most one line ahead of its head, which is accepted, and the line is spent. A
ledger with fewer lines than its head says has lost some, and is refused. What follows
the last whole line is dropped: the run that wrote it never began.

A ledger that is taken back to an earlier state *together with its head*, or deleted
with it, cannot be told from one that was never written.

Whoever holds the ledger and all records but one can guess that record until the hash of
the data is right. The file has mode 0600 and is kept like the data.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import shlex
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from dpjax.privacy.events import check_events, event_from_json
from dpjax.privacy.filter import AdaptiveRule
from dpjax.runner import processes
from dpjax.runner.files import open_own, replacing
from dpjax.runner.hashes import keyed

__all__ = [
    "Entry",
    "LedgerError",
    "Spent",
    "beside",
    "check_writable",
    "entries",
    "holds",
    "read",
    "reserve",
]


BESIDE = ".ledger.jsonl"
"""What follows the name of a data file in that of its ledger."""


class LedgerError(ValueError):
    """The ledger file is damaged; its spend cannot be known."""


class Spent(NamedTuple):
    """What a ledger says.

    rule
        How its runs and further ones add up; None if there are no runs.
    runs
        The (event, count) pairs that every run was charged for. A plan counts as a run,
        and a run within the plan is charged for nothing.
    left
        How many events of the plan no run has taken yet.
    """

    rule: AdaptiveRule | None
    runs: list[list]
    left: Counter

    def after(self, events) -> list[list]:
        """The `runs` once a further one has made these `events`."""
        charged = _counted(events) - self.left
        return [*self.runs, list(charged.items())] if charged else self.runs

    def epsilon(self, delta: float) -> float:
        """Epsilon of the `runs`, of which there is at least one."""
        assert self.rule is not None
        return self.rule.epsilon(self.runs, delta)

    def has_left(self, events) -> bool:
        """Whether a run of these `events` would be within the plan."""
        return _counted(events) <= self.left


class Entry(NamedTuple):
    """One run in a ledger: when it was charged, for what, and whose randomness it had.

    Or a plan of runs, which is charged for all of them.

    The time is that of `datetime.isoformat`. The others are described in the docstring
    of the module.
    """

    time: str
    relation: str
    events: list
    unsafe_key: bool
    is_plan: bool


class _Line(NamedTuple):
    """One reservation. Everything but the time and the seal makes the `state`.

    count
        Its number, from 1.
    previous
        State of the line before it, or "".
    nonce, records, relation, rule, events, unsafe_key, is_plan
        See the docstring of the module.
    """

    count: int
    previous: str
    nonce: str
    records: str
    relation: str
    rule: dict
    events: list
    unsafe_key: bool
    is_plan: bool

    @property
    def state(self) -> str:
        """A hash of this line and all before it, without their times."""
        return _sha256(json.dumps(self._asdict()))

    def sealed(self, time: str) -> bytes:
        """The line of the file, without its end."""
        record = self._asdict() | {"time": time}
        return json.dumps(record | {"seal": _sha256(json.dumps(record))}).encode()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def beside(data_file) -> Path:
    """The ledger that all runs on a data file share unless they name another.

    It lies in the folder of the file itself, also if `data_file` is a link to it.
    """
    return Path(os.path.realpath(data_file) + BESIDE)


def listing(path, delta: float) -> str:
    """The command that lists what was spent in a ledger, at the delta of a budget."""
    return f"dpjax ledger show {shlex.quote(str(path))} --delta {delta:g}"


def check_writable(path) -> None:
    """Refuse a ledger that cannot be written, as `reserve` does.

    Raises
    ------
    LedgerError
        If its folder is missing, or the user may not write there.
    """
    folder = Path(path).absolute().parent
    reason = "" if folder.is_dir() else f"there is no folder {folder}"
    for place in (folder, Path(path)):
        if not reason and place.exists() and not os.access(place, os.W_OK):
            reason = f"you may not write to {place}"
    if reason:
        raise LedgerError(
            f"the ledger {path} cannot be written, so nothing is released: {reason}. "
            "Name a file that you can write, by ledger in [privacy] or ledger= in "
            "Python, and name the same one in every run on these records"
        )


def read(path, relation: str, before: str | None = None) -> Spent:
    """What was spent so far; an absent file has spent nothing.

    Parameters
    ----------
    path
        The ledger file.
    relation
        Name of the neighbouring relation that the caller accounts for.
    before
        Nonce of a reservation; it and those after it are left out.

    Raises
    ------
    LedgerError
        If lines are missing, damaged or out of order, or under another relation.
    """
    lines = itertools.takewhile(lambda line: line.nonce != before, _read(path)[0])
    return _spent(list(lines), path, relation)


def entries(path) -> tuple[Spent, list[Entry]]:
    """What a ledger spent, and its runs.

    Raises
    ------
    LedgerError
        As in `read`, or if there is no such ledger.
    """
    lines, whole = _read(path)
    if not lines:
        raise LedgerError(f"there is no ledger {path}, or no run was charged in it")
    times = [json.loads(text)["time"] for text in whole]
    return _spent(lines, path, lines[0].relation), [
        Entry(time, line.relation, _events(line), line.unsafe_key, line.is_plan)
        for time, line in zip(times, lines, strict=True)
    ]


def holds(path, nonce: str) -> bool:
    """Whether a reservation with this `nonce` is in the ledger; errors as in `read`."""
    return any(line.nonce == nonce for line in _read(path)[0])


def reserve(
    path,
    events,
    relation: str,
    approve: Callable[[Spent], None],
    *,
    rule: AdaptiveRule,
    data_fn: Callable[[], bytes],
    nonce_fn: Callable[[str], str],
    unsafe_key: bool = False,
    is_plan: bool = False,
) -> str:
    """Append a reservation, once `approve` accepts what was spent before.

    Parameters
    ----------
    path
        The ledger file.
    events
        The (event, count) pairs about to be released.
    relation
        Name of the neighbouring relation of their sensitivities.
    approve
        Called with what was spent before, while the file is locked. It refuses the
        reservation by raising an error, and then nothing is written, and no file is
        left that was not there.
    rule
        That of a new ledger.
    data_fn
        Returns `hashes.digest` of the records, if the ledger lies beside no data file;
        not called before `approve`.
    nonce_fn
        ``state -> nonce``: both are hex, and the state is a hash of all lines before,
        or "" in a new ledger. Not called before `approve`.
    unsafe_key
        Whether the user chose the run's randomness.
    is_plan
        Whether the events are those of runs to come. Only the first line may be a plan.

    Returns
    -------
    The nonce.

    Raises
    ------
    LedgerError
        As in `read` and `check_writable`, if the ledger is that of other data, or if
        the file is replaced under way.
    """
    check_writable(path)
    with _locked(path, os.O_RDWR | os.O_CREAT) as file:
        content = file.read()
        lines, whole = _checked(content, path)
        spent = _spent(lines, path, relation)
        try:
            approve(spent)
        except Exception:
            if not content:
                os.remove(path)
            raise
        previous = lines[-1].state if lines else ""
        nonce = nonce_fn(previous)
        salt = bytes.fromhex(lines[0].nonce if lines else nonce)
        name = keyed(salt, _digest(path, data_fn)).hex()
        if lines and name != lines[0].records:
            raise LedgerError(
                f"{path} counts the spending of other data, or the data file beside it "
                "has changed: budgets of different records do not add up, so use one "
                "ledger for each data set. Models that take other columns of one table "
                "share the ledger of its file: for records.csv, name "
                f"ledger='records.csv{BESIDE}'. If mistakes in the records were "
                "corrected since, begin a new ledger for the new file and keep the old "
                "one: `dpjax ledger show OLD NEW` says what both spent"
            )
        if _head(path) != _entry(whole):
            # It may be one line behind, and must not fall two behind.
            _write_head(path, whole)
        line = _Line(
            count=len(lines) + 1,
            previous=previous,
            nonce=nonce,
            records=name,
            relation=relation,
            rule=dataclasses.asdict(spent.rule or rule),
            events=[[event.to_json(), count] for event, count in events],
            unsafe_key=unsafe_key,
            is_plan=is_plan,
        ).sealed(datetime.now(UTC).isoformat(timespec="seconds"))
        kept = b"".join(line + b"\n" for line in whole)
        file.seek(min(len(kept), len(content)))
        file.truncate()
        file.write(kept[len(content) :] + line + b"\n")
        file.flush()
        os.fsync(file.fileno())
        _check_name(file, path)
        _write_head(path, [*whole, line])
    return nonce


def _digest(path, data_fn: Callable[[], bytes]) -> bytes:
    """SHA-256 of the data file that the ledger lies beside, or else of the records."""
    file = Path(os.fspath(path).removesuffix(BESIDE))
    if file == Path(path) or not file.is_file():
        return data_fn()
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def _read(path) -> tuple[list[_Line], list[bytes]]:
    return _parsed(processes.first(lambda: _content(path)), path)


def _content(path) -> bytes:
    """What the file holds, once it is found to agree with its head."""
    try:
        with _locked(path, os.O_RDONLY) as file:
            content = file.read()
            _checked(content, path)
            return content
    except FileNotFoundError:
        _checked(b"", path)
        return b""


@contextlib.contextmanager
def _locked(path, flags: int):
    """The file, locked for reading or for reading and writing."""
    is_read = flags == os.O_RDONLY
    with os.fdopen(open_own(path, flags), "rb" if is_read else "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_SH if is_read else fcntl.LOCK_EX)
        _check_name(file, path)
        yield file


def _check_name(file, path) -> None:
    """Refuse to go on with a file that is no longer at `path`."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file.fileno()), os.lstat(path)):
            return
    raise LedgerError(
        f"{path} was moved or replaced while it was read: run again when nothing else "
        "touches it"
    )


def _checked(content: bytes, path) -> tuple[list[_Line], list[bytes]]:
    """As `_parsed`, if the head of the ledger agrees."""
    lines, whole = _parsed(content, path)
    _check_head(path, whole)
    return lines, whole


def _parsed(content: bytes, path) -> tuple[list[_Line], list[bytes]]:
    """The reservations, and the lines that hold them."""
    *whole, rest = content.split(b"\n")
    # Only the end of a line makes it JSON, so this one lacks no more than its newline.
    with contextlib.suppress(ValueError):
        json.loads(rest)
        whole.append(rest)
    lines = []
    for number, text in enumerate(whole, 1):
        try:
            record = json.loads(text)
            time, _ = record.pop("time"), record.pop("seal")
            line = _Line(**record)
            is_whole = line.sealed(time) == text
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerError(
                f"line {number} of {path} is not a ledger line"
            ) from error
        previous = lines[-1].state if lines else ""
        if not (is_whole and line.count == number and line.previous == previous):
            raise LedgerError(
                f"line {number} of {path} does not follow the line before it: the file "
                "was edited or damaged, so what it has spent is unknown"
            )
        lines.append(line)
    return lines, whole


def _spent(lines: list[_Line], path, relation: str) -> Spent:
    for line in lines:
        if line.relation != relation:
            raise LedgerError(
                f"{path} counts spending under {line.relation}, this run under "
                f"{relation}: the two do not add up, so use one relation a ledger"
            )
    if not lines:
        return Spent(None, [], Counter())
    try:
        rule = AdaptiveRule(**lines[0].rule)
        first, *rest = map(_events, lines)
    except (TypeError, ValueError) as error:
        raise LedgerError(
            f"{path} holds what this version of dpjax does not know ({error}): use the "
            "version that wrote it"
        ) from error
    spent = Spent(rule, [first], _counted(first) if lines[0].is_plan else Counter())
    for events in rest:
        spent = Spent(spent.rule, spent.after(events), spent.left - _counted(events))
    return spent


def _events(line: _Line) -> list:
    return [(event_from_json(event), count) for event, count in line.events]


def _counted(events) -> Counter:
    return Counter(dict(check_events(events)))


def _head_path(path) -> str:
    return f"{os.fspath(path)}.head"


def _head(path) -> list | None:
    """What the head says, or None if there is none."""
    try:
        with os.fdopen(open_own(_head_path(path), os.O_RDONLY), "rb") as file:
            return json.loads(file.read())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LedgerError(f"{_head_path(path)} is damaged: {error}") from error


def _write_head(path, whole: list[bytes]) -> None:
    with replacing(_head_path(path)) as file:
        file.write(json.dumps(_entry(whole)).encode())


def _entry(whole: list[bytes]) -> list:
    """What the head of these lines says."""
    return [len(whole), hashlib.sha256(whole[-1]).hexdigest() if whole else ""]


def _check_head(path, whole: list[bytes]) -> None:
    """Refuse a ledger that has lost lines, or the file that tells."""
    known = _head(path)
    if known is None and whole:
        raise LedgerError(
            f"{_head_path(path)}, which says how many lines {path} has, is missing: "
            "put it back"
        )
    if known not in (None, _entry(whole), _entry(whole[:-1])):
        raise LedgerError(
            f"{path} is not what {_head_path(path)} says: lines were lost or changed, "
            "so what it has spent is unknown. Put both files back as the last run left "
            "them"
        )
