"""Starts pods' processes from the template: a fork for a queue-proxy, fork and exec for an app.

A fork is safe because the template has no loop and no thread, and fast because it has imported a queue-proxy's modules.
A child creates its loop, random numbers and connections after the fork. Every child leads a separate session, has only
its own descriptors, and writes to its log.

A child receives its role over a socket, so that children can be forked ahead (``Standbys``). This saves half of a
start: the fork, the adoption, and a queue-proxy's loop. Standbys end with the template. The template sends one
assignment, a JSON line. The process answers with its record, and with the reason if it then cannot start. The end of
the stream means that it runs: exec or a queue-proxy closes the socket. The template does not block for this
(``launches``).

Each process is forked as a child of the supervisor (clone(2), CLONE_PARENT), so that it outlives the template and ends
with the supervisor. A machine that lacks this forks twice, and the supervisor adopts the process. Each process first
writes its record (``processrecords``).

Signals are blocked during forks. A child inherits the template's handlers. A SIGTERM before the child has reset its
handlers would be lost, and the pod would run for its whole grace period.
"""

import asyncio
import contextlib
import encodings.idna  # noqa: F401 - loaded by the first connection otherwise, in each fork again
import fcntl
import json
import os
import resource
import signal
import socket
import termios
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

import msgspec

import serving.core.traffic.admission
import serving.net.proxy.forwarding.sharing
import serving.net.wire.websocket
import serving.queueproxy.io.applistener
import serving.queueproxy.io.dormant  # noqa: F401 - as above
from serving.core.model.ports import CONTAINER_PORT
from serving.home.processes.appcopy import prepare_copy
from serving.home.processes.confine import ISOLATION_VARIABLE, confine
from serving.home.processes.isolation import Confinement, plan_of
from serving.home.processes.mounts import (
    HOSTS_PATH,
    RESOLVER_PATH,
    MountPoint,
    can_mount,
    set_hostname,
    show_at_own_paths,
    show_over,
)
from serving.home.processes.orders import StartProcess, open_streams
from serving.home.processes.podfreezers import PodFreezers
from serving.home.processes.process_lifetime import (
    QUEUE_PROXY_NAME,
    STANDBY_NAME,
    can_fork_sibling,
    die_with_parent,
    fork_sibling,
    ids_of,
    join_cgroups,
    kill_group,
    name_process,
    set_niceness,
    start_ticks,
)
from serving.home.processes.processrecords import ProcessRecord, ProcessRecords
from serving.net.aio.listeners import has_sock_diag
from serving.net.aio.netns import enter_at
from serving.net.aio.output import write_error
from serving.queueproxy.io.readiness import PUSH_AGAIN, READY_PID_VARIABLE
from serving.queueproxy.main import run_on_call
from serving.queueproxy.podspec import PodSpec, spec_from_environment

_BACKLOG = 4096
_DESCRIPTORS_MAX = 2**20
_FIRST_OWN_DESCRIPTOR = 3
# Signals that the template handles, and those that Python ignores.
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
# Whether a process may reduce its niceness again; see getrlimit(2).
_MAY_RESTORE_NICENESS = os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20
# How often a child checks that its first parent has ended, which takes less than a millisecond, in seconds.
_ADOPTION_PAUSE_S = 0.0001
# Standbys per kind: two services may wake together. An idle queue-proxy has 5 MB, an app before its exec 1 MB.
_COUNT = 2
# Longest start, in seconds: a stopped process must not block the template.
_START_MAX_S = 10.0
# Delay of forks ahead after a start, in seconds: by then its pod is ready, or imports its modules on a single core.
_FILL_LAG_S = 0.15
# Pause between two forks, in seconds: each blocks the template for some milliseconds.
_FILL_PAUSE_S = 0.05
_RETRY_S = 5.0
_PIECE_BYTES = 65536
_END = b"\n"


# A sample environment with every kind of value that pods set.
_SPEC_EXAMPLE = {
    "SERVING_POD_NAMESPACE": "default",
    "SERVING_POD_REVISION": "revision",
    "SERVING_POD_NAME": "pod",
    "SERVING_POD_APP": f"127.0.0.1:{CONTAINER_PORT}",
    "SERVING_POD_LISTEN": "127.0.0.1:8012",
    "SERVING_POD_ADMIN_LISTEN": "127.0.0.1:8022",
    "SERVING_POD_READINESS": '{"tcpSocket": {"port": 0}}',
    "SERVING_READY_FD": "3",
    "SERVING_QUEUEPROXY_CONTAINER_CONCURRENCY": "1",
    "SERVING_QUEUEPROXY_REQUEST_TIMEOUT_S": "300",
}


