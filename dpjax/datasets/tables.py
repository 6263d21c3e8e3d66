"""Records from the user's own file, encoded column by column by public rules.

``columns`` is a dict of the data's arrays. The value of an array is one column, for an
array of shape ``(n, ...)``, or a list of k columns, for an array of shape ``(n, k)``.
A column is the name of a column of numbers, which are taken as they are, or a dict of
``column``, the name, and one of

- ``range = [low, high]``: numbers are clipped to the range and scaled to [-1, 1];
- ``categories = [...]``: values are replaced by their places in this list, integers (or
  floats, if the column is one of a list);
- ``shape = [...]``: the shape of one record, for arrays of more dimensions in an
  ``.npz`` file.

Nothing is fitted to the data, and a record's encoding depends on that record alone.

A file in which a number is missing (an empty cell, a NaN, a null) is refused before
anything is released. So leave out such records first, or write a number for what is
missing and an indicator column beside it: by a rule that was chosen without the data.
An empty cell of a column of categories is the text ``""``, which is refused unless it
is one of the categories.
"""

import csv
import gzip
import math
import reprlib
from pathlib import Path

import numpy as np

from dpjax.datasets import files

__all__ = ["check", "example", "read", "zeros"]

EXAMPLE_RECORDS = 1000
"""Number of records that `example` makes up."""

HUGE = 1e30
"""Size of the largest number that is read; float32 holds some 1e38."""

MAX_SHAPE = 10**6
"""Numbers in one record of an array."""


def check(columns: dict) -> None:
    """Refuse columns that are not as the module says.

    Raises
    ------
    ValueError
        If a column, or `columns` itself, is not as the module says.
    """
    if not (isinstance(columns, dict) and columns):
        raise ValueError("columns must be a table of arrays and the columns of each")
    for array, parts in columns.items():
        is_list = isinstance(parts, list)
        # An empty list is not a list of columns.
        for part in (parts or [None]) if is_list else [parts]:
            if isinstance(part, dict) and not _is_range(part.get("range", [0, 1])):
                raise ValueError(
                    f"columns.{array} has the range {reprlib.repr(part['range'])}: it "
                    "must be two numbers of sizes up to 1e30, the lower one first"
                )
            if not _is_column(part, is_list):
                raise ValueError(
                    f"columns.{array} must be a column's name, a table of column and "
                    "one of range (two numbers, the lower one first), categories (two "
                    "or more, all different), shape (whole numbers from 1, of a "
                    f"product up to {MAX_SHAPE:,}), or a list of these, got "
                    f"{reprlib.repr(part)}"
                )


def _is_column(part, is_in_list: bool) -> bool:
    match part:
        case str():
            return True
        case {"column": str(), "range": ends, **rest} if not rest:
            return _is_range(ends)
        case {"column": str(), "categories": [*values], **rest} if not rest:
            are_plain = all(type(value) in (str, int, float) for value in values)
            return are_plain and len(set(map(str, values))) == len(values) > 1
        case {"column": str(), "shape": [*sizes], **rest} if not rest:
            are_sizes = all(type(size) is int and size > 0 for size in sizes)
            return are_sizes and math.prod(sizes) <= MAX_SHAPE and not is_in_list
    return False


def _is_range(ends) -> bool:
    match ends:
        case [int() | float() as low, int() | float() as high]:
            # A bool is an int in Python.
            are_numbers = bool not in (type(low), type(high))
            return are_numbers and -HUGE <= low < high <= HUGE
    return False


def read(path: Path, columns: dict, num_records: int) -> dict[str, np.ndarray]:
    """The arrays that `columns` describes, from a .csv, .csv.gz, .npz or .parquet file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    RuntimeError
        If the file cannot be read.
    ValueError
        If the file is of another kind, lacks a column, holds values that a column's
        rule does not allow, or does not have `num_records` records.

    Notes
    -----
    *Formal guarantees.* Errors tell nothing of the file but the number of its records
    and their shapes: neither values nor names, which are values if a header is missing.
    """
    table = _table(Path(path))

    def encode(name, rule):
        if name not in table:
            raise ValueError(
                f"{path} has no column {name!r}: its first row must name the columns, "
                "or in an .npz file its arrays must be named so"
            )
        where = f"column {name!r} of {path}"
        values = files.readable(where, lambda: np.asarray(table[name]))
        if np.shape(values)[:1] != (num_records,):
            raise ValueError(
                f"{where} has {len(np.atleast_1d(values))} records, but num_records is "
                f"{num_records}: state their number, which is treated as public"
            )
        if list(values.shape[1:]) != list(rule.get("shape", [])):
            raise ValueError(
                f"{where} has records of shape {values.shape[1:]}: say so with shape"
            )
        if "categories" in rule:
            codes = {str(value): code for code, value in enumerate(rule["categories"])}
            texts = files.readable(where, lambda: values.astype(str))
            if not np.isin(texts, list(codes)).all():
                raise ValueError(f"{where} holds values outside its categories")
            return np.vectorize(codes.get, otypes=[int])(texts)
        numbers = _numbers(values)
        if numbers is None:
            raise ValueError(
                f"{where} holds what is no number, or one above {HUGE:g}: give its "
                "categories, or leave out records with missing values"
            )
        if "range" in rule:
            low, high = rule["range"]
            return np.clip(2 * (numbers - low) / (high - low) - 1, -1, 1)
        return numbers

    return _arrays(columns, encode)


