"""The public schema of a table, by which its records are read.

A schema is a dict of the form ``{column: table}``, or a TOML file such as this::

    [age]
    kind = "real"
    range = [18, 90]
    unit = "years"

    [sex]
    kind = "category"
    levels = ["female", "male"]
    missing = "category"

    [visits]
    kind = "count"
    range = [0, 40]

    [smoker]
    kind = "boolean"

Ranges and levels come from what is known about the table without its records: from the
questionnaire, the instrument or the law. Nothing is fitted to the records.

**What a cell becomes.** A number outside of its range counts as the nearer end of the
range. A cell of the wrong kind is *missing*: an empty cell, a NaN, a null, a word in a
column of numbers, a level that is not listed. The rule of its column says what becomes
of a missing cell:

- ``missing = "drop"``, the default: the record is incomplete. It stays in its place,
  and the array ``complete`` is False there, so that a model can mask its likelihood.
- ``missing = "indicator"``: the cell takes the middle of the range, or the first level,
  and a further array ``NAME_missing`` is 1.
- ``missing = "fill"``: the cell takes the same value, but there is no further array.
  This is for columns that are known to be filled in everywhere.
- ``missing = "category"``: the cell takes a further level, ``"missing"``, which is the
  last one of a category.

**Why no cell is refused.** If a program stopped at a record, this would release
something about the record that no budget is charged for. So no message, warning or
shape depends on a cell: records are coded one by one, by rules that a person wrote. For
the same reason no record is left out. Neighbouring tables have the same number of rows,
so this number is public. The number of complete records is not public, and the length
of an array without the incomplete records would reveal it. A masked record contributes
zero to every sum, so replacing it changes a sum by no more than replacing another
record.

The form of a table is public: the names and types of its columns, and the number of its
rows. A table of another form is refused.
"""

import math
import reprlib
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from dpjax.records import tables

__all__ = ["COMPLETE", "Column", "Schema"]

COMPLETE = "complete"
"""Name of the array that is True for records without a missing cell in a column with
``missing = "drop"``."""

KINDS = {
    "real": {"range", "unit", "mean", "sd", "shape"},
    "count": {"range", "unit", "mean", "sd"},
    "category": {"levels"},
    "boolean": set(),
}
"""``{kind: keys that a column of this kind may have}``, besides ``kind`` and
``missing``."""

RULES = "drop", "indicator", "fill", "category"

WORDS = {
    form: code
    for code, words in enumerate([("false", "f", "no", "n"), ("true", "t", "yes", "y")])
    for word in words
    for form in (word, word.capitalize(), word.upper())
}
"""``{word: code}`` of booleans in words. The numbers 0 and 1 are booleans, too."""

HUGE = 1e30
"""Largest absolute value of a number in a schema. float32 holds numbers up to about
3e38."""

MAX_COUNT = 2**31 - 1
"""Largest absolute value of a count, which is an int32."""

UNSAFE = (
    "NOT PRIVATE, for the owner of the records alone. Correct how levels are spelt, "
    "and nothing else: a schema that follows the records makes the epsilon untrue."
)

MAX_SHOWN = 3
"""Largest number of different missing cells that `Schema.unsafe_check` shows for a
column."""

MAX_SHAPE = 10**6
"""Largest number of entries of one cell, if the cells of a column are arrays."""

EXAMPLE_RECORDS, MIN_RECORDS, EXAMPLE_SIZE = 1000, 16, 10**7
"""Of `Schema.example`: the number of records that are made up; the least number of
records, if records are so large that there are fewer; and the number of entries of all
records together at which there are fewer."""

MISSING_SHARE = 0.1
"""Share of missing cells in a made-up column with ``missing = "indicator"``."""


