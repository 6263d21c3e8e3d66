"""The table ``[privacy]``: see `dpjax.config.job`."""

from pathlib import Path

from dpjax.config.keys import check_keys, choice
from dpjax.privacy import Budget, NeighboringRelation

__all__ = ["read"]


def read(table, folder: Path) -> tuple[Budget, Path | None]:
    """The budget, and the ledger, looked up in `folder`, or None.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    optional = ("neighboring_relation", "ledger")
    check_keys(table, "[privacy]", ("epsilon", "delta"), optional)
    relation = choice(
        table.get("neighboring_relation", "REPLACE_ONE"),
        NeighboringRelation.__members__,
        "[privacy] neighboring_relation",
    )
    budget = Budget(table["epsilon"], table["delta"], NeighboringRelation[relation])
    return budget, folder / table["ledger"] if "ledger" in table else None
