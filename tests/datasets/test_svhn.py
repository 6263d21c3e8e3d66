import hashlib

import numpy as np
import pytest
from scipy.io import savemat

from dpjax.datasets import svhn


def test_files_are_read_joined_and_checked(monkeypatch, tmp_path):
    """The published files have the image axis last, and the label 10 for zeros."""
    rng = np.random.default_rng(0)
    images, hashes = {}, {}
    for split, labels in (("train", [10, 3]), ("extra", [7]), ("test", [9, 10])):
        images[split] = rng.integers(0, 256, (32, 32, 3, len(labels)), np.uint8)
        path = tmp_path / f"{split}_32x32.mat"
        column = np.array(labels, np.uint8)[:, None]
        savemat(path, {"X": images[split], "y": column})
        hashes[split] = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setenv("DPJAX_DATA", str(tmp_path))
    monkeypatch.setattr(svhn, "_SHA256", hashes)
    splits = svhn.load_svhn()
    assert splits["train"][1].tolist() == [0, 3, 7]
    assert splits["test"][1].tolist() == [9, 0]
    assert splits["train"][0].shape == (3, 32, 32, 3)
    assert splits["train"][0].dtype == splits["train"][1].dtype == np.uint8
    np.testing.assert_array_equal(splits["train"][0][2], images["extra"][..., 0])
    monkeypatch.setitem(hashes, "extra", "0" * 64)
    with pytest.raises(RuntimeError, match="not the published file"):
        svhn.load_svhn()