def _numbers(values) -> np.ndarray | None:
    """Finite numbers, or None. NumPy would take dates and complex numbers too."""
    if values.dtype.kind not in "biufUSO":
        return None
    try:
        numbers = values.astype(float)
    except (TypeError, ValueError):
        return None
    return numbers if np.all(np.abs(numbers) <= HUGE) else None


def zeros(columns: dict, num_records: int) -> dict[str, np.ndarray]:
    """Arrays of the same shapes and types as those of `read`, which take no memory."""

    def encode(name, rule):
        kind = int if "categories" in rule else float
        return np.zeros((1, *rule.get("shape", [])), kind)

    return {
        array: np.broadcast_to(values[0], (num_records, *values.shape[1:]))
        for array, values in _arrays(columns, encode).items()
    }


def example(columns: dict) -> dict[str, np.ndarray]:
    """Made-up records, for the arrays all of whose columns have a range or categories.

    Values are uniform in the scaled range, or among the categories.
    """
    rng = np.random.default_rng(0)

    def encode(name, rule):
        if "categories" in rule:
            return rng.integers(0, len(rule["categories"]), EXAMPLE_RECORDS)
        if "range" in rule:
            return rng.uniform(-1, 1, EXAMPLE_RECORDS)
        return None

    return _arrays(columns, encode)


def _arrays(columns, encode):
    """``{array: values}``, from ``encode(name, rule) -> values`` of each column.

    An array is left out if `encode` returns None for one of its columns.
    """
    arrays = {}
    for array, parts in columns.items():
        is_list = isinstance(parts, list)
        values = []
        for part in parts if is_list else [parts]:
            rule = dict(part) if isinstance(part, dict) else {"column": part}
            values.append(encode(rule.pop("column"), rule))
        if all(value is not None for value in values):
            arrays[array] = np.stack(values, 1).astype(float) if is_list else values[0]
    return arrays


def _table(path):
    """Columns of the file by name."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no data file {path}")
    kind = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if kind in (".csv", ".csv.gz"):
        rows = files.readable(path, lambda: _rows(path, kind))
        widths = set(map(len, rows))
        if len(rows) < 2 or len(widths) > 1:
            raise ValueError(
                f"{path} must have a row that names the columns, and then records of "
                f"as many values; it has {len(rows)} rows of {len(widths)} lengths"
            )
        header, *records = rows
        if len(set(header)) < len(header):
            raise ValueError(
                f"the first row of {path} must name the columns, each by a name of its "
                "own: two of them are the same"
            )
        return dict(zip(header, zip(*records, strict=True), strict=True))
    if kind == ".npz":
        return files.readable(path, lambda: _npz(path))
    if kind == ".parquet":
        try:
            # An optional package, which no extra of dpjax installs.
            import pyarrow.parquet  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ValueError(
                f"{path} needs pyarrow, which is not installed: pip install pyarrow, "
                "or save the table as .csv"
            ) from error

        def read():
            table = pyarrow.parquet.read_table(path)
            return {name: table[name].to_numpy() for name in table.column_names}

        return files.readable(path, read)
    raise ValueError(f"{path} must be a .csv, .csv.gz, .npz or .parquet file")


def _rows(path, kind):
    opened = gzip.open if kind == ".csv.gz" else open
    with opened(path, "rt", newline="") as file:
        return list(csv.reader(file))


def _npz(path):
    # NumPy leaves a file open that it cannot read.
    with open(path, "rb") as file, np.load(file) as arrays:
        return dict(arrays)
