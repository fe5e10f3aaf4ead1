"""Records the progress of reloads in a file of the state folder, for ``serving up --reload``.

Standard library only: the supervisor uses it.
"""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict


class ReloadState(TypedDict):
    """The progress of reloads: how many began and ended, and the replacements and the error of the last one."""

    begun_count: int
    ended_count: int
    replaced: list[str]
    error: str | None


def read_reload(path: Path) -> ReloadState:
    """Read the last report of a reload. Without a file, all counts are 0."""
    try:
        state: ReloadState = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return ReloadState(begun_count=0, ended_count=0, replaced=[], error=None)
    return state


class ReloadReport:
    """The supervisor's report about one reload. ``write`` replaces the file atomically."""

    def __init__(self, path: Path, *, write: Callable[[Path, bytes], None]) -> None:
        self._path = path
        self._write = write
        before = read_reload(path)
        self._state = ReloadState(
            begun_count=before["begun_count"] + 1, ended_count=before["ended_count"], replaced=[], error=None
        )
        self._save()

    def replaced(self, line: str) -> None:
        """Record that a child was replaced; ``line`` describes the replacement."""
        self._state["replaced"].append(line)
        self._save()

    def end(self, error: str | None) -> None:
        """Record the end of a reload; None means that all children were replaced."""
        # Also a reload that a killed supervisor did not end.
        self._state["ended_count"], self._state["error"] = self._state["begun_count"], error
        self._save()

    def _save(self) -> None:
        # Without a report, on a full disk, the reload continues, but `serving up --reload` never sees its end.
        with contextlib.suppress(OSError):
            self._write(self._path, json.dumps(self._state).encode())
