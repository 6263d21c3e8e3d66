"""What SIGINT and SIGTERM do to a run, which has work to save and a charge to keep.

Python runs handlers of signals in the main thread only. In other threads the functions
here change nothing. Nor do they for a signal that the process ignores, as SIGINT in a
shell's background.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable

__all__ = ["Stopped", "check", "deferred", "raised"]

NUMBERS = signal.SIGINT, signal.SIGTERM


_came: list[int] = []
"""Signals that were raised in a block of `raised`."""


class Stopped(BaseException):
    """A signal came; the argument is its number."""


@contextlib.contextmanager
def raised():
    """Raise `Stopped` where the block stands when a signal comes.

    Python drops what is raised while it collects garbage, so `check` raises it again,
    and Python's message of what it dropped is not printed.
    """

    def stop(number, frame):
        _came.append(number)
        raise Stopped(number)

    def drop(unraisable):
        if not isinstance(unraisable.exc_value, Stopped):
            before(unraisable)

    before, sys.unraisablehook = sys.unraisablehook, drop
    try:
        with _handled(stop):
            yield
    finally:
        sys.unraisablehook = before
        _came.clear()


def check() -> None:
    """Raise `Stopped` if a signal came."""
    if _came:
        raise Stopped(_came[0])


@contextlib.contextmanager
def deferred():
    """Let signals wait until the block has ended."""
    waiting = []
    try:
        with _handled(lambda number, frame: waiting.append(number)):
            yield
    finally:
        for number in waiting:
            signal.raise_signal(number)


@contextlib.contextmanager
def _handled(handler: Callable):
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in NUMBERS}
    heeded = {n: old for n, old in before.items() if old not in (None, signal.SIG_IGN)}
    for number in heeded:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in heeded.items():
            signal.signal(number, old)
