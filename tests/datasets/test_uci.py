"""Regression sets: the published numbers, downloads, and public scaling."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dpjax.datasets import files
from dpjax.datasets.uci import NAMES, load_regression, standardize

FOLDER = Path(os.environ.get("DPJAX_DATA", "."))
needs_wine = pytest.mark.skipif(
    not (FOLDER / "wine_red.npz").is_file(), reason="DPJAX_DATA holds no wine_red.npz"
)
SHAPES = {
    "naval": (11_934, 16),
    "kin8nm": (8_192, 8),
    "power": (9_568, 4),
    "wine_red": (1_599, 11),
    "protein": (45_730, 9),
}


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dpjax"


def refuse(*args, **kwargs):
    raise OSError("no network")


@needs_wine
@pytest.mark.parametrize("name", SHAPES)
def test_sets_are_the_published_ones(name):
    features, targets = load_regression(name)
    assert features.shape == SHAPES[name] and targets.shape == SHAPES[name][:1]
    assert features.dtype == targets.dtype == np.float64


@needs_wine
def test_originals_are_downloaded_once(nowhere, monkeypatch):
    with np.load(FOLDER / "wine_red.npz") as file:
        features, targets = file["X"], file["y"]
    lines = [";".join(map(repr, row)) for row in np.c_[features, targets].tolist()]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("winequality-red.csv", "\n".join(["names", *lines]))
    opened = []

    def respond(url, timeout):
        opened.append(url)
        return io.BytesIO(archive.getvalue())

    monkeypatch.setattr(files.urllib.request, "urlopen", respond)
    for _ in range(2):
        found = load_regression("wine_red")
        assert np.array_equal(found[0], features)
        assert np.array_equal(found[1], targets)
    assert len(opened) == 1 and "wine" in opened[0]


def test_other_numbers_are_refused(nowhere, monkeypatch):
    nowhere.mkdir()
    np.savez(nowhere / "power.npz", X=np.zeros((3, 4)), y=np.zeros(3))
    with pytest.raises(RuntimeError, match="not the published file"):
        load_regression("power")
    (nowhere / "power.npz").write_bytes(b"PK")
    with pytest.raises(RuntimeError, match="cannot be read"):
        load_regression("power")
    monkeypatch.setattr(
        files.urllib.request, "urlopen", lambda *a, **k: io.BytesIO(b"<html>\n<p>")
    )
    for name in ("naval", "kin8nm"):
        with pytest.raises(RuntimeError, match="cannot be read"):
            load_regression(name)
    assert [path.name for path in nowhere.iterdir()] == ["power.npz"]


@pytest.mark.parametrize("name", NAMES)
def test_absent_sets_are_one_clear_error(nowhere, monkeypatch, name):
    monkeypatch.setattr(files.urllib.request, "urlopen", refuse)
    with pytest.raises(FileNotFoundError, match=f"{name}.npz not found"):
        load_regression(name)


def test_unknown_sets_are_refused():
    with pytest.raises(ValueError, match="one of naval"):
        load_regression("boston")


def test_ranges_go_to_minus_two_and_two():
    values = np.array([[0.0, 10.0], [5.0, 20.0], [20.0, 15.0]])
    found = standardize(values, [(0, 10), (10, 20)])
    assert np.array_equal(found, [[-2, -2], [0, 2], [2, 0]])
    assert np.array_equal(standardize(values[:, 0], (0, 10)), [-2, 0, 2])
    with pytest.raises(ValueError, match="shape"):
        standardize(values, [(0, 10)])
    with pytest.raises(ValueError, match="low < high"):
        standardize(values, [(0, 10), (3, 3)])
