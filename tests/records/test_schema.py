"""Records are coded one by one, by public rules, and no cell stops a program."""

import gzip
import math
import subprocess
import sys

import numpy as np
import pandas
import pytest

from dpjax.records import Column, Schema, template

AGE = {"kind": "real", "range": [20, 60], "unit": "years"}
SEX = {"kind": "category", "levels": ["f", "m"]}


SIGNALLING = np.array([0x41F00000, 0x7F800001], np.uint32).view(np.float32)
"""30, and a NaN of which NumPy warns when it is made a float64."""


class Unreadable:
    def __str__(self):
        raise RuntimeError("quotes a record")

    __float__ = __str__


def read(column, cells):
    found = Schema({"x": column}).read({"x": cells})
    return {name: values.tolist() for name, values in found.items()}


@pytest.mark.parametrize(
    ("column", "cells", "values", "missing"),
    [
        (
            AGE,
            ["30", " 1e1 ", "", "NA", "nan", "inf", "-inf", "1e999", "30 y"],
            [30, 20, 40, 40, 40, 60, 20, 60, 40],
            [0, 0, 1, 1, 1, 0, 0, 0, 1],
        ),
        (AGE, [25, None, True, 10**400, 1j], [25, 40, 20, 40, 40], [0, 1, 0, 1, 1]),
        (
            {"kind": "count", "range": [0, 9]},
            ["3", "3.4", "12", "-1", "x"],
            [3, 3, 9, 0, 4],
            [0, 0, 0, 0, 1],
        ),
        (AGE, SIGNALLING, [30, 40], [0, 1]),
        (AGE, [30, np.ma.masked, Unreadable()], [30, 40, 40], [0, 1, 1]),
        (SEX, ["m", " f", "F", "", None], [1, 0, 0, 0, 0], [0, 0, 1, 1, 1]),
        (SEX, ["m", 10**5000, Unreadable()], [1, 0, 0], [0, 1, 1]),
        (
            {"kind": "category", "levels": [1, 2, "other"]},
            np.array([1.0, 2.0, math.nan, 3.0]),
            [0, 1, 0, 0],
            [0, 0, 1, 1],
        ),
        (
            {"kind": "category", "levels": ["01", "1", "2"]},
            ["01", "1", "1.0", "2.0"],
            [0, 1, 0, 2],
            [0, 0, 1, 0],
        ),
        (
            {"kind": "boolean"},
            ["yes", "N", "TRUE", "False", "1", "0.0", "2", ""],
            [1, 0, 1, 0, 1, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 1, 1],
        ),
    ],
)
def test_cells_become_values_or_are_missing(column, cells, values, missing):
    cells = np.array(cells, object)
    assert read(column, cells) == {
        "x": values,
        "complete": [not each for each in missing],
    }
    assert read(column | {"missing": "fill"}, cells) == {"x": values}
    indicator = {"x": values, "x_missing": missing}
    assert read(column | {"missing": "indicator"}, cells) == indicator
    if column["kind"] == "category":
        last = len(column["levels"])
        coded = np.where(missing, last, values).tolist()
        assert read(column | {"missing": "category"}, cells) == {"x": coded}


SCHEMA = Schema(
    {
        "age": AGE,
        "sex": SEX | {"missing": "category"},
        "visits": {"kind": "count", "range": [0, 40], "missing": "indicator"},
        "smoker": {"kind": "boolean"},
        "site": {"kind": "category", "levels": [1, 2, 3]},
    }
)
ROWS = [
    ["30", "f", "3", "true", "1"],
    ["95.5", "m", "", "false", "2"],
    ["", "", "7", "true", "3"],
    ["41", "m", "900", "false", "4"],
]


