"""The regression sets on which Bayesian neural networks are compared.

Arrays are those of the published files, unscaled and in their order. `standardize`
scales by ranges that must be known without looking at private records: means and
standard deviations of the data would be releases that epsilon does not cover.

References
----------
UCI Machine Learning Repository: Condition Based Maintenance of Naval Propulsion Plants
(316), Combined Cycle Power Plant (294), Wine Quality (186), Physicochemical Properties
of Protein Tertiary Structure (265), YearPredictionMSD (203), CC BY 4.0; Delve: kin8nm
(OpenML 189).
"""

import io
import zipfile
from typing import NamedTuple

import numpy as np

from dpjax.datasets import files

__all__ = ["NAMES", "load_regression", "standardize"]


class _Original(NamedTuple):
    """Where the published text is, and how it is laid out.

    url, member
        A zip archive and its member; or the text itself and None.
    columns
        Numbers of the features' columns.
    target
        Number of the target's column.
    """

    url: str
    member: str | None
    columns: range
    target: int
    delimiter: str | None = ","
    num_headers: int = 1


_UCI = "https://archive.ics.uci.edu/static/public/"
_ORIGINALS = {
    "naval": _Original(
        _UCI + "316/condition+based+maintenance+of+naval+propulsion+plants.zip",
        "UCI CBM Dataset/data.txt",
        range(16),
        target=16,
        delimiter=None,
        num_headers=0,
    ),
    "kin8nm": _Original(
        "https://www.openml.org/data/get_csv/3626", None, range(8), target=8
    ),
    "power": None,
    "wine_red": _Original(
        _UCI + "186/wine+quality.zip",
        "winequality-red.csv",
        range(11),
        target=11,
        delimiter=";",
    ),
    "protein": _Original(
        _UCI + "265/physicochemical+properties+of+protein+tertiary+structure.zip",
        "CASP.csv",
        range(1, 10),
        target=0,
    ),
    "year": _Original(
        _UCI + "203/yearpredictionmsd.zip",
        "YearPredictionMSD.txt",
        range(1, 91),
        target=0,
        num_headers=0,
    ),
}
# Of the features and then the targets, float64; of year none is published.
_SHA256 = {
    "naval": "b8ffc1b560c386ba06a9924fad7c9afbcbb0a48b740c528890d201f5560bb163",
    "kin8nm": "62724b272be0bfde5e0518c43da7800caae1373d3a39a2ff69890921152b54d5",
    "power": "bbe83d856e3255f5749587de7597a6fa48916bb1dce0865d3dc82d60fedd9d3d",
    "wine_red": "ab3b807dc4b7b8ef574f2dc395e5aada904bd7941c1802f3b3c998738fe53323",
    "protein": "beb10439f37d88e0fc90722caefd6d8b269eb1edb77518bc1440593e2ff10f01",
}
NAMES = tuple(_ORIGINALS)


def load_regression(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets of a set, in the published order.

    Looks for ``{name}.npz`` in ``$DPJAX_DATA``, then in the user's cache, then
    downloads the original into the cache (`power`, a spreadsheet, must be found).

    Parameters
    ----------
    name
        One of `NAMES`.

    Returns
    -------
    Arrays
        float64, ``(n, d)`` and ``(n,)``; the target of `naval` is the compressor's
        decay.

    Raises
    ------
    ValueError
        If there is no such set.
    FileNotFoundError
        If it is nowhere and cannot be downloaded.
    RuntimeError
        If what was found or downloaded are not the published numbers.
    """
    if name not in _ORIGINALS:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    for folder in files.folders():
        source = folder / f"{name}.npz"
        if source.is_file():
            break
    else:
        source = None
    arrays = _download(name) if source is None else _read(source)
    if name in _SHA256:
        content = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        files.check(content, _SHA256[name], source or _ORIGINALS[name].url)
    if source is None:
        stored = io.BytesIO()
        np.savez_compressed(stored, X=arrays[0], y=arrays[1])
        files.store(f"{name}.npz", stored.getvalue())
    return arrays


def standardize(values, ranges) -> np.ndarray:
    """Every column's public range onto [-2, 2]; what lies outside is clipped.

    Parameters
    ----------
    values
        ``(n, d)``, or ``(n,)`` for one range.
    ranges
        (low, high) of every column, ``(d, 2)`` or ``(2,)``.

    Returns
    -------
    Array
        float64, of the shape of `values`.

    Raises
    ------
    ValueError
        If the ranges do not fit the columns or one is empty.

    Notes
    -----
    *Formal guarantees.* A row depends on its own record only, if the ranges are public.
    """
    values, ranges = np.asarray(values, np.float64), np.asarray(ranges, np.float64)
    if ranges.shape != (*values.shape[1:], 2):
        raise ValueError(
            f"ranges must have the shape {(*values.shape[1:], 2)}, got {ranges.shape}"
        )
    low, high = ranges[..., 0], ranges[..., 1]
    if not np.all(low < high):
        raise ValueError(f"every range must be (low, high) with low < high: {ranges}")
    return np.clip(4 * (values - low) / (high - low) - 2, -2, 2)


def _read(path):
    try:
        with np.load(path) as file:
            return file["X"], file["y"]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise RuntimeError(f"{path} cannot be read: {error}") from error


def _download(name):
    original = _ORIGINALS[name]
    if original is None:
        raise FileNotFoundError(
            f"{name}.npz not found in {' or '.join(map(str, files.folders()))}; "
            "put its features X and targets y there"
        )
    content = files.download(original.url, f"{name}.npz")
    try:
        if original.member is not None:
            content = zipfile.ZipFile(io.BytesIO(content)).read(original.member)
        table = np.loadtxt(
            io.StringIO(content.decode()),
            delimiter=original.delimiter,
            skiprows=original.num_headers,
        )
        return table[:, list(original.columns)], table[:, original.target]
    except (KeyError, IndexError, ValueError, zipfile.BadZipFile) as error:
        raise RuntimeError(f"{original.url} cannot be read: {error}") from error
