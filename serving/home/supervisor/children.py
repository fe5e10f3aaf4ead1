"""The child processes of ``serving up``: modules, sockets, environment, and their terminal.

Standard library only: the supervisor uses it.
"""

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from serving.home.supervisor.heartbeats import HangWatch, read_vitals, read_wait_channel
from serving.net.aio.startup import WAITING

ACTIVATOR = "serving.activator.main"
"""The module of all activators."""
TEMPLATE = "template"
"""The name of the child that forks pods."""

# Virtual nodes boot in seconds; a cluster's minute would only delay demonstrations.
_SCAN_INTERVAL_S = "2"

_REPORTS_BYTES = 65536
_NOTHING: Mapping[str, str] = MappingProxyType({})
ALLOCATOR: Mapping[str, str] = MappingProxyType(
    {"MALLOC_TRIM_THRESHOLD_": "1048576", "MALLOC_MMAP_THRESHOLD_": "1048576"}
)
"""glibc's setting for processes that forward bodies: 1 MiB of freed memory is kept for reuse.

The loop reads 256,000 bytes at a time, and up to three such blocks exist at once. By default glibc returns each block
to the kernel, which must clear it again. That takes a quarter of the CPU time of a large body.
"""

IMPORTED_LATER = (
    "encodings.ascii",
    "encodings.idna",
    "importlib.resources.readers",
    "serving.net.aio.ownlog",
    "serving.autoscaler.io.memorywatch",
    "serving.net.wire.websocket",
    "websockets.asyncio.client",
)
"""Modules that each daemon imports after its start, and would otherwise have in private memory."""


class ChildProcess:
    """A process that runs one child of the supervisor, such as the activator.

    It writes to the pipe behind ``ready_fd`` when it serves, and then every second.
    """

    def __init__(self, pid: int, *, started_s: float, ready_fd: int) -> None:
        self.pid = pid
        self.started_s = started_s
        self.exit_code: int | None = None
        """None while it runs."""
        self._ready_fd = ready_fd
        self._has_reported = self._is_new = self._is_waiting = False
        self._watch = HangWatch()

    @property
    def is_ready(self) -> bool:
        """Whether the process has reported readiness, even if it has exited since."""
        self._read()
        return self._has_reported

    def hang(self, elapsed_s: float) -> str:
        """Why a process that has started hangs; "" if it does not.

        Called about every second; ``elapsed_s`` is the time since the last call.
        """
        if not self.is_ready:
            return ""
        vitals = read_vitals(self.pid)
        if self._is_new:
            self._is_new = False
            self._watch.reset(vitals)
            return ""
        why = self._watch.check(vitals, elapsed_s=elapsed_s, is_waiting=self._is_waiting)
        return why and why + read_wait_channel(self.pid)

    def _read(self) -> None:
        if self._ready_fd < 0:
            return
        with contextlib.suppress(BlockingIOError):
            if reports := os.read(self._ready_fd, _REPORTS_BYTES):
                self._has_reported = self._is_new = True
                self._is_waiting = reports.endswith(WAITING)
            else:
                self.close()

    def signal(self, number: int) -> None:
        """Send a signal to the process if it is running."""
        if self.exit_code is None:
            os.kill(self.pid, number)

    def close(self) -> None:
        """Close the pipe."""
        if self._ready_fd >= 0:
            os.close(self._ready_fd)
            self._ready_fd = -1


class Child:
    """One child of the supervisor, such as the activator.

    A child has a name, a Python module to run, the names of its inherited sockets, and additional environment
    variables.
    """

    def __init__(self, name: str, module: str, *sockets: str, environment: Mapping[str, str] = _NOTHING) -> None:
        self.name = name
        self.module = module
        self.sockets = sockets
        self._environment = environment
        self.process: ChildProcess | None = None
        self.started_s = 0.0
        self.pause_s = 0.0
        self.generation = 0
        """Number of replacements while running."""
        self.failed_starts = 0
        """Number of ends before the child ever served."""
        self.has_served = False
        """Whether any of its processes was ready, so that a later failure is not due to the settings."""

    @property
    def overlaps(self) -> bool:
        """Whether a replacement starts before the old process ends, as for activators with requests in flight."""
        return self.module == ACTIVATOR

    @property
    def environment(self) -> Mapping[str, str]:
        """The child's additional environment variables."""
        if self.overlaps and self.generation:
            # To the autoscaler each process is a different activator, whose load adds to that of the process it
            # replaces.
            return {**self._environment, "SERVING_ACTIVATOR_NAME": f"{self.name}.{self.generation}"}
        return self._environment


def CHILDREN(activator_count: int = 1, *, has_node_groups: bool = False, has_acme: bool = False) -> list[Child]:  # noqa: N802 - a fresh list of what is always the same
    """The supervisor's children, in the order of their start."""
    groups = {"SERVING_NODEGROUP_CLOUD_PROVIDER": "local", "SERVING_NODEGROUP_SCAN_INTERVAL_S": _SCAN_INTERVAL_S}
    return [
        # Queue-proxies forked from it keep its allocator; apps have their own environment.
        Child(TEMPLATE, "serving.home.processes.template", TEMPLATE, environment=ALLOCATOR),
        Child("control", "serving.home.main", "api", "control-metrics"),
        *(
            [Child("nodegroup", "serving.nodes.nodegroup.main", "nodegroup-metrics", environment=groups)]
            if has_node_groups
            else []
        ),
        *([Child("acme", "serving.home.acme.main")] if has_acme else []),
        Child("autoscaler", "serving.autoscaler.main", "stats"),
        Child("dashboard", "serving.tools.dashboard.main", "dashboard"),
        *(_activator(index, activator_count) for index in range(activator_count)),
    ]


def _activator(index: int, count: int) -> Child:
    """Activator ``index`` of ``count`` activators, which share the same sockets.

    From the second on, the index is part of the activator's name, and of the name of its metrics port.
    """
    name = f"activator-{index}" if index else "activator"
    environment = {
        **ALLOCATOR,
        "SERVING_ACTIVATOR_INDEX": str(index),
        "SERVING_ACTIVATOR_COUNT": str(count),
        # Readiness is pushed here; probes would only use the starting pods' CPU.
        "SERVING_ACTIVATOR_PROBE_UNREADY_PODS": "false",
    }
    if index:
        # To the autoscaler each is a different activator, whose loads add up.
        environment["SERVING_ACTIVATOR_NAME"] = name
    return Child(name, ACTIVATOR, "public", "tls", "inner", f"{name}-metrics", environment=environment)


class ControllingTerminal:
    """The terminal of this process at its start, if any."""

    def __init__(self) -> None:
        self._was_there = _has_terminal()
        self.is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        """Whether this process was started to survive its terminal (nohup)."""

    @property
    def is_lost(self) -> bool:
        """Whether the terminal was closed, so that the session has none (tty_ioctl(4), vhangup(2))."""
        return self._was_there and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def last_error(log: Path) -> str:
    """The last error in a daemon's log: the field ``error`` of its last line if that is JSON, else the line.

    For an empty log, or a line that a full disk has cut off, it is the text "see PATH".
    """
    lines: list[str] = []
    for path in (log, log.with_name(f"{log.name}.1")):
        with contextlib.suppress(OSError):
            lines = lines or path.read_text(errors="replace").splitlines()
    if not lines:
        return f"see {log}"
    try:
        return str(json.loads(lines[-1])["error"])
    except (ValueError, KeyError, TypeError):
        return lines[-1] if not lines[-1].startswith("{") else f"see {log}"
