"""A ledger survives crashes, and what it lost or had changed is refused."""

import contextlib
import fcntl
import itertools
import json
import os
import shutil

import pytest

from dpjax import acceptance, privacy
from dpjax.runner import ledger

BIT = privacy.AcceptBit(acceptance.barker(0.5), 0.1)
NOISE = privacy.GaussianRelease(3.0)
RELATION = "REPLACE_ONE"
SPENT = [(BIT, 3), (NOISE, 2), (BIT, 1)]
MORE = [(privacy.KNormRelease(9.0, 4, 1e-13), 1)]
RULE = privacy.AdaptiveRule(20.0, 0.0)


def reserve(path, events, approve=lambda earlier: None, data=b"data", **changes):
    return ledger.reserve(
        path,
        events,
        changes.get("relation", RELATION),
        approve,
        rule=changes.get("rule", RULE),
        data_fn=lambda: data,
        nonce_fn=lambda state: f"{state}0a",
    )


def spent(path):
    return [pair for run in ledger.read(path, RELATION).runs for pair in run]


def head(path):
    return path.with_name(f"{path.name}.head")


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "ledger.jsonl"
    reserve(target, [(BIT, 3)])
    reserve(target, [(NOISE, 2), (BIT, 1)])
    return target


def test_reservations_add_up(path):
    assert spent(path) == SPENT
    for file in (path, head(path)):
        assert oct(file.stat().st_mode)[-3:] == "600"
    assert spent(path.parent / "absent") == []
    nonce = reserve(path, MORE)
    assert spent(path) == SPENT + MORE
    assert ledger.holds(path, nonce) and not ledger.holds(path, "0b")


def test_the_first_run_sets_the_rule(path):
    reserve(path, MORE, rule=privacy.AdaptiveRule(7.0, 0.5))
    rule, runs, _ = ledger.read(path, RELATION)
    assert rule == RULE
    assert runs == [[(BIT, 3)], [(NOISE, 2), (BIT, 1)], MORE]
    assert ledger.read(path.parent / "absent", RELATION) == (None, [], {})


def test_a_folder_that_cannot_be_written_is_refused_before_the_charge(
    tmp_path, monkeypatch
):
    target = tmp_path / "ledger.jsonl"
    monkeypatch.setattr(os, "access", lambda place, mode: place != tmp_path)
    message = f"nothing is released: you may not write to {tmp_path}"
    with pytest.raises(ledger.LedgerError, match=message):
        reserve(target, SPENT)
    assert not target.exists()


def test_runs_on_one_file_may_read_different_columns_of_it(tmp_path):
    file = tmp_path / "records.csv"
    file.write_text("a,b\n1,2\n")
    target = ledger.beside(file)
    reserve(target, SPENT, data=b"a")
    reserve(target, MORE, data=b"a and b")
    assert spent(target) == SPENT + MORE
    file.write_text("a,b\n1,3\n")
    with pytest.raises(ledger.LedgerError, match="beside it has changed"):
        reserve(target, MORE, data=b"a")


def test_refusal_writes_nothing(path):
    before = path.read_bytes()

    def refuse(earlier):
        assert [pair for run in earlier.runs for pair in run] == SPENT
        raise privacy.BudgetError("no")

    with pytest.raises(privacy.BudgetError):
        reserve(path, MORE, refuse)
    assert path.read_bytes() == before


def change(cut):
    """An attack that changes the contents."""
    return lambda path: path.write_bytes(cut(path.read_bytes()))


def zeroed(content):
    last = content.index(b"\n") + 1
    return content[:last] + bytes(len(content) - last)


ATTACKS = {
    "last line deleted": change(lambda text: text[: text.index(b"\n") + 1]),
    "emptied": change(lambda text: b""),
    "deleted": os.remove,
    "last line zeroed": change(zeroed),
    "last line zeroed before its newline": change(lambda t: zeroed(t)[:-1] + b"\n"),
    "last line edited": change(lambda t: t.replace(b'"noise_multiplier": 3.', b"9.")),
    "last line repriced": change(
        lambda t: t.replace(b'"noise_multiplier": 3.', b'"noise_multiplier": 9.')
    ),
    "last line without a letter": change(lambda text: text[:-2]),
    "torn line that is whole": change(lambda text: text + text.splitlines()[-1]),
    "head deleted": lambda path: os.remove(head(path)),
    "head of fewer lines": lambda path: head(path).write_text('[0, ""]'),
    "head emptied": lambda path: head(path).write_text(""),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_ledger_that_lost_a_charge_is_refused(path, attack):
    before = path.read_bytes(), head(path).read_bytes()
    ATTACKS[attack](path)
    with pytest.raises(ledger.LedgerError):
        spent(path)
    with pytest.raises(ledger.LedgerError):
        reserve(path, MORE)
    path.write_bytes(before[0])
    head(path).write_bytes(before[1])
    assert spent(path) == SPENT


def test_a_stripped_newline_loses_nothing(path):
    path.write_bytes(path.read_bytes()[:-1])
    assert spent(path) == SPENT
    reserve(path, MORE)
    assert spent(path) == SPENT + MORE


def test_every_flipped_bit_is_refused(path):
    content = path.read_bytes()
    for position in range(0, len(content) - 1, 3):
        damaged = bytearray(content)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ledger.LedgerError):
            spent(path)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("renamed", ["as it waits for the lock", "as it pays"])
