"""Starts processes and containers without blocking the template: a pod's app and queue-proxy start in parallel.

A container is started by crun or runc, a process from a standby (``spawn``). Signals to a starting process, and the end
of its pod, are deferred until it has started. A new control process gets an inventory when all processes have started.
"""

import contextlib
import fcntl
import functools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from serving.home.processes.mounts import (
    hide,
    join_user,
    mount_overlay,
    own_mounts,
    own_user_and_mounts,
    show_at,
)
from serving.home.processes.orders import ForgetPod, Launch, Order, SendSignal, StartProcess, open_streams
from serving.home.processes.ownusers import hide_place, mount_files, own_streams
from serving.home.processes.process_lifetime import die_with_parent, join_cgroups, start_ticks
from serving.home.processes.processrecords import ProcessRecord, ProcessRecords
from serving.home.trees import discard_tree

# crun rejects machines with cgroups of both versions, although it does not manage them.
_HYBRID_CGROUPS = Path("/sys/fs/cgroup/unified")
_LAUNCH_MAX_S = 30.0
_ERROR_CHARACTERS_MAX = 500
# File and its value without a limit, for cgroup versions 1 and 2. crun runs in the app's cgroups although its work is
# not the app's: with a limit of 50 m a container took 0.9 s to start.
_UNLIMITED = {"cpu.cfs_quota_us": "-1", "cpu.max": "max"}

# The seals that crun and runc expect (cloned_binary.c); otherwise they copy themselves.
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

_Key = tuple[str, str]


