import io
import os
from pathlib import Path

import numpy as np
import pytest

from dpjax.datasets import files
from dpjax.datasets.mnist import cosine_features, load_mnist, published_features

FOLDER = Path(os.environ.get("DPJAX_DATA", "."))
needs_mnist = pytest.mark.skipif(
    not (FOLDER / "mnist.npz").is_file(), reason="DPJAX_DATA holds no mnist.npz"
)
IMAGES = np.random.default_rng(0).integers(0, 256, (60, 28, 28), np.uint8)


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dpjax"


@needs_mnist
def test_sevens_and_nines_have_the_published_counts():
    splits = load_mnist((7, 9))
    counts = {split: np.bincount(labels) for split, (_, labels) in splits.items()}
    assert (counts["train"][7], counts["train"][9]) == (6265, 5949)
    assert (counts["test"][7], counts["test"][9]) == (1028, 1009)
    assert splits["train"][0].shape == (12_214, 28, 28)
    assert splits["train"][0].dtype == splits["train"][1].dtype == np.uint8


@needs_mnist
@pytest.mark.skipif(
    not (FOLDER / "mnist_7v9.npz").is_file(), reason="DPJAX_DATA holds no mnist_7v9.npz"
)
def test_sevens_and_nines_are_those_of_the_published_selection():
    splits = load_mnist((7, 9))
    with np.load(FOLDER / "mnist_7v9.npz") as published:
        for split, (images, labels) in splits.items():
            np.testing.assert_array_equal(
                images.reshape(len(images), -1),
                published[f"x_{split}"].reshape(len(images), -1),
            )
            np.testing.assert_array_equal(labels, published[f"y_{split}"])


@needs_mnist
def test_downloads_once(nowhere, monkeypatch):
    content = (FOLDER / "mnist.npz").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(
            files.urllib.request,
            "urlopen",
            lambda *args, **kwargs: io.BytesIO(content),
        )
        load_mnist()
    monkeypatch.setattr(files.urllib.request, "urlopen", refuse)
    assert load_mnist((3,))["train"][1].size == 6131
    assert [path.name for path in nowhere.iterdir()] == ["mnist.npz"]


def refuse(*args, **kwargs):
    raise OSError("no network")


def test_absent_data_is_one_clear_error(nowhere, monkeypatch):
    monkeypatch.setattr(files.urllib.request, "urlopen", refuse)
    with pytest.raises(FileNotFoundError, match="no network"):
        load_mnist()


def test_altered_data_is_refused_and_not_kept(nowhere, monkeypatch):
    altered = io.BytesIO()
    np.savez(altered, x_train=IMAGES, y_train=[0], x_test=IMAGES, y_test=[0])
    for content in (altered.getvalue(), b"no archive"):
        monkeypatch.setattr(
            files.urllib.request,
            "urlopen",
            lambda *args, content=content, **kwargs: io.BytesIO(content),
        )
        with pytest.raises(RuntimeError, match=r"SHA-256|cannot be read"):
            load_mnist()
    assert not nowhere.exists()


def test_a_row_depends_on_its_image_and_has_norm_at_most_one():
    images = np.concatenate([IMAGES, np.full((1, 28, 28), 255), np.zeros((1, 28, 28))])
    features = cosine_features(images)
    assert features.shape == (62, 50) and features.dtype == np.float32
    assert np.linalg.norm(features.astype(float), axis=1).max() <= 1
    for i in (0, 7, 60, 61):
        np.testing.assert_array_equal(
            cosine_features(images[i : i + 1])[0], features[i]
        )
    assert not features[61].any()


def test_features_are_coefficients_of_cosines():
    x = (np.arange(28) + 0.5) / 28
    wave = np.cos(np.pi * x)[:, None] * np.cos(2 * np.pi * x)[None, :]
    image = np.round(100 + 60 * wave).astype(np.uint8)
    features = cosine_features(image[None])[0]
    # Squared frequencies in order: 0, 1, 1, 2, 4, 4, 5, 5; (1, 2) is the first 5.
    assert set(np.flatnonzero(abs(features) > 0.01)) == {0, 6}
    assert features[6] / features[0] == pytest.approx(60 / 100 / 2, rel=0.02)


def test_published_features_are_centred_and_uncorrelated():
    features = published_features(IMAGES, IMAGES, 5).astype(float)
    covariance = np.cov(features.T)
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-4)
    assert np.all(np.diff(np.diag(covariance)) < 0)
