"""Finds all processes of a pod's app in /proc.

The roots are the first processes of the app's containers; the pod's runner records them in files. Descendants of the
roots belong to the app, and so do processes in a session or process group that one of these leads. A daemon that has
left all three is a child of the pod's runner, and is recognized by the app's environment.

Imports only the standard library without pathlib, and msgspec, so that a queue-proxy starts fast.
"""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

# Fields after the name in /proc/PID/stat; see proc_pid_stat(5).
_STATE, _PARENT, _GROUP, _SESSION, _START = 0, 1, 2, 3, 19
STOPPED_STATES = frozenset("Tt")
"""States of a process stopped by a signal or a tracer."""
_ENDED_STATES = frozenset("ZXx")
_SUFFIX = ".process"
_OOM_FILES = ("memory.events", "memory.oom_control")


class ProcessEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A process, with the ids of its parent, group and session, and the kernel's letter for its state.

    ``start_ticks``, its start in clock ticks since boot, distinguishes the process from a later one with the same id.
    """

    pid: int
    parent: int
    group: int
    session: int
    state: str
    start_ticks: int


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """The first process of a container, as recorded by the pod's runner.

    ``mark`` is an environment variable (NAME=VALUE) that only this app has; "" if there is none.
    """

    pid: int
    start_ticks: int
    is_app: bool = False
    exit_code: int | None = None
    mark: str = ""


_ROOTS = msgspec.json.Decoder(Root)


def read_processes(proc: str = "/proc") -> dict[int, ProcessEntry]:
    """All live processes by id."""
    entries = {}
    for name in os.listdir(proc):  # noqa: PTH208 - no pathlib, see above
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                fields = _read(f"{proc}/{name}/stat").rpartition(b")")[2].split()
                entry = ProcessEntry(
                    pid=int(name),
                    parent=int(fields[_PARENT]),
                    group=int(fields[_GROUP]),
                    session=int(fields[_SESSION]),
                    state=fields[_STATE].decode(),
                    start_ticks=int(fields[_START]),
                )
                if entry.state not in _ENDED_STATES:
                    entries[entry.pid] = entry
    return entries


def read_roots(prefix: str) -> list[Root]:
    """The live first processes recorded in the files ``prefix``NAME.process. Invalid files are skipped."""
    folder, _, start = prefix.rpartition("/")
    roots = []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - no pathlib, see above
            if name.startswith(start) and name.endswith(_SUFFIX):
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    roots.append(_ROOTS.decode(_read(f"{folder}/{name}")))
    return [root for root in roots if root.is_app and root.exit_code is None and root.pid]


def members(entries: Mapping[int, ProcessEntry], roots: Iterable[int], *, spared: Collection[int]) -> list[int]:
    """The processes that belong to the roots, parents before children, without the ``spared`` ones.

    In this order a shell with job control stops before its jobs, and does not notice that they stop.
    """
    children: dict[int, list[int]] = {}
    for entry in entries.values():
        for leader in {entry.parent, entry.group, entry.session}:
            children.setdefault(leader, []).append(entry.pid)
    pids: dict[int, None] = {}
    waiting = [pid for pid in roots if pid in entries]
    while waiting:
        pid, *waiting = waiting
        if pid in pids or pid in spared:
            continue
        pids[pid] = None
        waiting += children.get(pid, ())
    return list(pids)


def strays(entries: Mapping[int, ProcessEntry], marks: Collection[str], *, parent: int) -> Iterator[int]:
    """Children of ``parent`` whose environment has one of the marks: daemons that an app detached."""
    wanted = {mark.encode() for mark in marks if mark}
    for entry in entries.values() if wanted else ():
        if entry.parent == parent:
            with contextlib.suppress(OSError):
                if not wanted.isdisjoint(_read(f"/proc/{entry.pid}/environ").split(b"\0")):
                    yield entry.pid


class AppProcesses:
    """The processes of one pod's app, found by the record files that begin with ``prefix``."""

    def __init__(self, prefix: str, *, runner: int | None = None) -> None:
        """``runner`` is the process that adopts detached daemons; by default the parent process."""
        self._prefix = prefix
        self._runner = os.getppid() if runner is None else runner

    def find(self) -> tuple[list[ProcessEntry], frozenset[int]]:
        """All processes, parents first, and the ids of their root processes."""
        roots, entries = read_roots(self._prefix), read_processes()
        alive = [root for root in roots if root.pid in entries and entries[root.pid].start_ticks == root.start_ticks]
        pids = [root.pid for root in alive]
        pids += strays(entries, {root.mark for root in alive}, parent=self._runner)
        app_pids = members(entries, pids, spared={os.getpid(), self._runner, 0, 1})
        return [entries[pid] for pid in app_pids], frozenset(root.pid for root in alive)


class SharedProcesses:
    """The processes of a pod with a shared process namespace, except the queue-proxy's and the pause process."""

    def find(self) -> tuple[list[ProcessEntry], frozenset[int]]:
        """All processes, parents first, and the ids of each container's first process."""
        entries = read_processes()
        own = _mount_namespace(os.getpid())
        spared = {pid for pid in entries if pid == 1 or _mount_namespace(pid) == own}
        # A container's first process has its parent outside; detached daemons become children of the pause process.
        roots = frozenset(entry.pid for entry in entries.values() if entry.parent in {0, 1} and entry.pid not in spared)
        app_pids = members(entries, roots, spared={0, *spared})
        return [entries[pid] for pid in app_pids], roots


def _mount_namespace(pid: int) -> str | None:
    """The mount namespace of a process; None if it is not accessible."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115 - no pathlib, see above
    except OSError:
        return None


def touch_mark(path: str) -> None:
    """Create the mark file at ``path``; do nothing for ""."""
    if not path:
        return
    with open(path, "wb"):  # noqa: PTH123 - no pathlib, see above
        pass


def remove_mark(path: str) -> None:
    """Remove a mark file."""
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - no pathlib, see above


def exists_mark(path: str) -> bool:
    """Whether a mark file exists."""
    return os.path.exists(path)  # noqa: PTH110 - no pathlib, see above


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - no pathlib, see above
        return file.read()


def oom_kill_count(folders: Iterable[str]) -> int:
    """The number of OOM kills in cgroups and their children; runc moves a container to a child. Blocks."""
    count = 0
    for path in (f"{above}/{file}" for folder in folders for above, _, _ in os.walk(folder) for file in _OOM_FILES):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as lines:  # noqa: PTH123 - pathlib costs a start 3 ms
            count += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return count