class ContainerLaunch:
    """A container start in progress. When ``descriptor`` is readable, ``finish`` does not block.

    Raises ``OSError`` when the runtime cannot be executed.
    """

    def __init__(self, order: StartProcess) -> None:
        launch = order.launch
        assert launch is not None, "the order of a container"
        self.order = order
        self.end_s = time.monotonic() + _LAUNCH_MAX_S
        self._pid_file = Path(launch.pid_file)
        self._errors = Path(launch.error_log)
        self._pid_file.unlink(missing_ok=True)
        self._errors.unlink(missing_ok=True)
        streams = open_streams(order)
        self._quotas = {} if order.is_exec else lift_quotas(launch.cgroups)
        try:
            if not order.stdin:
                _end_input(streams[0])
            if launch.users is not None:
                own_streams(launch.users, streams)
            program = sealed_copy(order.arguments[0])
            self._process = subprocess.Popen(  # noqa: S603 - the runtime that was found at the start
                order.arguments,
                executable=f"/proc/self/fd/{program}" if program else None,
                pass_fds=(program,) if program else (),
                env={"PATH": os.environ.get("PATH", os.defpath)},
                cwd="/",
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                start_new_session=True,
                preexec_fn=lambda: _prepare(launch, order.network),  # noqa: PLW1509 - one thread, by design
            )
        except OSError:
            restore_quotas(self._quotas)
            raise
        finally:
            for descriptor in streams:
                os.close(descriptor)
        self.descriptor = os.pidfd_open(self._process.pid)

    @property
    def has_ended(self) -> bool:
        """Whether ``finish`` returns without waiting."""
        return self._process.poll() is not None

    def finish(self) -> ProcessRecord:
        """Wait until the container runs; return its first process's record.

        Raises ``OSError`` with the runtime's message.
        """
        os.close(self.descriptor)
        try:
            exit_code = self._process.wait(max(0.0, self.end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise TimeoutError(0, f"no container within {_LAUNCH_MAX_S:g} s", self.order.arguments[0]) from None
        finally:
            restore_quotas(self._quotas)
        if exit_code != 0 or not self._pid_file.exists():
            reason = _error_of(self._errors) or f"exit code {exit_code}"
            raise OSError(0, reason, Path(self.order.arguments[0]).name)
        order, launch, pid = self.order, self.order.launch, int(self._pid_file.read_text())
        assert launch is not None, "the order of a container"
        return ProcessRecord(
            pod=order.pod,
            name=order.name,
            is_app=True,
            is_exec=order.is_exec,
            pid=pid,
            start_ticks=start_ticks(pid) or 0,
            stop_signal=launch.stop_signal,
        )


@functools.cache
def _sealed(program: str, changed: tuple[int, int]) -> int:
    del changed
    descriptor = os.memfd_create(Path(program).name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as copy:
            copy.write(Path(program).read_bytes())
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        is_executable = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == _SEALS
        # A file open for writing cannot be executed.
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC) if is_executable else 0
    finally:
        os.close(descriptor)


def sealed_copy(program: str) -> int:
    """A descriptor of a copy of a runtime, in sealed memory; 0 if memory cannot be executed. Raises ``OSError``.

    A container may reach its runtime by /proc/PID/exe. A runtime that is not sealed therefore copies itself at each
    start, and executes the copy; a sealed copy saves this.
    """
    status = os.stat(program)  # noqa: PTH116 - of a path in text
    return _sealed(program, (status.st_ino, status.st_ctime_ns))


def lift_quotas(folders: Iterable[str]) -> dict[Path, str]:
    """Remove the CPU limits of cgroups during a container start; return the files and values for ``restore_quotas``."""
    lifted: dict[Path, str] = {}
    for folder in folders:
        for name, unlimited in _UNLIMITED.items():
            file = Path(folder, name)
            with contextlib.suppress(OSError):
                value = file.read_text().strip()
                file.write_text(unlimited)
                lifted[file] = value
    return lifted


def restore_quotas(quotas: dict[Path, str]) -> None:
    """Restore the CPU limits that ``lift_quotas`` has removed. A removed cgroup is skipped. Raises ``OSError``."""
    for file, value in quotas.items():
        with contextlib.suppress(FileNotFoundError):
            file.write_text(value)


def _prepare(launch: Launch, network: str) -> None:
    """Prepare the forked child before it executes the runtime: cgroups, namespaces, mounts. Exits on failure."""
    try:
        join_cgroups(launch.cgroups)
        if launch.is_rootless:
            _be_rootless(launch)
        else:
            own_mounts()
            if launch.users is not None:
                from serving.net.aio.netns import enter_at  # noqa: PLC0415 - it loads asyncio, which `serving doctor` does not need

                # runc 1.1 cannot join a network that the container's users do not own.
                enter_at(network)
            if _HYBRID_CGROUPS.is_dir():
                # Unmounting it would wait for the kernel.
                hide(str(_HYBRID_CGROUPS))
        if launch.root is not None:
            discard_tree(Path(launch.state))
            for path in (launch.root.upper, launch.root.work):
                discard_tree(Path(path))
                Path(path).mkdir(parents=True)
            Path(launch.root.upper).chmod(os.stat(launch.root.lower).st_mode & 0o7777)  # noqa: PTH116
            _mount_files(launch, network)
        elif launch.users is not None:
            hide_place(launch.users)
    except OSError as error:
        Path(launch.error_log).write_text(json.dumps({"msg": f"{error.filename or 'container'}: {error.strerror}"}))
        os._exit(1)
    die_with_parent()


def _end_input(stdin: int) -> None:
    """Replace the stream ``stdin`` by a closed pipe. crun would make the container's user the owner of /dev/null."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.dup2(reader, stdin, inheritable=False)
    os.close(reader)
    os.close(writer)


def _mount_files(launch: Launch, network: str) -> None:
    assert launch.root is not None, "a new container"
    if launch.users is not None:
        mount_files(launch.users, launch.root, launch.mounts, has_network=bool(network))
        return
    Path(launch.root.target).mkdir(exist_ok=True)
    mount_overlay(launch.root)
    if launch.mounts:
        Path(launch.volumes).mkdir(exist_ok=True)
        show_at(launch.volumes, launch.mounts)


def _be_rootless(launch: Launch) -> None:
    """Enter a user namespace: a new one for a new container, or the existing one for a command in a container."""
    if launch.root is not None:
        own_user_and_mounts()
    else:
        join_user(int(Path(launch.pid_file).with_name("pid").read_text()))
    if _HYBRID_CGROUPS.is_dir():
        # The machine's mounts cannot be removed here.
        hide(str(_HYBRID_CGROUPS.parent))


def _error_of(log: Path) -> str:
    """The last message in the runtime's error log, which has a JSON object per line; "" without one."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        line = log.read_text(errors="replace").strip().splitlines()[-1]
        return str(json.loads(line)["msg"])[:_ERROR_CHARACTERS_MAX]
    return ""


class Start(Protocol):
    """A start in progress: a ``ContainerLaunch`` or a ``Standby``.

    At the monotonic time ``end_s`` an incomplete start is killed and fails.
    """

    order: StartProcess
    end_s: float

    @property
    def descriptor(self) -> int:
        """A descriptor that becomes readable when ``has_ended`` may have changed."""

    @property
    def has_ended(self) -> bool:
        """Whether ``finish`` returns without waiting."""

    def finish(self) -> ProcessRecord:
        """Wait until the process runs; return its record. Raises ``OSError`` with the reason."""


class Launches:
    """Starts of processes and containers in progress. ``watch`` registers a callback for a readable descriptor.

    ``unwatch`` removes it. ``started`` is called with each order and its process, or with the error of a failed start.
    """

    def __init__(
        self,
        records: ProcessRecords,
        *,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], object],
        started: Callable[[StartProcess, ProcessRecord | OSError], None],
    ) -> None:
        self._records = records
        self._watch = watch
        self._unwatch = unwatch
        self._started = started
        self._running: dict[_Key, Start] = {}
        self._deferred: list[Order] = []
        # By process id, because a container may end before its runtime, and an app before its start is processed.
        self._exit_codes: dict[int, int] = {}

    def __contains__(self, key: _Key) -> bool:
        """Whether a process or container of a pod is starting."""
        return key in self._running

    def add(self, start: Start) -> None:
        """Add a start in progress."""
        self._running[start.order.pod, start.order.name] = start
        self._watch(start.descriptor, lambda: self._finish(start) if start.has_ended else None)

    def defers(self, order: Order) -> bool:
        """Whether an order must wait for a start in progress. It is then stored, and returned by ``take_deferred``."""
        match order:
            case SendSignal():
                is_early = (order.pod, order.name) in self._running
            case ForgetPod():
                is_early = any(pod == order.pod for pod, _ in self._running)
            case _:
                is_early = False
        if is_early:
            self._deferred.append(order)
        return is_early

    def record_exit(self, pid: int, exit_code: int) -> None:
        """Record the exit code of an unknown process, which may belong to a start in progress."""
        if self._running:
            self._exit_codes[pid] = exit_code

    def take_exit(self, pid: int) -> int | None:
        """Return and forget the recorded exit code of a started process; None if it still runs."""
        exit_code = self._exit_codes.pop(pid, None)
        if not self._running:
            self._exit_codes.clear()
        return exit_code

    def take_deferred(self) -> list[Order]:
        """Return and forget the stored orders. An order that must still wait is stored again by ``defers``."""
        deferred, self._deferred = self._deferred, []
        return deferred

    def due_in_s(self, now_s: float) -> float | None:
        """Seconds until a start is overdue; None if no start is in progress."""
        ends_s = [start.end_s for start in self._running.values()]
        return max(0.0, min(ends_s) - now_s) if ends_s else None

    def finish(self, *, is_all: bool) -> None:
        """Finish completed starts and kill overdue ones; ``is_all`` waits for the rest."""
        for start in list(self._running.values()):
            if is_all or start.has_ended or start.end_s <= time.monotonic():
                self._finish(start)

    def _finish(self, start: Start) -> None:
        order = start.order
        del self._running[order.pod, order.name]
        self._unwatch(start.descriptor)
        try:
            record = start.finish()
        except OSError as error:
            self._started(order, error)
            return
        if order.launch is not None:
            # A process has written its own record.
            with contextlib.suppress(OSError):
                # Without a record, on a full disk, the process only lasts as long as the template.
                self._records.write(record)
        self._started(order, record)
