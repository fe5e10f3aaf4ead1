"""Preloads apps: keeps a warm process per revision, and forks later pods from it.

A revision with ``serving.dev/template: preload`` starts its first pod normally. When that pod is ready, a warm process
of the revision imports the app (``preload_program``), and later pods are forked from it. Revisions never share a warm
process, so that no values from an environment reach another service. A warm process ends after an hour without a start,
when the machine runs out of memory, and with the template. The next pod then starts normally.
"""

import contextlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from serving.core.model.errors import InvalidValue
from serving.home.processes import confine
from serving.home.processes import preload_program as program
from serving.home.processes.isolation import plan_of
from serving.home.processes.orders import StartProcess
from serving.home.processes.process_lifetime import die_with_parent, join_cgroups, kill_group
from serving.home.processes.processrecords import ProcessRecord, ProcessRecords

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
_SHELL = ("/bin/sh", "-c")
_EXEC = "exec "
# Options of the interpreter without a value.
_HARMLESS = frozenset({"-u", "-B"})
_WITHOUT = "pods start without it"
_EXPECTED = "a command that Python runs: python SCRIPT, python -m MODULE, or a script of Python such as uvicorn"

# How often warm processes are checked for ones to drop, in seconds.
_CHECK_PERIOD_S = 10.0
_IDLE_S = 3600.0
# Share of total memory; with less available memory, the kernel begins to swap or kill.
_FREE_MEMORY_MIN_RATIO = 0.1
# Longest fork, in seconds: a stopped process must not block the template, and the pod then has an ordinary start.
_FORK_MAX_S = 10.0
_PIECE_BYTES = 65536
_START = "import runpy, sys; runpy.run_path(sys.argv[1])['main'](int(sys.argv[2]))"

Warn = Callable[[StartProcess, str, str], None]


class PythonCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A Python command: the interpreter, its options, and its arguments from the script or "-m" on."""

    interpreter: str
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...]


def python_command(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    find: Callable[[str, str], str | None],
    first_line: Callable[[str], str],
) -> PythonCommand:
    """Parse a Python command. ``find`` resolves a command in a PATH; ``first_line`` reads a file's first line.

    Raises:
        InvalidValue: for a command that no Python interpreter runs.
    """
    words = _without_shell(arguments, environment)
    path = find(words[0], environment.get("PATH", ""))
    if path is None:
        raise InvalidValue(text=words[0], expected="a command in the pod's PATH")
    if _PYTHON.fullmatch(path.rpartition("/")[2]):
        count = next((at for at, word in enumerate(words[1:]) if word not in _HARMLESS), len(words) - 1)
        options, rest = words[1 : count + 1], words[count + 1 :]
        is_module = len(rest) > 1 and rest[0] == "-m"
        if not is_module and (not rest or rest[0].startswith("-")):
            raise InvalidValue(text=shlex.join(words), expected=_EXPECTED)
        return PythonCommand(interpreter=path, options=tuple(options), arguments=tuple(rest))
    line = first_line(path)
    interpreter = line.removeprefix("#!").split()
    if not line.startswith("#!") or not interpreter or not _PYTHON.fullmatch(interpreter[0].rpartition("/")[2]):
        raise InvalidValue(text=words[0], expected=_EXPECTED)
    return PythonCommand(interpreter=interpreter[0], options=tuple(interpreter[1:]), arguments=(path, *words[1:]))


def _without_shell(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The words of a command, or of the command inside ``sh -c`` with its variables substituted."""
    if tuple(arguments[:2]) != _SHELL or len(arguments) != len(_SHELL) + 1:
        return list(arguments)
    text = arguments[2]
    bare = _VARIABLE.sub("", text)
    if not text.startswith(_EXEC) or re.search(r"[$`;&|<>*?~()\\]", bare):
        raise InvalidValue(text=text, expected="a command without shell syntax other than variables")
    values = [environment.get(name.strip("{}"), "") for name in _VARIABLE.findall(text)]
    if any(shlex.quote(value) != value for value in values):
        raise InvalidValue(text=text, expected="variables without characters that mean something to a shell")
    filled = iter(values)
    return shlex.split(_VARIABLE.sub(lambda _: next(filled), text).removeprefix(_EXEC))