@dataclass(frozen=True)
class Column:
    """The public description of a column.

    kind
        ``"real"``, ``"count"`` (a whole number), ``"category"`` or ``"boolean"``.
    range
        The lowest and the highest number of a real or a count.
    levels
        The values of a category, two or more. With ``missing = "category"`` the level
        ``"missing"`` is the last one.
    unit
        The unit of a real or a count, a text for people. It is not used.
    missing
        The rule for missing cells: ``"drop"``, ``"indicator"``, ``"fill"`` or
        ``"category"``. See the module docstring.
    mean, sd
        A guess, made without the records, of the mean and standard deviation of a real
        or a count. Made-up values are normal with this mean and sd, truncated to the
        range. Without a guess they are uniform in the range.
    shape
        The shape of one cell of a real, for arrays of two or more dimensions, as in an
        ``.npz`` file.
    """

    kind: str
    range: tuple[float, float] = (0, 1)
    levels: tuple[str | int | float, ...] = ()
    unit: str = ""
    missing: str = "drop"
    mean: float | None = None
    sd: float | None = None
    shape: tuple[int, ...] = ()

    @property
    def dtype(self) -> type:
        return np.float64 if self.kind == "real" else np.int32

    def read(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values of the cells, ``(n, *shape)``, and whether they are missing, ``(n,)``.

        A category becomes the number of its level, from 0 on in the order of the
        levels. A boolean becomes 0 or 1. A cell that is an array is missing if any of
        its entries is.

        Raises
        ------
        ValueError
            If the column has numbers, and its levels are not different numbers.
        """
        if self.kind in ("real", "count"):
            low, high = self.range
            numbers = tables.numbers(cells)
            if self.kind == "count":
                numbers = np.rint(numbers)
            is_missing, middle = np.isnan(numbers), (low + high) / 2
            values = np.where(is_missing, middle, np.clip(numbers, low, high))
            is_missing = np.any(is_missing.reshape(len(cells), -1), axis=1)
            return values.astype(self.dtype), is_missing
        of_numbers = self._code_of_numbers()
        if cells.dtype.kind in "iuf" and len(of_numbers) < len(self._listed):
            # One null in a column of integers makes it a column of floats, as which two
            # levels could be the same. So the levels are compared as floats.
            raise ValueError(
                "a column of numbers needs levels that are different numbers, also "
                f"as floats, got {reprlib.repr(self._listed)}: make texts of the column"
            )
        codes = tables.codes(cells, self._code_of_texts(), of_numbers)
        is_missing = codes < 0
        instead = len(self.levels) - 1 if self.missing == "category" else 0
        return np.where(is_missing, instead, codes).astype(self.dtype), is_missing

    def _code_of_texts(self) -> dict[str, int]:
        if self.kind == "boolean":
            return WORDS
        return {str(level).strip(): code for code, level in enumerate(self._listed)}

    def _code_of_numbers(self) -> dict[float, int]:
        """Codes of the levels that are numbers, by these numbers as floats.

        The reader of a file may have turned a level 1 into 1.0. Levels that are equal
        as floats are left out.
        """
        if self.kind == "boolean":
            return {0.0: 0, 1.0: 1}
        found = tables.numbers(np.array(list(map(str, self._listed)))).tolist()
        return {x: code for code, x in enumerate(found) if found.count(x) == 1}

    @property
    def _listed(self):
        """The levels that a cell may have: all but the added level ``"missing"``."""
        return self.levels[:-1] if self.missing == "category" else self.levels

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Made-up values ``(count, *shape)``: evenly spaced quantiles in random order.

        The quantiles are those of the guess, or of a uniform law on the range or the
        levels.
        """
        shape = (math.prod(self.shape), count)
        places = (rng.permuted(np.indices(shape)[1], axis=1) + 0.5) / count
        places = places.T.reshape(count, *self.shape)
        if self.kind in ("category", "boolean"):
            return np.floor(places * (len(self.levels) or 2)).astype(self.dtype)
        low, high = self.range
        if self.mean is not None and self.sd is not None:
            start, stop = (ndtr((end - self.mean) / self.sd) for end in self.range)
            values = self.mean + self.sd * ndtri(start + places * (stop - start))
            values = np.clip(values, low, high)
        elif self.kind == "count":
            values = np.floor(low + places * (high - low + 1))
        else:
            values = low + places * (high - low)
        if self.kind == "count":
            values = np.rint(values)
        return values.astype(self.dtype)


class Schema(Mapping[str, Column]):
    """The public columns of a table, by name; see the module docstring.

    Parameters
    ----------
    source
        A dict ``{column: table}``, where a table is a dict of the keys of a column; the
        path of such a TOML file; or another schema.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not valid TOML, a table does not describe a column, or a column
        has the name of an array about missing values.
    """

    def __init__(self, source: "str | Path | Mapping[str, Any]"):
        if isinstance(source, Schema):
            self._columns: dict[str, Column] = source._columns
            return
        if isinstance(source, str | Path):
            source = _parsed(Path(source))
        if not (isinstance(source, Mapping) and source):
            raise ValueError("a schema is a table of columns, by name, and not empty")
        self._columns = {name: _column(name, table) for name, table in source.items()}
        further = {COMPLETE, *map(_indicator, self._with("indicator"))}
        if taken := sorted(further & set(self)):
            raise ValueError(
                f"the schema has the columns {taken}, which are the names of arrays "
                "about missing values: give these columns other names"
            )

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __iter__(self):
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Schema({self._columns})"

    def _with(self, rule: str) -> list[str]:
        return [name for name, column in self.items() if column.missing == rule]

    def read(self, records, arrays: Mapping[str, Any] | None = None) -> dict:
        """The records as arrays, in the form that NumPyro models take.

        Parameters
        ----------
        records
            A table of pandas, polars or pyarrow, a dict of arrays, or the path of a
            .csv, .csv.gz, .parquet or .npz file. In a .csv file, each line below the
            first is a record, even an empty line: no cell spans lines.
        arrays
            ``{array: column}``, with the names of the arrays to make. In place of a
            column there may be a list of k columns, for an array of shape ``(n, k)``,
            and ``NAME_missing`` is a column, too. Columns that are not named are not
            read. By default every column is an array of its own.

        Returns
        -------
        dict
            Arrays by name, with one entry for each record. Reals are floats in their
            own units; counts, codes of levels and booleans are integers; arrays from
            lists of columns are floats. If a column that is read has
            ``missing = "drop"``, there is also the array ``complete``.

        Raises
        ------
        FileNotFoundError, RuntimeError
            If there is no such file, or it cannot be read.
        ValueError
            If the table is of another form: a column is absent, has another number of
            records than the others, or has cells of another shape or type. Or if
            `arrays` is not of the form above.

        Notes
        -----
        *Formal guarantees.* If two tables differ in one record, their arrays differ in
        the entries of that record alone. Errors depend on the records only through
        their number and the names, types and shapes of the columns: see the module
        docstring.
        """
        wanted = self._wanted(arrays)
        table = tables.table(records)
        values, missing = {}, {}
        for name in self:
            if name in wanted:
                cells = tables.cells(table, name, self[name].shape)
                values[name], missing[name] = self[name].read(cells)
        if len(counts := set(map(len, values.values()))) > 1:
            raise ValueError(
                f"the columns {list(values)} have different numbers of records, "
                f"{sorted(counts)}: they must be columns of one table"
            )
        return self._arrays(values, missing, arrays)

    def unsafe_check(self, records) -> str:
        """A summary of how the cells are read, for the owner of the records.

        It is NOT private. If the records spell a level otherwise than the schema, all
        records with this level are incomplete, and no private output may show it.
        Correct such mistakes alone. If a range or a level is chosen by what this
        summary says, the schema depends on the records, and no epsilon is true.

        Parameters
        ----------
        records
            As in `read`.

        Returns
        -------
        A text: for every column, how many cells are missing, and some of these cells;
        for a column of numbers, how many lie at the ends of the range or beyond; for a
        category, the levels that no cell has; and at the end, how many records are
        complete.

        Raises
        ------
        FileNotFoundError, RuntimeError, ValueError
            As `read` does.
        """
        table, lines, are_complete = tables.table(records), [UNSAFE], True
        for name, column in self.items():
            cells = tables.cells(table, name, column.shape)
            values, is_missing = column.read(cells)
            are_complete &= ~is_missing | (column.missing != "drop")
            line = f"{name}: {np.sum(is_missing):,} cells are missing"
            texts = Counter(map(reprlib.repr, cells[is_missing].tolist()))
            common = texts.most_common(MAX_SHOWN)
            line += ": " * bool(common)
            line += ", ".join(f"{text} ({count:,})" for text, count in common)
            line += ", ..." * (len(texts) > len(common))
            if column.kind in ("real", "count"):
                low, high = column.range
                ends = np.sum(values == low), np.sum(values == high)
                line += f"; {ends[0]:,} at most {low:g}, {ends[1]:,} at least {high:g}"
            read = set(values[~is_missing].ravel().tolist())
            absent = [x for code, x in enumerate(column._listed) if code not in read]
            line += f"; no cell is {absent}" * bool(absent)
            lines.append(line)
        num_complete, size = np.sum(are_complete), np.size(are_complete)
        lines.append(f"{num_complete:,} of {size:,} records are complete")
        return "\n".join(lines)

    def example(self, arrays: Mapping[str, Any] | None = None) -> dict:
        """Made-up records in the form of `read`, spread over the ranges and levels.

        They depend on the schema alone. Values are uniform, or normal with the guessed
        mean and sd (`Column.draw`). All records are complete, and a tenth of the
        entries of each ``NAME_missing`` are 1.
        """
        wanted = self._wanted(arrays)
        size = sum(math.prod(self[name].shape) for name in wanted)
        count = int(np.clip(EXAMPLE_SIZE // size, MIN_RECORDS, EXAMPLE_RECORDS))
        rng = np.random.default_rng(0)
        values, missing = {}, {}
        for name, column in self.items():
            if name in wanted:
                share = MISSING_SHARE * (column.missing == "indicator")
                missing[name] = rng.permutation(count) < share * count
                values[name] = column.draw(rng, count)
        return self._arrays(values, missing, arrays)

    def _wanted(self, arrays) -> set[str]:
        """Names of the columns that `arrays` is made of.

        Raises
        ------
        ValueError
            If `arrays` is not of the form that `read` takes, or leaves out the
            indicator of a column that it names.
        """
        if arrays is None:
            return set(self)
        if not (isinstance(arrays, Mapping) and arrays):
            raise ValueError(
                "arrays must say which columns each array is made of, such as "
                "{'x': ['age', 'sex'], 'y': 'income'}, or be left out, got "
                f"{reprlib.repr(arrays)}"
            )
        indicators = {_indicator(name): name for name in self._with("indicator")}
        wanted, named = set(), set()
        for array, parts in arrays.items():
            for part in _parts(parts):
                if not isinstance(part, str) or part not in {*self, *indicators}:
                    raise ValueError(
                        f"the array {array!r} must be a column of the schema, or a list"
                        f" of them, got {reprlib.repr(parts)}: the columns are "
                        f"{[*self, *indicators]}"
                    )
                wanted.add(indicators.get(part, part))
                named.add(part)
            is_wide = isinstance(parts, list) and any(
                self[part].shape for part in parts if part in self
            )
            if is_wide or array == COMPLETE or parts == []:
                raise ValueError(
                    f"the array {array!r} must have a name other than {COMPLETE!r}, "
                    "and one or more columns; a list has no columns with a shape"
                )
        for indicator, name in indicators.items():
            if name in named and indicator not in named:
                raise ValueError(
                    f"the column {name!r} has missing = 'indicator', and no array "
                    f"takes {indicator!r}: add it, as the model cannot tell a missing "
                    "value from the middle of the range, or take missing = 'fill'"
                )
        return wanted

    def _arrays(self, values: dict, missing: dict, arrays) -> dict:
        found, dropping = dict(values), []
        for name in values:
            if self[name].missing == "indicator":
                found[_indicator(name)] = missing[name].astype(np.int32)
            elif self[name].missing == "drop":
                dropping.append(missing[name])
        if arrays is not None:
            found = {
                array: np.stack([found[part] for part in parts], 1).astype(float)
                if isinstance(parts, list)
                else found[parts]
                for array, parts in arrays.items()
            }
        if dropping:
            found[COMPLETE] = ~np.any(dropping, axis=0)
        return found


def _indicator(name: str) -> str:
    return f"{name}_missing"


def _parts(parts) -> Iterable:
    return parts if isinstance(parts, list) else [parts]


def _parsed(path: Path) -> dict:
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no schema {path}: `dpjax schema RECORDS` prints a template"
        )
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the schema {path} is not valid TOML: {error}") from error


def _column(name: str, table) -> Column:
    where = f"column {name!r} of the schema"
    if not isinstance(table, Mapping) or table.get("kind") not in [*KINDS]:
        raise ValueError(
            f"{where} must be a table whose kind is one of {', '.join(KINDS)}, got "
            f"{reprlib.repr(table)}"
        )
    kind = table["kind"]
    allowed = {"kind", "missing"} | KINDS[kind]
    if unknown := sorted(set(table) - allowed):
        raise ValueError(
            f"{where} has the unknown keys {unknown}: a {kind} has {sorted(allowed)}"
        )
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in table.items()
    }
    for key, is_right, words in (
        ("unit", _is_text, "a text"),
        ("missing", RULES.__contains__, f"one of {', '.join(RULES)}"),
        ("mean", _is_number, "a number"),
        ("sd", lambda sd: _is_number(sd) and sd > 0, "a number above zero"),
        ("shape", _is_shape, f"whole numbers from 1, of a product up to {MAX_SHAPE:,}"),
        ("levels", _are_levels, "two or more texts or numbers, different, not empty"),
        ("range", _is_range, "two numbers up to 1e30, the lower one first"),
    ):
        if key in given and not is_right(given[key]):
            raise ValueError(
                f"{where}: {key} must be {words}, got {reprlib.repr(table[key])}"
            )
    for key in {"range", "levels"} & allowed:
        if key not in given:
            raise ValueError(
                f"{where} lacks {key}: a {kind} needs it, from what is known without "
                "the records"
            )
    if ("mean" in given) != ("sd" in given):
        raise ValueError(f"{where}: mean and sd are a guess together, so give both")
    if kind == "count" and not _are_counts(given["range"]):
        raise ValueError(f"{where}: the range of a count is two whole numbers")
    if given.get("missing") == "category":
        if kind != "category":
            raise ValueError(
                f'{where}: missing = "category" is for categories; a {kind} may have '
                "an indicator"
            )
        if "missing" in map(str, given["levels"]):
            raise ValueError(f"{where}: the level 'missing' is added by the rule")
        given["levels"] = (*given["levels"], "missing")
    return Column(**given)


def _is_text(value) -> bool:
    return isinstance(value, str)


def _is_number(value) -> bool:
    # A bool is an int in Python. The comparison is false for nan.
    return type(value) in (int, float) and -HUGE <= value <= HUGE


def _is_range(value) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2
    return is_pair and all(map(_is_number, value)) and value[0] < value[1]


def _are_counts(ends) -> bool:
    return all(type(end) is int and abs(end) <= MAX_COUNT for end in ends)


def _are_levels(value) -> bool:
    if not isinstance(value, tuple):
        return False
    texts = {str(level).strip() for level in value if type(level) in (str, int, float)}
    return len(texts) == len(value) > 1 and "" not in texts


def _is_shape(value) -> bool:
    is_shape = isinstance(value, tuple) and all(type(k) is int and k > 0 for k in value)
    return is_shape and math.prod(value) <= MAX_SHAPE