def tables(folder, rows):
    """The same table, in all forms that can be read here."""
    lines = [",".join(row) for row in ([*SCHEMA], *rows)]
    text = "\n".join(lines) + "\n"
    (folder / "table.csv").write_text(text)
    (folder / "table.csv.gz").write_bytes(gzip.compress(text.encode()))
    cells = {name: [row[i] for row in rows] for i, name in enumerate(SCHEMA)}
    np.savez(folder / "table.npz", **cells)
    yield folder / "table.csv"
    yield str(folder / "table.csv.gz")
    yield folder / "table.npz"
    yield cells
    yield pandas.read_csv(folder / "table.csv")
    yield pandas.read_csv(folder / "table.csv", dtype_backend="numpy_nullable")
    try:
        import polars
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        return
    yield polars.read_csv(folder / "table.csv")
    table = pyarrow.csv.read_csv(folder / "table.csv")
    table = table.set_column(1, "sex", table["sex"].dictionary_encode())
    yield table
    pyarrow.parquet.write_table(table, folder / "table.parquet")
    yield folder / "table.parquet"


def test_tables_of_all_kinds_are_read_alike(tmp_path):
    expected = {
        "age": [30, 60, 40, 41],
        "sex": [0, 1, 2, 1],
        "visits": [3, 20, 7, 40],
        "visits_missing": [0, 1, 0, 0],
        "smoker": [1, 0, 1, 0],
        "site": [0, 1, 2, 0],
        "complete": [True, True, False, False],
    }
    for table in tables(tmp_path, ROWS):
        found = SCHEMA.read(table)
        assert {name: values.tolist() for name, values in found.items()} == expected
        example = SCHEMA.example()
        assert [v.dtype for v in example.values()] == [v.dtype for v in found.values()]


WILD = ["1e6", "unheard of", "-5", "perhaps", "9"]


@pytest.mark.parametrize("other", [WILD, [""] * 5, ["x"] * 5, ["nan"] * 5])
def test_a_record_changes_its_own_entry_alone(tmp_path, other):
    """Also where it changes the types that a reader infers for whole columns."""
    before = [SCHEMA.read(table) for table in tables(tmp_path, ROWS)]
    for changed in (0, 2):
        rows = [other if i == changed else row for i, row in enumerate(ROWS)]
        after = [SCHEMA.read(table) for table in tables(tmp_path, rows)]
        for old, new in zip(before, after, strict=True):
            for name, values in old.items():
                assert (values == new[name])[np.arange(4) != changed].all()


@pytest.mark.parametrize(
    "line",
    [
        "31",
        "",
        "32,m,5",
        '31,"m',
        '"31\r,m',
        "31\r,m,5",
        '3"1,"m,5',
        "9" * 140_000 + '"',
    ],
)
def test_a_line_is_one_record_whatever_it_holds(tmp_path, line):
    """Cut, empty, with a quote that is not closed or more letters than `csv` takes."""
    lines = f'\ufeffage,sex\r\n30,f\r\n{line}\r\n33,"f"\r\n34,f\r\n'
    (tmp_path / "table.csv").write_bytes(lines.encode())
    found = Schema({"age": AGE, "sex": SEX}).read(tmp_path / "table.csv")
    assert np.delete(found["complete"], 1).all() and len(found["complete"]) == 4
    assert np.delete(found["age"], 1).tolist() == [30, 33, 34]


def test_one_long_text_makes_the_others_no_longer(tmp_path):
    """As an array of texts of that length, they would take 240 GB."""
    texts = [*("fm" * 30_000), "x" * 1_000_000]
    (tmp_path / "table.csv").write_text("sex\n" + "\n".join(texts))
    for table in (dict(sex=texts), tmp_path / "table.csv"):
        found = Schema({"sex": SEX}).read(table)
        assert found["complete"].sum() == 60_000 and not found["complete"][-1]


