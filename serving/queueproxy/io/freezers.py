"""Ways to freeze an app, in order of preference: a cgroup, signals, or the app's own calls.

A freezer that cannot freeze raises ``OSError`` with the reason; all processes then run. A cgroup freezes all of its
processes and their children at once, without their notice. Parents and debuggers notice SIGSTOP; therefore parents are
stopped before their children and continued after them.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from serving.queueproxy.io.processes import (
    STOPPED_STATES,
    AppProcesses,
    ProcessEntry,
    SharedProcesses,
    exists_mark,
    remove_mark,
    touch_mark,
)
from serving.queueproxy.podspec import FROZEN_MARK, FreezerPlace, PodSpec

_LOG = logging.getLogger(__name__)

# Passes over all processes until none is new: an app that forks faster is not frozen.
_PASSES_MAX = 50
_PASS_PAUSE_S = 0.001
# Time for the kernel to stop processes in uninterruptible system calls, in seconds.
_SETTLE_S = 1.0
_UNKNOWN = "no process of the app is known"
_RESTLESS = "processes of the app do not stop, or fork without end"


class Freezer(Protocol):
    """Freezes and thaws one app.

    ``is_instant``: a running freeze may be cancelled, and ``thaw`` is complete when it returns.
    """

    is_instant: bool

    @property
    def name(self) -> str:
        """The name of the freezing method."""
        ...

    @property
    def unfrozen(self) -> str:
        """Why the processes run although the pod is dormant; "" if they are frozen."""
        ...

    async def freeze(self) -> None:
        """Freeze the app. Raises ``OSError``."""

    def thaw(self) -> None:
        """Thaw the app, in any state."""

    async def wake(self) -> None:
        """Thaw an app that takes time to wake. Raises ``OSError`` on failure."""

    async def recover(self) -> None:
        """Thaw processes that an earlier queue-proxy of the pod has frozen."""


class ExitWatch:
    """Reports the end of any watched process. Pidfds distinguish a process from a later one with the same id."""

    def __init__(self, on_exit: Callable[[], None]) -> None:
        self._on_exit = on_exit
        self._watched: list[int] = []

    def watch(self, pids: Collection[int]) -> None:
        """Watch processes. A process that has already ended is reported, too."""
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                asyncio.get_running_loop().call_soon(self._on_exit)
                continue
            self._watched.append(descriptor)
            asyncio.get_running_loop().add_reader(descriptor, self._on_exit)

    def end(self) -> None:
        """Stop watching."""
        for descriptor in self._watched:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()


class ProcessFinder(Protocol):
    """Finds the processes of an app. ``AppProcesses`` implements it."""

    def find(self) -> tuple[list[ProcessEntry], frozenset[int]]:
        """All processes, parents first, and the ids of the root processes."""
        ...


class SignalFreezer:
    """Stops all processes by SIGSTOP.

    ``marker`` is the path of a file that exists while processes may be stopped; the pod's next queue-proxy then
    continues them. "": there is no such file, and the next queue-proxy always continues the processes. ``thaw`` does
    not continue processes that another program has stopped.
    """

    is_instant = True
    name = "signals"
    unfrozen = ""

    def __init__(self, processes: ProcessFinder, *, marker: str, on_exit: Callable[[], None]) -> None:
        self._processes = processes
        self._marker = marker
        self._stopped: dict[int, int] = {}
        self._exits = ExitWatch(on_exit)

    async def freeze(self) -> None:
        """Stop all processes; repeat until no running process is found."""
        touch_mark(self._marker)
        spared: set[int] | None = None
        for _ in range(_PASSES_MAX):
            processes, roots = self._processes.find()
            if spared is None:
                spared = {process.pid for process in processes if process.state in STOPPED_STATES}
                if not roots:
                    raise OSError(_UNKNOWN)
                self._exits.watch(roots)
            running = [
                process for process in processes if process.pid not in spared and process.state not in STOPPED_STATES
            ]
            if not running:
                return
            for process in running:
                self._stop(process)
            await asyncio.sleep(_PASS_PAUSE_S)
        raise OSError(_RESTLESS)

    def thaw(self) -> None:
        """Continue the processes, children first, so that a shell finds its jobs running."""
        for descriptor in reversed(self._stopped.values()):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            os.close(descriptor)
        self._stopped.clear()
        self._exits.end()
        remove_mark(self._marker)

    async def wake(self) -> None:
        """Do nothing: ``thaw`` is instant."""

    async def recover(self) -> None:
        """Continue all stopped processes if the marker exists."""
        if self._marker and not exists_mark(self._marker):
            return
        processes, _ = self._processes.find()
        for process in reversed(processes):
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGCONT)
        remove_mark(self._marker)

    def _stop(self, process: ProcessEntry) -> None:
        if process.pid not in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                self._stopped[process.pid] = os.pidfd_open(process.pid)
        if process.pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._stopped[process.pid], signal.SIGSTOP)


class CgroupFreezer:
    """Freezes a cgroup created for the pod. The processes are moved to this cgroup before the first freeze.

    A process in another cgroup, such as a container's, stays there, and that cgroup is frozen too. New processes start
    in the cgroup of their parent.
    """

    is_instant = True
    name = "cgroup"
    unfrozen = ""

    def __init__(self, place: FreezerPlace, processes: AppProcesses, *, on_exit: Callable[[], None]) -> None:
        self._place = place
        self._processes = processes
        self._exits = ExitWatch(on_exit)
        self._frozen: list[str] = []

    async def freeze(self) -> None:
        """Move new processes, and freeze the cgroups."""
        folder = self._place.folder
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as in the module processes
        self._frozen = [folder]
        for number in range(_PASSES_MAX):
            processes, roots = self._processes.find()
            if not number:
                self._exits.watch(roots)
            if not roots:
                raise OSError(_UNKNOWN)
            moved, others = self._move(processes)
            if not moved:
                break
            await asyncio.sleep(0)
        else:
            raise OSError(_RESTLESS)
        self._frozen += others
        for folder in self._frozen:
            self._set(folder, is_frozen=True)
        until_s = asyncio.get_running_loop().time() + _SETTLE_S
        while not all(map(self._is_frozen, self._frozen)):
            if asyncio.get_running_loop().time() > until_s:
                raise OSError(_RESTLESS)
            await asyncio.sleep(_PASS_PAUSE_S)

    def thaw(self) -> None:
        """Thaw all processes, before any other work, so that the app runs early."""
        for folder in self._frozen:
            with contextlib.suppress(FileNotFoundError):
                self._set(folder, is_frozen=False)
        self._exits.end()

    async def wake(self) -> None:
        """Do nothing: ``thaw`` is instant."""

    async def recover(self) -> None:
        """Thaw the cgroup of the pod, and the cgroups of its processes."""
        if not exists_mark(self._place.folder):
            return
        processes, _ = self._processes.find()
        for folder in {self._place.folder, *self._foreign(processes)}:
            with contextlib.suppress(FileNotFoundError):
                self._set(folder, is_frozen=False)

    def _move(self, processes: Iterable[ProcessEntry]) -> tuple[int, list[str]]:
        """Move processes out of the queue-proxy's cgroup; return their number, and the cgroups of other processes."""
        own, moved = self._cgroup_of(os.getpid()), 0
        for process in processes:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if self._cgroup_of(process.pid) == own:
                    self._write(self._place.folder, "cgroup.procs", str(process.pid))
                    moved += 1
        return moved, self._foreign(processes)

    def _foreign(self, processes: Iterable[ProcessEntry]) -> list[str]:
        """The cgroups of processes, except the queue-proxy's cgroup, its ancestors, and the pod's cgroup."""
        own, folders = self._cgroup_of(os.getpid()), set[str]()
        for process in processes:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                folders.add(self._cgroup_of(process.pid))
        pods = self._place.folder
        return sorted(
            folder
            for folder in folders
            if not f"{own}/".startswith(f"{folder}/") and not f"{folder}/".startswith(f"{pods}/")
        )

    def _cgroup_of(self, pid: int) -> str:
        """The folder of a process's cgroup. Raises ``OSError``."""
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as lines:  # noqa: PTH123 - as above
            for line in lines:
                number, kinds, path = line.rstrip("\n").split(":", 2)
                if number == "0" if self._place.is_unified else "freezer" in kinds.split(","):
                    return self._place.root + path.rstrip("/")
        raise FileNotFoundError(f"/proc/{pid}/cgroup")

    def _set(self, folder: str, *, is_frozen: bool) -> None:
        if self._place.is_unified:
            self._write(folder, "cgroup.freeze", str(int(is_frozen)))
        else:
            self._write(folder, "freezer.state", "FROZEN" if is_frozen else "THAWED")

    def _is_frozen(self, folder: str) -> bool:
        name, word = ("cgroup.events", b"frozen 1") if self._place.is_unified else ("freezer.state", b"FROZEN")
        with open(f"{folder}/{name}", "rb") as file:  # noqa: PTH123 - as above
            return word in file.read()

    @staticmethod
    def _write(folder: str, name: str, text: str) -> None:
        # Not a file object, which needs five more system calls while a request waits.
        descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


