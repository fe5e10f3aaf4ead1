"""Readiness pipes of apps with an in-process queue-proxy, one per app.

Queue-proxies share the pipe in which the supervisor reports exits. An app is not trusted, so each app has a separate
named pipe next to its record, whose content only concerns this app. The pipe outlives the template, as the record does.
It is read at most ten times a second.
"""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from serving.home.processes.processrecords import EventReader, ProcessRecord, ProcessRecords

_PAUSE_S = 0.1
# Bytes per read: about a hundred reports.
_PIECE_BYTES = 4096


class _ReadinessPipe(msgspec.Struct, kw_only=True, eq=False):
    process: ProcessRecord
    descriptor: int
    reader: EventReader
    resume_s: float | None = None
    """When the pipe is read again; None while it is watched."""


class ReadinessPipes:
    """The pipes in which apps with an in-process queue-proxy report readiness, by process id.

    ``changed`` is called with a process and its latest report. ``watch`` registers a callback for a readable
    descriptor, and ``unwatch`` removes it.
    """

    def __init__(
        self,
        records: ProcessRecords,
        *,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], object],
        changed: Callable[[ProcessRecord, dict[str, Any]], None],
    ) -> None:
        self._records = records
        self._watch = watch
        self._unwatch = unwatch
        self._changed = changed
        self._pipes: dict[int, _ReadinessPipe] = {}

    def open(self, process: ProcessRecord) -> None:
        """Begin to read the pipe of a process. A process without a pipe, of an earlier version, is ignored."""
        try:
            descriptor = os.open(self._records.pipe_of(process), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        pipe = _ReadinessPipe(process=process, descriptor=descriptor, reader=EventReader())
        self._pipes[process.pid] = pipe
        self._watch(descriptor, functools.partial(self._read, pipe))

    def close(self, pid: int) -> None:
        """Close the pipe of an ended process."""
        pipe = self._pipes.pop(pid, None)
        if pipe is not None:
            if pipe.resume_s is None:
                self._unwatch(pipe.descriptor)
            os.close(pipe.descriptor)

    def due_in_s(self, now_s: float) -> float | None:
        """Seconds until a paused pipe is read again; None if none is paused."""
        return min(
            (max(0.0, pipe.resume_s - now_s) for pipe in self._pipes.values() if pipe.resume_s is not None),
            default=None,
        )

    def resume(self, now_s: float) -> None:
        """Resume watching the pipes whose pause has expired."""
        for pipe in self._pipes.values():
            if pipe.resume_s is not None and pipe.resume_s <= now_s:
                pipe.resume_s = None
                self._watch(pipe.descriptor, functools.partial(self._read, pipe))

    def _read(self, pipe: _ReadinessPipe) -> None:
        self._unwatch(pipe.descriptor)
        pipe.resume_s = time.monotonic() + _PAUSE_S
        try:
            events = pipe.reader.feed(os.read(pipe.descriptor, _PIECE_BYTES))
        except BlockingIOError:
            return
        reports = [event for event in events if "ready" in event]
        if reports:
            self._changed(pipe.process, reports[-1])
