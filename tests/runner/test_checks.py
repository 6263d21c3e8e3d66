"""What is checked of draws, and what is said if it fails."""

import dataclasses

import numpy as np
import pytest

from dpjax.fit.fit_check import FitCheck
from dpjax.fit.score_draws import Known
from dpjax.fit.simulated_draws import Known as SimulatedKnown
from dpjax.runner.checks import of_fit
from dpjax.runner.results import Fit, Run
from dpjax.runner.statement import PrivacyStatement
from dpjax.vi.dpvi import DPVIInfo

STATEMENT = PrivacyStatement(1.5, 1e-6, 0.5, "REPLACE_ONE", 2, 500, "bits", "rdp")
KNOWN = Known(0.2, 0.85, 0.1, 0.05, 3, 1e3, 1e3, FitCheck(1.01, 0.02), 0.3, True, False)


def failing(run):
    return [check.name for check in run.checks() if not check.is_fine]


def test_chains_that_have_not_mixed_are_warned_of():
    """So are draws that are worth few independent ones; both say what to change."""
    mixed = np.random.default_rng(0).normal(size=(2, 500, 1))
    run = Run(mixed, np.full((2, 500), 0.3), STATEMENT)
    assert failing(run) == [] and len(run.summary()) == 1
    assert "mixing" not in repr(run)
    for positions, problem in (
        (mixed + np.array([0.0, 3.0])[:, None, None], "have not mixed"),
        (mixed[:, :90], "fewer than 400 independent"),
    ):
        apart = dataclasses.replace(run, positions=positions)
        assert failing(apart) == ["mixing"]
        assert problem in repr(apart) and "take fewer chains" in repr(apart)
        with pytest.warns(UserWarning, match=problem):
            apart.summary()
    still = Run(np.ones((1, 500, 1)), np.zeros((1, 500)), STATEMENT)
    assert failing(still) == ["acceptance rate"]


@pytest.mark.parametrize(
    ("what", "name", "check"),
    [
        ("noise", "noisiest", "width due to noise"),
        ("prior", "vaguest", "width due to the prior"),
    ],
)
def test_what_draws_know_names_the_component_with_the_largest_share(what, name, check):
    uneven = KNOWN._replace(**{name: "b[2]", f"most_{what}": 0.9})
    mean = f"{getattr(KNOWN, what):.0%}"
    assert f"for {mean} (90% in b[2])" in str(uneven)
    (found,) = (each for each in of_fit(uneven) if each.name == check)
    assert found.value == f"{mean} of the variance (90% in b[2])"
    assert "b[2]" not in str(uneven._replace(**{f"most_{what}": getattr(KNOWN, what)}))


def test_fits_that_differ_are_no_chains_that_have_not_mixed():
    same = np.random.default_rng(0).normal(size=(2, 500, 1))
    infos = DPVIInfo(same, same, None)
    assert failing(Run(same, None, STATEMENT, infos)) == []
    (check,) = Run(same[:1], None, STATEMENT, infos).checks()
    assert check.is_fine and str(check).endswith("as it should be")
    assert check.name == "steadiness of the fit, wherever clipping moved it"
    for positions, remedy in (
        (same + np.array([0.0, 3.0])[:, None, None], "take one fit"),
        (same[:, :90], "smaller thinning"),
    ):
        run = Run(positions, None, STATEMENT, infos)
        assert failing(run) == ["agreement of the fits"]
        assert remedy in repr(run) and "mixed" not in repr(run)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (dict(), None),
        (dict(position_error=1.2), "position error"),
        (dict(noise=0.6), "width due to noise"),
        (dict(prior=0.6), "width due to the prior"),
        (dict(resolution=0.1), "curvature over its noise"),
        (dict(clipped=0.95), "records clipped"),
        (dict(is_near=False), "place of the scores"),
        (dict(r_hat=1.2), "agreement of the chains that draw"),
        (dict(fit_check=FitCheck(1.2, 0.02)), "variation of the records"),
        (dict(fit_check=FitCheck(0.8, 0.02)), "variation of the records"),
        (dict(fit_check=FitCheck(1.2, 0.02), is_robust=True), None),
    ],
)
def test_a_fit_has_checks_of_its_own(changes, name):
    run = Fit(np.ones((2, 90, 1)), None, STATEMENT, known=KNOWN._replace(**changes))
    found = failing(run)
    assert len(found) == (name is not None)
    assert all(each.startswith(name) and each in repr(run) for each in found)
    simulated = SimulatedKnown(0.2, 2, False, FitCheck(1.0, 0.1), 0.3)
    run = dataclasses.replace(run, known=simulated)
    assert failing(run) == ["kind of draws"]
    states = simulated._replace(are_independent=True)
    assert failing(dataclasses.replace(run, known=states)) == []


def test_a_misfit_says_which_way_the_widths_are_off():
    for ratio, direction in ((1.2, "too short"), (0.8, "too long")):
        known = KNOWN._replace(fit_check=FitCheck(ratio, 0.02))
        (check,) = (each for each in of_fit(known) if not each.is_fine)
        assert f"intervals are {direction}" in check.advice


def test_hardly_any_resolution_may_be_that_of_rows_that_were_not_read():
    for likely, is_named in ((0.2, False), (0.02, True)):
        known = KNOWN._replace(resolution=0.1, likely_resolution=likely)
        (check,) = (each for each in of_fit(known) if not each.is_fine)
        assert ("dpjax schema FILE" in check.advice) == is_named
