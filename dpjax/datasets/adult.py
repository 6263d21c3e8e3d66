"""The Adult data set: found or downloaded, and encoded record by record.

Encoding is part of the privacy argument. Every constant below is public, nothing is
fitted to the data, and a row's encoding depends on that row alone, so replacing one
record replaces one row of norm at most 1.

References
----------
Becker and Kohavi (1996), Adult, UCI Machine Learning Repository, CC BY 4.0,
https://doi.org/10.24432/C5XW20.
"""

import csv
import gzip
import io
import zipfile
import zlib

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from dpjax.datasets import files

__all__ = ["adult_features", "load_adult"]

_URL = "https://archive.ics.uci.edu/static/public/2/adult.zip"
_ORIGINALS = {
    "train": (
        "adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    ),
    "test": (
        "adult.test",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    ),
}
_CSV_SHA256 = {
    "train": "f2c62076f19504d99a38b22badf445a7f42530ade6b827acf78dd143fbce38bb",
    "test": "f6b1801c5d231515ea5ff04d4444997bacd57e04876e94710cb9b9bd5549c033",
}
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
_OCCUPATION_RANK = {
    1: "Exec-managerial Prof-specialty",
    0: "Tech-support Sales Protective-serv Adm-clerical Craft-repair "
    "Transport-moving Armed-Forces Machine-op-inspct",
}


def load_adult() -> dict[str, dict[str, np.ndarray]]:
    """The two files of Adult as raw columns.

    Looks for ``adult_train.csv.gz`` and ``adult_test.csv.gz`` in ``$DPJAX_DATA``,
    then in the user's cache, then downloads the originals from UCI into the cache.

    Returns
    -------
    dict
        ``{"train": columns, "test": columns}`` with 32,561 and 16,281 records.
        ``columns[name]`` has shape ``(n,)``: int64, or strings with ``"?"`` where the
        value is missing. Names are UCI's, such as ``"education-num"``.

    Raises
    ------
    FileNotFoundError
        If the files are nowhere and cannot be downloaded.
    RuntimeError
        If a file found or downloaded is not the published one.
    """
    names = {split: f"adult_{split}.csv.gz" for split in _ORIGINALS}
    for folder in files.folders():
        paths = {split: folder / name for split, name in names.items()}
        if all(path.is_file() for path in paths.values()):
            break
    else:
        paths = _download(names)
    return {split: _read(path, split) for split, path in paths.items()}


def adult_features(columns_of_split, columns="all"):
    """Features, labels and feature names of one split of Adult.

    Every row is divided by ``max(c, its norm)`` with c = 3 (``"all"``) or 2
    (``"compact"``), hence has norm at most 1. ``fnlwgt``, a survey weight computed
    from other people's records, is not used. Values outside the public ranges are
    clipped to them; a missing or unknown category is all zeros.

    Parameters
    ----------
    columns_of_split
        One of the values of `load_adult`.
    columns
        ``"compact"``: nine features, for samplers whose cost grows with dimension:
        intercept; age and its square; years of education; weekly hours; capital gain
        above 5000 and capital loss above 1500 US dollars; married or not (1, -1);
        occupation in three ranks (1, 0, -1). ``"all"``: 108 features, the numbers of
        ``"compact"``, the logarithms of capital gain and loss, and every category
        one-hot.

    Returns
    -------
    features : ndarray
        float32, shape ``(n, d)``, the intercept first.
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
    transformers, norm = _ENCODINGS[columns]
    used = [name for name in _COLUMNS if name not in ("fnlwgt", "income")]
    table = np.column_stack([columns_of_split[name].astype(object) for name in used])
    encoder = ColumnTransformer(
        [
            (label, transformer, [used.index(source)])
            for label, source, transformer in transformers
        ],
        sparse_threshold=0.0,
    )
    # scikit-learn wants a fit; one made-up record is enough, as nothing is learned.
    example = [0 if name in _INTEGERS else "?" for name in used]
    encoder.fit(np.array([example], dtype=object))
    features = encoder.transform(table).astype(np.float64)
    features = np.column_stack([np.ones(len(features)), features])
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    # The last factor outweighs the rounding to float32: norms stay at most 1.
    features /= np.maximum(norm, norms) * (1 + 2.0**-22)
    labels = columns_of_split["income"] == ">50K"
    names = ["intercept"]
    for label, source, transformer in transformers:
        if isinstance(transformer, OneHotEncoder):
            names += [f"{source}={value}" for value in _CATEGORIES[source].split()]
        else:
            names.append(label)
    return features.astype(np.float32), labels.astype(np.float32), names


def _read(path, split):
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise RuntimeError(f"{path} cannot be read: {error}") from error
    files.check(content, _CSV_SHA256[split], path)
    header, *rows = csv.reader(io.StringIO(content.decode()))
    return {
        name: np.array(values, dtype=np.int64 if name in _INTEGERS else None)
        for name, values in zip(header, zip(*rows, strict=True), strict=True)
    }


def _download(names):
    try:
        content = files.download(_URL, " and ".join(names.values()))
        archive = zipfile.ZipFile(io.BytesIO(content))
        originals = {s: archive.read(member) for s, (member, _) in _ORIGINALS.items()}
    except (KeyError, zipfile.BadZipFile) as error:
        raise FileNotFoundError(
            f"{_URL} is not the archive of Adult: {error}"
        ) from error
    paths = {}
    for split, original in originals.items():
        member, sha256 = _ORIGINALS[split]
        files.check(original, sha256, f"{member} of {_URL}")
        paths[split] = files.store(names[split], gzip.compress(_to_csv(original)))
    return paths


def _to_csv(original):
    lines = original.decode().splitlines()
    rows = [line.rstrip(".").replace(", ", ",") for line in lines if "," in line]
    return "\n".join([",".join(_COLUMNS), *rows, ""]).encode()


def _scaled(values, centre, half_range):
    scaled = (values.astype(np.float64) - centre) / half_range
    return np.clip(scaled, -1, 1)


def _scaled_square(values, centre, half_range):
    return _scaled(values, centre, half_range) ** 2


def _log_scaled(values, largest):
    return np.log1p(np.clip(values.astype(np.float64), 0, largest)) / np.log1p(largest)


def _above(values, threshold):
    return (values.astype(np.float64) > threshold).astype(np.float64)


def _married(values):
    return np.where(np.isin(values, ["Married-civ-spouse", "Married-AF-spouse"]), 1, -1)


def _occupation_rank(values):
    ranks = _OCCUPATION_RANK
    groups = [np.isin(values, ranks[rank].split()) for rank in ranks]
    return np.select(groups, list(ranks), default=-1)


def _entry(label, source, function, *arguments):
    return label, source, FunctionTransformer(lambda x: function(x, *arguments))


_NUMBERS = [
    _entry("age", "age", _scaled, 45, 28),
    _entry("age-squared", "age", _scaled_square, 45, 28),
    _entry("education-num", "education-num", _scaled, 10, 6),
    _entry("hours-per-week", "hours-per-week", _scaled, 40, 30),
    _entry("capital-gain>5000", "capital-gain", _above, 5000),
    _entry("capital-loss>1500", "capital-loss", _above, 1500),
]
_ENCODINGS = {
    "all": (
        [
            *_NUMBERS,
            _entry("log-capital-gain", "capital-gain", _log_scaled, 99_999),
            _entry("log-capital-loss", "capital-loss", _log_scaled, 4_356),
            *(
                (
                    source,
                    source,
                    OneHotEncoder(
                        categories=[np.array(values.split(), dtype=object)],
                        handle_unknown="ignore",
                    ),
                )
                for source, values in _CATEGORIES.items()
            ),
        ],
        3.0,
    ),
    "compact": (
        [
            *_NUMBERS,
            _entry("married", "marital-status", _married),
            _entry("occupation-rank", "occupation", _occupation_rank),
        ],
        2.0,
    ),
}
