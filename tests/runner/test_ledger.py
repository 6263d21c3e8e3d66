"""The ledger survives crashes, and never undercounts a damaged file silently."""

import os

import pytest

from dpjax import acceptance, privacy
from dpjax.runner import ledger

BIT = privacy.AcceptBit(acceptance.barker(0.5), 0.1)
NOISE = privacy.GaussianRelease(3.0)
RELATION = "REPLACE_ONE"


def accept(earlier):
    pass


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "ledger.jsonl"
    ledger.reserve(target, [(BIT, 3)], RELATION, accept)
    ledger.reserve(target, [(NOISE, 2), (BIT, 1)], RELATION, accept)
    return target


SPENT = [(BIT, 3), (NOISE, 2), (BIT, 1)]


def test_reservations_add_up(path):
    assert ledger.read(path, RELATION) == SPENT
    assert oct(path.stat().st_mode)[-3:] == "600"
    assert ledger.read(path.parent / "absent", RELATION) == []


def test_refusal_writes_nothing(path):
    before = path.read_bytes()

    def refuse(earlier):
        assert earlier == SPENT
        raise privacy.BudgetError("no")

    with pytest.raises(privacy.BudgetError):
        ledger.reserve(path, [(BIT, 1)], RELATION, refuse)
    assert path.read_bytes() == before


def test_every_truncation_is_torn_or_shorter_by_whole_lines(path):
    """Cut anywhere, the lines before the torn one still count; appending works."""
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for length in range(len(content)):
        path.write_bytes(content[:length])
        expected = [(BIT, 3)] if length >= first else []
        assert ledger.read(path, RELATION) == expected
    ledger.reserve(path, [(NOISE, 1)], RELATION, accept)
    assert ledger.read(path, RELATION) == [(BIT, 3), (NOISE, 1)]


def test_damage_to_a_line_that_another_follows_is_refused(path):
    """Every byte of the first line, flipped: an error, or the same spend."""
    content = bytearray(path.read_bytes())
    for position in range(content.index(b"\n")):
        damaged = bytearray(content)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ledger.LedgerError):
            ledger.read(path, RELATION)


def test_relations_do_not_mix(path):
    with pytest.raises(ledger.LedgerError, match="relation"):
        ledger.reserve(path, [(BIT, 1)], "ADD_OR_REMOVE_ONE", accept)


def test_it_is_synced_before_reserve_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor))
    ledger.reserve(tmp_path / "ledger", [(BIT, 1)], RELATION, accept)
    assert len(synced) == 1
