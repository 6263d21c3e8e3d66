"""Reading of tables, in memory or in files, as columns of cells, and of cells.

Each cell is read by itself as a number or a code. So neither a result nor an error
about one record depends on another record, and no cell is refused: a cell that cannot
be read is missing. In a .csv file each line below the first is a record, whatever it
holds. No cell spans lines, and a quote that is not closed spoils its own line only.
"""

import csv
import gzip
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpjax.datasets.files import readable

__all__ = ["cells", "codes", "header", "numbers", "table"]


def table(records) -> Mapping[str, Any]:
    """``{name: column}`` of a table in memory or in a file.

    Raises
    ------
    FileNotFoundError, RuntimeError, ValueError
        As `dpjax.records.Schema.read` does.
    """
    if isinstance(records, str | os.PathLike):
        return _of_file(Path(records))
    if isinstance(records, Mapping):
        return records
    if hasattr(records, "collect"):
        raise ValueError("records are a lazy table: pass records.collect()")
    names = _names(records)
    if len(set(names)) < len(names):
        raise ValueError("two columns of the records have the same name: rename one")
    return {name: records[name].to_numpy() for name in names}


def header(path: Path) -> list[str]:
    """Names of the columns of a file. The result depends on no record.

    Raises
    ------
    FileNotFoundError, RuntimeError, ValueError
        As `dpjax.records.Schema.read` does.
    """
    kind = _kind(path)
    if kind == ".npz":
        return readable(path, lambda: list(_npz(path)))
    if kind == ".parquet":
        parquet = _parquet(path)
        return readable(path, lambda: parquet.read_schema(path).names)
    with _opened(path) as file:
        return _checked_header(path, readable(path, lambda: _row(next(file, ""))))


def cells(columns: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The cells of a column as an array, ``(n, *shape)``.

    Raises
    ------
    ValueError
        If there is no such column, or it has another shape, or a type that is neither
        of numbers nor of texts.
    """
    if name not in columns:
        raise ValueError(
            f"the records have no column {name!r}: the first row of a file must name "
            "its columns, and in an .npz file the arrays must be named so"
        )
    where = f"column {name!r}"
    values = columns[name]
    # From a list of texts NumPy would make an array in which every text takes as much
    # memory as the longest.
    kind = object if isinstance(values, list | tuple) else None
    found = readable(where, lambda: np.asarray(values, kind))
    if found.dtype.kind not in "biufUSOT":
        raise ValueError(
            f"{where} has the type {found.dtype}, which is neither of numbers nor of "
            "texts: make numbers of dates by a public rule"
        )
    if found.shape[1:] != shape or not found.ndim:
        raise ValueError(
            f"{where} has cells of shape {found.shape[1:]}, and its schema says {shape}"
        )
    return found


def numbers(found: np.ndarray) -> np.ndarray:
    """The cells as floats; NaN where a cell is no number."""

    def read():
        if found.dtype.kind in "biuf":
            return found.astype(float)
        cells = [_number(cell) for cell in found.flat]
        return np.array(cells, float).reshape(found.shape)

    return readable("a column of numbers", read)


def codes(
    found: np.ndarray, of_texts: dict[str, int], of_numbers: dict[float, int]
) -> np.ndarray:
    """The codes of the cells, ``(n,)``; -1 for a cell that has no code.

    Parameters
    ----------
    found
        The cells, ``(n,)``.
    of_texts
        ``{text of a cell, without spaces around it: code}``.
    of_numbers
        ``{number: code}``, for cells whose text is not in `of_texts`.
    """

    def code(cell):
        known = of_texts.get(_text(cell))
        return of_numbers.get(_number(cell), -1) if known is None else known

    return readable("a column", lambda: np.array([*map(code, found.flat)], int))


def _number(cell) -> float:
    try:
        return float(cell)
    except Exception:
        return math.nan


def _text(cell) -> str:
    if isinstance(cell, bytes):
        return cell.decode(errors="replace").strip()
    try:
        return str(cell).strip()
    except Exception:
        return ""


def _names(records) -> list:
    # The `columns` of a pyarrow table are the columns, not their names.
    names = getattr(records, "column_names", getattr(records, "columns", None))
    if names is None:
        raise ValueError(
            "records must be a table of pandas, polars or pyarrow, a dict of arrays, "
            f"or the path of a file, got a {type(records).__name__}"
        )
    return list(names)


def _of_file(path: Path) -> Mapping[str, Any]:
    kind = _kind(path)
    if kind == ".npz":
        return readable(path, lambda: _npz(path))
    if kind == ".parquet":
        parquet = _parquet(path)
        return table(readable(path, lambda: parquet.read_table(path)))
    with _opened(path) as file:
        first, *rows = readable(path, lambda: [_row(line) for line in file]) or [[]]
    width = len(_checked_header(path, first))
    if not rows:
        raise ValueError(f"{path} has no records below its first row")
    # If a line has another number of cells than the first row, it is not known which
    # cell belongs to which column, so all of its cells are missing.
    empty = [""] * width
    rows = [row if len(row) == width else empty for row in rows]
    return dict(zip(first, zip(*rows, strict=True), strict=True))


def _row(line: str) -> list[str]:
    """The cells of one line of a .csv file; none if `csv` cannot read the line."""
    line = line.rstrip("\r\n")
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]))
    except csv.Error:
        return []


def _checked_header(path, names: list[str]) -> list[str]:
    """The first row of a file, checked to be names of columns.

    The error does not show the row, as it may be a record.

    Raises
    ------
    ValueError
        If a name is empty, a number, or there twice.
    """
    are_names = all(name.strip() and math.isnan(_number(name)) for name in names)
    if not names or not are_names or len(set(names)) < len(names):
        raise ValueError(
            f"the first row of {path} must name the columns, each by a name of its own "
            "that is not empty and no number: write such a row above the records"
        )
    return names


def _kind(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"there is no data file {path}")
    kind = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if kind not in (".csv", ".csv.gz", ".npz", ".parquet"):
        raise ValueError(f"{path} must be a .csv, .csv.gz, .npz or .parquet file")
    return kind


def _opened(path: Path):
    opened = gzip.open if path.suffix == ".gz" else open
    return opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="\n")


def _npz(path):
    # If NumPy opened the file itself and could not read it, the file would stay open.
    with open(path, "rb") as file, np.load(file) as arrays:
        return dict(arrays)


def _parquet(path) -> Any:
    try:
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(
            f"{path} needs pyarrow, which is not installed: pip install pyarrow, or "
            "save the table as .csv"
        ) from error
    return pyarrow.parquet
