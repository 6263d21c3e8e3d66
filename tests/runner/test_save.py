"""What a run writes is what `dpjax.load` reads."""

import importlib.metadata
import json

import arviz
import jax
import numpy as np
import pytest

import dpjax
from dpjax.ep.dp_em import DPEMInfo, Mixture
from dpjax.fit.fit_check import FitCheck
from dpjax.fit.names import names_of
from dpjax.fit.score_draws import Known
from dpjax.runner.results import Fit, Run
from dpjax.runner.statement import PrivacyStatement

STATEMENT = PrivacyStatement(1.5, 1e-6, 0.5, "REPLACE_ONE", 2, 50, "bits", "rdp")
RNG = np.random.default_rng(0)
SITES = {
    "slopes": RNG.normal(size=(2, 50, 3)).astype(np.float32),
    "clinic/sd": RNG.normal(size=(2, 50)),
    "is_large": np.arange(100).reshape(2, 50) % 2 == 0,
}
KNOWN = Known(0.2, 0.9, 0.05, 0.05, 3, 1e3, 1e3, FitCheck(1.01, 0.02), 0.3, True, False)


def same(found, expected):
    assert type(found) is type(expected)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def test_a_fit_comes_back_as_it_was_saved(tmp_path):
    """Its sites in their order, and all that its draws follow from."""
    released = DPEMInfo(Mixture(*(RNG.normal(size=s) for s in ((3, 2), 3, ()))))
    run = Fit(SITES, None, STATEMENT, released=released, known=KNOWN)
    run.save(tmp_path / "fit.nc")
    found = dpjax.load(tmp_path / "fit.nc")
    assert type(found) is Fit and list(found.positions) == list(SITES)
    for name in ("positions", "acceptance_rate", "infos", "released"):
        same(getattr(found, name), getattr(run, name))
    assert (found.statement, found.known) == (STATEMENT, KNOWN)
    assert repr(found) == repr(run) and str(KNOWN) in repr(run)
    assert list(found.summary()) == ["mean", "sd", "hdi_3%", "hdi_97%"]


def test_a_run_comes_back_from_its_folder(tmp_path):
    """With its names, its configuration and its versions."""
    draws = RNG.normal(size=(2, 50, 2))
    run = Run(
        draws,
        np.full((2, 50), 0.25),
        STATEMENT._replace(epsilon=np.inf),
        component_names=["age", "sex"],
        configuration={"run": {"num_chains": 2}, "more": "x" * 100_000},
        versions={"dpjax": "0.0"},
    )
    run.save(tmp_path / "draws.nc")
    found = dpjax.load(tmp_path)
    same(found.positions, draws)
    same(found.acceptance_rate, run.acceptance_rate)
    for name in ("statement", "component_names", "configuration", "versions", "infos"):
        assert getattr(found, name) == getattr(run, name)
    assert repr(found) == repr(run)
    stored = arviz.from_netcdf(tmp_path / "draws.nc")
    assert stored.attrs["epsilon"] == np.inf
    assert stored.posterior["component"].values.tolist() == ["age", "sex"]
    assert json.loads(stored.attrs["versions"]) == {"dpjax": "0.0"}
    version = importlib.metadata.version("jax")
    assert Run(draws, None, STATEMENT).versions["jax"] == version


def test_names_are_kept_whatever_the_positions_are(tmp_path):
    """They are those of a plan, also after a run was saved."""
    draws = RNG.normal(size=(2, 50, 2))
    for positions, names in (
        ({"position": draws}, ["position[0]", "position[1]"]),
        ({"a": {"b": draws[..., 0]}, "c": draws}, ["a.b", "c[0]", "c[1]"]),
        ((draws[..., 0], draws), ["position[0]", "position[1][0]", "position[1][1]"]),
    ):
        run = Run(positions, None, STATEMENT)
        run.save(tmp_path / "draws.nc")
        found = dpjax.load(tmp_path / "draws.nc")
        assert run.components()[0] == names == found.components()[0]
        assert names_of(jax.tree.map(lambda leaf: leaf[0, 0], positions)) == names
        assert isinstance(found.positions, dict)


def test_sites_that_differ_by_a_slash_are_kept_apart(tmp_path):
    """In positions and in infos, whichever comes first."""
    one, other = RNG.normal(size=(2, 2, 50))
    for sites in ({"a/b": one, "a.b": other}, {"a.b": other, "a/b": one}):
        run = Run(sites, None, STATEMENT, DPEMInfo(sites))
        assert set(run.to_arviz().posterior) == {"a.b", "a.b_"}
        run.save(tmp_path / "draws.nc")
        found = dpjax.load(tmp_path / "draws.nc")
        same(found.positions, sites)
        same(found.infos, run.infos)


def test_a_data_frame_has_a_column_for_every_component():
    frame = Run(SITES, None, STATEMENT).to_dataframe()
    names = ["slopes[0]", "slopes[1]", "slopes[2]", "clinic/sd", "is_large"]
    assert list(frame) == names and frame.index.names == ["chain", "draw"]
    assert len(frame) == 100
    assert frame.loc[(1, 7), "slopes[2]"] == SITES["slopes"][1, 7, 2]
    assert Run(SITES, None, STATEMENT).components()[0] == names


def test_other_files_are_refused(tmp_path):
    arviz.from_dict({"x": np.zeros((2, 5))}).to_netcdf(str(tmp_path / "x.nc"))
    with pytest.raises(ValueError, match="holds no run"):
        dpjax.load(tmp_path / "x.nc")
    with pytest.raises(FileNotFoundError):
        dpjax.load(tmp_path)


def test_a_file_cannot_call_a_function(tmp_path):
    """Only a tuple's class is made of what a file says."""
    run = Run(SITES, None, STATEMENT, DPEMInfo(np.zeros((2, 50))))
    stored = run.to_arviz()
    stored.attrs["infos"] = stored.attrs["infos"].replace(
        "dpjax.ep.dp_em:DPEMInfo", "dpjax.runner.files:sync"
    )
    stored.to_netcdf(str(tmp_path / "x.nc"))
    assert set(dpjax.load(tmp_path / "x.nc").infos) == {"parameters"}
