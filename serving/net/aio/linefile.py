"""Appends lines to a file from a thread, bounded in memory and on disk, without blocking.

``add`` puts a line into a queue and returns; a thread writes the queue. While the queue is full, because the disk is
slow, lines are dropped and counted. A file at its size limit is renamed to ``NAME.1``, ``NAME.1`` to ``NAME.2``, and so
on up to ``files_max`` files; the oldest is removed. A disk error loses lines, but never ends the daemon.
"""

import logging
import os
import queue
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_log = logging.getLogger(__name__)

# Delay before a write, in seconds: each write takes the interpreter from the event loop, so lines are collected.
_GATHER_S = 0.1
# Most lines that wait for the disk; a line has about 3 kB.
_WAITING_MAX = 4096
_PRIVATE = 0o600


class LineFile:
    """A file of lines, opened as a context. ``bytes_max`` is the size of each of at most ``files_max`` files."""

    def __init__(self, path: Path, *, bytes_max: int, files_max: int = 4) -> None:
        self.dropped_count = 0
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        # Unlike ``Queue`` without a lock in Python, which costs the event loop as much as the line's encoding.
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name=f"write {path.name}", daemon=True)
        self._is_failing = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write the pending lines and close."""
        self._waiting.put(None)
        self._thread.join()

    def add(self, line: bytes) -> None:
        """Queue a line without its line break."""
        if self._waiting.qsize() < _WAITING_MAX:
            self._waiting.put(line)
        else:
            self.dropped_count += 1

    def _write_all(self) -> None:
        while (line := self._waiting.get()) is not None:
            time.sleep(_GATHER_S)
            lines = [line]
            is_over = False
            while not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    is_over = True
                    break
                lines.append(more)
            self._write(lines)
            if is_over:
                return

    def _write(self, lines: list[bytes]) -> None:
        try:
            if self._path.exists() and self._path.stat().st_size >= self._bytes_max:
                shift_files(self._path, self._files_max)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
            with os.fdopen(descriptor, "ab") as file:
                file.write(b"".join(line + b"\n" for line in lines))
        except OSError as error:
            self.dropped_count += len(lines)
            if not self._is_failing:
                _log.warning("linefile.failed", extra={"path": str(self._path), "error": str(error)})
            self._is_failing = True
        else:
            self._is_failing = False


def shift_files(path: Path, files_max: int) -> None:
    """Rename NAME to NAME.1, NAME.1 to NAME.2, ...; remove the file after ``files_max``. Raises ``OSError``."""
    if files_max <= 1:
        path.unlink(missing_ok=True)
    for number in range(files_max - 2, -1, -1):
        older = path.with_name(f"{path.name}.{number}") if number else path
        if older.exists():
            older.rename(path.with_name(f"{path.name}.{number + 1}"))
