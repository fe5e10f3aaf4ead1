"""Writes lines to standard error or output, ignoring errors.

If the disk is full, or the terminal or reader is closed, the line is lost, and the process continues. Unlike
``sys.stderr``, this module has no buffer, because unwritten bytes in a buffer would fail again at each later write. It
imports only the standard library, because the supervisor and the template use it.
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
