"""Stores the history of a running dashboard on disk. A failed write loses history, and never affects the live page.

All work on the file runs in one thread. A damaged file, or a file of a newer version, is renamed before a new file is
created.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from serving.tools.dashboard.archive import (
    ARCHIVE_ERRORS,
    POINTS_MAX,
    Archive,
    ArchiveNewerError,
    HistoryRange,
    Row,
    history_steps,
    is_damaged,
    merged_row,
)
from serving.tools.dashboard.cost import RevisionOwner, UsageReport
from serving.tools.dashboard.marks import Mark

_log = logging.getLogger("dashboard")
_T = TypeVar("_T")

_ROLL_PERIOD_S = 60
# Maximum number of steps queued for a slow disk: a minute.
_WAITING_MAX = 12
_WARN_PERIOD_S = 60.0


class HistoryKeeper:
    """Stores and reads the dashboard's history, in the file ``path`` of at most ``bytes_max`` bytes, for ``days``."""

    def __init__(self, path: Path, *, days: float, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._steps = history_steps(days)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._archive: Archive | None = None
        self._step = 0
        self._rows: dict[str, list[Row]] = {}
        self._marks: list[Mark] = []
        self._owners: Mapping[str, RevisionOwner] = {}
        self._waiting_count = 0
        self._warned_s = -_WARN_PERIOD_S

    @property
    def longest_s(self) -> float:
        """The longest range of ``read``."""
        return self._steps[-1].step_s * POINTS_MAX

    def record(
        self,
        at_s: float,
        rows: Mapping[str, Row],
        marks: Sequence[Mark],
        *,
        owners: Mapping[str, RevisionOwner] = MappingProxyType({}),
    ) -> None:
        """Record the rows of a tick, its marks, and the owners of revisions.

        A step is written once the next step begins.
        """
        step_s = self._steps[0].step_s
        step = int(at_s // step_s) * step_s
        if step != self._step:
            self._flush(at_s)
            self._step = step
        for key, row in rows.items():
            self._rows.setdefault(key, []).append(row)
        self._marks += marks
        self._owners = owners

    async def read(self, key: str, *, from_s: float, to_s: float, now_s: float) -> HistoryRange | None:
        """The history of "namespace/revision" in a range; None after a read error, which is logged."""
        return await self._run(functools.partial(Archive.read, key=key, from_s=from_s, to_s=to_s, now_s=now_s), now_s)

    async def usage(self, *, from_s: float, to_s: float, now_s: float) -> UsageReport | None:
        """The use of all revisions in a range; None after a read error, which is logged."""
        return await self._run(functools.partial(Archive.usage, from_s=from_s, to_s=to_s, now_s=now_s), now_s)

    async def close(self, now_s: float) -> None:
        """Write the remaining rows, and close the file."""
        self._flush(now_s)
        await asyncio.to_thread(self._thread.shutdown)
        if self._archive is not None:
            self._archive.close()

    async def _run(self, work: Callable[[Archive], _T], now_s: float) -> _T | None:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._attempt, work, now_s)

    def _flush(self, now_s: float) -> None:
        rows, marks, self._rows, self._marks = self._rows, self._marks, {}, []
        if not rows and not marks:
            return
        if self._waiting_count >= _WAITING_MAX:
            self._warn("the disk is too slow", now_s)
            return
        self._waiting_count += 1
        self._thread.submit(self._write, self._step, rows, marks, owners=dict(self._owners), now_s=now_s)

    # The following methods run in the thread.

    def _write(
        self,
        step: int,
        rows: Mapping[str, Sequence[Row]],
        marks: Sequence[Mark],
        *,
        owners: Mapping[str, RevisionOwner],
        now_s: float,
    ) -> None:
        self._waiting_count -= 1
        merged = {key: merged_row(several) for key, several in rows.items()}

        def work(archive: Archive) -> None:
            archive.put(step, merged, marks, owners=owners)
            if step % _ROLL_PERIOD_S == 0:
                archive.roll(now_s)

        self._attempt(work, now_s)

    def _attempt(self, work: Callable[[Archive], _T], now_s: float) -> _T | None:
        try:
            if self._archive is None:
                self._archive = Archive(self._path, self._steps, bytes_max=self._bytes_max)
            return work(self._archive)
        except ArchiveNewerError as error:
            self._put_aside("newer", str(error))
        except ARCHIVE_ERRORS as error:
            if is_damaged(error):
                self._put_aside("damaged", str(error))
            else:
                self._warn(str(error), now_s)
        except OSError as error:
            self._warn(str(error), now_s)
        return None

    def _put_aside(self, suffix: str, why: str) -> None:
        if self._archive is not None:
            self._archive.close()
            self._archive = None
        aside = self._path.with_name(f"{self._path.name}.{suffix}")
        try:
            self._path.replace(aside)
            for ending in ("-wal", "-shm"):
                self._path.with_name(self._path.name + ending).unlink(missing_ok=True)
        except OSError as error:
            why = f"{why}; {error}"
        _log.error("history.put-aside", extra={"file": str(aside), "error": why})

    def _warn(self, why: str, now_s: float) -> None:
        if now_s - self._warned_s >= _WARN_PERIOD_S:
            self._warned_s = now_s
            _log.warning("history.unwritten", extra={"file": str(self._path), "error": why})