class _PreloadedApp:
    """One warm process. ``is_warm``: it has imported the app, and can be forked. ``control`` is its socket.

    ``control`` is None if the app cannot be preloaded, or was dropped.
    """

    def __init__(self, order: StartProcess, now_s: float) -> None:
        self.order = order
        self.used_s = now_s
        self.is_warm = False
        self.control: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def send(self, message: object, *descriptors: int) -> None:
        """Write one line, with descriptors attached to its first byte."""
        assert self.control is not None
        text = json.dumps(message).encode() + b"\n"
        sent = socket.send_fds(self.control, [text], descriptors) if descriptors else 0
        self.control.sendall(text[sent:])

    def read_reply(self) -> dict[str, Any]:
        """Read one line. Raises ``OSError`` at the end of the stream, ``ValueError`` for an invalid reply."""
        assert self.control is not None
        received = b""
        while not received.endswith(b"\n"):
            if not select.select([self.control], [], [], _FORK_MAX_S)[0]:
                raise TimeoutError
            piece = self.control.recv(_PIECE_BYTES)
            if not piece:
                raise ConnectionResetError
            received += piece
        reply: dict[str, Any] = json.loads(received)
        return reply

    def end(self) -> None:
        """Kill the process; its forks continue."""
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        self.is_warm = False


