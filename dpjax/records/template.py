"""`template` makes a schema to be filled in, from the column names of a table alone."""

import json
from pathlib import Path

from dpjax.records import tables

__all__ = ["template"]

HEAD = """\
# The public schema of {name}. Fill it in from what is known without the records: the
# questionnaire, the instrument, the law. Delete the columns that no model uses.
#
#   kind = "real"      needs range = [lowest, highest]; numbers beyond count as its ends
#   kind = "count"     a whole number; needs range = [lowest, highest]
#   kind = "category"  needs levels = ["first", "second"]
#   kind = "boolean"   0 and 1, true and false, or yes and no
#
# Further keys are unit = "years"; missing = "drop" (the default), "indicator", "fill"
# or "category"; and a guess, mean = 50 with sd = 15: see `dpjax.records.schema`.
"""


def template(path) -> str:
    """TOML of a schema that names each column of the file at `path`, to be filled in.

    Raises
    ------
    FileNotFoundError, RuntimeError, ValueError
        If there is no such file, it cannot be read, or its first row names no columns.

    Notes
    -----
    *Formal guarantees.* The result depends on the file's name and the names of its
    columns alone. In a .csv file these are the first row, which is refused if one of
    its cells is a number.
    """
    path = Path(path)
    parts = [HEAD.format(name=path.name)]
    parts += [f'[{_key(name)}]\nkind = ""\n' for name in tables.header(path)]
    return "\n".join(parts)


def _key(name: str) -> str:
    is_bare = name.isascii() and name.replace("-", "_").isidentifier()
    # Basic strings of TOML have the syntax of strings of JSON.
    return name if is_bare else json.dumps(name, ensure_ascii=False)
