"""The pipe through which the template learns what becomes of the processes of pods. Standard library only.

The supervisor makes it and holds both ends, so that no line is lost while a new template starts. The supervisor, which is
the parent of these processes, writes their exit codes: ``{"pid": 7, "exit": 0}``. Queue-proxies write their readiness:
``{"pid": 8, "ready": true}``. Each line fits into one atomic write (pipe(7), PIPE_BUF). An app that is its own queue-proxy has
the write end too and may write anything: what is no event is skipped.
"""

import json
import os
from typing import Any

_BEGIN = b'{"pid"'
_LINE_BYTES_MAX = 4096


class ProcessEvents:
    """The supervisor's side of the pipe. ``descriptors`` are the read end and the write end, which the template inherits."""

    def __init__(self) -> None:
        self.descriptors = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._unsent: list[bytes] = []

    @property
    def has_unsent(self) -> bool:
        """Whether the pipe was full, so that ``send`` has to be called again."""
        return bool(self._unsent)

    def report_exit(self, pid: int, exit_code: int) -> None:
        """Write the exit code of a process that has ended; minus the signal's number if one ended it."""
        self._unsent.append(json.dumps({"pid": pid, "exit": exit_code}).encode() + b"\n")
        self.send()

    def send(self) -> None:
        """Write what the pipe has room for."""
        try:
            while self._unsent:
                os.write(self.descriptors[1], self._unsent[0])
                del self._unsent[0]
        except BlockingIOError:
            return


class EventReader:
    """The template's side of the pipe: turns pieces of bytes into events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The events that are complete with this piece."""
        *lines, rest = (self._rest + piece).split(b"\n")
        self._rest = rest[-_LINE_BYTES_MAX:]
        return [event for event in map(_event_of, lines) if event is not None]


def _event_of(line: bytes) -> dict[str, Any] | None:
    """The event of a line, which may follow text that has no end of its own."""
    try:
        event = json.loads(line[max(0, line.rfind(_BEGIN)) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("pid"), int):
        return None
    return event if isinstance(event.get("exit"), int) or "ready" in event else None