class PreloadedApps:
    """The warm processes, by revision. ``warn`` reports, for the pod of an order, why an app cannot be preloaded.

    ``watch`` registers a callback for a readable socket; ``unwatch`` removes it.
    """

    def __init__(
        self,
        records: ProcessRecords,
        *,
        owner: int,
        watch: Callable[[socket.socket, Callable[[], None]], None],
        unwatch: Callable[[socket.socket], object],
        warn: Warn,
    ) -> None:
        self._records = records
        self._owner = owner
        self._watch = watch
        self._unwatch = unwatch
        self._warn = warn
        self._apps: dict[str, _PreloadedApp] = {}
        self._starting: dict[str, StartProcess] = {}
        self._checked_s = 0.0

    @property
    def due_in_s(self) -> float | None:
        """Seconds until ``drop_unused`` is due; None without apps."""
        return _CHECK_PERIOD_S if self._apps else None

    def start(self, order: StartProcess, record: ProcessRecord, now_s: float) -> ProcessRecord | None:
        """Fork a pod's process and return its record; None if the pod needs an ordinary start."""
        if not order.preload or order.launch or order.is_exec:
            return None
        if order.mounts:
            # The mounts of a fork are the warm process's.
            paths = ", ".join(mount.target for mount in order.mounts)
            self._warn(order, "PreloadRefused", f"its volumes are mounted before it starts: {paths}; {_WITHOUT}")
            return None
        app = self._apps.get(order.preload)
        if app is None:
            self._starting[order.pod] = order
            return None
        app.used_s = now_s
        if not app.is_warm:
            return None
        try:
            command = _command_of(order)
            log = os.open(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                app.send(
                    {
                        "arguments": [command.interpreter, *command.arguments],
                        "environment": order.environment,
                        "folder": order.folder,
                        "confinement": _plan_in_warm(order),
                        "owner": self._owner,
                        "record": msgspec.to_builtins(record),
                    },
                    log,
                )
            finally:
                os.close(log)
            reply = app.read_reply()
            if "failed" in reply:
                raise ChildProcessError(reply["failed"])
            started = msgspec.convert(reply, ProcessRecord)
        except (OSError, ValueError, InvalidValue) as error:
            self._drop(order.preload)
            why = str(error) or type(error).__name__
            self._warn(order, "PreloadFailed", f"the warm process did not fork: {why}; {_WITHOUT}")
            return None
        try:
            join_cgroups(order.cgroups, started.pid)
        except OSError:
            # None runs without its limits.
            kill_group(started.pid, signal.SIGKILL)
            raise
        with contextlib.suppress(OSError):
            # Without a record, on a full disk, the process only lasts as long as the template.
            self._records.write(started)
        return started

    def pod_ready(self, pod: str, now_s: float) -> None:
        """Start a warm process that imports the app of a ready pod, if the pod had an ordinary start.

        A revision has only one warm process.
        """
        order = self._starting.pop(pod, None)
        if order is None or order.preload in self._apps:
            return
        app = self._apps[order.preload] = _PreloadedApp(order, now_s)
        try:
            command = _command_of(order)
            self._execute(app, command)
        except (OSError, InvalidValue) as error:
            reason = f"expected {error.expected}" if isinstance(error, InvalidValue) else str(error)
            self._refuse(app, f"its command cannot be preloaded: {reason}")

    def forget(self, pod: str) -> None:
        """Forget the start order of a deleted pod."""
        self._starting.pop(pod, None)

    def drop_unused(self, now_s: float) -> None:
        """End warm processes unused for an hour, and the one unused for the longest time if memory is short."""
        if now_s < self._checked_s + _CHECK_PERIOD_S:
            return
        self._checked_s = now_s
        preloaded = sorted((app for app in self._apps.values() if app.control), key=lambda app: app.used_s)
        for at, app in enumerate(preloaded):
            if app.used_s + _IDLE_S < now_s or (at == 0 and _free_memory_ratio() < _FREE_MEMORY_MIN_RATIO):
                self._drop(app.order.preload)

    def end(self) -> None:
        """End all warm processes."""
        for key in list(self._apps):
            self._drop(key)

    def _execute(self, app: _PreloadedApp, command: PythonCommand) -> None:
        mine, its = socket.socketpair()
        environment = {key: value for key, value in app.order.environment.items() if key not in {"PORT", "HOSTNAME"}}
        log = os.open(app.order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            app.process = subprocess.Popen(  # noqa: S603 - the interpreter of the user's own command
                [command.interpreter, *command.options, "-c", _START, str(program.__file__), str(its.fileno())],
                env=environment,
                cwd=app.order.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[its.fileno()],
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one thread, by design
            )
        finally:
            os.close(log)
            its.close()
        app.control = mine
        self._watch(mine, lambda: self._on_reply(app))
        app.send(
            {
                "arguments": [command.interpreter, *command.arguments],
                "modules": list(app.order.modules),
                "confine": str(confine.__file__),
                "confinement": _warm_plan(app.order),
                "folder": app.order.folder,
                # All pods inherit it from this process, which cannot change it later.
                "hostname": app.order.preload.partition("/")[2],
                "hosts": app.order.hosts,
            }
        )

    def _on_reply(self, app: _PreloadedApp) -> None:
        """Process the result of an import: the app is warm, was refused, or the process has ended."""
        try:
            reply = app.read_reply()
        except (OSError, ValueError):
            self._refuse(app, "the warm process ended while it imported the app; its log says why")
            return
        assert app.control is not None
        if "refused" in reply:
            self._refuse(app, str(reply["refused"]))
            return
        self._unwatch(app.control)
        app.is_warm = True
        assert app.process is not None
        resident_bytes = _resident_bytes(app.process.pid)
        message = f"pods of this revision are forked from a warm process of {resident_bytes >> 20} MiB"
        self._warn(app.order, "Preloaded", message)

    def _refuse(self, app: _PreloadedApp, why: str) -> None:
        """End a warm process, and report why its app cannot be preloaded. It is not retried."""
        if app.control is not None:
            self._unwatch(app.control)
        app.end()
        self._warn(app.order, "PreloadRefused", f"{why}; {_WITHOUT}")

    def _drop(self, key: str) -> None:
        app = self._apps.pop(key)
        if app.control is not None and not app.is_warm:
            self._unwatch(app.control)
        app.end()


def _warm_plan(order: StartProcess) -> dict[str, Any] | None:
    """The isolation of a warm process: that of its first pod, without the limit on ports.

    Each forked process then limits its own ports (``_plan_in_warm``).
    """
    return None if order.confinement is None else plan_of(msgspec.structs.replace(order.confinement, ports=None))


def _plan_in_warm(order: StartProcess) -> dict[str, Any] | None:
    """The isolation to apply in a fork, in addition to the mounts and the user of its warm process."""
    if order.confinement is None:
        return None
    return plan_of(msgspec.structs.replace(order.confinement, hidden=(), shown=(), owned=(), private=(), user=0))


def _command_of(order: StartProcess) -> PythonCommand:
    return python_command(
        order.arguments,
        order.environment,
        find=lambda name, path: shutil.which(os.path.join(order.folder, name) if "/" in name else name, path=path),  # noqa: PTH118
        first_line=_first_line,
    )


def _first_line(path: str) -> str:
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        return file.readline(4096).decode(errors="replace").strip()
    return ""


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _free_memory_ratio() -> float:
    """The ratio of available to total memory; 1 if unknown."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        amounts = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
        return amounts["MemAvailable"] / amounts["MemTotal"]
    return 1.0
