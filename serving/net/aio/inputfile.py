"""Opens input files named by users: only regular files, ``<(command)`` and terminals.

A named pipe may never get a writer, and a device such as /dev/zero never ends. Errors are ``OSError`` with the reason
as text.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, NoReturn

# Largest file read as a whole; the API takes 1.5 MiB of YAML or 3 MiB of JSON.
_BYTES_MAX = 32 * 2**20
_NULL_DEVICE = os.makedev(1, 3)


def open_input(path: Path) -> BinaryIO:
    """Open a file for reading bytes. Raises ``OSError`` for folders, named pipes, sockets and devices."""
    # Otherwise a pipe without a writer would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            _refuse(errno.EISDIR, "a folder, not a file", path)
        # A shell's pipes have no name: /dev/fd/63 is a link to /proc/PID/fd/pipe:[4711].
        if stat.S_ISFIFO(status.st_mode) and not os.path.realpath(path).startswith("/proc/"):
            _refuse(errno.EINVAL, "a named pipe, not a file", path)
        is_device = stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode)
        if is_device and status.st_rdev != _NULL_DEVICE and not os.isatty(descriptor):
            _refuse(errno.EINVAL, "a device, not a file", path)
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_input_text(path: Path) -> str:
    """Read a whole UTF-8 file. Raises ``OSError`` for files above 32 MiB and for other encodings, too."""
    with open_input(path) as file:
        content = file.read(_BYTES_MAX + 1)
    if len(content) > _BYTES_MAX:
        _refuse(errno.EFBIG, "larger than 32 MiB", path)
    try:
        return content.decode()
    except UnicodeDecodeError:
        _refuse(errno.EILSEQ, "not a text file", path)


def _refuse(number: int, reason: str, path: Path) -> NoReturn:
    raise OSError(number, reason, str(path))
