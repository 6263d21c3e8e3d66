"""The MNIST data set: read from a local file or downloaded, and encoded.

A feature map that is fitted to the images, such as principal components, depends on
every image, so it would be a release that epsilon does not cover. `cosine_features`
encodes each image on its own: it projects the image on cosines, which are public.

References
----------
LeCun, Cortes and Burges, The MNIST database of handwritten digits, CC BY-SA 3.0.
Zhang and Zhang (2023), DP-Fast Metropolis-Hastings, section 6.1 (7 against 9).
"""

import numpy as np
from scipy.fft import dctn

from dpjax.datasets import files

__all__ = ["cosine_features", "load_mnist", "published_features"]

_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
_NAMES = "x_train", "y_train", "x_test", "y_test"
_SHA256 = "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"
MIN_DIVISOR = 6.0
"""Smallest divisor of a row of cosine features. A row whose norm is larger than this is
divided by its norm."""


def load_mnist(digits=tuple(range(10))) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images and labels of the chosen digits, in the published order.

    The function looks for ``mnist.npz`` in ``$DPJAX_DATA`` and then in the user's
    cache. If it finds none, it downloads Keras's copy into the cache.

    Parameters
    ----------
    digits
        The digits whose images are kept.

    Returns
    -------
    dict
        ``{"train": (images, labels), "test": (images, labels)}``, uint8 of shapes
        ``(n, 28, 28)`` and ``(n,)``.

    Raises
    ------
    FileNotFoundError
        If the file is not found and cannot be downloaded.
    RuntimeError
        If a file found or downloaded does not hold the published images.
    """
    x_train, y_train, x_test, y_test = files.load(
        "mnist.npz",
        _URL,
        lambda content, source: files.arrays(content, source, _NAMES, _SHA256),
    )
    kept, kept_test = np.isin(y_train, digits), np.isin(y_test, digits)
    return {
        "train": (x_train[kept], y_train[kept]),
        "test": (x_test[kept_test], y_test[kept_test]),
    }


def cosine_features(images, num_features=50) -> np.ndarray:
    """Low-frequency cosine coefficients, divided by ``max(6, their norm)``.

    Parameters
    ----------
    images
        uint8 ``(n, 28, 28)``.
    num_features
        Number of coefficients that are kept. They are ordered by squared frequency, and
        the first ones are kept. The very first is proportional to the mean grey.

    Returns
    -------
    Array
        float32 ``(n, num_features)``, with rows of norm at most 1.

    Notes
    -----
    *Formal guarantees.* A row depends on its own image only, so replacing one record
    replaces one row of norm at most 1. Nothing is fitted.
    """
    coefficients = np.asarray(dctn(np.asarray(images) / 255, axes=(1, 2), norm="ortho"))
    vertical, horizontal = np.indices(coefficients.shape[1:])
    order = np.argsort((vertical**2 + horizontal**2).ravel(), kind="stable")
    features = coefficients.reshape(len(coefficients), -1)[:, order[:num_features]]
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    # The last factor exceeds the error of rounding to float32, so norms stay at most 1.
    features /= np.maximum(MIN_DIVISOR, norms) * (1 + 2.0**-22)
    return features.astype(np.float32)


def published_features(train_images, images, num_features=50) -> np.ndarray:
    """The paper's features: principal components of the training images.

    Parameters
    ----------
    train_images, images
        uint8 ``(n, 28, 28)`` each. The components are fitted to the first, and the
        second is projected on them.
    num_features
        Number of components that are kept.

    Returns
    -------
    Array
        float32 ``(n, num_features)``. Rows are not scaled.

    Notes
    -----
    *Formal guarantees.* None: mean and components depend on every training image and
    are not charged by any accountant here.
    """
    # scikit-learn takes a second to import.
    from sklearn.decomposition import PCA

    flat = [np.reshape(x, (len(x), -1)) / 255.0 for x in (train_images, images)]
    # The full solver is deterministic; the default one is random for large inputs.
    fitted = PCA(num_features, svd_solver="full").fit(flat[0])
    return fitted.transform(flat[1]).astype(np.float32)
