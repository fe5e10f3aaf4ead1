"""The means to freeze an app, in order of preference: a cgroup, signals, or the app's own calls.

A freezer that cannot freeze raises ``OSError`` with the reason; all processes then run. A cgroup freezes all of its processes and
their children at once, unseen by them. SIGSTOP is seen by parents and debuggers, so parents are stopped before their children and
continued after them.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from serving.queueproxy.io.processes import STOPPED_STATES, AppProcesses, ProcessEntry
from serving.queueproxy.podspec import FROZEN_MARK, Address, FreezerPlace, PodSpec
from serving.settings.dormancy import CallPair, HttpCall

_LOG = logging.getLogger(__name__)

# Passes over all processes until no new one is found: an app that forks faster than that stays awake.
_PASSES_MAX = 50
_PASS_PAUSE_S = 0.001
# Time for the kernel to stop what is in a system call that cannot be interrupted, in seconds.
_SETTLE_S = 1.0
_WAKE_PAUSE_S = 0.1
_UNKNOWN = "no process of the app is known"
_RESTLESS = "processes of the app do not stop, or fork without end"


class Freezer(Protocol):
    """Freezes and thaws one app.

    ``is_instant`` says that a freeze under way may be cancelled, and that ``thaw`` is done when it returns.
    """

    is_instant: bool

    @property
    def name(self) -> str:
        """The name of the means."""
        ...

    async def freeze(self) -> None:
        """Freeze the app. Raises ``OSError``."""

    def thaw(self) -> None:
        """Thaw the app, in any state."""

    async def wake(self) -> None:
        """Thaw an app that takes time to wake. Raises ``OSError`` if it does not."""

    async def recover(self) -> None:
        """Thaw processes that an earlier queue-proxy of the pod has frozen."""


class ExitWatch:
    """Calls back when one of some processes ends. Descriptors distinguish a process from a later one with its id."""

    def __init__(self, on_exit: Callable[[], None]) -> None:
        self._on_exit = on_exit
        self._watched: list[int] = []

    def watch(self, pids: Collection[int]) -> None:
        """Watch processes. One that has ended already calls back too."""
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                asyncio.get_running_loop().call_soon(self._on_exit)
                continue
            self._watched.append(descriptor)
            asyncio.get_running_loop().add_reader(descriptor, self._on_exit)

    def end(self) -> None:
        """Watch no more."""
        for descriptor in self._watched:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()


class SignalFreezer:
    """Stops all processes by SIGSTOP.

    ``marker`` is a file that exists while they may be stopped: the next queue-proxy of the pod continues them. Processes stopped
    by other programs stay stopped.
    """

    is_instant = True
    name = "signals"

    def __init__(self, processes: AppProcesses, *, marker: str, on_exit: Callable[[], None]) -> None:
        self._processes, self._marker = processes, marker
        self._stopped: dict[int, int] = {}
        self._exits = ExitWatch(on_exit)

    async def freeze(self) -> None:
        """Stop all processes, until no running one is found."""
        _touch(self._marker)
        spared: set[int] | None = None
        for _ in range(_PASSES_MAX):
            found, roots = self._processes.find()
            if spared is None:
                spared = {one.pid for one in found if one.state in STOPPED_STATES}
                if not roots:
                    raise OSError(_UNKNOWN)
                self._exits.watch(roots)
            running = [one for one in found if one.pid not in spared and one.state not in STOPPED_STATES]
            if not running:
                return
            for one in running:
                self._stop(one)
            await asyncio.sleep(_PASS_PAUSE_S)
        raise OSError(_RESTLESS)

    def thaw(self) -> None:
        """Continue the processes, children first: a shell then finds its jobs running."""
        self._exits.end()
        for descriptor in reversed(self._stopped.values()):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            os.close(descriptor)
        self._stopped.clear()
        _remove(self._marker)

    async def wake(self) -> None:
        """Not used: ``thaw`` is instant."""

    async def recover(self) -> None:
        """Continue all stopped processes if the marker exists."""
        if not _exists(self._marker):
            return
        found, _ = self._processes.find()
        for one in reversed(found):
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGCONT)
        _remove(self._marker)

    def _stop(self, one: ProcessEntry) -> None:
        if one.pid not in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                self._stopped[one.pid] = os.pidfd_open(one.pid)
        if one.pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._stopped[one.pid], signal.SIGSTOP)


class CgroupFreezer:
    """Freezes by a cgroup created for the pod; the processes move there before the first freeze.

    A process in a cgroup other than ours, such as a container's, stays there, and that cgroup is frozen too. Later processes
    start in the cgroup of their parent.
    """

    is_instant = True
    name = "cgroup"

    def __init__(self, place: FreezerPlace, processes: AppProcesses, *, on_exit: Callable[[], None]) -> None:
        self._place, self._processes = place, processes
        self._exits = ExitWatch(on_exit)
        self._frozen: list[str] = []

    async def freeze(self) -> None:
        """Move the processes that are new, and freeze the cgroups."""
        folder = self._place.folder
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as in the module processes
        self._frozen = [folder]
        for number in range(_PASSES_MAX):
            found, roots = self._processes.find()
            if not number:
                self._exits.watch(roots)
            if not roots:
                raise OSError(_UNKNOWN)
            moved, others = self._move(found)
            if not moved:
                break
            await asyncio.sleep(0)
        else:
            raise OSError(_RESTLESS)
        self._frozen += others
        for one in self._frozen:
            self._set(one, is_frozen=True)
        until_s = asyncio.get_running_loop().time() + _SETTLE_S
        while not all(map(self._is_frozen, self._frozen)):
            if asyncio.get_running_loop().time() > until_s:
                raise OSError(_RESTLESS)
            await asyncio.sleep(_PASS_PAUSE_S)

    def thaw(self) -> None:
        """Thaw all processes."""
        self._exits.end()
        for folder in self._frozen:
            with contextlib.suppress(FileNotFoundError):
                self._set(folder, is_frozen=False)

    async def wake(self) -> None:
        """Not used: ``thaw`` is instant."""

    async def recover(self) -> None:
        """Thaw the cgroup of the pod, and those of its processes."""
        if not _exists(self._place.folder):
            return
        found, _ = self._processes.find()
        for folder in {self._place.folder, *self._foreign(found)}:
            with contextlib.suppress(FileNotFoundError):
                self._set(folder, is_frozen=False)

    def _move(self, found: Iterable[ProcessEntry]) -> tuple[int, list[str]]:
        """Move the processes in our cgroup; return their number, and the cgroups of the others."""
        own, moved = self._cgroup_of(os.getpid()), 0
        for one in found:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if self._cgroup_of(one.pid) == own:
                    self._write(self._place.folder, "cgroup.procs", str(one.pid))
                    moved += 1
        return moved, self._foreign(found)

    def _foreign(self, found: Iterable[ProcessEntry]) -> list[str]:
        """The cgroups of processes that are neither ours, nor above ours, nor the pod's."""
        own, folders = self._cgroup_of(os.getpid()), set[str]()
        for one in found:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                folders.add(self._cgroup_of(one.pid))
        pods = self._place.folder
        return sorted(
            one for one in folders if not f"{own}/".startswith(f"{one}/") and not f"{one}/".startswith(f"{pods}/")
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
        with open(f"{folder}/{name}", "w", encoding="ascii") as file:  # noqa: PTH123 - as above
            file.write(text)


class FirstFreezer:
    """Uses the first of two instant freezers that works on this machine."""

    is_instant = True

    def __init__(self, first: Freezer, second: Freezer) -> None:
        self._present, self._next = first, second

    @property
    def name(self) -> str:
        """The name of the one in use."""
        return self._present.name

    async def freeze(self) -> None:
        """Freeze by the first, or by the second from then on."""
        try:
            await self._present.freeze()
        except OSError as error:
            if self._present is self._next:
                raise
            _LOG.info("dormant.other_means", extra={"means": self._next.name, "error": str(error)})
            with contextlib.suppress(OSError):
                self._present.thaw()
            self._present = self._next
            await self._present.freeze()

    def thaw(self) -> None:
        """Thaw by the one in use."""
        self._present.thaw()

    async def wake(self) -> None:
        """Not used: ``thaw`` is instant."""

    async def recover(self) -> None:
        """Undo both."""
        for one in (self._present, self._next):
            await one.recover()


class CallFreezer:
    """Has the app put itself to sleep and wake by calls of its own, as model servers do.

    ``marker`` is a file that exists while it may sleep; "" where no file outlives a queue-proxy. ``limit_s`` bounds each call, and all attempts to wake it together.
    """

    is_instant = False
    name = "calls"

    def __init__(self, calls: CallPair, app: Address, *, limit_s: float, marker: str) -> None:
        self._calls, self._app, self._limit_s, self._marker = calls, app, limit_s, marker

    async def freeze(self) -> None:
        """Call the app's sleep."""
        _touch(self._marker)
        await self._call(self._calls.sleep)

    def thaw(self) -> None:
        """Not used: the app takes time to wake."""

    async def wake(self) -> None:
        """Call the app's wake, again and again within the limit."""
        until_s = asyncio.get_running_loop().time() + self._limit_s
        while True:
            try:
                await self._call(self._calls.wake)
            except OSError:
                if asyncio.get_running_loop().time() + _WAKE_PAUSE_S > until_s:
                    raise
                await asyncio.sleep(_WAKE_PAUSE_S)
            else:
                _remove(self._marker)
                return

    async def recover(self) -> None:
        """Wake the app if an earlier queue-proxy has put it to sleep, or may have."""
        if not self._marker:
            # An app that has just started does not listen yet, and is awake.
            with contextlib.suppress(OSError):
                await self._call(self._calls.wake)
        elif _exists(self._marker):
            with contextlib.suppress(OSError):
                await self.wake()

    async def _call(self, call: HttpCall) -> None:
        """Make a call. Raises ``OSError`` for a status other than 2xx, and after the limit."""
        text = f"{call.method} {call.target}"
        try:
            async with asyncio.timeout(self._limit_s):
                reader, writer = await asyncio.open_connection(*self._app)
                try:
                    length = "" if call.method == "GET" else "Content-Length: 0\r\n"
                    host = f"{self._app[0]}:{self._app[1]}"
                    head = f"{text} HTTP/1.1\r\nHost: {host}\r\n{length}Connection: close\r\n\r\n"
                    writer.write(head.encode())
                    line = await reader.readline()
                finally:
                    writer.transport.abort()
        except TimeoutError:
            raise TimeoutError(f"{text}: no response within {self._limit_s:g} s") from None
        status = line.split(b" ")[1:2]
        if not line.startswith(b"HTTP/1.") or not status or not status[0].startswith(b"2"):
            raise OSError(f"{text}: {line[:80].decode('latin-1').strip() or 'no response'}")


def freezer_of(spec: PodSpec, *, on_exit: Callable[[], None]) -> Freezer:
    """The freezer of a pod; ``on_exit`` is called when a process of a frozen app has ended."""
    marker = spec.processes + FROZEN_MARK if spec.processes else ""
    if spec.dormant_call is not None:
        return CallFreezer(spec.dormant_call, spec.app, limit_s=spec.settings.dormant_call_max_s, marker=marker)
    processes = AppProcesses(spec.processes)
    signals = SignalFreezer(processes, marker=marker, on_exit=on_exit)
    if spec.freezer is None:
        return signals
    return FirstFreezer(CgroupFreezer(spec.freezer, processes, on_exit=on_exit), signals)


def _touch(path: str) -> None:
    if not path:
        return
    with open(path, "wb"):  # noqa: PTH123 - as in the module processes
        pass


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - as in the module processes


def _exists(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - as in the module processes
