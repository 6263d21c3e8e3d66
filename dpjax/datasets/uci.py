"""The regression data sets on which Bayesian neural networks are compared.

The arrays are those of the published files, unscaled and in the published order.
`standardize` scales columns by ranges that must be known without looking at private
records: the means and standard deviations of the data would be releases that epsilon
does not cover.

References
----------
UCI Machine Learning Repository: Condition Based Maintenance of Naval Propulsion Plants
(316), Combined Cycle Power Plant (294), Wine Quality (186), Physicochemical Properties
of Protein Tertiary Structure (265), YearPredictionMSD (203), CC BY 4.0; Delve: kin8nm
(OpenML 189).
"""

import functools
import io
import zipfile
from typing import NamedTuple

import numpy as np

from dpjax.datasets import files

__all__ = ["NAMES", "load_regression", "standardize"]


class _Original(NamedTuple):
    """Where the published text of a data set is, and how it is laid out.

    url
        Address of a zip archive or of the text itself; None if the original is not a
        text.
    member
        Name of the text in the zip archive; None if there is no archive.
    columns
        Indices of the columns that are features.
    target
        Index of the column that is the target.
    delimiter
        Text between two columns; None for white space.
    num_headers
        Number of lines before the first record.
    """

    url: str | None
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
        16,
        delimiter=None,
        num_headers=0,
    ),
    "kin8nm": _Original("https://www.openml.org/data/get_csv/3626", None, range(8), 8),
    # The original of this one is a spreadsheet.
    "power": _Original(None, None, range(4), 4),
    "wine_red": _Original(
        _UCI + "186/wine+quality.zip", "winequality-red.csv", range(11), 11, ";"
    ),
    "protein": _Original(
        _UCI + "265/physicochemical+properties+of+protein+tertiary+structure.zip",
        "CASP.csv",
        range(1, 10),
        0,
    ),
    "year": _Original(
        _UCI + "203/yearpredictionmsd.zip",
        "YearPredictionMSD.txt",
        range(1, 91),
        0,
        num_headers=0,
    ),
}
# SHA-256 of the bytes of the features followed by those of the targets, both float64.
# None is published for `year`, so its numbers are not checked.
_SHA256 = {
    "naval": "b8ffc1b560c386ba06a9924fad7c9afbcbb0a48b740c528890d201f5560bb163",
    "kin8nm": "62724b272be0bfde5e0518c43da7800caae1373d3a39a2ff69890921152b54d5",
    "power": "bbe83d856e3255f5749587de7597a6fa48916bb1dce0865d3dc82d60fedd9d3d",
    "wine_red": "ab3b807dc4b7b8ef574f2dc395e5aada904bd7941c1802f3b3c998738fe53323",
    "protein": "beb10439f37d88e0fc90722caefd6d8b269eb1edb77518bc1440593e2ff10f01",
}
NAMES = tuple(_ORIGINALS)


def load_regression(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets of a data set, in the published order.

    The function looks for ``{name}.npz``, with features X and targets y, in
    ``$DPJAX_DATA`` and then in the user's cache. If it finds none, it downloads the
    original and stores its arrays in the cache. The original of ``power`` is a
    spreadsheet and is not downloaded.

    Parameters
    ----------
    name
        One of `NAMES`.

    Returns
    -------
    Arrays
        Features ``(n, d)`` and targets ``(n,)``, float64. The target of ``naval`` is
        the compressor's decay.

    Raises
    ------
    ValueError
        If there is no data set of that name.
    FileNotFoundError
        If the file is not found and cannot be downloaded.
    RuntimeError
        If the numbers found or downloaded are not the published ones.
    """
    if name not in _ORIGINALS:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    original = _ORIGINALS[name]
    return files.load(
        f"{name}.npz",
        original.url,
        lambda content, source: files.arrays(content, source, "Xy", _SHA256.get(name)),
        functools.partial(_to_npz, original),
    )


def standardize(values, ranges) -> np.ndarray:
    """Map the public range of every column to [-2, 2], and clip what lies outside.

    Parameters
    ----------
    values
        ``(n, d)``, or ``(n,)`` for one column.
    ranges
        The public range ``(low, high)`` of every column, ``(d, 2)``, or ``(2,)`` for
        one column.

    Returns
    -------
    Array
        float64, of the shape of `values`.

    Raises
    ------
    ValueError
        If the shape of the ranges does not fit the columns, or a range is empty.

    Notes
    -----
    *Formal guarantees.* If the ranges are public, a row depends on its own record only.
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


def _to_npz(original, content):
    def read():
        text = content
        if original.member is not None:
            text = zipfile.ZipFile(io.BytesIO(content)).read(original.member)
        table = np.loadtxt(
            io.StringIO(text.decode()),
            delimiter=original.delimiter,
            skiprows=original.num_headers,
        )
        return table[:, original.columns], table[:, original.target]

    features, targets = files.readable(original.url, read)
    stored = io.BytesIO()
    np.savez_compressed(stored, X=features, y=targets)
    return stored.getvalue()
