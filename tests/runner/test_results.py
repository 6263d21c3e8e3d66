"""What a run and a posterior print: no records, no arrays, nothing cut away."""

import functools
from pathlib import Path

import numpy as np
import pandas
import pytest

import dpjax
from dpjax.fit.fit_check import FitCheck
from dpjax.fit.simulated_draws import Known
from dpjax.release import clip_bounds
from dpjax.report.pictures import _order
from dpjax.runner.results import Fit, Run
from dpjax.runner.statement import PrivacyStatement

STATEMENT = PrivacyStatement(1.5, 1e-6, 0.5, "REPLACE_ONE", 2, 50, "bits", "rdp")


def test_a_posterior_prints_the_form_of_one_record():
    """Neither values nor how many there are, nor what its functions hold."""
    data = {"x": np.full((97, 3), 731905.25), "y": np.arange(97)}
    prior = functools.partial(lambda held, theta: 0.0, data["x"])
    posterior = dpjax.Posterior(prior, lambda theta, record: 0.0, data)
    assert repr(posterior) == "Posterior(one record: x: float64[3], y: int64[])"
    assert repr(dpjax.Posterior(len, len, data["x"])).endswith("record: float64[3])")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            pandas.DataFrame({"a": [731905.25]}),
            "a DataFrame is none: pass {name: table",
        ),
        ({"a": pandas.Series([731905.25])}, "a Series is none"),
        (Path("731905.csv"), "read files and make arrays of lists first"),
        (["731905"], "not of Python's numbers or texts"),
        (np.array(["731905"]), "encode strings and dates as numbers"),
    ],
)
def test_data_that_are_no_arrays_are_refused_without_quoting_them(data, message):
    with pytest.raises(ValueError, match=message) as refusal:
        dpjax.Posterior(len, len, data)
    assert "731905" not in str(refusal.value)


@pytest.mark.parametrize(
    ("clip_bound", "message"),
    [
        ("0.1", "must be a number of nats.* got '0.1'"),
        ((-1.0, 1.0), "must be a number of nats"),
        (dpjax.Lipschitz("a"), "must be a number of nats"),
    ],
)
def test_a_clip_bound_that_is_no_number_is_refused(clip_bound, message):
    with pytest.raises(ValueError, match=message):
        clip_bounds.of(clip_bound)
    with pytest.raises(ValueError, match="Range takes a function"):
        dpjax.Range(0.5, 1.0)


def test_a_run_prints_its_statement_and_its_summary():
    """Of 5000 components the first, in their order."""
    rng = np.random.default_rng(0)
    positions = {"b": np.full((2, 50), 3.5), "a": rng.normal(size=(2, 50, 100, 50))}
    printed = repr(Run(positions, None, STATEMENT)).splitlines()
    assert "\n".join(printed).startswith(str(STATEMENT))
    table = printed[len(str(STATEMENT).splitlines()) :]
    assert table[0].split()[:2] == ["mean", "sd"] and "r_hat" in table[0]
    assert table[1].split()[:2] == ["b", "3.500"]
    assert table[2].startswith("a[0, 0] ") and table[20].startswith("a[0, 18] ")
    assert table[21] == "... and 4981 more components"
    assert len(table) == 23 and table[22].startswith("mixing: R-hat")
    known = Known(0.2, 2, True, FitCheck(1.0, 0.1), 0.3)
    fit = Fit(np.zeros((1, 1, 1)), None, STATEMENT, known=known)
    assert repr(fit).splitlines()[-1] == str(known)


def test_many_groups_do_not_hide_a_coefficient():
    """In the print of a run and in its pictures; if all have room, none is moved."""
    for num_groups, is_moved in ((30, True), (5, False)):
        groups, slope = np.zeros((2, 50, num_groups)), np.zeros((2, 50))
        run = Run({"group": groups, "slope": slope}, None, STATEMENT)
        table = repr(run).splitlines()[len(str(STATEMENT).splitlines()) :]
        assert table[1].split()[0] == ("slope" if is_moved else "group[0]")
        names = run.components()[0]
        assert names[-1] == "slope"
        assert (_order(names, None)[0] == num_groups) == is_moved
    assert _order(["group[0]", "group[1]", "slope"], ["group[1]"]) == [1, 0, 2]


def test_small_units_show_two_digits():
    draws = np.random.default_rng(0).normal(size=(2, 500, 3)) * [1.0, 1.23e-5, 0.0]
    draws[0, 3, 0] = np.nan
    run = Run(1.0 + draws, None, STATEMENT)
    table = run.summary_of(*run.components())
    assert table["sd"].iloc[1] == round(table["sd"].iloc[1], 6) > 0
    assert 1 - 4e-5 < table["hdi_3%"].iloc[1] < 1 - 1e-5
    assert table["mean"].iloc[2] == 1 and np.isnan(table["mean"].iloc[0])


def test_a_chain_that_is_alone_is_compared_with_itself():
    """Its halves are; the mean is of all draws."""
    draws = np.random.default_rng(0).normal(size=(1, 1001, 2))
    draws[0, 501:, 1] += 1.0
    run = Run(draws, None, STATEMENT)
    with pytest.warns(UserWarning, match="mixing: R-hat up to 1.* have not mixed"):
        table = run.summary()
    assert table["r_hat"].iloc[0] < 1.01 and table["r_hat"].iloc[1] > 1.1
    np.testing.assert_allclose(table["mean"], draws.mean((0, 1)), atol=1e-3)
    assert "r_hat" not in Run(draws[:, :7], None, STATEMENT).summary()


@pytest.mark.parametrize("positions", [{"a": {"b": np.zeros((1, 5, 2))}}, ()])
def test_positions_of_any_form_print(positions):
    assert str(STATEMENT) in repr(Run((positions, np.zeros((1, 5))), None, STATEMENT))


def test_arviz_gets_the_labels_of_indices():
    run = Run({"effects": np.zeros((2, 5, 3))}, None, STATEMENT)
    labels = dict(coords={"ward": ["A", "B", "C"]}, dims={"effects": ["ward"]})
    stored = run.to_arviz(**labels).posterior
    assert stored["effects"].dims == ("chain", "draw", "ward")
    assert list(stored["ward"].values) == ["A", "B", "C"]


def test_a_narrow_terminal_cuts_no_column():
    run = Run(np.random.default_rng(0).normal(size=(2, 500, 3)), None, STATEMENT)
    with pandas.option_context("display.width", 20, "display.max_columns", 2):
        printed = repr(run).splitlines()
    table = printed[-4:]
    assert table[0].split()[-1] == "r_hat" and max(map(len, table)) < 80