class FirstFreezer:
    """Uses the first of two instant freezers that works on this machine."""

    is_instant = True

    def __init__(self, first: Freezer, second: Freezer) -> None:
        self._present = first
        self._next = second
        self._error = ""

    @property
    def name(self) -> str:
        """The name of the freezer in use."""
        return self._present.name

    @property
    def unfrozen(self) -> str:
        """Why the app runs although the pod is dormant; "" if the freezer in use has frozen the app.

        The text is the error of the first freezer, because of which the second one is in use.
        """
        return self._present.unfrozen and self._error

    async def freeze(self) -> None:
        """Freeze with the first freezer. After its first failure, always use the second."""
        try:
            await self._present.freeze()
        except OSError as error:
            if self._present is self._next:
                raise
            _LOG.info("dormant.other_means", extra={"means": self._next.name, "error": str(error)})
            with contextlib.suppress(OSError):
                self._present.thaw()
            self._present = self._next
            self._error = str(error)
            await self._present.freeze()

    def thaw(self) -> None:
        """Thaw by the freezer in use."""
        self._present.thaw()

    async def wake(self) -> None:
        """Do nothing: ``thaw`` is instant."""

    async def recover(self) -> None:
        """Recover both freezers."""
        for freezer in (self._present, self._next):
            await freezer.recover()


