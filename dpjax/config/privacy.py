"""The table ``[privacy]``: see `dpjax.config.job`."""

from dpjax.config.keys import check_keys, choice
from dpjax.privacy import Budget, NeighboringRelation

__all__ = ["read"]


def read(table) -> tuple[Budget, str | None]:
    """The budget, and the path of the ledger or None.

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
    return budget, table.get("ledger")
