"""What runs say: messages of the logger ``dpjax``, at the level ``INFO``.

They are printed, unless a program gives that logger another level or other handlers.
"""

import logging

from dpjax.runner import processes

__all__ = ["say"]

_logger = logging.getLogger("dpjax")


class _Printer(logging.Handler):
    """Prints to what is the standard output then, as in a notebook."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record))


if not _logger.handlers:
    _logger.addHandler(_Printer())
    _logger.propagate = False
if _logger.level == logging.NOTSET:
    _logger.setLevel(logging.INFO)


def say(message) -> None:
    """Log what a verbose run has to say, in the first of its processes."""
    if processes.is_first():
        _logger.info("%s", message)