def warm_up() -> None:
    """Parse a sample queue-proxy environment, and reset signal dispositions, before any fork.

    The parse resolves types of settings, compiles patterns and creates decoders. Otherwise each fork would repeat this,
    which takes half of a start. Signal dispositions are reset because a shell starts background jobs with SIGINT and
    SIGQUIT ignored, which pods would inherit.
    """
    for number in signal.valid_signals() - {*_IGNORED}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    spec_from_environment(_SPEC_EXAMPLE)
    has_sock_diag()
    plan_of(Confinement())


class ProcessAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a standby process shall become: the start order, and the process's record without its process id."""

    order: StartProcess
    record: ProcessRecord


class Standby:
    """A standby process as seen by the template, which communicates with it by a socket.

    After ``begin``, ``order`` is the start order, and the start fails at ``end_s``. ``descriptor`` becomes readable
    when ``has_ended`` may have changed.
    """

    order: StartProcess
    end_s: float

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._received = b""

    @property
    def descriptor(self) -> int:
        """The descriptor of the socket."""
        return self._control.fileno()

    @property
    def has_ended(self) -> bool:
        """Whether the process has closed its socket: it runs as assigned, or has exited."""
        try:
            while piece := self._control.recv(_PIECE_BYTES, socket.MSG_DONTWAIT):
                self._received += piece
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether the process is prepared, and waits for an assignment.

        A prepared process sends an empty line, which ``has_ended`` reads.
        """
        return bool(self._received)

    def begin(self, assignment: ProcessAssignment) -> None:
        """Send the assignment to the process; ``finish`` returns the result. Raises ``OSError``."""
        self.order = assignment.order
        self.end_s = time.monotonic() + _START_MAX_S
        try:
            self._control.settimeout(_START_MAX_S)
            self._control.sendall(msgspec.json.encode(assignment) + _END)
        except OSError as error:
            self.close()
            raise _overdue() if isinstance(error, TimeoutError) else error from None
        self._control.settimeout(None)

    def finish(self) -> ProcessRecord:
        """Wait until the process runs and return its complete record. Raises ``OSError`` with the reason."""
        try:
            with self._control:
                self._control.settimeout(max(0.0, self.end_s - time.monotonic()))
                while piece := self._control.recv(_PIECE_BYTES):
                    self._received += piece
        except (TimeoutError, BlockingIOError):
            self._kill()
            raise _overdue() from None
        lines = self._received.split(_END)
        replies = [line for line in lines if line]
        if len(replies) != 1:
            raise OSError(
                replies[1].decode(errors="replace") if replies else "the standby process exited before it was assigned"
            )
        return msgspec.json.decode(replies[0], type=ProcessRecord)

    def _kill(self) -> None:
        """Kill the process if it has sent its record. A process without a record exits by itself."""
        with contextlib.suppress(msgspec.DecodeError):
            kill_group(msgspec.json.decode(self._received.strip(), type=ProcessRecord).pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process if it is still waiting."""
        self._control.close()


def _overdue() -> OSError:
    return OSError(f"the standby process did not start within {_START_MAX_S:g} s")


class Standbys:
    """The standby processes of both kinds: apps and queue-proxies.

    ``fork`` creates a process, an app if its argument is true. It may raise ``OSError``.
    """

    def __init__(self, fork: Callable[[bool], Standby]) -> None:
        self._fork = fork
        self._waiting: dict[bool, list[Standby]] = {False: [], True: []}
        self._due_s = 0.0

    @property
    def is_full(self) -> bool:
        """Whether there are enough standby processes."""
        return all(len(waiting) >= _COUNT for waiting in self._waiting.values())

    def acquire(self, *, is_app: bool, now_s: float) -> Standby:
        """Return a waiting process of a kind, or fork one. Raises ``OSError``."""
        if self.is_full:
            # The first of several starts counts, so that forks are not postponed forever.
            self._due_s = now_s + _FILL_LAG_S
        waiting = self._waiting[is_app]
        for ended in [standby for standby in waiting if standby.has_ended]:
            waiting.remove(ended)
            ended.close()
        standby = next((standby for standby in waiting if standby.is_waiting), None)
        if standby is None:
            return self._fork(is_app)
        waiting.remove(standby)
        return standby

    def due_in_s(self, now_s: float) -> float | None:
        """Seconds until ``fill`` is due; None if there are enough standby processes."""
        return None if self.is_full else max(0.0, self._due_s - now_s)

    def fill(self, now_s: float) -> None:
        """Fork one process of each kind without a standby, if due."""
        if self.due_in_s(now_s) != 0:
            return
        self._due_s = now_s + _FILL_PAUSE_S
        try:
            for is_app, waiting in self._waiting.items():
                if len(waiting) < _COUNT:
                    waiting.append(self._fork(is_app))
        except OSError as error:
            write_error(f"template: no process can be forked ahead: {error}")
            self._due_s = now_s + _RETRY_S


