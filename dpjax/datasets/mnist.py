"""MNIST: found or downloaded, and features of an image that read no other image.

A feature map fitted to the images, such as principal components, would be a release
that epsilon does not cover: replacing one image moves it. The projection here is on
cosines, which are public.

References
----------
LeCun, Cortes and Burges, The MNIST database of handwritten digits, CC BY-SA 3.0.
Zhang and Zhang (2023), DP-Fast Metropolis-Hastings, section 6.1 (7 against 9).
"""

import io
import zipfile

import numpy as np
from scipy.fft import dctn
from sklearn.decomposition import PCA

from dpjax.datasets import files

__all__ = ["cosine_features", "load_mnist", "published_features"]

_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
_NAMES = "x_train", "y_train", "x_test", "y_test"
_SHA256 = "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"
SMALLEST_NORM = 6.0


def load_mnist(digits=tuple(range(10))) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images and labels of the chosen digits, in the published order.

    Looks for ``mnist.npz`` in ``$DPJAX_DATA``, then in the user's cache, then downloads
    Keras's copy into the cache.

    Parameters
    ----------
    digits
        Labels of the images kept.

    Returns
    -------
    dict
        ``{"train": (images, labels), "test": (images, labels)}``, uint8 of shapes
        ``(n, 28, 28)`` and ``(n,)``.

    Raises
    ------
    FileNotFoundError
        If the file is nowhere and cannot be downloaded.
    RuntimeError
        If a file found or downloaded does not hold the published images.
    """
    for folder in files.folders():
        path = folder / "mnist.npz"
        if path.is_file():
            content, source = path.read_bytes(), path
            break
    else:
        content, source = files.download(_URL, "mnist.npz"), _URL
    try:
        with np.load(io.BytesIO(content)) as file:
            arrays = {name: file[name] for name in _NAMES}
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise RuntimeError(f"{source} cannot be read: {error}") from error
    files.check(b"".join(arrays[name].tobytes() for name in _NAMES), _SHA256, source)
    if source is _URL:
        files.store("mnist.npz", content)
    splits = {}
    for split in ("train", "test"):
        images, labels = arrays[f"x_{split}"], arrays[f"y_{split}"]
        kept = np.isin(labels, digits)
        splits[split] = images[kept], labels[kept]
    return splits


def cosine_features(images, num_features=50) -> np.ndarray:
    """Low-frequency cosine coefficients, divided by ``max(6, their norm)``.

    Parameters
    ----------
    images
        uint8 ``(n, 28, 28)``.
    num_features
        Coefficients kept, those of the smallest squared frequency, the mean grey first.

    Returns
    -------
    Array
        float32 ``(n, num_features)``, rows of norm at most 1.

    Notes
    -----
    *Formal guarantees.* A row depends on its own image only, so replacing one record
    replaces one row of norm at most 1. Nothing is fitted.
    """
    coefficients = dctn(np.asarray(images) / 255.0, axes=(1, 2), norm="ortho")
    vertical, horizontal = np.indices(coefficients.shape[1:])
    order = np.argsort((vertical**2 + horizontal**2).ravel(), kind="stable")
    features = coefficients.reshape(len(coefficients), -1)[:, order[:num_features]]
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    # The last factor outweighs the rounding to float32: norms stay at most 1.
    features /= np.maximum(SMALLEST_NORM, norms) * (1 + 2.0**-22)
    return features.astype(np.float32)


def published_features(train_images, images, num_features=50) -> np.ndarray:
    """The paper's features: principal components of the training images.

    Parameters
    ----------
    train_images, images
        uint8 ``(n, 28, 28)`` each: what the components are fitted to, and what is
        projected.
    num_features
        Components kept.

    Returns
    -------
    Array
        float32 ``(n, num_features)``, of any norm.

    Notes
    -----
    *Formal guarantees.* None: mean and components depend on every training image and
    are not charged by any accountant here.
    """
    flat = [np.reshape(x, (len(x), -1)) / 255.0 for x in (train_images, images)]
    # The full decomposition is deterministic.
    fitted = PCA(num_features, svd_solver="full").fit(flat[0])
    return fitted.transform(flat[1]).astype(np.float32)
