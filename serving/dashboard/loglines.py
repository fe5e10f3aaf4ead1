"""Lines of logs for one reader: pieces of bytes become lines, and a bounded queue keeps the newest of them.

Pure. A reader that is slower than the pods loses the oldest waiting lines, and learns how many.
"""

from collections import deque

import msgspec

# A line of a log may be a whole JSON document; the page shows the beginning.
_LINE_BYTES_MAX = 4096
_CUT = " … (cut)"


class LogBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a page receives at once."""

    lines: list[tuple[str, str]]
    """Pod and text of each line, oldest first; a pod of "" is the dashboard's own remark."""

    dropped: int
    """Lines before these that the reader was too slow for."""


class LineSplitter:
    """Splits the pieces of one log into lines. A line over 4 KiB is cut; its rest is skipped, not kept."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_cut = False

    def __repr__(self) -> str:
        return f"LineSplitter({len(self._rest)} bytes of a line)"

    def feed(self, piece: bytes) -> list[str]:
        """The lines that a piece completes."""
        *ends, rest = piece.split(b"\n")
        lines = []
        for end in ends:
            self._grow(end)
            lines.append(self._text())
        self._grow(rest)
        return lines

    def finish(self) -> list[str]:
        """The last line, if it has no end."""
        return [self._text()] if self._rest else []

    def _grow(self, part: bytes) -> None:
        whole = self._rest + part[: _LINE_BYTES_MAX + 1 - len(self._rest)]
        self._is_cut = self._is_cut or len(self._rest) + len(part) > _LINE_BYTES_MAX
        self._rest = whole[:_LINE_BYTES_MAX]

    def _text(self) -> str:
        text = self._rest.decode("utf-8", "replace").removesuffix("\r") + (_CUT if self._is_cut else "")
        self._rest, self._is_cut = b"", False
        return text


class LogQueue:
    """The newest ``lines_max`` lines that wait for one reader."""

    def __init__(self, lines_max: int) -> None:
        self._lines: deque[tuple[str, str]] = deque(maxlen=lines_max)
        self._lines_max = lines_max
        self._dropped = 0

    def __repr__(self) -> str:
        return f"LogQueue({len(self._lines)} of {self._lines_max} lines, {self._dropped} dropped)"

    def add(self, pod: str, text: str) -> None:
        """Append a line. A full queue drops its oldest one."""
        self._dropped += len(self._lines) == self._lines_max
        self._lines.append((pod, text))

    def take(self, count_max: int) -> LogBatch:
        """Remove the oldest lines."""
        lines = [self._lines.popleft() for _ in range(min(count_max, len(self._lines)))]
        dropped, self._dropped = self._dropped, 0
        return LogBatch(lines=lines, dropped=dropped)
