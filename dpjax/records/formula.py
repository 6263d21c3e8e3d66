"""Design matrices from a formula and a public schema.

The right-hand side of a formula has the syntax of `formulaic`, with two further kinds
of terms: ``(1 | clinic)``, an intercept for every level of a category, and
``offset(log(years))``, a term whose coefficient is one. The columns of the matrix and
their levels are determined from made-up records of the schema. The row of a record is a
function of this record alone. So functions that would be fitted to the records
(``scale``, ``center``, ``poly``, ``bs``) or read neighbouring records (``lag``) are
refused.
"""

import ast
import re
from typing import Any

import numpy as np

from dpjax.datasets.files import readable
from dpjax.records.schema import COMPLETE, Schema

__all__ = ["Design"]

FUNCTIONS = {"C", "I", "exp", "log", "log2", "log10"} | {
    f"np.{name}" for name in ("abs", "exp", "log", "log1p", "log2", "log10", "sqrt")
}
"""Functions that a formula may use: functions of one number, and ``C`` and ``I``. The
codings of categories, ``contr.*``, may be used, too."""

NODES = ast.Expression | ast.BinOp | ast.UnaryOp | ast.UAdd | ast.USub | ast.Add
NODES |= ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow
"""Nodes of Python's syntax tree that are arithmetic with the numbers of one record. The
operator ``@`` is none of them, as it multiplies whole columns."""