def test_arrays_of_several_columns_and_shapes(tmp_path):
    images = np.arange(24.0).reshape(2, 3, 4)
    images[1, 2, 3] = math.nan
    np.savez(tmp_path / "file.npz", image=images, age=np.array([50, 90]))
    image = {"kind": "real", "range": [0, 10], "shape": [3, 4]}
    schema = Schema({"image": image, "age": AGE, "sex": SEX})
    arrays = {"pixels": "image", "x": ["age", "age"]}
    found = schema.read(tmp_path / "file.npz", arrays)
    assert found["pixels"].shape == (2, 3, 4) and found["pixels"].max() == 10
    assert found["complete"].tolist() == [True, False]
    assert found["x"].tolist() == [[50, 50], [60, 60]]
    example = schema.example(arrays)
    assert example["pixels"].shape == (1000, 3, 4) and "sex" not in example
    with pytest.raises(ValueError, match=r"cells of shape \(\), and .* \(3, 4\)"):
        schema.read({"image": [1.0], "age": [1.0]}, {"x": "image"})


def test_the_owner_sees_how_the_records_spell_levels():
    schema = Schema(
        {
            "age": dict(kind="real", range=[18, 90], missing="indicator"),
            "sex": dict(kind="category", levels=["woman", "man", "x"]),
            "smoker": dict(kind="boolean", missing="fill"),
            "visits": dict(kind="count", range=[0, 4]),
            "marks": dict(kind="real", range=[0, 1], shape=[2]),
        }
    )
    records = {
        "age": [1.0, 20, math.nan, 95],
        "sex": ["woman", "Man", "Man", "woman"],
        "smoker": ["a", "b", "c", "d"],
        "visits": [0, 1, 4, 9],
        "marks": np.array([[0.5, math.nan], [0, 1], [0, 0.2], [0.1, 0.1]]),
    }
    unsafe, *lines = schema.unsafe_check(records).splitlines()
    assert unsafe.startswith("NOT PRIVATE")
    assert lines == [
        "age: 1 cells are missing: nan (1); 1 at most 18, 1 at least 90",
        "sex: 2 cells are missing: 'Man' (2); no cell is ['man', 'x']",
        "smoker: 4 cells are missing: 'a' (1), 'b' (1), 'c' (1), ...",
        "visits: 0 cells are missing; 1 at most 0, 2 at least 4",
        "marks: 1 cells are missing: [0.5, nan] (1); 2 at most 0, 1 at least 1",
        "1 of 4 records are complete",
    ]


def test_made_up_records_fill_ranges_and_levels():
    guess = {"mean": 30.0, "sd": 5.0}
    example = Schema({**SCHEMA_TABLES, "income": AGE | guess}).example()
    assert np.isclose(example["age"].mean(), 40) and np.ptp(example["age"]) > 39.9
    assert np.bincount(example["site"]).tolist() == [333, 334, 333]
    # Of a normal law truncated to [20, 60], two sds below its mean.
    assert abs(example["income"].mean() - 30.276) < 0.01
    assert abs(example["income"].std() - 4.7) < 0.05
    assert example["income"].min() >= 20
    assert set(example["visits"]) == {*range(41)}
    assert example["complete"].all() and example["visits_missing"].sum() == 100
    pairs = np.corrcoef([example["age"], example["income"], example["visits"]])
    assert np.abs(pairs - np.eye(3)).max() < 0.1


