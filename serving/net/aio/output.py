"""Writes lines to standard error or output, ignoring errors.

A full disk, or a terminal or a reader that has gone, loses the line and nothing else: no log ends a daemon. Unlike
``sys.stderr`` it keeps no buffer, whose rest would fail again at each later write. Standard library only: the
supervisor and the template use it.
"""

import contextlib
import os

_OUTPUT, _ERROR = 1, 2


def write_error(text: str) -> None:
    """Write a line to standard error."""
    _write(_ERROR, text)


def write_output(text: str) -> None:
    """Write a line to standard output."""
    _write(_OUTPUT, text)


def _write(descriptor: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{text}\n".encode(errors="replace"))
