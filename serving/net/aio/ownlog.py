"""Rotates the file behind this process's standard output and error by size, without losing a line.

The file is renamed to NAME.1, NAME.1 to NAME.2 and so on. One dup2(2) replaces both descriptors by a new file, so that
each line is complete in one file. If another process rotated the file, for example the activator that this process
replaces, this process opens the new file within a second. After a disk error nothing changes until the next check. The
module imports only the standard library, because the template uses it.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import MutableMapping
from pathlib import Path
from typing import Self

from serving.net.aio.linefile import shift_files
from serving.net.aio.startup import LOG_FILE_VARIABLE

BYTES_VARIABLE = "SERVING_LOG_BYTES_MAX"
"""The environment variable with the size in bytes at which the file is rotated; 0 means never."""
FILES_VARIABLE = "SERVING_LOG_FILES_MAX"
"""The environment variable with the number of files, including the current one."""

CHECK_S = 1.0
"""Time between checks, in seconds. A file exceeds its size by at most the output of that time."""

LOG_BYTES_MAX = 10 * 2**20
LOG_FILES_MAX = 5

_OUTPUT, _ERROR = 1, 2
_PRIVATE = 0o600


class OwnLog:
    """The log file of this process. ``check`` rotates or reopens it when that is due."""

    def __init__(self, path: Path, *, bytes_max: int, files_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self.is_ours = bytes_max > 0 and self._identity() == self._present()
        """Whether standard output is this file, with a maximum size; otherwise ``check`` does nothing."""

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> Self:
        """The log configured by environment variables, which are removed because child processes have other logs."""
        path, bytes_max, files_max = (
            environment.pop(name, "") for name in (LOG_FILE_VARIABLE, BYTES_VARIABLE, FILES_VARIABLE)
        )
        if not path:
            return cls(Path(), bytes_max=0, files_max=1)
        return cls(Path(path), bytes_max=int(bytes_max or LOG_BYTES_MAX), files_max=int(files_max or LOG_FILES_MAX))

    def check(self) -> None:
        """Rotate the file if it is too long; reopen the path if another process has rotated it."""
        if not self.is_ours:
            return
        with contextlib.suppress(OSError):
            if self._identity() != self._present() or (os.fstat(_OUTPUT).st_size >= self._bytes_max and self._rotate()):
                self._reopen()

    def _rotate(self) -> bool:
        """Rename the files; return False if another process is rotating them."""
        try:
            fcntl.flock(_OUTPUT, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            if self._identity() == self._present():
                shift_files(self._path, self._files_max)
        finally:
            fcntl.flock(_OUTPUT, fcntl.LOCK_UN)
        return True

    def _reopen(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        try:
            os.dup2(descriptor, _OUTPUT)
            os.dup2(descriptor, _ERROR)
        finally:
            os.close(descriptor)

    def _present(self) -> tuple[int, int] | None:
        """The identity of the file at the path; None if there is none."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    @staticmethod
    def _identity() -> tuple[int, int] | None:
        """The identity of the file behind standard output; None if it is not a file."""
        try:
            status = os.fstat(_OUTPUT)
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
