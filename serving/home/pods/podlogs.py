"""The logs of pods over time: when each line was written, and how long logs of deleted pods are kept.

Containers write directly to their logs, without times. Once a second ``LogTimes`` writes the size of each grown log,
with the time, to a second file. The time of a line is that of the first entry at or after its end. It is at most a
second late, or later if no control process ran.
"""

import bisect
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from serving.home.pods.podfolder import remove_folder, rotate, times_of

# Most pods whose logs are kept: each list of them reads their folders.
_GONE_PODS_MAX = 1000
_BLOCK_BYTES = 512
# The longest line returned whole if a search by time begins within it.
_LINE_BYTES_MAX = 65_536

_log = logging.getLogger("kubelet")


class LogTimes:
    """Records when logs grow, in a file beside each log."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._folders: set[Path] = set()

    def record(self, folders: Collection[Path], *, wall_s: float) -> None:
        """Record the time ``wall_s`` for each log in these folders that has grown since the last call.

        Blocks on the disk. The folders of the last call are included, for the last lines of pods that have ended.
        """
        sizes: dict[str, int] = {}
        for folder in self._folders | set(folders):
            for path, size in _logs_in(folder):
                sizes[path] = size
                if size and size != self._sizes.get(path):
                    _append(times_of(Path(path)), f"{size} {wall_s:.2f}\n")
        self._sizes = sizes
        self._folders = set(folders)


def _logs_in(folder: Path) -> Iterator[tuple[str, int]]:
    try:
        with os.scandir(folder) as entries:
            yield from [(entry.path, entry.stat().st_size) for entry in entries if entry.name.endswith(".log")]
    except OSError:
        # The pod was deleted, or has no log yet.
        return


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a") as file:
            file.write(text)
    except OSError as error:
        # On a full disk the log itself may continue.
        _log.debug("log.not_timed", extra={"log": str(path), "error": str(error)})


class TimeIndex(msgspec.Struct, frozen=True):
    """The times of one log: at ``times_s[i]`` it had ``sizes[i]`` bytes. Later lines have the time ``last_s``."""

    sizes: list[int]
    times_s: list[float]
    last_s: float

    def at(self, end: int) -> float:
        """The time of the line that ends at this offset."""
        place = bisect.bisect_left(self.sizes, end)
        return self.times_s[place] if place < len(self.sizes) else self.last_s

    def start(self, since_s: float) -> int:
        """An offset at or before the first line since a time."""
        place = bisect.bisect_left(self.times_s, since_s)
        return self.sizes[place - 1] if place else 0


def read_index(log: Path) -> TimeIndex:
    """The times of a log. Without an index all lines have the time of the last write. Raises ``OSError``."""
    sizes: list[int] = []
    times_s: list[float] = []
    path = times_of(log)
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        size, _, at = line.partition(" ")
        try:
            noted, noted_s = int(size), float(at)
        except ValueError:
            # Truncated by a full disk or a crash.
            continue
        if sizes and noted < sizes[-1]:
            # The container emptied its log.
            sizes, times_s = [], []
        sizes.append(noted)
        # A clock that was set back.
        times_s.append(max(noted_s, times_s[-1]) if times_s else noted_s)
    return TimeIndex(sizes, times_s, max(log.stat().st_mtime, times_s[-1] if times_s else 0.0))


def timed_lines(log: Path, since_s: float) -> Iterator[tuple[float, int, bytes]]:
    """Yield the lines of a log since a time, each with its time and the offset of its end. Raises ``OSError``."""
    index = read_index(log)
    with log.open("rb") as file:
        start = index.start(since_s)
        # A time may be recorded within a line.
        file.seek(max(0, start - _LINE_BYTES_MAX))
        before = file.read(start - file.tell())
        end = start - len(before) + before.rfind(b"\n") + 1
        file.seek(end)
        for line in file:
            end += len(line)
            at_s = index.at(end)
            if at_s >= since_s:
                yield at_s, end, line


class GoneLogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The retention time and disk limit for logs of deleted pods."""

    retention_s: float
    bytes_max: int


class DeletedPodLogs(msgspec.Struct, frozen=True):
    """The logs of one deleted pod: the time of their last write, and their disk use."""

    path: Path
    written_s: float
    byte_count: int


def surplus(folders: Iterable[DeletedPodLogs], limits: GoneLogLimits, *, wall_s: float) -> list[DeletedPodLogs]:
    """The logs to remove: those older than the retention time, and the oldest ones beyond the size limit."""
    kept_count = kept_bytes = 0
    gone: list[DeletedPodLogs] = []
    for log_folder in sorted(folders, key=lambda folder: folder.written_s, reverse=True):
        kept_bytes += log_folder.byte_count
        is_old = wall_s - log_folder.written_s > limits.retention_s
        if is_old or kept_bytes > limits.bytes_max or kept_count >= _GONE_PODS_MAX:
            gone.append(log_folder)
        else:
            kept_count += 1
    return gone


def tidy_logs(logs: Path, present: Collection[Path], limits: GoneLogLimits, *, wall_s: float) -> None:
    """Rotate the logs of present pods, and remove surplus logs of deleted ones. Blocks on the disk."""
    for folder in present:
        for log in folder.glob("*.log"):
            try:
                rotate(log)
            except OSError as error:
                _log.warning("log.not_rotated", extra={"log": str(log), "error": str(error)})
    gone = [_measured(folder) for folder in logs.glob("*/*") if folder not in present]
    for gone_folder in surplus(gone, limits, wall_s=wall_s):
        remove_folder(gone_folder.path)


def _measured(folder: Path) -> DeletedPodLogs:
    written_s, byte_count = 0.0, 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                written_s, byte_count = max(written_s, status.st_mtime), byte_count + status.st_blocks * _BLOCK_BYTES
        # A folder without files has just been created, or is empty.
        return DeletedPodLogs(folder, written_s or folder.stat().st_mtime, byte_count)
    except OSError:
        return DeletedPodLogs(folder, written_s, byte_count)
