"""Moves the memory of a frozen app to swap or zram, and measures it before and after.

Uses ``memory.reclaim`` of the pod's cgroup (version 2 with the memory controller), or else process_madvise(2) with
MADV_PAGEOUT, which needs CAP_SYS_NICE. Without swap nothing is moved: only pages of files could be freed, and the next
request would read them from the disk again.

Imports only the standard library without pathlib, and msgspec; the module ``processes`` gives the reason.
"""

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Collection, Iterable, Iterator

import msgspec

from serving.net.aio.supervise import TaskOwner
from serving.queueproxy.io.processes import AppProcesses
from serving.queueproxy.podspec import PodSpec

_LOG = logging.getLogger(__name__)

# In the kernel's tables the number is the same on all architectures since Linux 5.10.
_PROCESS_MADVISE = 440
_MADV_PAGEOUT = 21
_KIB = 1024
# Mappings of the kernel, which madvise rejects.
_OF_KERNEL = ("[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]")
# Locked mappings and mappings of devices stay in memory.
_UNMOVED = frozenset({errno.EINVAL, errno.ENOMEM})


class PageOut(msgspec.Struct, frozen=True, kw_only=True):
    """An app's memory before and after a page-out, in bytes. Shared pages are divided among their users (PSS)."""

    before_bytes: int
    after_bytes: int


class PageOuts:
    """Pages out the memory of one pod's app some time after a freeze."""

    def __init__(self, spec: PodSpec, *, swaps: str = "/proc/swaps") -> None:
        self._spec = spec
        self._swaps = swaps
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskOwner()
        self._last: PageOut | None = None

    def page(self) -> list[str]:
        """The lines for the metrics page; empty before the first page-out."""
        if self._last is None:
            return []
        return [
            f"queueproxy_dormant_memory_before_bytes {self._last.before_bytes}",
            f"queueproxy_dormant_memory_after_bytes {self._last.after_bytes}",
        ]

    def expect(self) -> None:
        """Schedule a page-out. Called when the app has been frozen."""
        if self._spec.processes:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._spec.settings.dormant_page_out_s, self._begin)

    def cancel(self) -> None:
        """Cancel the scheduled page-out. Called when the app runs again. A page-out in progress continues."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        if has_swap(self._swaps):
            self._tasks.start(self._move(), name="page out")

    async def _move(self) -> None:
        try:
            self._last = await asyncio.to_thread(page_out_app, self._spec)
        except OSError as error:
            _LOG.info("dormant.memory_stays", extra={"error": str(error)})


def has_swap(path: str) -> bool:
    """Whether a file in the format of /proc/swaps lists swap space; zram counts too."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as lines:  # noqa: PTH123 - no pathlib, see above
        return sum(1 for _ in lines) > 1
    return False


def page_out_app(spec: PodSpec) -> PageOut:
    """Page out the memory of a pod's frozen app. Blocks. Raises ``OSError`` if the kernel does not allow it."""
    pids = [process.pid for process in AppProcesses(spec.processes).find()[0]]
    place = spec.freezer
    return page_out(pids, place.folder if place is not None and place.is_unified else "")


def page_out(pids: Collection[int], folder: str = "") -> PageOut:
    """Page out the memory of processes; ``folder`` is their version 2 cgroup. Blocks. Raises ``OSError``."""
    before_bytes = sum(map(pss_bytes, pids))
    if not (folder and _reclaim(folder, before_bytes)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                _move_out(pid)
    return PageOut(before_bytes=before_bytes, after_bytes=sum(map(pss_bytes, pids)))


def pss_bytes(pid: int) -> int:
    """The proportional set size of a process; 0 if it has ended or is not accessible."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:  # noqa: PTH123 - as above
        for line in lines:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * _KIB
    return 0


def _reclaim(folder: str, byte_count: int) -> bool:
    """Ask the kernel to reclaim memory of a cgroup; return whether it supports this. It may reclaim less."""
    try:
        with open(f"{folder}/memory.reclaim", "w", encoding="ascii") as file:  # noqa: PTH123 - as above
            file.write(str(byte_count))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _move_out(pid: int) -> None:
    """Advise the kernel to page out all mappings of a process. Raises ``OSError``."""
    import ctypes  # noqa: PLC0415 - where there is swap only

    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - as above
        ranges = list(mapped_ranges(lines))
    descriptor = os.pidfd_open(pid)
    try:
        for start, end in ranges:
            vector = (ctypes.c_size_t * 2)(start, end - start)
            if libc.syscall(_PROCESS_MADVISE, descriptor, vector, 1, _MADV_PAGEOUT, 0) < 0:
                error = ctypes.get_errno()
                if error not in _UNMOVED:
                    raise OSError(error, os.strerror(error))
    finally:
        os.close(descriptor)


def mapped_ranges(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Start and end of each mapping that can be paged out, from the lines of /proc/PID/maps."""
    for line in lines:
        if not line.rstrip().endswith(_OF_KERNEL):
            start, _, end = line.partition(" ")[0].partition("-")
            yield int(start, 16), int(end, 16)
