"""Finds, thaws and removes the cgroups in which queue-proxies freeze their pods.

The cgroups are below this process's cgroup, so that its limits also apply to frozen pods. Version 2 is preferred even
if both versions are mounted, because its frozen processes can be killed. Version 1 must thaw a process before it can
end. A queue-proxy creates the cgroup of its pod.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import msgspec

from serving.home.processes.process_lifetime import expects, kill_group, start_ticks
from serving.home.processes.processrecords import ProcessRecord, ProcessRecords
from serving.queueproxy.podspec import FROZEN_MARK, FreezerPlace

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "serving-dormant-"
# Time for killed processes to leave their cgroups, in seconds.
_LEAVE_S, _LEAVE_PAUSE_S = 0.5, 0.005


class PodFreezers(msgspec.Struct, frozen=True, kw_only=True):
    """The cgroups of one system's pods, in ``folder``; ``root`` is the mount point of their hierarchy.

    ``is_unified``: this machine has cgroup version 2.
    """

    root: Path
    folder: Path
    is_unified: bool

    def place_of(self, pod: str) -> FreezerPlace:
        """The location of a pod's cgroup, for its queue-proxy."""
        return FreezerPlace(root=str(self.root), folder=str(self.folder / pod), is_unified=self.is_unified)

    def thaw(self, pod: str) -> None:
        """Thaw the frozen processes of a pod."""
        name, text = ("cgroup.freeze", "0") if self.is_unified else ("freezer.state", "THAWED")
        with contextlib.suppress(OSError):
            (self.folder / pod / name).write_text(text)

    def remove(self, pod: str) -> None:
        """Remove the cgroup of an ended pod. If processes remain, the next sweep removes it."""
        self.thaw(pod)
        with contextlib.suppress(OSError):
            (self.folder / pod).rmdir()

    def sweep(self) -> None:
        """Remove the cgroups left by other systems that have ended, and the empty ones of this system."""
        for folder in self.folder.parent.glob(f"{_PREFIX}*"):
            pid, _, ticks = folder.name.removeprefix(_PREFIX).partition("-")
            is_ours = folder == self.folder
            if not is_ours and pid.isdecimal() and str(start_ticks(int(pid))) == ticks:
                continue
            system = msgspec.structs.replace(self, folder=folder)
            for pod in [path.name for path in folder.iterdir() if path.is_dir()]:
                if is_ours:
                    # Only an empty cgroup can be removed.
                    with contextlib.suppress(OSError):
                        (folder / pod).rmdir()
                else:
                    system.remove(pod)
            if not is_ours:
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def end(self) -> None:
        """Thaw all pods, and remove the cgroups once killed processes have left them. Blocks briefly."""
        until_s = time.monotonic() + _LEAVE_S
        while self.folder.exists():
            for pod in [path.name for path in self.folder.iterdir() if path.is_dir()]:
                self.remove(pod)
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            if time.monotonic() > until_s:
                return
            time.sleep(_LEAVE_PAUSE_S)


def find_freezers(owner: int, *, root: Path = _ROOT, proc: Path = Path("/proc")) -> PodFreezers | None:
    """Create the folder for the cgroups of the system with the process ``owner``; None if that fails."""
    try:
        lines = [line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().splitlines()]
    except OSError:
        return None
    name = f"{_PREFIX}{owner}-{start_ticks(owner)}"
    unified = root if (root / "cgroup.controllers").exists() else root / "unified"
    choices = [
        *((unified, path, True) for number, _, path in lines if number == "0"),
        *((root / "freezer", path, False) for _, kinds, path in lines if "freezer" in kinds.split(",")),
    ]
    for mounted, path, is_unified in choices:
        above = mounted / path.strip("/")
        if not (above / "cgroup.procs").exists():
            continue
        with contextlib.suppress(OSError):
            (above / name).mkdir(exist_ok=True)
            if os.access(above / "cgroup.procs", os.W_OK):
                return PodFreezers(root=mounted, folder=above / name, is_unified=is_unified)
    return None


class PodSignals:
    """Sends signals to apps, and thaws frozen apps, which handle a signal only when they run."""

    def __init__(self, freezers: PodFreezers | None, records: ProcessRecords) -> None:
        self._freezers = freezers
        self._records = records

    def send(self, process: ProcessRecord, number: int) -> None:
        """Send a signal to a process. If it is an app, also thaw the app."""
        signal_process(process, number)
        if not process.is_app:
            return
        if self._freezers is not None:
            self._freezers.thaw(process.pod)
        if number != signal.SIGKILL and Path(self._records.prefix_of(process.pod) + FROZEN_MARK).exists():
            kill_group(process.pid, signal.SIGCONT)

    def forget(self, pod: str) -> None:
        """Remove the cgroup of an ended pod."""
        if self._freezers is not None:
            self._freezers.remove(pod)

    def sweep(self) -> None:
        """Remove the cgroups left by systems that have ended."""
        if self._freezers is not None:
            self._freezers.sweep()

    def end(self) -> None:
        """Thaw all pods and remove their cgroups."""
        if self._freezers is not None:
            self._freezers.end()


def signal_process(process: ProcessRecord, number: int) -> None:
    """Signal a process and its group, unless it has ended."""
    # The supervisor may have collected it already, and its id may be reused.
    if not process.is_alive:
        return
    if process.stop_signal and number == signal.SIGTERM:
        number = process.stop_signal
    if process.stop_signal and not expects(process.pid, number):
        # The kernel delivers no unhandled signals to the first process of a container.
        number = signal.SIGKILL
    kill_group(process.pid, number)