class Design:
    """The design of a formula: which columns its matrix has, without the records.

    Parameters
    ----------
    formula
        A text such as ``"visits ~ age + C(sex) + (1 | clinic) + offset(log(years))"``.
    schema
        The argument of `dpjax.records.Schema`.

    Attributes
    ----------
    response
        Name of the column on the left-hand side.
    names
        Names of the columns of the design matrix, without the intercept.
    has_intercept
        Whether the formula has an intercept.
    groups
        ``{column: number of levels}`` of the columns with an intercept for every level.
    reference_levels
        ``{factor: level}`` of the categories in which coefficients are differences from
        this level, which has none.
    example
        Made-up records in the form of `read`.

    Raises
    ------
    ValueError
        If `formula` is not a formula, names a column that is not in the schema, is not
        a function of one record at a time, is not finite in all of the ranges of the
        schema, or has a term that is the same for all records. Also if it names a
        column with ``missing = "indicator"`` without its indicator.
    """

    def __init__(self, formula: str, schema):
        self.schema, self.formula = Schema(schema), formula
        left, tilde, right = formula.partition("~")
        self.response = left.strip()
        if not tilde or self.response not in self.schema:
            raise ValueError(
                f"the formula {formula!r} must be RESPONSE ~ TERMS, with a column of "
                f"the schema as its response: the columns are {[*self.schema]}"
            )
        terms, self.groups, self._offset = [], {}, None
        for term in _summands(right):
            group = re.fullmatch(r"\(\s*1\s*\|\s*(\w+)\s*\)", term)
            offset = re.fullmatch(r"offset\((.*)\)", term)
            if group is not None:
                self.groups[group[1]] = self._num_levels(group[1])
            elif "|" in term:
                raise ValueError(
                    f"the term {term!r} is not (1 | GROUP): slopes that differ by "
                    "group need a NumPyro model (dpjax.numpyro.posterior)"
                )
            elif offset is not None and self._offset is None:
                self._offset = offset[1].strip()
            else:
                terms.append(term)
        self._lay_out(" + ".join(terms) or "1")

    def _lay_out(self, terms: str) -> None:
        """Determine the columns of the matrix for `terms`, from made-up records."""
        parsed = _public(terms, lambda: _formula(terms))
        self._columns = {self.response, *self.groups}
        factors = [str(factor) for term in parsed for factor in term.factors]
        for factor in factors:
            self._columns |= self._checked(factor)
        if self._offset is not None:
            self._columns |= self._checked(self._offset)
            # Without what Python does not read, such as a comment.
            self._offset = ast.unparse(ast.parse(self._offset, mode="eval"))
        if forgotten := [
            name
            for name in self._columns
            if name in self.schema
            and self.schema[name].missing == "indicator"
            and f"{name}_missing" not in self._columns
        ]:
            raise ValueError(
                f"{forgotten} have missing = 'indicator', but the formula lacks "
                f"{[f'{name}_missing' for name in forgotten]}: add them as terms, or "
                "choose another rule in the schema"
            )
        arrays = {name: name for name in sorted(self._columns)}
        self._arrays = arrays
        values = self.schema.example(arrays)
        with np.errstate(all="ignore"):
            matrix = _public(terms, lambda: self._matrix(parsed, values))
        self._spec = matrix.model_spec
        names = list(self._spec.column_names)
        self.has_intercept = "Intercept" in names
        self._kept = [i for i, name in enumerate(names) if name != "Intercept"]
        # Names of columns become names of variables in a NetCDF file, which would take
        # a slash for a folder.
        tidy = [name.replace("[T.", "[").replace("/", "|") for name in names]
        self.names = [tidy[i] for i in self._kept]
        self.reference_levels = self._reference_levels()
        with np.errstate(all="ignore"):
            self.example = _public(terms, lambda: self._coded(values))
        if not self.example.get(COMPLETE, np.ones(1)).all():
            raise ValueError(
                f"the formula {self.formula!r} is not finite in all of the ranges of "
                "the schema, such as log(x) at zero: change it, or a range"
            )
        sds = np.std(self.example.get("x", np.ones((2, 0))), axis=0)
        if constant := [n for n, sd in zip(self.names, sds, strict=True) if not sd > 0]:
            raise ValueError(f"the terms {constant} are the same for all records")

    def read(self, records) -> dict[str, np.ndarray]:
        """The records as arrays.

        Parameters
        ----------
        records
            As in `Schema.read`.

        Returns
        -------
        dict
            ``y``, the response, ``(n,)``; ``x``, the design matrix without the
            intercept, ``(n, p)``, if p > 0; ``offset``, ``(n,)``, if there is one; the
            codes of the levels of each group, ``(n,)``, by the group's name; and
            ``complete``, booleans ``(n,)``. A record with a term that is not finite is
            not complete; this term is zero.

        Raises
        ------
        FileNotFoundError, RuntimeError, ValueError
            As `Schema.read` does.

        Notes
        -----
        *Formal guarantees.* As for `Schema.read`.
        """
        return self._read(records, self._arrays)

    def predictors(self, records) -> dict[str, np.ndarray]:
        """Records without a response, as arrays: those of `read`, without ``y``.

        Raises
        ------
        FileNotFoundError, RuntimeError, ValueError
            As `Schema.read` does; or if the formula has no terms.
        """
        arrays = {k: v for k, v in self._arrays.items() if k != self.response}
        if not arrays:
            raise ValueError(
                f"the formula {self.formula!r} reads nothing of new records: predict "
                "with dpjax.runner.Run.predict(..., num_records=1)"
            )
        return self._read(records, arrays)

    def _read(self, records, arrays: dict[str, str]) -> dict[str, np.ndarray]:
        values = self.schema.read(records, arrays)
        return readable("the design matrix", lambda: self._coded(values))

    def _coded(self, values: dict) -> dict[str, np.ndarray]:
        count, found = len(next(iter(values.values()))), {}
        complete = values.get(COMPLETE, np.ones(count, bool))
        parts = {}
        if self._kept:
            matrix = np.asarray(self._matrix(self._spec, values), float)
            parts["x"] = matrix[:, self._kept]
        if self._offset is not None:
            matrix = self._matrix(_formula(f"0 + {{{self._offset}}}"), values)
            parts["offset"] = np.asarray(matrix, float)[:, 0]
        for name, part in parts.items():
            is_finite = np.isfinite(part)
            found[name] = np.where(is_finite, part, 0.0)
            complete = complete & is_finite.reshape(count, -1).all(axis=1)
        found |= {group: values[group] for group in self.groups}
        if self.response in values:
            found["y"] = values[self.response]
        return found | {COMPLETE: complete}

    def _matrix(self, specification, values: dict) -> Any:
        import pandas

        frame = {}
        for name, codes in values.items():
            column = self.schema.get(name)
            if column is not None and column.kind == "category":
                levels = [str(level) for level in column.levels]
                frame[name] = pandas.Categorical.from_codes(codes, levels)
            else:
                frame[name] = codes.astype(float)
        return specification.get_model_matrix(
            pandas.DataFrame(frame), context={}, na_action="ignore", output="numpy"
        )

    def _reference_levels(self) -> dict[str, str]:
        from formulaic.transforms.contrasts import TreatmentContrasts

        found = {}
        for factor, state in self._spec.factor_contrasts.items():
            if isinstance(state.contrasts, TreatmentContrasts):
                chosen, first = state.contrasts.base, state.levels[0]
                level = chosen if chosen in state.levels else first
                if f"{factor}[{level}]" not in self.names:
                    found[str(factor)] = str(level)
        return found

    def _num_levels(self, group: str) -> int:
        column = self.schema.get(group)
        if column is None or column.kind != "category":
            raise ValueError(
                f"(1 | {group}) needs a category of the schema, by its name"
            )
        return len(column.levels)

    def _checked(self, factor: str) -> set[str]:
        """The columns that a factor of a term reads.

        Raises
        ------
        ValueError
            If the factor is not a function of one record at a time.
        """
        known = {*self.schema, *(f"{name}_missing" for name in self.schema)}
        if factor in known:
            return {factor}
        categories = {
            name
            for name, column in self.schema.items()
            if column.kind in ("category", "boolean")
        }
        found = set()

        def check(node):
            match node:
                case ast.Constant():
                    pass
                case ast.Name(id=name) if name in known:
                    found.add(name)
                case ast.Call(func=ast.Name(id="C"), args=[argument, *_]) if (
                    ast.unparse(argument) not in categories
                ):
                    raise ValueError(
                        f"the term {factor!r} makes levels of "
                        f"{ast.unparse(argument)!r}, whose levels the schema does not "
                        'list: declare a column of kind = "category"'
                    )
                case ast.Call(func=function, args=[*arguments], keywords=[]) if (
                    ast.unparse(function) in FUNCTIONS
                    or ast.unparse(function).startswith("contr.")
                ):
                    for argument in arguments:
                        check(argument)
                case ast.Attribute(value=ast.Name(id="contr")):
                    pass
                case _ if isinstance(node, NODES):
                    for child in ast.iter_child_nodes(node):
                        check(child)
                case _:
                    held = ast.unparse(node) or type(node).__name__
                    raise ValueError(
                        f"the term {factor!r} holds {held!r}, which is no column of "
                        "the schema and no function of one record at a time: use "
                        f"arithmetic and {', '.join(sorted(FUNCTIONS))}. What would be "
                        "fitted to the records, such as scale, center, poly or bs, "
                        "needs public constants: I((age - 50) / 10)"
                    )

        try:
            tree = ast.parse(factor, mode="eval")
        except SyntaxError as error:
            raise ValueError(f"the term {factor!r} is no expression") from error
        check(tree)
        return found


def _formula(terms: str) -> Any:
    # The import of formulaic takes a second.
    from formulaic import Formula

    make: Any = Formula
    return make(terms)


def _summands(terms: str) -> list[str]:
    """The parts of a text between the plus signs that are outside of all brackets."""
    found, depth = [""], 0
    for character in terms:
        depth += (character in "([{") - (character in ")]}")
        if character == "+" and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [term.strip() for term in found if term.strip()]


def _public(terms: str, function):
    """The result of `function`, which reads the schema and the formula alone.

    Raises
    ------
    ValueError
        If it raises an error; the message shows that error, which is public.
    """
    try:
        return function()
    except Exception as error:
        first = (str(error).strip() or repr(error)).splitlines()[0]
        raise ValueError(f"the terms {terms!r} make no matrix: {first}") from error
