"""Records pods' processes and notes in files, and their exits in a pipe, so that both survive the template.

Each process first writes its record. So even if the template is killed right after a fork, the next template knows the
process. A process is identified by its id and its start time, because ids are reused.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from serving.core.model.versions import NEWER_PODS, POD_RECORDS, FormatVersion, refuse_newer_text
from serving.home.processes.process_lifetime import start_ticks
from serving.home.state import write_private

_PRIVATE = 0o600
_Record = TypeVar("_Record")

_BEGIN = b'{"pid"'
_LINE_BYTES_MAX = 4096


class ProcessRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A process of a pod. ``start_ticks`` is its start, in clock ticks since boot.

    ``is_app``: it is not a queue-proxy. ``is_exec``: a command in a running pod, which the next control process does
    not adopt. ``is_own_proxy``: an app with an in-process queue-proxy. ``mark`` is an environment variable that only
    this app has; "" for a queue-proxy, a container and a command. ``stop_signal`` replaces SIGTERM for a container; 0
    for a process. ``exit_code`` is None while the process runs.

    ``is_ready``, ``is_drained`` and ``is_dormant`` are the latest report of a queue-proxy (``ReadinessChanged``).
    ``is_heard``: it has reported to this template.
    """

    pod: str
    name: str
    is_app: bool = False
    is_exec: bool = False
    is_own_proxy: bool = False
    mark: str = ""
    stop_signal: int = 0
    pid: int = 0
    start_ticks: int = 0
    exit_code: int | None = None
    niceness: int = 0
    is_heard: bool = False
    is_ready: bool = False
    is_drained: bool = False
    is_dormant: bool = False
    version: FormatVersion = POD_RECORDS

    @property
    def reports_readiness(self) -> bool:
        """Whether the process is its pod's queue-proxy, or contains it."""
        return self.is_own_proxy or not self.is_app

    @property
    def is_alive(self) -> bool:
        """Whether the process exists, even as a zombie."""
        return self.pid > 0 and start_ticks(self.pid) == self.start_ticks


class _PodNoteFile(msgspec.Struct, frozen=True, kw_only=True):
    pod: str
    note: dict[str, Any]
    version: FormatVersion = POD_RECORDS


class ProcessRecords:
    """Stores the records and notes of the template's pods as files in a folder, for the next template."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> tuple[list[ProcessRecord], dict[str, dict[str, Any]]]:
        """The processes, and the notes by pod, that an earlier template stored. Damaged files are skipped.

        Raises ``NewerFormat`` for a file of a newer program: a template that skipped it would lose the pod.
        """
        return self._read("process", ProcessRecord), {
            note_file.pod: note_file.note for note_file in self._read("note", _PodNoteFile)
        }

    def _read(self, kind: str, of: type[_Record]) -> list[_Record]:
        records = []
        for path in self._folder.glob(f"*.{kind}"):
            with contextlib.suppress(OSError):
                content = path.read_bytes()
                refuse_newer_text(f"the record of a pod {path.name}", content, known=POD_RECORDS, action=NEWER_PODS)
                with contextlib.suppress(msgspec.DecodeError):
                    records.append(msgspec.json.decode(content, type=of))
        return records

    def write(self, record: ProcessRecord) -> None:
        """Write a process's record, or remove that of an ended exec. Raises ``OSError``."""
        if record.is_exec and record.exit_code is not None:
            (self._folder / f"{record.pod}.{record.name}.process").unlink(missing_ok=True)
        else:
            self._write(self.path_of(record).name, record)

    def prefix_of(self, pod: str) -> str:
        """The common beginning of the paths of a pod's files."""
        return f"{self._folder}/{pod}."

    def path_of(self, record: ProcessRecord) -> Path:
        """The path of a process's record."""
        return self._folder / f"{record.pod}.{record.name}.process"

    def pipe_of(self, record: ProcessRecord) -> Path:
        """The path of the named pipe in which an app with an in-process queue-proxy reports its readiness."""
        return self._folder / f"{record.pod}.{record.name}.ready"

    def make_pipe(self, record: ProcessRecord) -> None:
        """Create the readiness pipe of a process, replacing an earlier one. Raises ``OSError``."""
        path = self.pipe_of(record)
        path.unlink(missing_ok=True)
        os.mkfifo(path, _PRIVATE)

    def write_note(self, pod: str, note: dict[str, Any]) -> None:
        """Write the note about a pod, replacing an earlier one. Raises ``OSError``."""
        self._write(f"{pod}.note", _PodNoteFile(pod=pod, note=note))

    def _write(self, name: str, content: object) -> None:
        # Not synchronised to disk, because a crash of the machine ends its processes too.
        write_private(self._folder / name, msgspec.json.encode(content))

    def forget(self, pod: str) -> None:
        """Remove the files of a pod."""
        for path in self._folder.glob(f"{pod}.*"):
            path.unlink(missing_ok=True)


class ProcessEvents:
    """The pipe through which the supervisor reports exits to the template.

    ``descriptors`` are its read end and its write end. The template inherits both, and queue-proxies write into it too.
    """

    def __init__(self) -> None:
        self.descriptors = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._unsent: list[bytes] = []

    @property
    def has_unsent(self) -> bool:
        """Whether some reports are unsent because the pipe was full; ``send`` retries."""
        return bool(self._unsent)

    def report_exit(self, pid: int, exit_code: int) -> None:
        """Report the end of a process. ``exit_code`` is negative if a signal ended it: -9 for SIGKILL."""
        self._unsent.append(json.dumps({"pid": pid, "exit": exit_code}).encode() + b"\n")
        self.send()

    def send(self) -> None:
        """Write as much as fits into the pipe."""
        try:
            while self._unsent:
                os.write(self.descriptors[1], self._unsent[0])
                del self._unsent[0]
        except BlockingIOError:
            return


class EventReader:
    """Parses the bytes of a pipe into events: exits and changes of readiness."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The events completed by ``piece``. Invalid lines are skipped."""
        *lines, rest = (self._rest + piece).split(b"\n")
        self._rest = rest[-_LINE_BYTES_MAX:]
        return [event for event in map(_event_of, lines) if event is not None]


def _event_of(line: bytes) -> dict[str, Any] | None:
    """The event in a line, even if an interrupted write has left text before it; None if there is no valid event."""
    try:
        event = json.loads(line[max(0, line.rfind(_BEGIN)) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("pid"), int):
        return None
    return event if isinstance(event.get("exit"), int) or "ready" in event else None
