"""The SVHN data set, cropped digits of house numbers: read locally or downloaded.

Reference: Netzer, Wang, Coates, Bissacco, Wu and Ng 2011, for non-commercial use.
"""

import io

import numpy as np
from scipy.io import loadmat

from dpjax.datasets import files

__all__ = ["load_svhn"]

_URL = "http://ufldl.stanford.edu/housenumbers"
_SHA256 = {
    "train": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "extra": "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
    "test": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}


def load_svhn() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images and labels, in the published order.

    The function looks for ``train_32x32.mat``, ``extra_32x32.mat`` (1.3 GB) and
    ``test_32x32.mat`` in ``$DPJAX_DATA`` and then in the user's cache. If it does not
    find a file, it downloads it into the cache.

    Returns
    -------
    dict
        ``{"train": (images, labels), "test": (images, labels)}``, uint8 of shapes
        ``(n, 32, 32, 3)`` and ``(n,)``. The 604 388 training images are those of
        ``train``, then those of ``extra``.

    Raises
    ------
    FileNotFoundError
        If a file is not found and cannot be downloaded.
    RuntimeError
        If a file found or downloaded is not the published one.
    """
    (images, labels), (more_images, more_labels) = _load("train"), _load("extra")
    train = np.concatenate([images, more_images]), np.concatenate([labels, more_labels])
    return {"train": train, "test": _load("test")}


def _load(split):
    def parse(content, source):
        files.check(content, _SHA256[split], source)
        arrays = loadmat(io.BytesIO(content))
        # The published label of the digit 0 is 10.
        return np.moveaxis(arrays["X"], -1, 0), arrays["y"].ravel() % 10

    name = f"{split}_32x32.mat"
    return files.load(name, f"{_URL}/{name}", parse)
