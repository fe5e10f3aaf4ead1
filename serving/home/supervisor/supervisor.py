"""``serving up``'s first process: holds the listening sockets and the children.

Standard library only, no event loop, no threads.

The sockets are bound before any child starts, and are passed to the children, so that no connection is refused while a
child restarts. A child that ends is restarted, after a pause that doubles while it keeps ending. SIGHUP replaces all
children without a lost request: a new activator serves before the old one stops, and the old one finishes its requests.
The supervisor adopts the processes of pods (subreaper), so that they outlive the template that forked them; it reports
their exit codes to the template. When the supervisor ends, all processes end: children and pods by a parent-death
signal, other orphans are killed. A stop ends the ingress first, which finishes its requests, and pods last, so that no
request is lost.
"""

import contextlib
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from serving.core.model.launch import KEY_FILE_VARIABLE, USAGE_EXIT
from serving.home.processes.confine import ISOLATION_VARIABLE
from serving.home.processes.process_lifetime import adopt_orphans, children_of, kill_group
from serving.home.processes.processrecords import ProcessEvents
from serving.home.state import StateFolder, write_private
from serving.home.supervisor.children import (
    ACTIVATOR,
    ALLOCATOR,
    IMPORTED_LATER,
    TEMPLATE,
    Child,
    ChildProcess,
    ControllingTerminal,
    last_error,
)
from serving.home.supervisor.daemonbase import DaemonBase, DaemonLaunch, execute
from serving.home.supervisor.heartbeats import LOOK_S
from serving.home.supervisor.notify import SystemdNotifier
from serving.home.supervisor.reloading import ReloadReport
from serving.net.aio.output import write_error
from serving.net.aio.ownlog import BYTES_VARIABLE, FILES_VARIABLE
from serving.net.aio.startup import LOG_FILE_VARIABLE

# Uptime in seconds after which a child counts as healthy, and its next end causes an immediate restart.
_SOUND_S = 10.0
_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 5.0
# Time for each child to finish, in seconds; then it is killed.
_STOP_S = 10.0
# By then, in seconds, killed processes have ended, and their children are orphans.
_KILL_S = 0.05
_PUBLIC_SERVICES = "SERVING_CONTROLLER_PUBLIC_SERVICES"
_CLIENT_PORTS = ("SERVING_CONTROLLER_PUBLIC_PORT", "SERVING_CONTROLLER_INNER_PORT")
_LOOPBACK = "127.0.0.1"
_CLAIMS = "SERVING_CONTROLLER_AUTOCREATE_CLUSTER_DOMAIN_CLAIMS"
# The exit code of a daemon that would fail in the same way at each start (``serving.net.aio.daemon``).
# In the names of sockets that containers.gateway has bound.
_FOR_PODS = "-pods-"
# The rest of the environment may contain secrets.
_FOR_TEMPLATE = frozenset({ISOLATION_VARIABLE, BYTES_VARIABLE, FILES_VARIABLE})
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (signal.SIGCHLD, signal.SIGHUP, *_STOP_SIGNALS)
# Longest start, in seconds: a daemon serves within seconds, on an overloaded machine within tens of seconds.
_READY_S = 60.0
# A child that ends this often without ever serving cannot start.
_STARTS_MAX = 5
# Polling period while waiting for a child to serve, which no signal reports, in seconds.
_CHECK_S = 0.02
# The pipe to the template is full: a new template reads it soon.
_UNSENT_PAUSE_S = 0.1