class Spawner:
    """Starts processes as children of ``owner``, the supervisor. ``events`` is the pipe in which queue-proxies report.

    With strict isolation each app has its own pid namespace, if this machine allows it.
    """

    def __init__(
        self,
        records: ProcessRecords,
        *,
        owner: int,
        events: int,
        freezers: PodFreezers | None = None,
    ) -> None:
        self._records = records
        self._owner = owner
        self._events = events
        self._freezers = freezers
        is_strict = os.environ.get(ISOLATION_VARIABLE) == "strict"
        self._has_own_pids = is_strict and os.geteuid() == 0 and can_fork_sibling()
        # In a process that was forked twice: its first parent.
        self._middle = 0
        # In a child: its process id outside of its pid namespace.
        self._stat = -1
        self.standbys = Standbys(self._forked)
        """Processes forked ahead."""

    def record_of(self, order: StartProcess) -> ProcessRecord:
        """The record of the process that an order starts, without its process id and start."""
        # Identifies leftovers of an app: by its port, which no other pod has, or by name if all pods have the same
        # port.
        is_app = bool(order.arguments)
        variable = "HOSTNAME" if order.network or order.is_own_proxy else "PORT"
        mark = f"{variable}={order.environment.get(variable, '')}" if is_app and not order.is_exec else ""
        niceness = order.niceness if _MAY_RESTORE_NICENESS else 0
        return ProcessRecord(
            pod=order.pod,
            name=order.name,
            is_app=is_app,
            is_exec=order.is_exec,
            is_own_proxy=order.is_own_proxy,
            mark=mark,
            niceness=niceness,
        )

    def begin(self, order: StartProcess, record: ProcessRecord) -> Standby:
        """Begin to start a process (``launches``). Raises ``OSError`` with the reason if it cannot start."""
        standby = self.standbys.acquire(is_app=bool(order.arguments), now_s=time.monotonic())
        standby.begin(ProcessAssignment(order=order, record=record))
        return standby

    def _forked(self, is_app: bool) -> Standby:  # noqa: FBT001 - the shape of a callback
        """Fork a process that waits for its assignment. Raises ``OSError``."""
        # Before the fork, so that the answer is cached.
        can_mount()
        mine, its = socket.socketpair()
        is_sibling = can_fork_sibling()
        with _signals_blocked():
            try:
                child = self._sibling(is_app=is_app) if is_sibling else os.fork()
                if child == 0 and is_sibling:
                    self._wait_for_assignment(its, is_app=is_app)
                elif child == 0:
                    self._fork_again(its, is_app=is_app)
            except OSError:
                mine.close()
                raise
            finally:
                its.close()
            if not is_sibling:
                os.waitpid(child, 0)
        return Standby(mine)

    def _sibling(self, *, is_app: bool) -> int:
        if is_app and self._has_own_pids:
            try:
                return fork_sibling(has_own_pids=True)
            except OSError as error:
                write_error(f"template: apps have no pid namespaces: {error.strerror}")
                self._has_own_pids = False
        return fork_sibling()

    def _fork_again(self, control: socket.socket, *, is_app: bool) -> NoReturn:
        """In the first child: fork the standby process and exit, so that the supervisor adopts it. Never return.

        A return would run the template's own code and its cleanup in the child.
        """
        try:
            self._middle = os.getpid()
            if os.fork() == 0:
                self._wait_for_assignment(control, is_app=is_app)
        finally:
            os._exit(0)

    def _wait_for_assignment(self, control: socket.socket, *, is_app: bool) -> NoReturn:
        """Wait for an assignment and become that process. Without one, end with the template."""
        code = 1
        try:
            os.setsid()
            self._stat = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
            self._become_child()
            name_process(STANDBY_NAME)
            # An executed app without an in-process queue-proxy loses the readiness pipe.
            _close_descriptors({control.fileno(), self._events, self._stat})
            if is_app:
                code = self._be_app(control)
            else:
                # Until it has its own handler.
                signal.signal(PUSH_AGAIN, signal.SIG_IGN)
                os.environ.clear()
                code = run_on_call(lambda: self._be_queue_proxy(control))
        except BaseException:  # noqa: BLE001 - no exception may reach the template's frames
            write_error(traceback.format_exc())
        finally:
            os._exit(code)

    def _be_app(self, control: socket.socket) -> int:
        report_waiting(control)
        assignment = receive(control)
        if assignment is None:
            return 0
        order = assignment.order
        try:
            self._apply_assignment(assignment, control)
            self._exec_app(assignment)
        except (OSError, ValueError) as error:
            control.sendall(_why(order, error).encode())
        return 1

    async def _be_queue_proxy(self, control: socket.socket) -> PodSpec | None:
        report_waiting(control)
        assignment = await receive_in_loop(control)
        if assignment is None:
            return None
        order = assignment.order
        try:
            self._apply_assignment(assignment, control)
            environment = {
                **order.environment,
                **_in_network(order),
                "SERVING_READY_FD": str(self._events),
                "SERVING_POD_PROCESSES": self._records.prefix_of(order.pod),
            }
            if self._freezers is not None:
                place = self._freezers.place_of(order.pod)
                environment["SERVING_POD_FREEZER"] = msgspec.json.encode(place).decode()
        except (OSError, ValueError) as error:
            control.sendall(_why(order, error).encode())
            return None
        name_process(QUEUE_PROXY_NAME)
        # It ends the template's wait.
        control.close()
        return spec_from_environment(environment)

    def _apply_assignment(self, assignment: ProcessAssignment, control: socket.socket) -> None:
        """Apply the parts of an assignment that other processes see: niceness, record, cgroups and streams.

        The record is also sent to the template.
        """
        record = assignment.record
        if record.niceness:
            with contextlib.suppress(OSError):
                set_niceness(0, record.niceness)
        record.pid, _ = ids_of(self._stat)
        record.start_ticks = start_ticks(record.pid) or 0
        if record.is_own_proxy:
            self._records.make_pipe(record)
        if self._has_own_pids and record.is_app:
            # The first process of a namespace receives no unhandled signals.
            record.stop_signal = signal.SIGTERM
        with contextlib.suppress(OSError):
            # Without a record, on a full disk, the process only lasts as long as the template.
            self._records.write(record)
        control.sendall(msgspec.json.encode(record) + b"\n")
        join_cgroups(assignment.order.cgroups)
        _redirect(assignment.order)

    def _exec_app(self, assignment: ProcessAssignment) -> NoReturn:
        order = assignment.order
        environment = order.environment
        if order.is_own_proxy:
            # Also open for reading, so that it stays open while one template replaces another.
            pipe = os.open(self._records.pipe_of(assignment.record), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            # The descriptor survives exec, as does ignoring the signal until the app has a handler.
            os.set_inheritable(pipe, True)
            signal.signal(PUSH_AGAIN, signal.SIG_IGN)
            ready = {"SERVING_READY_FD": str(pipe), READY_PID_VARIABLE: str(assignment.record.pid)}
            environment = {**environment, **ready}
        set_hostname(order.hostname)
        enter_at(order.network)
        if order.copy is not None:
            # In the machine's mounts.
            prepare_copy(order.copy)
        mounted, has_own_mounts = _mount_volumes(order)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        if order.confinement is not None:
            plan = plan_of(msgspec.structs.replace(order.confinement, has_own_mounts=has_own_mounts))
            # A path without its mount is the machine's, or an app's link, rather than the pod's own.
            others = {mount.target for mount in order.mounts} - mounted
            plan["owned"] = [path for path in plan["owned"] if path not in others]
            for text in confine(plan, order.folder):
                write_error(f"serving: not isolated by {text}")
        elif order.copy is not None:
            os.chdir(order.copy.root if order.folder == order.copy.source else order.folder)
        # A new user namespace or user clears that signal.
        self._become_child()
        os.execvpe(order.arguments[0], order.arguments, environment)  # noqa: S606 - the user's own command

    def _become_child(self) -> None:
        """Restore the default handling of the template's signals, and end with the supervisor."""
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        # The first child of two forks may still be ending; other work was done meanwhile.
        while self._middle and os.getppid() == self._middle:
            time.sleep(_ADOPTION_PAUSE_S)
        die_with_parent()
        if ids_of(self._stat)[1] != self._owner:
            os._exit(1)


def report_waiting(control: socket.socket) -> None:
    """Report that the process is prepared."""
    control.sendall(_END)


def receive(control: socket.socket) -> ProcessAssignment | None:
    """Wait for the assignment; None if the template has ended."""
    received = b""
    while not received.endswith(_END):
        try:
            piece = control.recv(_PIECE_BYTES)
        except ConnectionResetError:
            # The template ended before it read the report.
            return None
        if not piece:
            return None
        received += piece
    return msgspec.json.decode(received, type=ProcessAssignment)


async def receive_in_loop(control: socket.socket) -> ProcessAssignment | None:
    """Wait for the assignment without blocking the event loop; None if the template has ended."""
    control.setblocking(False)
    received = b""
    while not received.endswith(_END):
        try:
            piece = await asyncio.get_running_loop().sock_recv(control, _PIECE_BYTES)
        except ConnectionResetError:
            return None
        if not piece:
            return None
        received += piece
    control.setblocking(True)
    return msgspec.json.decode(received, type=ProcessAssignment)


def _close_descriptors(descriptors: Iterable[int]) -> None:
    """Close all descriptors except the standard streams and ``descriptors``."""
    first = _FIRST_OWN_DESCRIPTOR
    for descriptor in sorted(descriptors):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, _DESCRIPTORS_MAX)


