"""The Adult data set: read from a local file or downloaded, and encoded.

Privacy depends on the encoding. Every constant below is public, nothing is fitted to
the data, and the encoding of a record depends on that record alone. So replacing one
record replaces one row of features, whose norm is at most 1.

References
----------
Becker and Kohavi (1996), Adult, UCI Machine Learning Repository, CC BY 4.0,
https://doi.org/10.24432/C5XW20.
"""

import csv
import gzip
import io
import zipfile

import numpy as np

from dpjax.datasets import files

__all__ = ["adult_features", "load_adult"]

_URL = "https://archive.ics.uci.edu/static/public/2/adult.zip"
# SHA-256 of the stored tables, before they are compressed.
_SHA256 = {
    "train": "f2c62076f19504d99a38b22badf445a7f42530ade6b827acf78dd143fbce38bb",
    "test": "f6b1801c5d231515ea5ff04d4444997bacd57e04876e94710cb9b9bd5549c033",
}
_MEMBERS = {"train": "adult.data", "test": "adult.test"}
_INTEGERS = "age fnlwgt education-num capital-gain capital-loss hours-per-week".split()
_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation "
    "relationship race sex capital-gain capital-loss hours-per-week native-country "
    "income"
).split()
_CATEGORIES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov "
    "State-gov Without-pay Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm "
    "Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed "
    "Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial "
    "Prof-specialty Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing "
    "Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany "
    "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras "
    "Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
    "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala "
    "Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong "
    "Holand-Netherlands",
}
_MARRIED = ["Married-civ-spouse", "Married-AF-spouse"]
_RANKED_1 = "Exec-managerial Prof-specialty".split()
_RANKED_0 = (
    "Tech-support Sales Protective-serv Adm-clerical Craft-repair Transport-moving "
    "Armed-Forces Machine-op-inspct"
).split()


def load_adult() -> dict[str, dict[str, np.ndarray]]:
    """The two files of Adult as raw columns.

    The function looks for ``adult_train.csv.gz`` and ``adult_test.csv.gz`` in
    ``$DPJAX_DATA`` and then in the user's cache. If it does not find a file, it
    downloads the original from UCI, converts it, and stores the file in the cache.

    Returns
    -------
    dict
        ``{"train": columns, "test": columns}`` with 32,561 and 16,281 records.
        ``columns[name]`` has shape ``(n,)``: int64, or strings with ``"?"`` where the
        value is missing. Names are UCI's, such as ``"education-num"``.

    Raises
    ------
    FileNotFoundError
        If a file is not found and cannot be downloaded.
    RuntimeError
        If a file found or downloaded is not the published one.
    """
    return {split: _load(split) for split in _MEMBERS}


def adult_features(columns_of_split, columns="all"):
    """Features, labels and feature names of one split of Adult.

    Every row is divided by ``max(c, its norm)`` with c = 3 (``"all"``) or 2
    (``"compact"``), so its norm is at most 1. ``fnlwgt``, a survey weight computed from
    other people's records, is not used. Values outside the public ranges are clipped to
    them. In a one-hot encoding, a missing or unknown category is all zeros.

    Parameters
    ----------
    columns_of_split
        One of the values of `load_adult`.
    columns
        ``"compact"`` gives nine features, for samplers whose cost grows with the
        dimension: intercept; age and its square; years of education; weekly hours;
        capital gain above 5000 and capital loss above 1500 US dollars; married or not
        (1, -1); occupation in three ranks (1, 0, -1). ``"all"`` gives 108 features: the
        first seven of ``"compact"``, the logarithms of capital gain and loss, and all
        categories one-hot.

    Returns
    -------
    features : ndarray
        float32, shape ``(n, d)``. The first column is the intercept.
    labels : ndarray
        float32 in {0, 1}, shape ``(n,)``: 1 for an income above 50,000 US dollars.
    names : list of str
        The d feature names.

    Raises
    ------
    ValueError
        If `columns` is neither ``"all"`` nor ``"compact"``.
    """
    if columns not in _ENCODINGS:
        raise ValueError(f"columns must be one of {list(_ENCODINGS)}, got {columns!r}")
    encode, min_divisor = _ENCODINGS[columns]
    named = _numbers(columns_of_split) | encode(columns_of_split)
    features = np.column_stack([*named.values()]).astype(np.float64)
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    # The last factor exceeds the error of rounding to float32, so norms stay at most 1.
    features /= np.maximum(min_divisor, norms) * (1 + 2.0**-22)
    labels = columns_of_split["income"] == ">50K"
    return features.astype(np.float32), labels.astype(np.float32), list(named)


def _load(split):
    def parse(content, source):
        text = files.readable(source, lambda: gzip.decompress(content))
        files.check(text, _SHA256[split], source)
        header, *rows = csv.reader(io.StringIO(text.decode()))
        return {
            name: np.array(values, dtype=np.int64 if name in _INTEGERS else None)
            for name, values in zip(header, zip(*rows, strict=True), strict=True)
        }

    def convert(archive):
        def read():
            return zipfile.ZipFile(io.BytesIO(archive)).read(_MEMBERS[split])

        original = files.readable(_URL, read)
        lines = original.decode().splitlines()
        rows = [line.rstrip(".").replace(", ", ",") for line in lines if "," in line]
        return gzip.compress("\n".join([",".join(_COLUMNS), *rows, ""]).encode())

    return files.load(f"adult_{split}.csv.gz", _URL, parse, convert)


def _numbers(raw):
    age = _scaled(raw["age"], 45, 28)
    return {
        "intercept": np.ones(len(age)),
        "age": age,
        "age-squared": age**2,
        "education-num": _scaled(raw["education-num"], 10, 6),
        "hours-per-week": _scaled(raw["hours-per-week"], 40, 30),
        "capital-gain>5000": raw["capital-gain"] > 5000,
        "capital-loss>1500": raw["capital-loss"] > 1500,
    }


def _compact(raw):
    ranked = [np.isin(raw["occupation"], rank) for rank in (_RANKED_1, _RANKED_0)]
    return {
        "married": np.where(np.isin(raw["marital-status"], _MARRIED), 1, -1),
        "occupation-rank": np.select(ranked, [1, 0], default=-1),
    }


def _all(raw):
    return {
        "log-capital-gain": _log_scaled(raw["capital-gain"], 99_999),
        "log-capital-loss": _log_scaled(raw["capital-loss"], 4_356),
    } | {
        f"{name}={value}": raw[name] == value
        for name, values in _CATEGORIES.items()
        for value in values.split()
    }


def _scaled(values, centre, half_range):
    return np.clip((values - centre) / half_range, -1, 1)


def _log_scaled(values, largest):
    return np.log1p(np.clip(values, 0, largest)) / np.log1p(largest)


# For each value of `columns`: the function that makes the features beyond those of
# `_numbers`, and the least number that rows are divided by.
_ENCODINGS = {"all": (_all, 3.0), "compact": (_compact, 2.0)}
