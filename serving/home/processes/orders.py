"""The messages between control process and template: one JSON object per line.

Control sends orders: start a process of a pod, signal it, store a note about a pod, remove a pod. The template sends
reports: first an inventory on every connection, so that a new control process gets its pods, and then each change of a
process. A process is identified by the pod's id and a name within the pod. The template returns notes unchanged to the
next control process.
"""

import contextlib
import os
from typing import Any

import msgspec

from serving.home.processes.appcopy import AppCopy
from serving.home.processes.isolation import Confinement
from serving.home.processes.mounts import MountPoint, OverlayMount
from serving.home.processes.ownusers import OwnUsers

LINE_BYTES_MAX = 16 * 2**20
"""Longest order, in bytes.

A manifest with the largest environment fits; longer orders fail, and the template drops them.
"""

_encoder = msgspec.json.Encoder()
_LOG_MODE = 0o600


class _TemplateMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """A message between the control process and the process template. On the wire it is tagged with its class name."""


class _ProcessMessage(_TemplateMessage, frozen=True, kw_only=True):
    """A message about a process of a pod."""

    pod: str
    name: str


class Launch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container launch: the order's ``arguments`` are a runtime command that starts the container and exits.

    The runtime writes the process id to ``pid_file``, and errors as JSON to ``error_log``. ``cgroups`` are the folders
    to join first. ``root`` is mounted without the files of an earlier run, and ``state``, the runtime's record of that
    run, is removed. Without a root the order runs a command in an existing container. ``volumes`` is the folder in
    which ``mounts`` are created for the runtime. ``stop_signal`` replaces SIGTERM. ``is_rootless``: the container has a
    user namespace in which its starting user is root. ``users`` are those of a container that root starts in a user
    namespace.
    """

    pid_file: str
    error_log: str
    state: str
    cgroups: tuple[str, ...] = ()
    stop_signal: int = 15
    root: OverlayMount | None = None
    volumes: str = ""
    mounts: tuple[MountPoint, ...] = ()
    is_rootless: bool = False
    users: OwnUsers | None = None


class StartProcess(_ProcessMessage, frozen=True, kw_only=True):
    """Start a process. Without ``arguments`` it is the pod's queue-proxy, forked from the warm template.

    ``folder`` is the working folder. Output is appended to the file ``log``. The process inherits no environment.
    ``launch`` starts a container. ``network`` is the app's network namespace, which its queue-proxy enters too.
    ``mounts`` appear at their own paths, in a root that is built at the empty folder ``new_root``. ``hostname``,
    ``hosts`` and ``resolver`` are the process's host name, hosts file and resolver configuration. ``niceness`` is the
    nice value until the pod is ready (nice(2)). ``preload`` names the revision whose warm process may fork this
    process. The warm process imports ``modules``, or the modules that the command names. ``is_own_proxy``: the process
    is an app with an in-process queue-proxy, and gets the readiness pipe.

    ``stdin``, ``stdout`` and ``stderr`` are paths that the template opens. "" is an empty input, or the log for output.
    ``keeps_stdin`` also opens a FIFO for writing, so that it does not end when its writers close it. ``has_terminal``:
    the streams are a terminal, which becomes the process's controlling terminal. ``is_exec``: the process is a command
    in a running pod; it ends with the control process, and is not in the inventory. ``confinement`` is applied before
    the user's code runs. ``cgroups`` are the folders that an app's process joins. ``copy`` is the pod's copy of the
    snapshot in which it runs.
    """

    environment: dict[str, str]
    log: str
    folder: str = "/"
    arguments: tuple[str, ...] = ()
    mounts: tuple[MountPoint, ...] = ()
    new_root: str = ""
    hostname: str = ""
    launch: Launch | None = None
    network: str = ""
    hosts: str = ""
    resolver: str = ""
    stdin: str = ""
    stdout: str = ""
    stderr: str = ""
    keeps_stdin: bool = False
    has_terminal: bool = False
    is_exec: bool = False
    niceness: int = 0
    preload: str = ""
    modules: tuple[str, ...] = ()
    is_own_proxy: bool = False
    confinement: Confinement | None = None
    cgroups: tuple[str, ...] = ()
    copy: AppCopy | None = None


class SendSignal(_ProcessMessage, frozen=True, kw_only=True):
    """Send a signal to a process and all of its group."""

    signal: int


class KeepNote(_TemplateMessage, frozen=True, kw_only=True):
    """Store a note about a pod, replacing an earlier one."""

    pod: str
    note: dict[str, Any]


class ForgetPod(_TemplateMessage, frozen=True, kw_only=True):
    """Kill the remaining processes of a pod, and drop its note."""

    pod: str


class StartedProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A started process. ``exit_code`` is None while it runs, and negative if a signal ended it: -9 for SIGKILL.

    The latest report of a queue-proxy is ``is_ready``: its app can take requests; ``is_drained``: its app may be ended;
    ``is_dormant``: its app is frozen.
    """

    name: str
    pid: int
    exit_code: int | None = None
    is_ready: bool = False
    is_drained: bool = False
    is_dormant: bool = False


class InventoryPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod in the inventory. ``note`` is empty if none was stored."""

    pod: str
    note: dict[str, Any]
    processes: list[StartedProcess]


class Inventory(_TemplateMessage, frozen=True, kw_only=True):
    """All pods of the template: the first report on a connection."""

    pods: list[InventoryPod]


class ProcessStarted(_ProcessMessage, frozen=True, kw_only=True):
    """A process has started."""

    pid: int


class StartFailed(_ProcessMessage, frozen=True, kw_only=True):
    """A process could not be started; ``why`` is for people, as in "/no/such: No such file or directory"."""

    why: str


class ReadinessChanged(_ProcessMessage, frozen=True, kw_only=True):
    """A queue-proxy's report: ``is_ready`` if its app can take requests, ``is_dormant`` if the app is frozen.

    ``is_drained``: the pod drains, and its app may be ended.
    """

    is_ready: bool
    is_drained: bool = False
    is_dormant: bool = False


class Warned(_ProcessMessage, frozen=True, kw_only=True):
    """A warning about a process, for an Event of its pod."""

    reason: str
    message: str


class ProcessEnded(_ProcessMessage, frozen=True, kw_only=True):
    """A process and its process group have ended. ``exit_code`` is negative if a signal ended it: -9 for SIGKILL."""

    exit_code: int


class _StartKey(msgspec.Struct, frozen=True, tag="StartProcess"):
    """The fields of an order that identify a process."""

    pod: str
    name: str


Order = StartProcess | SendSignal | KeepNote | ForgetPod
Report = Inventory | ProcessStarted | StartFailed | ReadinessChanged | Warned | ProcessEnded

_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_starts: msgspec.json.Decoder[_StartKey] = msgspec.json.Decoder(_StartKey)
_reports: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(message: Order | Report) -> bytes:
    """Encode an order or a report as one line of JSON."""
    return _encoder.encode(message) + b"\n"


def read_order(line: bytes) -> Order:
    """Decode an order. Raises ``msgspec.DecodeError``, or ``RecursionError`` for deep nesting."""
    return _orders.decode(line)


def read_start_key(line: bytes) -> tuple[str, str] | None:
    """The pod and process named by a start order that cannot be decoded; None if it names none or is another order."""
    try:
        start = _starts.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    return start.pod, start.name


def read_report(line: bytes) -> Report:
    """A report from its line. Raises ``msgspec.DecodeError``."""
    return _reports.decode(line)


class Lines:
    """Splits a stream of bytes into lines. Lines longer than ``bytes_max`` are dropped and counted; 0 is no limit."""

    def __init__(self, bytes_max: int = LINE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._rest = bytearray()
        self._is_dropping = False
        self.dropped_count = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines completed by ``piece``."""
        lines: list[bytes] = []
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._grow(end)
            if not self._is_dropping:
                lines.append(bytes(self._rest))
            self._rest.clear()
            self._is_dropping = False
        self._grow(rest)
        return lines

    def _grow(self, part: bytes) -> None:
        if self._is_dropping:
            return
        self._rest += part
        if self._bytes_max and len(self._rest) > self._bytes_max:
            self._rest.clear()
            self._is_dropping = True
            self.dropped_count += 1


def open_streams(order: StartProcess) -> tuple[int, int, int]:
    """Open the stdin, stdout and stderr of an order; return the descriptors, which the caller closes.

    Raises ``OSError``. The other end of a pipe must be open already, because the template never waits for it.
    """
    outputs = (order.stdout, order.stderr)
    log = os.open(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _LOG_MODE)
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, log)
        descriptors = []
        reading = os.O_RDWR if order.keeps_stdin else os.O_RDONLY
        for path, flags in ((order.stdin or os.devnull, reading), *((output, os.O_WRONLY) for output in outputs)):
            descriptors.append(_opened(path, flags) if path else os.dup(log))
            opened.callback(os.close, descriptors[-1])
        opened.pop_all()
    os.close(log)
    stdin, stdout, stderr = descriptors
    return stdin, stdout, stderr


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    os.set_blocking(descriptor, True)
    return descriptor