class Supervisor:
    """Starts, restarts and stops the daemons. ``run`` returns an exit code after SIGTERM or SIGINT.

    ``environment`` is added to the environment of daemons, but not of pods.
    """

    def __init__(
        self,
        state: StateFolder,
        sockets: Mapping[str, socket.socket],
        children: Sequence[Child],
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        notifier: SystemdNotifier | None = None,
    ) -> None:
        self._notifier = notifier or SystemdNotifier({})
        self._environment = environment
        self._state = state
        self._sockets = sockets
        self._children = list(children)
        self._events = ProcessEvents()
        self._terminal = ControllingTerminal()
        self._base: DaemonBase | None = None
        # Activators that finish their requests, and those that do not serve yet.
        self._beside: list[ChildProcess] = []
        self._is_reload_wanted = False
        # Not started by the ordinary restart.
        self._replaced_child: Child | None = None
        self._is_stopping = False
        self._looked_s = time.monotonic()
        self._exit_code = 0

    def run(self, on_started: Callable[[], None] = lambda: None) -> int:
        """Start the children, restart those that end, and stop all on SIGTERM or SIGINT.

        Calls ``on_started`` once all children serve. If a child cannot start, it returns early without this call.
        """
        adopt_orphans()
        # Blocked signals stay pending until they are read: none is lost between two reads, and no handler runs in
        # between.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with _base_of(self._children) as self._base:
            for child in self._children:
                self._start(child)
        self._until_started()
        if not self._is_stopping:
            on_started()
            self._notifier.report_started()
        while not self._is_stopping:
            self._turn(self._next_start_s())
            if self._is_reload_wanted and not self._is_stopping:
                self._is_reload_wanted = False
                report = ReloadReport(self._state.reload, write=write_private)
                report.end(self._reload(report))
        self._stop_all()
        return self._exit_code

    def _turn(self, timeout_s: float) -> None:
        """Wait for a signal, and execute due work."""
        self._notifier.report_alive()
        received = signal.sigtimedwait(_SIGNALS, min(timeout_s, LOOK_S, self._notifier.period_s or timeout_s))
        if received is not None and received.si_signo == signal.SIGHUP:
            if not self._terminal.is_lost:
                self._is_reload_wanted = True
            elif not self._terminal.is_hangup_ignored:
                self._is_stopping = True
        elif received is not None and received.si_signo in _STOP_SIGNALS:
            _write_line("ending; pods finish their requests. A second signal ends all at once")
            self._is_stopping = True
        self._reap()
        self._events.send()
        self._kill_hung()
        for child in self._children:
            is_due = child is not self._replaced_child and time.monotonic() >= child.started_s + child.pause_s
            if child.process is None and is_due and not self._is_stopping:
                self._start(child)

    def _kill_hung(self) -> None:
        """Kill daemons that hang (``heartbeats``)."""
        elapsed_s = time.monotonic() - self._looked_s
        if elapsed_s < LOOK_S:
            return
        self._looked_s += elapsed_s
        for child in self._children:
            if child.process is None or child is self._replaced_child:
                continue
            if why := child.process.hang(elapsed_s):
                _write_line(f"{child.name} hangs and is replaced: {why}")
                child.process.signal(signal.SIGKILL)

    def _until_started(self) -> None:
        """Wait until each child serves or has served."""
        self._wait(lambda: not _unready(self._children), within_s=_READY_S)
        if _unready(self._children) and not self._is_stopping:
            _write_line(
                f"{', '.join(_unready(self._children))}: no service after {_READY_S:g} s; see {self._state.logs}"
            )
            self._wait(lambda: not _unready(self._children), within_s=math.inf)

    def _reload(self, report: ReloadReport) -> str | None:
        """Replace all children, activators first; return an error text, None after success.

        If a new activator fails to start, the old one still serves, and no further child is replaced.
        """
        with _base_of(self._children) as self._base:
            for child in sorted(self._children, key=lambda child: not child.overlaps):
                before, begun_s = child.process, time.monotonic()
                child.generation += 1
                problem = self._overlap(child) if child.overlaps else self._replace(child)
                if problem is not None or child.process is None:
                    log = self._state.logs / f"{child.name}.log"
                    return f"the new {child.name} {problem or 'has ended'}: {last_error(log)}"
                old = "none" if before is None else str(before.pid)
                took_s = time.monotonic() - begun_s
                report.replaced(f"{child.name}: process {old} -> {child.process.pid} in {took_s:.1f} s")
        return None

    def _overlap(self, child: Child) -> str | None:
        """Start a new process, then drain the old one, so that there is no gap. Return an error text or None."""
        new = self._spawned(child)
        self._beside.append(new)
        problem = self._until_ready(new)
        if problem is not None:
            new.signal(signal.SIGKILL)
            return problem
        self._beside.remove(new)
        old, child.process, child.started_s = child.process, new, new.started_s
        if old is not None:
            self._beside.append(old)
            # A process that did not serve yet has nothing to finish.
            old.signal(signal.SIGHUP if old.is_ready else signal.SIGTERM)
        return None

    def _replace(self, child: Child) -> str | None:
        """Stop the old process and start a new one; return an error text or None."""
        self._replaced_child, old = child, child.process
        if old is not None:
            # Pods survive the template, unless the whole system stops.
            old.signal(signal.SIGHUP if child.name == TEMPLATE else signal.SIGTERM)
            self._wait(lambda: old.exit_code is not None, within_s=_STOP_S)
            old.signal(signal.SIGKILL)
            self._wait(lambda: old.exit_code is not None, within_s=_STOP_S)
        self._replaced_child = None
        if self._is_stopping:
            return "was not started, because the system stops"
        self._start(child)
        assert child.process is not None
        return self._until_ready(child.process)

    def _until_ready(self, process: ChildProcess) -> str | None:
        """Wait until a process serves; return why it does not serve, or None."""
        self._wait(lambda: process.is_ready or process.exit_code is not None, within_s=_READY_S)
        if process.is_ready:
            return None
        return (
            f"does not serve after {_READY_S:g} s" if process.exit_code is None else f"ended with {process.exit_code}"
        )

    def _wait(self, until: Callable[[], bool], *, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while not until() and not self._is_stopping and time.monotonic() < deadline_s:
            self._turn(_CHECK_S)

    def _next_start_s(self) -> float:
        if self._events.has_unsent:
            return _UNSENT_PAUSE_S
        waiting = [child.started_s + child.pause_s for child in self._children if child.process is None]
        return max(0.0, min(waiting) - time.monotonic()) if waiting else LOOK_S

    def _start(self, child: Child) -> None:
        child.process = self._spawned(child)
        child.started_s = child.process.started_s

    def _spawned(self, child: Child) -> ChildProcess:
        # Without a certificate there is no TLS socket.
        descriptors = {name: self._sockets[name].fileno() for name in child.sockets if name in self._sockets}
        if child.module == ACTIVATOR:
            # The gateway at which pods of this machine find services.
            descriptors |= {name: listener.fileno() for name, listener in self._sockets.items() if _FOR_PODS in name}
        if child.name == TEMPLATE:
            descriptors |= zip(("events", "events-writer"), self._events.descriptors, strict=True)
            # Pods are forked from the template, so it does not get the location of secrets.
            more: Mapping[str, str] = {
                **child.environment,
                **{name: value for name, value in self._environment.items() if name in _FOR_TEMPLATE},
                "SERVING_PROCESS_RECORDS": str(self._state.processes),
            }
        else:
            more = {**self._addresses(), **self._environment, **child.environment}
        ready_fd, its_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        path = self._state.logs / f"{child.name}.log"
        with _opened_log(path) as log:
            launch = DaemonLaunch(
                child.module, {LOG_FILE_VARIABLE: str(path), **more}, descriptors, log_fd=log.fileno(), ready_fd=its_fd
            )
            base = None if child.name == TEMPLATE else self._base
            pid = execute(launch) if base is None else base.start(launch)
        os.close(its_fd)
        return ChildProcess(pid, started_s=time.monotonic(), ready_fd=ready_fd)

    def _addresses(self) -> dict[str, str]:
        ports = {name: self._sockets[name].getsockname()[1] for name in ("public", "inner", "stats")}
        # The public listener may be on all addresses.
        public, inner, stats = ((_LOOPBACK, ports[name]) for name in ("public", "inner", "stats"))
        pages = [
            self._sockets[name].getsockname()
            for child in self._children
            for name in child.sockets
            if child.module == ACTIVATOR and name.endswith("-metrics")
        ]
        tls = (
            {"SERVING_CONTROLLER_PUBLIC_TLS_PORT": str(self._sockets["tls"].getsockname()[1])}
            if "tls" in self._sockets
            else {}
        )
        return {
            **tls,
            # One machine has one user, who may map any host.
            _CLAIMS: os.environ.get(_CLAIMS, "true"),
            _PUBLIC_SERVICES: os.environ.get(_PUBLIC_SERVICES, "true"),
            "KUBECONFIG": str(self._state.kubeconfig),
            KEY_FILE_VARIABLE: str(self._state.key),
            "SERVING_STATE": str(self._state.path),
            "SERVING_AUTOSCALER_ACTIVATOR_ADDRESS": f"{public[0]}:{public[1]}",
            "SERVING_ACTIVATOR_STATS_URL": f"ws://{stats[0]}:{stats[1]}/stats",
            "SERVING_ACTIVATOR_PEER_FOLDER": str(self._state.path),
            "SERVING_STATS_URL": f"ws://{stats[0]}:{stats[1]}/stats",
            "SERVING_QUERY_TOKEN_FILE": str(self._state.query_token),
            "SERVING_DASHBOARD_TOKEN_FILE": str(self._state.dashboard_token),
            "SERVING_DASHBOARD_ACTIVATOR_ADDRESS": f"{public[0]}:{public[1]}",
            "SERVING_DASHBOARD_AUTOSCALER_URL": f"http://{stats[0]}:{stats[1]}",
            "SERVING_DASHBOARD_ACTIVATOR_METRICS_URL": ",".join(
                f"http://{host}:{port}/metrics" for host, port in pages
            ),
            "SERVING_CONTROLLER_ACTIVATOR_PAGES": ",".join(f"{host}:{port}" for host, port in pages),
            # Clients may see another port: behind a proxy at port 80 the user's own setting applies.
            **{
                name: os.environ.get(name, str(port))
                for name, port in zip(_CLIENT_PORTS, (public[1], inner[1]), strict=True)
            },
            # The inner listener's port, regardless of the port in URLs.
            "SERVING_LOCAL_INNER_PORT": str(inner[1]),
        }

    def _reap(self) -> None:
        """Reap exited children, and report the exits of adopted processes."""
        with contextlib.suppress(ChildProcessError):
            while exited := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                process = next((process for process in self._processes if process.pid == exited.si_pid), None)
                if process is None:
                    # Its group, before it is reaped: until then its process id is not reused.
                    kill_group(exited.si_pid, signal.SIGKILL)
                _, status = os.waitpid(exited.si_pid, 0)
                code = os.waitstatus_to_exitcode(status)
                if process is None:
                    self._events.report_exit(exited.si_pid, code)
                else:
                    self._ended(process, code)

    @property
    def _processes(self) -> list[ChildProcess]:
        return [*(child.process for child in self._children if child.process is not None), *self._beside]

    def _ended(self, process: ChildProcess, code: int) -> None:
        is_served, process.exit_code = process.is_ready, code
        process.close()
        if process in self._beside:
            self._beside.remove(process)
            return
        child = next(child for child in self._children if child.process is process)
        child.process, child.has_served = None, child.has_served or is_served
        if self._is_stopping or child is self._replaced_child:
            return
        lived_s = time.monotonic() - child.started_s
        child.pause_s = (
            _PAUSE_FIRST_S if lived_s >= _SOUND_S else min(_PAUSE_MAX_S, max(_PAUSE_FIRST_S, child.pause_s * 2))
        )
        log = self._state.logs / f"{child.name}.log"
        child.failed_starts += not child.has_served
        is_hopeless = code == USAGE_EXIT or child.failed_starts >= _STARTS_MAX
        if is_hopeless and not child.has_served:
            _write_line(f"{child.name} cannot start: {last_error(log)}")
            self._exit_code = max(code, 1)
            self._is_stopping = True
        else:
            _write_line(f"{child.name} ended with {code}, starts again; see {log}")

    def _stop_all(self) -> None:
        """Stop the children in reverse order. A second signal kills all of them immediately."""
        self._notifier.report_stopping()
        finishing = list(self._beside)
        for process in finishing:
            process.signal(signal.SIGTERM)
        # If one cannot start, no request has been served.
        if not self._exit_code and all(self._wait_for_end(process) for process in finishing):
            for child in reversed(self._children):
                if child.process is not None and not self._stop(child.process):
                    break
        for process in self._processes:
            process.signal(signal.SIGKILL)
        deadline_s = time.monotonic() + _STOP_S
        while children_of(os.getpid()) and time.monotonic() < deadline_s:
            self._end_orphans()
            signal.sigtimedwait(_SIGNALS, _KILL_S)
            self._reap()

    def _stop(self, process: ChildProcess) -> bool:
        """End one process and wait for its end; return False if a second signal interrupts the wait."""
        process.signal(signal.SIGTERM)
        return self._wait_for_end(process)

    def _wait_for_end(self, process: ChildProcess) -> bool:
        deadline_s = time.monotonic() + _STOP_S
        while process.exit_code is None and time.monotonic() < deadline_s:
            received = signal.sigtimedwait(_SIGNALS, max(0.0, deadline_s - time.monotonic()))
            if received is not None and received.si_signo in _STOP_SIGNALS:
                return False
            self._reap()
        return True

    def _end_orphans(self) -> None:
        ours = {process.pid for process in self._processes}
        for pid in children_of(os.getpid()):
            if pid not in ours:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _opened_log(path: Path) -> BinaryIO:
    """Open a log for appending. If that fails, for example on a full disk, open /dev/null."""
    try:
        return path.open("ab")
    except OSError as error:
        _write_line(f"{path} cannot be written, and this process has no log: {error.strerror}")
        return Path(os.devnull).open("ab")


def _base_of(children: Sequence[Child]) -> DaemonBase:
    """Create the process from which the children are forked, with the current code.

    The process template is not forked from it, because it is itself the process from which pods are forked.
    """
    modules = {child.module: None for child in children if child.name != TEMPLATE}
    return DaemonBase([*modules, *IMPORTED_LATER], environment=ALLOCATOR)


def _unready(children: Sequence[Child]) -> list[str]:
    """The names of the children that have not served since the start."""
    return [
        child.name
        for child in children
        if not (child.has_served or (child.process is not None and child.process.is_ready))
    ]


def _write_line(text: str) -> None:
    write_error(f"serving: {text}")
