"""Design matrices have the levels of the schema, and one row for one record."""

import numpy as np
import pytest

from dpjax.records.formula import Design

SCHEMA = {
    "age": {"kind": "real", "range": [0, 80]},
    "dose": {"kind": "real", "range": [1, 9], "missing": "indicator"},
    "sex": {"kind": "category", "levels": ["f", "m"], "missing": "category"},
    "site": {"kind": "category", "levels": ["a", "b", "c", "d"]},
    "smoker": {"kind": "boolean"},
    "visits": {"kind": "count", "range": [0, 40]},
}
RECORDS = {
    "age": ["50", "99", "", "0"],
    "dose": ["2", "", "3", "4"],
    "sex": ["m", "f", "m", ""],
    "site": ["b", "b", "a", "b"],
    "smoker": ["1", "0", "1", "0"],
    "visits": ["3", "4", "5", "60"],
}
FORMULA = (
    "visits ~ age + C(sex) * smoker + I(dose**2) + dose_missing + (1 | site)"
    " + offset(log(1 + age))"
)


def test_no_record_makes_the_matrix_fail():
    """Also for whoever has NumPy raise its errors of arithmetic."""
    design = Design("visits ~ log(age)", SCHEMA)
    with np.errstate(all="raise"):
        found = design.read(RECORDS)
    assert len(found["x"]) == 4


def test_a_matrix_is_coded_by_the_schema():
    design = Design(FORMULA, SCHEMA)
    assert design.names == [
        "age",
        "C(sex)[m]",
        "C(sex)[missing]",
        "smoker",
        "I(dose ** 2)",
        "dose_missing",
        "C(sex)[m]:smoker",
        "C(sex)[missing]:smoker",
    ]
    assert design.has_intercept and design.groups == {"site": 4}
    assert design.reference_levels == {"C(sex)": "f"}
    found = design.read(RECORDS)
    expected = [
        [50, 1, 0, 1, 4, 0, 1, 0],
        [80, 0, 0, 0, 25, 1, 0, 0],
        [40, 1, 0, 1, 9, 0, 1, 0],
        [0, 0, 1, 0, 16, 0, 0, 0],
    ]
    np.testing.assert_array_equal(found["x"], expected)
    np.testing.assert_allclose(found["offset"], np.log([51, 81, 41, 1]))
    assert found["site"].tolist() == [1, 1, 0, 1]
    assert found["y"].tolist() == [3, 4, 5, 40]
    assert found["complete"].tolist() == [True, True, False, True]
    shapes = {name: (v.shape[1:], v.dtype) for name, v in found.items()}
    example = design.example
    assert {name: (v.shape[1:], v.dtype) for name, v in example.items()} == shapes


@pytest.mark.parametrize(
    ("terms", "reference_levels"),
    [
        ("age", {}),
        ("sex * site", {"sex": "f", "site": "a"}),
        ("0 + sex + site", {"site": "a"}),
        ("C(site, contr.treatment('c'))", {"C(site, contr.treatment('c'))": "c"}),
        ("C(site, contr.sum)", {}),
    ],
)
def test_reference_levels_are_those_without_a_coefficient(terms, reference_levels):
    assert Design(f"visits ~ {terms}", SCHEMA).reference_levels == reference_levels


def test_levels_that_no_record_has_keep_their_columns():
    design = Design("visits ~ 0 + site + C(sex, contr.treatment('m'))", SCHEMA)
    assert not design.has_intercept
    assert design.names == [
        *(f"site[{level}]" for level in "abcd"),
        "C(sex, contr.treatment('m'))[f]",
        "C(sex, contr.treatment('m'))[missing]",
    ]
    assert design.read(RECORDS)["x"][:, :4].sum(axis=0).tolist() == [1, 3, 0, 0]


@pytest.mark.parametrize(
    "other",
    [
        {"age": "1e9", "dose": "-5", "sex": "f", "site": "z", "visits": "many"},
        {name: "" for name in SCHEMA},
        {name: "nan" for name in SCHEMA},
    ],
)
def test_a_record_changes_its_own_row_alone(other):
    design = Design(FORMULA, SCHEMA)
    before = design.read(RECORDS)
    changed = {k: [v[0], other.get(k, "0"), *v[2:]] for k, v in RECORDS.items()}
    after = design.read(changed)
    differ = set()
    for name, values in before.items():
        same = values == after[name]
        differ |= set(np.flatnonzero(~same.reshape(4, -1).all(axis=1)))
    assert differ == {1}


def test_terms_that_are_not_finite_say_nothing():
    """Where made-up records, which lie inside of the ranges, are finite."""
    design = Design("visits ~ log(age)", SCHEMA)
    found = design.read(RECORDS)
    assert found["complete"].tolist() == [True, True, False, False]
    assert np.isfinite(found["x"]).all()
    with pytest.raises(ValueError, match="not finite in all of the ranges"):
        Design("visits ~ log(age - 40)", SCHEMA)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ("scale(age)", "fitted to the records"),
        ("center(age)", "fitted to the records"),
        ("poly(age, 2)", "fitted to the records"),
        ("bs(age, df=4)", "fitted to the records"),
        ("lag(age)", "fitted to the records"),
        ("np.mean(age)", "fitted to the records"),
        ("I(age - age.mean())", "fitted to the records"),
        ("I(age[0])", "fitted to the records"),
        ("weight", "no column of the schema"),
        ("I(age / (age @ age))", "fitted to the records"),
        ("offset(age * (age @ age))", "fitted to the records"),
        ("age + (age | site)", "is not"),
        ("(1 | age)", "needs a category"),
        ("C(age)", "whose levels the schema does not list"),
        ("smoker * C(visits, contr.sum)", "whose levels the schema does not list"),
        ("dose", "lacks .*dose_missing"),
        ("age + I(0 * age)", "the same for all records"),
        ("age +* smoker", "make no matrix"),
        ("offset(scale(age))", "fitted to the records"),
    ],
)
def test_terms_that_are_no_function_of_one_record_are_refused(terms, message):
    with pytest.raises(ValueError, match=message):
        Design(f"visits ~ {terms}", SCHEMA)


def test_an_offset_is_what_was_checked():
    """Formulaic would read on where Python sees a comment."""
    design = Design("visits ~ offset(age # }:{center(age)} {)", SCHEMA)
    np.testing.assert_array_equal(design.read(RECORDS)["offset"], [50, 80, 40, 0])


@pytest.mark.parametrize("formula", ["age", "weight ~ age", "log(age) ~ smoker", "~"])
def test_responses_are_columns(formula):
    with pytest.raises(ValueError, match="RESPONSE ~ TERMS"):
        Design(formula, SCHEMA)
