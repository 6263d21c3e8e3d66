"""Files that belong to one user: mode 0600, never through a link, synced to disk."""

import contextlib
import errno
import os

__all__ = ["open_own", "replacing", "sync"]


def open_own(path, flags: int) -> int:
    """A descriptor of the file at `path`; it is created with mode 0600.

    Raises
    ------
    ValueError
        If `path` is a symbolic link.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(
            f"{path} is a symbolic link, which may lead what is written to another "
            "reader: give the path of the file itself"
        ) from error


@contextlib.contextmanager
def replacing(path):
    """Write a file that takes the place of `path`, whole and synced, or not at all."""
    partial = f"{os.fspath(path)}.partial"
    # What a killed process left is removed. A file or link that somebody else puts
    # there in the meantime is an error.
    with contextlib.suppress(FileNotFoundError):
        os.remove(partial)
    descriptor = open_own(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
        raise
    sync(os.path.dirname(os.path.abspath(path)))


def sync(path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