@pytest.mark.parametrize("left", ["nothing", "a copy"])
def test_a_charge_does_not_go_to_a_file_that_was_moved(
    path, monkeypatch, renamed, left
):
    def move(*arguments):
        elsewhere = path.rename(path.with_name("elsewhere"))
        if left == "a copy":
            shutil.copy(elsewhere, path)

    with monkeypatch.context() as patch:
        if renamed == "as it waits for the lock":
            patch.setattr(fcntl, "flock", move)
        with pytest.raises(ledger.LedgerError, match="moved or replaced"):
            reserve(
                path, MORE, move if renamed == "as it pays" else lambda earlier: None
            )


def set_behind(path):
    """The head as it was before the last line."""
    lines = path.read_bytes().splitlines()[:-1]
    with ledger.replacing(head(path)) as file:
        file.write(json.dumps(ledger._entry(lines)).encode())


def test_a_file_that_was_not_written_whole_is_removed(tmp_path):
    """A checkpoint holds the randomness of its run."""
    with pytest.raises(OSError), ledger.replacing(tmp_path / "file") as file:
        file.write(b"secret")
        raise OSError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("state", ["new", "settled", "head behind"])
def test_a_crash_leaves_a_ledger_that_works(path, monkeypatch, state):
    """Killed before any call that changes the disk: nothing paid is lost."""
    before = SPENT
    if state == "new":
        before = []
        path.unlink()
        head(path).unlink()
    elif state == "head behind":
        set_behind(path)
    saved = {file: file.read_bytes() for file in path.parent.iterdir()}
    num_calls = 5 if state == "settled" else 9
    for deadline in range(1, num_calls + 2):
        calls = itertools.count(1)

        def counted(function, calls=calls, deadline=deadline):
            def call(*arguments):
                if next(calls) == deadline:
                    raise Killed
                return function(*arguments)

            return call

        is_killed = deadline <= num_calls
        expected = pytest.raises(Killed) if is_killed else contextlib.nullcontext()
        with monkeypatch.context() as patch, expected:
            for name in ("fsync", "replace", "remove"):
                patch.setattr(os, name, counted(getattr(os, name)))
            reserve(path, MORE)
        found = spent(path)
        assert found in ([before, before + MORE] if is_killed else [before + MORE])
        reserve(path, MORE)
        assert spent(path) == found + MORE
        for file in path.parent.iterdir():
            file.unlink()
        for file, content in saved.items():
            file.write_bytes(content)


def test_a_line_that_was_torn_while_it_was_written_is_dropped(path):
    """Unless it is whole: then it counts."""
    set_behind(path)
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for length in [*range(first, len(content), 7), len(content) - 1]:
        path.write_bytes(content[:length])
        assert spent(path) == (SPENT if length == len(content) - 1 else SPENT[:1])
    path.write_bytes(content[:-9])
    reserve(path, MORE)
    assert spent(path) == SPENT[:1] + MORE


def test_no_charge_returns_before_it_is_on_disk(path, monkeypatch):
    """The line is synced before the head that counts it replaces the other."""
    order = []
    for name in ("fsync", "replace"):
        function = getattr(os, name)

        def noted(*arguments, name=name, function=function):
            order.append(name)
            return function(*arguments)

        monkeypatch.setattr(os, name, noted)
    reserve(path, MORE)
    # The line; the head, its name, and the folder.
    assert order == ["fsync", "fsync", "replace", "fsync"]


def test_relations_do_not_mix(path):
    with pytest.raises(ledger.LedgerError, match="relation"):
        reserve(path, MORE, relation="REPLACE_SPECIAL")


def test_data_sets_do_not_mix(path):
    with pytest.raises(ledger.LedgerError, match="of other data") as error:
        reserve(path, MORE, data=b"others")
    assert "records.csv.ledger.jsonl" in str(error.value)
    assert spent(path) == SPENT


@pytest.mark.parametrize("name", ["ledger", "ledger.head", "ledger.head.partial"])
def test_no_link_is_followed(tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    (tmp_path / name).symlink_to(elsewhere)
    refused = contextlib.nullcontext()
    if not name.endswith("partial"):
        refused = pytest.raises(ValueError, match="symbolic link")
    with refused:
        reserve(tmp_path / "ledger", MORE)
    assert elsewhere.read_text() == ""


@pytest.mark.parametrize(
    ("order", "alike_share"),
    [(8.0, 1.5), (8.0, -1e6), (8.0, 1.0), (1.0, 0.0)],
)
def test_rules_out_of_range_are_refused(order, alike_share):
    """With a share above one, any run would have cost nothing."""
    with pytest.raises(ValueError, match=r"order|alike_share"):
        privacy.AdaptiveRule(order, alike_share)
