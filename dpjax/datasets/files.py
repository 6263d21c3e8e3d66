"""Files of public data sets: found on this machine, or downloaded once."""

import hashlib
import io
import os
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["arrays", "check", "load", "readable", "user_cache"]


def user_cache() -> Path:
    """``$XDG_CACHE_HOME/dpjax`` or ``~/.cache/dpjax``."""
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
        Where the original is published; None if `convert` cannot read it.
    parse
        ``(content, source) -> parsed``. It raises RuntimeError, which names the source,
        if the content is not the published one; such a download is not stored.
    convert
        From the original to the content of the file.

    Raises
    ------
    FileNotFoundError
        If the file is nowhere and cannot be downloaded, or the cache not be written to.
    RuntimeError
        If what is found or downloaded is not the published content.
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
    """What `read` returns; of an error that it raises, only the class is told.

    Parsers quote what they cannot read, which may be a record. The error is not chained
    either: a traceback would print it.

    Raises
    ------
    RuntimeError
        If `read` fails; the message names `source`.
    """
    try:
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
        If the file cannot be read, lacks an array, or does not hold the published ones.
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
        If the SHA-256 differs.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise RuntimeError(
            f"{source} is not the published file: SHA-256 is {found}, not {sha256}"
        )


def _store(path, content):
    """Write a file whole or not at all."""
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
