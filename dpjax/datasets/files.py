"""Files of public data sets: found, or downloaded once, and checked by SHA-256."""

import hashlib
import os
import sys
import tempfile
import urllib.request
from pathlib import Path

__all__ = ["check", "download", "folders", "store"]


def folders() -> list[Path]:
    """Where data are looked up: ``$DPJAX_DATA`` if set, then the user's cache."""
    given = os.environ.get("DPJAX_DATA")
    return [*([Path(given)] if given else []), _cache()]


def _cache():
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "dpjax"
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "dpjax"
    inside_home = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path.home() / inside_home / "dpjax"


def download(url: str, names: str) -> bytes:
    """What is at `url`, which holds the files called `names`.

    Raises
    ------
    FileNotFoundError
        If it cannot be fetched: the message says where the files were looked for.
    """
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.read()
    except OSError as error:
        raise FileNotFoundError(
            f"{names} not found in {' or '.join(map(str, folders()))}, and {url} could "
            f"not be downloaded there: {error}"
        ) from error


def check(content: bytes, sha256: str, source) -> None:
    """Refuse what is not the published content.

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


def store(name: str, content: bytes) -> Path:
    """Write a file to the user's cache, whole or not at all.

    Raises
    ------
    FileNotFoundError
        If the cache cannot be written to.
    """
    path = _cache() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError as error:
        raise FileNotFoundError(
            f"{name} cannot be written to {path.parent}: {error}; set XDG_CACHE_HOME, "
            "or put the file in $DPJAX_DATA"
        ) from error
    return path
