"""A report stands alone, says what was released, and is right for many parameters."""

import re

import numpy as np
import pytest

from dpjax import report
from dpjax.fit.fit_check import FitCheck
from dpjax.fit.score_draws import Known
from dpjax.report.pictures import pictures
from dpjax.runner.results import Fit, Run
from dpjax.runner.run import SEEDED
from dpjax.runner.statement import PrivacyStatement

STATEMENT = PrivacyStatement(1.5, 1e-6, 0.5, "REPLACE_ONE", 2, 50, "bits", "rdp")
KNOWN = Known(0.2, 0.85, 0.1, 0.05, 3, 1e3, 1e3, FitCheck(1.01, 0.02), 0.3, True, False)


def draws(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_a_report_needs_no_other_file(tmp_path):
    """It depends on the run alone, here that of a fit, and on its prior."""
    run = Fit(
        {"slope": draws(2, 50), "<b>": draws(2, 50)},
        None,
        STATEMENT,
        configuration={"model": {"formula": "y ~ a & b"}},
        known=KNOWN,
    )
    prior = {"slope": draws(1, 90), "<b>": draws(1, 90)}
    path = report.write(run, tmp_path, title="Clinics & wards", prior=prior)
    text = path.read_text()
    names = {"densities", "pairs", "prior", "width"}
    files = {file.name for file in tmp_path.iterdir()}
    assert files == {"report.html", *(f"{name}.png" for name in names)}
    assert text.count("<img") == text.count('src="data:image/png;base64,') == len(names)
    plain = re.sub(r"base64,[^\"]*", "", text)
    for outside in ("http", "<script", "<link", "@import", "url(", "<b>"):
        assert outside not in plain
    for inside in ("Clinics &amp; wards", "&lt;b&gt;", "y ~ a &amp; b", "numpyro 0."):
        assert inside in plain
    for check in run.checks():
        assert check.is_fine and check.name.replace("'", "&#x27;") in plain
    assert "5% of the variance" in plain and "r_hat" not in plain
    before = path.read_bytes()
    assert report.write(run, tmp_path, title="Clinics & wards", prior=prior) == path
    assert path.read_bytes() == before


@pytest.mark.thorough
def test_pictures_of_many_parameters_say_what_they_leave_out():
    run = Run({"b": draws(100, 30, 100)}, None, STATEMENT)
    found = pictures(run, prior={"b": draws(1, 50, 100)}, shown=["b[70]", "b[3]"])
    assert set(found) == {"densities", "ranks", "pairs", "prior"}
    titles = [axes.get_title() for axes in found["densities"].axes]
    assert titles[:4] == ["b[70]", "b[3]", "b[0]", "b[1]"] and len(titles) == 12
    for name, count in (("densities", 12), ("ranks", 12), ("pairs", 5)):
        said = found[name].get_supxlabel()
        assert said == f"{count} of 100 parameters; the others are left out"
    assert "30 of 100" in found["prior"].axes[0].get_title()
    with pytest.raises(ValueError, match="no component 'c'"):
        pictures(run, shown=["c"])


def test_the_statement_in_words_is_that_of_its_numbers():
    """The odds of a guess are those of the two laws that are furthest apart."""
    words = STATEMENT._replace(epsilon=np.log(3.0), delta=0.2).in_words()
    # The laws (.2, .6, .2, 0) and (0, .2, .6, .2): nearly .8 = (3 + .2) / 4.
    first, second = np.array([0.2, 0.6, 0.2, 0.0]), np.array([0.0, 0.2, 0.6, 0.2])
    best = np.sum(np.maximum(first, second)) / 2
    assert best == pytest.approx(0.8) and "at most 80.0%" in words
    assert "one record is replaced" in words
    relation = STATEMENT._replace(neighboring_relation="REPLACE_SPECIAL")
    assert "replaced by a blank" in relation.in_words()
    relation = STATEMENT._replace(neighboring_relation="ADD_OR_REMOVE_ONE")
    assert "added or removed" in relation.in_words()
    assert "not private" in PrivacyStatement.none(2, 50).in_words()
    assert "together" not in STATEMENT.in_words()
    assert "the key" not in STATEMENT.in_words()
    seeded = STATEMENT._replace(randomness=SEEDED).in_words()
    assert "towards somebody who knows the key" in seeded
    assert "together" not in STATEMENT._replace(epsilon_of_ledger=1.5).in_words()
    together = STATEMENT._replace(epsilon_of_ledger=2.0).in_words()
    assert "ledger are together (2, 1e-06) differentially private" in together


def test_a_comparison_shows_how_far_two_runs_are_apart():
    one, two = draws(2, 50), 3.0 + 2.0 * draws(2, 50)
    first = Run({"a": one, "only": one}, None, STATEMENT)
    second = Run({"a": two}, None, STATEMENT._replace(epsilon=8.0))
    table = report.compare(first, second)
    assert list(table.index) == ["a"]
    row = table.loc["a"]
    assert row["ratio of sds"] == pytest.approx(2.0)
    scale = np.sqrt((np.var(one, ddof=1) + np.var(two, ddof=1)) / 2)
    apart = (two.mean() - one.mean()) / scale
    assert row["difference (sds)"] == pytest.approx(apart)
    assert "epsilon = 1.5" in table.attrs["run 1"]
    assert "epsilon = 8" in table.attrs["run 2"]
    with pytest.raises(ValueError, match="share no parameter"):
        report.compare(first, Run({"b": one}, None, STATEMENT))