SCHEMA_TABLES = {
    "age": AGE,
    "visits": {"kind": "count", "range": [0, 40], "missing": "indicator"},
    "site": {"kind": "category", "levels": [1, 2, 3]},
}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"kind": "number"}, "kind is one of real, count"),
        ("real", "kind is one of real, count"),
        ({"kind": "real"}, "lacks range"),
        ({"kind": "category"}, "lacks levels"),
        (AGE | {"levels": ["a", "b"]}, r"unknown keys \['levels'\]"),
        (AGE | {"range": [60, 20]}, "the lower one first"),
        (AGE | {"range": [0, math.nan]}, "the lower one first"),
        (AGE | {"range": [False, True]}, "the lower one first"),
        (AGE | {"missing": "category"}, "is for categories"),
        (AGE | {"missing": "impute"}, "must be one of drop"),
        (AGE | {"mean": 30}, "give both"),
        (AGE | {"mean": 30, "sd": 0}, "above zero"),
        (AGE | {"shape": [-1]}, "whole numbers from 1"),
        (AGE | {"shape": [10**9]}, "whole numbers from 1"),
        ({"kind": "count", "range": [0, 1.5]}, "two whole numbers"),
        ({"kind": "count", "range": [0, 2**31]}, "two whole numbers"),
        (SEX | {"levels": ["f"]}, "two or more"),
        (SEX | {"levels": ["f", " f"]}, "two or more"),
        (SEX | {"levels": ["f", ""]}, "not empty"),
        (SEX | {"levels": ["f", "missing"], "missing": "category"}, "added by the"),
    ],
    ids=str,
)
def test_columns_that_are_none_are_refused(column, message):
    with pytest.raises(ValueError, match=message):
        Schema({"x": column})


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ({"age": [1.0]}, "no column 'sex'"),
        ({"age": [1.0, 2.0], "sex": ["f"]}, r"numbers of records, \[1, 2\]"),
        ({"age": np.zeros(2, "M8[D]"), "sex": ["f", "m"]}, "neither of numbers nor"),
        ({"age": 1.0, "sex": ["f"]}, r"cells of shape \(\)"),
        (pandas.DataFrame([[1, 2]], columns=["age", "age"]), "the same name"),
        ([1.0], "got a list"),
        ("nowhere.csv", "no data file"),
        (__file__, "must be a .csv"),
    ],
    ids=repr,
)
def test_tables_of_another_form_are_refused(records, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Schema({"age": AGE, "sex": SEX}).read(records)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        ["age"],
        {"x": "weight"},
        {"x": ["age", "weight"]},
        {"x": []},
        {"complete": "age"},
    ],
    ids=repr,
)
def test_arrays_of_no_columns_are_refused(arrays):
    with pytest.raises(ValueError, match="array"):
        Schema({"age": AGE}).example(arrays)


def test_an_indicator_is_not_left_out():
    schema = Schema({"age": AGE | dict(missing="indicator"), "sex": SEX})
    with pytest.raises(ValueError, match="no array takes 'age_missing': add it"):
        schema.example({"x": ["age", "sex"]})
    assert set(schema.example({"x": ["age", "age_missing"]})) == {"x"}
    assert set(schema.example({"x": "sex"})) == {"x", "complete"}


@pytest.mark.parametrize("is_lacking", [False, True])
def test_a_null_in_a_column_of_numbers_changes_no_other_code(is_lacking):
    """It makes floats of integers, in which these levels are the same number."""
    levels = [9007199254740992, 9007199254740993]
    cells = pandas.Series(levels, dtype=float if is_lacking else "int64")
    with pytest.raises(ValueError, match="different numbers, also as floats"):
        Schema({"x": dict(kind="category", levels=levels)}).read({"x": cells})


def test_names_about_missing_values_are_taken():
    for name in ("complete", "age_missing"):
        with pytest.raises(ValueError, match="give these columns other names"):
            Schema({"age": AGE | {"missing": "indicator"}, name: SEX})


def test_the_template_is_made_of_names_alone(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text('age,"blood pressure","Gruppe ""ü"""\n731905,Qj,731905\n')
    text = template(path)
    assert "731905" not in text and "Qj" not in text
    filled = text.replace('kind = ""', 'kind = "boolean"')
    (tmp_path / "schema.toml").write_text(filled)
    schema = Schema(tmp_path / "schema.toml")
    assert [*schema] == ["age", "blood pressure", 'Gruppe "ü"']
    assert schema["age"] == Column("boolean")
    assert schema.read(path)["age"].tolist() == [0]
    path.write_text("34,f,12\n35,m,13\n")
    with pytest.raises(ValueError, match="must name the columns"):
        template(path)


def test_schemata_without_a_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="dpjax schema"):
        Schema(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("[age")
    with pytest.raises(ValueError, match="not valid TOML"):
        Schema(tmp_path / "broken.toml")


def test_no_library_of_tables_is_imported():
    """Not even to read a file."""
    code = """
import sys, dpjax.records
assert not {"pandas", "polars", "pyarrow", "numpyro"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", code], check=True)
