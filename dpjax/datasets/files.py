"""Files of public data sets, which are downloaded once if this machine has none."""

import hashlib
import io
import os
import tempfile
import urllib.request
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["arrays", "check", "load", "readable", "user_cache"]


def user_cache() -> Path:
    """The folder ``$XDG_CACHE_HOME/dpjax``, or ``~/.cache/dpjax`` if that is unset."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpjax"


def load(
    name: str,
    url: str | None,
    parse: Callable[[bytes, Any], Any],
    convert: Callable[[bytes], bytes] = lambda original: original,
):
    """The parsed content of a file, which is downloaded if it is not on this machine.

    The file is looked up in ``$DPJAX_DATA``, if set, and then in the `user_cache`,
    where a download is stored.

    Parameters
    ----------
    name
        Name of the file.
    url
        Where the original is published; None if the file cannot be made from it here.
    parse
        ``(content, source) -> parsed``. If the content is not the published one, it
        raises a RuntimeError that names the source. Such a download is not stored.
    convert
        ``original -> content``: makes the content of the file from the original.

    Returns
    -------
    The value of `parse`.

    Raises
    ------
    FileNotFoundError
        If the file is not found and cannot be downloaded, or if the cache cannot be
        written to.
    RuntimeError
        If the content that is found or downloaded is not the published one.
    """
    given = os.environ.get("DPJAX_DATA")
    cache = user_cache()
    folders = [Path(given), cache] if given else [cache]
    for folder in folders:
        path = folder / name
        if path.is_file():
            return parse(path.read_bytes(), path)
    absent = f"{name} not found in {' or '.join(map(str, folders))}"
    if url is None:
        raise FileNotFoundError(
            f"{absent}: convert the published file and put it there"
        )
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            original = response.read()
    except OSError as error:
        raise FileNotFoundError(
            f"{absent}, and {url} could not be downloaded there: {error}"
        ) from error
    content = convert(original)
    parsed = parse(content, url)
    _store(cache / name, content)
    return parsed


def readable(source, read: Callable[[], Any]):
    """The value of `read`, without its warnings and without messages of its errors.

    A parser quotes the text that it cannot read, which may be a record. The original
    error is not chained either, because a traceback would print it. Warnings are left
    out, because one record may be the reason that there is one. So are NumPy's errors
    of arithmetic, which `numpy.seterr` may ask for.

    Raises
    ------
    RuntimeError
        If `read` fails. The message names `source` and the class of the original error.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return read()
    except Exception as error:
        kind = type(error).__name__
    raise RuntimeError(
        f"{source} cannot be read: {kind}, whose message is left out because it may "
        "quote records"
    )


def arrays(content: bytes, source, names: Sequence[str], sha256: str | None = None):
    """The arrays of these names in an .npz file, checked against their SHA-256.

    Raises
    ------
    RuntimeError
        If the file cannot be read, lacks an array, or holds other arrays than the
        published ones.
    """

    def read():
        with np.load(io.BytesIO(content)) as file:
            return tuple(file[name] for name in names)

    found = readable(source, read)
    if sha256 is not None:
        check(b"".join(array.tobytes() for array in found), sha256, source)
    return found


def check(content: bytes, sha256: str, source) -> None:
    """Refuse content that is not the published one.

    Raises
    ------
    RuntimeError
        If the SHA-256 of `content` differs from `sha256`. The message names `source`.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise RuntimeError(
            f"{source} is not the published file: SHA-256 is {found}, not {sha256}"
        )


def _store(path, content):
    """Write a file as a whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError as error:
        raise FileNotFoundError(
            f"{path.name} cannot be written to {path.parent}: {error}; set "
            "XDG_CACHE_HOME, or put the file in $DPJAX_DATA"
        ) from error
