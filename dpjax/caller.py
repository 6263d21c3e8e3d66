"""Warnings that name a line of the user's program, not one of this package."""

import sys
import warnings

__all__ = ["warn"]


def warn(message: str) -> None:
    """Issue a `UserWarning` that names the line of the user that called into dpjax."""
    frame, names = sys._getframe(), []
    while frame is not None:
        names.append(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    depth = max(i for i, name in enumerate(names) if name.split(".")[0] == "dpjax")
    warnings.warn(message, stacklevel=depth + 2)
