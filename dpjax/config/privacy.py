"""The table ``[privacy]``."""

from pathlib import Path

from dpjax.config.keys import NUMBER, TEXT, Key, check_keys, one_of
from dpjax.privacy import Budget, NeighboringRelation

__all__ = ["KEYS", "read"]

KEYS = {
    "epsilon": Key(
        NUMBER,
        "What the run and all before it in the ledger may spend together, up to 500.",
    ),
    "delta": Key(NUMBER, "Below 1 / n for n records."),
    "neighboring_relation": Key(
        one_of(("REPLACE_ONE", "REPLACE_SPECIAL")),
        "Which data sets count as neighbours: those that differ in one record; under "
        "``REPLACE_SPECIAL``, which costs less, those of which one has a blank in its "
        "place that adds zero to every sum.",
        "REPLACE_ONE",
    ),
    "ledger": Key(
        TEXT,
        "A file that the runs on one data set share, beside the configuration like the "
        "data. By default jobs on a file share the ledger beside that file, such as "
        "``records.csv.ledger.jsonl`` for ``records.csv``. A job on generated or "
        "public data, or on those of a ``function``, has ``ledger.jsonl`` in the "
        "folder of its results; name one if that function reads records of your own.",
        None,
    ),
}


def read(table, folder: Path) -> tuple[Budget, Path | None]:
    """The budget that the table describes, and the path of its ledger or None.

    `folder` is that of the configuration, beside which the ledger is.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    check_keys(table, "[privacy]", KEYS)
    default = KEYS["neighboring_relation"].default
    relation = table.get("neighboring_relation", default)
    budget = Budget(table["epsilon"], table["delta"], NeighboringRelation[relation])
    return budget, folder / table["ledger"] if "ledger" in table else None
