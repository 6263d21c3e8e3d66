"""Records from the user's own file, column by column, by public rules.

An array of the data is named by the columns that make it up: one column, for an array
``(n, ...)``, or a list of them, for one of shape ``(n, k)``. A column is a name, whose
numbers stand as they are, or a table of ``column``, the name, with one of

- ``range = [low, high]``: numbers clipped to it and scaled to [-1, 1];
- ``categories = [...]``: the place in this list, an integer (a number in a list);
- ``shape = [...]``: of one record, for arrays of more dimensions in an ``.npz`` file.

Nothing is fitted to the data, and a record's encoding depends on that record alone.
"""

import csv
import gzip
import zipfile
from pathlib import Path

import numpy as np

__all__ = ["check", "example", "read", "zeros"]

RULES = ("range", "categories", "shape")
ROWS = 1000
"""Records made up as a design."""


def check(columns: dict) -> None:
    """Refuse rules that cannot be followed.

    Raises
    ------
    ValueError
        If a column is not as the module says.
    """
    if not (isinstance(columns, dict) and columns):
        raise ValueError("columns must be a table of arrays and the columns of each")
    for array, parts in columns.items():
        for part in parts if isinstance(parts, list) else [parts]:
            name, rule, value = _rule(part)
            good = isinstance(name, str) and (rule is None or rule in RULES)
            if rule == "range":
                good = good and len(value) == 2 and value[0] < value[1]
            if rule == "categories":
                good = (
                    good and len(value) > 1 and len(set(map(str, value))) == len(value)
                )
            if rule == "shape":
                good = good and not isinstance(parts, list)
            if not good:
                raise ValueError(
                    f"columns.{array} must be a column's name, a table of column and "
                    f"one of {', '.join(RULES)}, or a list of these, got {part!r}"
                )


def read(path: Path, columns: dict, num_records: int) -> dict[str, np.ndarray]:
    """The arrays that `columns` describes, from a .csv, .csv.gz, .npz or .parquet file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is of another kind, lacks a column, holds what its rule does not allow, or
        has not `num_records` records.
    """
    table = _table(Path(path))

    def column(part):
        name, rule, value = _rule(part)
        if name not in table:
            raise ValueError(
                f"{path} has no column {name!r}; it has {', '.join(map(str, table))}"
            )
        found = np.asarray(table[name])
        if rule == "categories":
            codes = {str(category): code for code, category in enumerate(value)}
            texts = found.astype(str)
            unknown = ~np.isin(texts, list(codes))
            if unknown.any():
                raise ValueError(
                    f"column {name!r} of {path} holds values outside its categories"
                )
            return np.vectorize(codes.get, otypes=[int])(texts)
        try:
            numbers = found.astype(float)
        except ValueError as error:
            raise ValueError(
                f"column {name!r} of {path} holds what is no number: give its "
                "categories, or leave out records with missing values"
            ) from error
        if rule == "range":
            low, high = value
            return np.clip(2 * (numbers - low) / (high - low) - 1, -1, 1)
        if numbers.shape[1:] != _shape(rule, value):
            raise ValueError(
                f"column {name!r} of {path} has records of shape {numbers.shape[1:]}: "
                "say so with shape"
            )
        return numbers

    arrays = _arrays(columns, column)
    for array, values in arrays.items():
        if len(values) != num_records:
            raise ValueError(
                f"{path} has {len(values)} records in {array}, but num_records is "
                f"{num_records}: state their number, which is treated as public"
            )
    return arrays


def zeros(columns: dict, num_records: int) -> dict[str, np.ndarray]:
    """Records of the same shapes and types as `read`, that take no memory."""

    def column(part):
        _, rule, value = _rule(part)
        kind = int if rule == "categories" else float
        return np.zeros((1, *_shape(rule, value)), kind)

    return {
        array: np.broadcast_to(values[0], (num_records, *values.shape[1:]))
        for array, values in _arrays(columns, column).items()
    }


def example(columns: dict) -> dict[str, np.ndarray]:
    """A design: uniform in the range or categories, for arrays that have one."""
    rng = np.random.default_rng(0)

    def column(part):
        _, rule, value = _rule(part)
        if rule == "categories":
            return rng.integers(0, len(value), ROWS)
        if rule == "range":
            return rng.uniform(-1, 1, ROWS)
        return None

    return _arrays(columns, column)


def _rule(part):
    """Name, rule and its value; no rule if the numbers stand as they are."""
    if not isinstance(part, dict):
        return part, None, None
    rules = [item for item in part.items() if item[0] != "column"]
    if len(rules) != 1:
        return part.get("column"), "", None
    return part.get("column"), *rules[0]


def _shape(rule, value):
    return tuple(value) if rule == "shape" else ()


def _arrays(columns, column):
    """``{array: values}``; without an array if one of its columns has no values."""
    arrays = {}
    for array, parts in columns.items():
        listed = isinstance(parts, list)
        values = [column(part) for part in (parts if listed else [parts])]
        if any(value is None for value in values):
            continue
        arrays[array] = np.stack(values, 1).astype(float) if listed else values[0]
    return arrays


def _table(path):
    """Columns by name."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no data file {path}")
    kind = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if kind in (".csv", ".csv.gz"):
        opened = gzip.open if kind == ".csv.gz" else open
        with opened(path, "rt", newline="") as file:
            header, *rows = csv.reader(file)
        if any(len(row) != len(header) for row in rows):
            raise ValueError(f"{path} has rows of different lengths")
        return dict(zip(header, zip(*rows, strict=True), strict=True))
    if kind == ".npz":
        try:
            with np.load(path) as arrays:
                return dict(arrays)
        except (zipfile.BadZipFile, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
    if kind == ".parquet":
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise ValueError(
                f"{path} needs pyarrow, which is not installed: pip install pyarrow, "
                "or save the table as .csv"
            ) from error
        table = pyarrow.parquet.read_table(path)
        return {name: table[name].to_numpy() for name in table.column_names}
    raise ValueError(f"{path} must be a .csv, .csv.gz, .npz or .parquet file")
