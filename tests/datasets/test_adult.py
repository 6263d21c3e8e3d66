import gzip
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dpjax.datasets import files
from dpjax.datasets.adult import adult_features, load_adult

NAMES = ("adult_train.csv.gz", "adult_test.csv.gz")
FOLDER = Path(os.environ.get("DPJAX_DATA", "."))
needs_adult = pytest.mark.skipif(
    not all((FOLDER / name).is_file() for name in NAMES),
    reason="DPJAX_DATA holds no adult_train.csv.gz and adult_test.csv.gz",
)


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dpjax"


def record(**changes):
    row = {
        "age": 39, "workclass": "Private", "fnlwgt": 1, "education": "Bachelors",
        "education-num": 13, "marital-status": "Divorced", "occupation": "Sales",
        "relationship": "Wife", "race": "White", "sex": "Female", "capital-gain": 0,
        "capital-loss": 0, "hours-per-week": 40, "native-country": "Cuba",
        "income": ">50K",
    }  # fmt: skip
    return {name: np.array([value]) for name, value in (row | changes).items()}


@needs_adult
@pytest.mark.parametrize("columns", ["all", "compact"])
def test_rows_are_encoded_alone_and_have_norm_at_most_one(columns):
    raw = load_adult()["train"]
    features, labels, names = adult_features(raw, columns)
    assert features.shape == (32_561, len(names))
    assert features.dtype == labels.dtype == np.float32
    assert labels.sum() == 7841
    assert np.linalg.norm(features.astype(np.float64), axis=1).max() <= 1
    for i in np.random.default_rng(0).integers(0, len(labels), 30):
        alone = {name: column[i : i + 1] for name, column in raw.items()}
        np.testing.assert_array_equal(adult_features(alone, columns)[0][0], features[i])


@needs_adult
def test_load_gives_the_published_counts():
    raw = load_adult()
    assert {split: len(columns["age"]) for split, columns in raw.items()} == {
        "train": 32_561,
        "test": 16_281,
    }
    assert (raw["test"]["income"] == ">50K").sum() == 3846


@pytest.mark.thorough
@needs_adult
def test_downloads_and_converts_the_originals(nowhere, monkeypatch):
    expected = load_from(FOLDER, monkeypatch)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, member, first, stop in (
            (NAMES[0], "adult.data", "", ""),
            (NAMES[1], "adult.test", "|1x3 Cross validator\n", "."),
        ):
            rows = gzip.decompress((FOLDER / name).read_bytes()).decode().splitlines()
            lines = [", ".join(row.split(",")) + stop + "\n" for row in rows[1:]]
            file.writestr(member, first + "".join(lines) + "\n")
    monkeypatch.delenv("DPJAX_DATA")
    with monkeypatch.context() as patch:
        patch.setattr(
            files.urllib.request,
            "urlopen",
            lambda *args, **kwargs: io.BytesIO(archive.getvalue()),
        )
        load_adult()
    monkeypatch.setattr(files.urllib.request, "urlopen", refuse)
    cached = load_adult()
    assert sorted(path.name for path in nowhere.iterdir()) == sorted(NAMES)
    for split, columns in expected.items():
        for name, column in columns.items():
            np.testing.assert_array_equal(cached[split][name], column)


def load_from(folder, monkeypatch):
    monkeypatch.setenv("DPJAX_DATA", str(folder))
    return load_adult()


def refuse(*args, **kwargs):
    raise OSError("no network")


def test_absent_data_is_one_clear_error(nowhere, monkeypatch):
    monkeypatch.setattr(files.urllib.request, "urlopen", refuse)
    with pytest.raises(FileNotFoundError, match="no network"):
        load_adult()


def test_altered_data_is_refused(nowhere):
    nowhere.mkdir()
    for name in NAMES:
        (nowhere / name).write_bytes(gzip.compress(b"age\n1\n"))
    with pytest.raises(RuntimeError, match="SHA-256"):
        load_adult()


@pytest.mark.parametrize("columns", ["all", "compact"])
def test_no_record_has_a_norm_above_one(columns):
    extreme = record(
        **{
            "age": 10**6, "education-num": -(10**6), "hours-per-week": 10**6,
            "capital-gain": 10**9, "capital-loss": 10**9,
            "marital-status": "Married-civ-spouse", "occupation": "Exec-managerial",
        }
    )  # fmt: skip
    for row in (extreme, record(workclass="?", sex="never heard of")):
        features, _, _ = adult_features(row, columns)
        assert np.all(np.isfinite(features))
        assert np.linalg.norm(features[0].astype(np.float64)) <= 1


def test_encoding_of_one_record():
    features, labels, names = adult_features(record(), "compact")
    found = dict(zip(names, features[0] / features[0, 0], strict=True))
    assert labels.tolist() == [1]
    expected = {
        "intercept": 1, "age": -6 / 28, "age-squared": (6 / 28) ** 2,
        "education-num": 0.5, "hours-per-week": 0, "capital-gain>5000": 0,
        "capital-loss>1500": 0, "married": -1, "occupation-rank": 0,
    }  # fmt: skip
    assert found == pytest.approx(expected, abs=1e-6)
    features, _, names = adult_features(record(sex="?"), "all")
    found = dict(zip(names, features[0], strict=True))
    assert found["sex=Male"] == found["sex=Female"] == 0
    assert found["native-country=Cuba"] == found["intercept"] > 0
    assert len(names) == 108


def test_unknown_columns_are_refused():
    with pytest.raises(ValueError, match="columns"):
        adult_features(record(), "some")