def _mount_volumes(order: StartProcess) -> tuple[frozenset[str], bool]:
    """Mount the volumes, the hosts file and the resolver configuration of an order, and change to its folder.

    Return the mounted paths, and whether this process has its own mount namespace.
    """
    has_own_mounts = False
    files = ((order.hosts, HOSTS_PATH), (order.resolver, RESOLVER_PATH)) if can_mount() else ()
    hosts = tuple(MountPoint(source=source, target=target) for source, target in files if source)
    if not order.mounts:
        if hosts:
            with contextlib.suppress(OSError):
                show_over(hosts)
                has_own_mounts = True
        os.chdir(order.folder)
        return frozenset(), has_own_mounts
    try:
        return show_at_own_paths((*order.mounts, *hosts), new_root=order.new_root, folder=order.folder), True
    except OSError as error:
        write_error(f"serving: volumes are only below $HOME, without a mount namespace: {error}")
        os.chdir(order.folder)
        return frozenset(), False


def _in_network(order: StartProcess) -> dict[str, str]:
    """Open the queue-proxy's listeners in this network, then join the app's network namespace.

    Return environment variables for the queue-proxy: the descriptors of the listeners, and the path of the network
    namespace before the change, in which it connects to report statistics.
    """
    if not order.network:
        return {}
    descriptors = {}
    for name, variable in (("requests", "SERVING_POD_LISTEN"), ("admin", "SERVING_POD_ADMIN_LISTEN")):
        host, _, port = order.environment[variable].rpartition(":")
        listener = socket.create_server((host, int(port)), backlog=_BACKLOG)
        descriptors[name] = listener.detach()
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    enter_at(order.network)
    return {"SERVING_LISTEN_FDS": json.dumps(descriptors), "SERVING_POD_STATS_NETWORK": f"/proc/self/fd/{home}"}


def _redirect(order: StartProcess) -> None:
    """Replace the standard streams by those of the order. A terminal becomes the session's controlling one."""
    for target, source in enumerate(open_streams(order)):
        os.dup2(source, target)
    if order.has_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _why(order: StartProcess, error: Exception) -> str:
    """Explain a failed start: the unusable command or folder, and the system's reason."""
    command = order.arguments[0] if order.arguments else ""
    if isinstance(error, FileNotFoundError) and command and "/" not in command:
        # Not the PATH of the shell that ran the deploy.
        return f"{command}: no such command in the pod's PATH {order.environment.get('PATH', '')}; say where it is"
    if isinstance(error, PermissionError) and order.confinement is not None and order.confinement.user:
        why = f"a pod is user {order.confinement.user}, whom its program and folder must let in"
        return f"{error.filename or command}: {error.strerror}; {why}"
    if isinstance(error, OSError):
        return f"{error.filename or (order.arguments or ('fork',))[0]}: {error.strerror}"
    return f"{command}: {error}"


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block handled signals, and deliver pending ones afterwards."""
    # Not all signals, because Python creates an enum member for each, which took a tenth of a start.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