class NoFreezer:
    """Leaves the processes running. The pod is dormant while it has no requests, but nothing is frozen."""

    is_instant = True
    name = "none"

    def __init__(self, reason: str) -> None:
        self.unfrozen = reason

    async def freeze(self) -> None:
        """Do nothing."""

    def thaw(self) -> None:
        """Do nothing."""

    async def wake(self) -> None:
        """Do nothing: ``thaw`` is instant."""

    async def recover(self) -> None:
        """Do nothing."""


def freezer_of(spec: PodSpec, *, on_exit: Callable[[], None]) -> Freezer:
    """The freezer of a pod; ``on_exit`` is called when a process of a frozen app ends."""
    marker = spec.processes + FROZEN_MARK if spec.processes else ""
    if spec.dormant_call is not None:
        from serving.queueproxy.io.callfreezer import CallFreezer  # noqa: PLC0415 - few apps have calls

        return CallFreezer(spec.dormant_call, spec.app, limit_s=spec.settings.dormant_call_max_s, marker=marker)
    if spec.unfrozen is not None:
        last = NoFreezer(spec.unfrozen or "its processes cannot be stopped")
        shared = SignalFreezer(SharedProcesses(), marker="", on_exit=on_exit)
        return last if spec.unfrozen else FirstFreezer(shared, last)
    processes = AppProcesses(spec.processes)
    signals = SignalFreezer(processes, marker=marker, on_exit=on_exit)
    if spec.freezer is None:
        return signals
    return FirstFreezer(CgroupFreezer(spec.freezer, processes, on_exit=on_exit), signals)
