"""``serving up``'s first process: holds the listening sockets and the children. Standard library only, no loop, no threads.

It binds the sockets before it starts any child and passes them down, so that the restart of a child refuses no connection.
A child that ends is started again, after a pause that doubles while it keeps ending. The processes of pods are adopted
(subreaper), so that they outlive the template that forked them; their exit codes go to the template. When the supervisor
stops or dies, no process stays: children and pods end with it (parent-death signal), other orphans are killed. It ends
the children in the order in which no request is lost: first the ingress, which finishes its requests; pods last.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from serving.local.process_lifetime import adopt_orphans, children_of, die_with_parent, kill_group
from serving.local.processevents import ProcessEvents
from serving.local.state import StateFolder
from serving.model.errors import Problem, SettingsError

__all__ = ["CHILDREN", "Child", "Ports", "Supervisor", "bind"]

# A child that lived this long was sound; its next end is answered at once.
_SOUND_S = 10.0
_PAUSE_FIRST_S = 0.1
# Virtual nodes boot in seconds; the minute of a cluster would only hide what happens.
_SCAN_INTERVAL_S = "2"
_PAUSE_MAX_S = 5.0
# Each child has this long to finish; then it is killed.
_STOP_S = 10.0
# By then killed processes are gone, and the processes that they leave behind are orphans.
_KILL_S = 0.05
_TEMPLATE = "template"
_PUBLIC_SERVICES = "SERVING_CONTROLLER_PUBLIC_SERVICES"
_CLIENT_PORTS = ("SERVING_CONTROLLER_PUBLIC_PORT", "SERVING_CONTROLLER_INNER_PORT")
_CLAIMS = "SERVING_CONTROLLER_AUTOCREATE_CLUSTER_DOMAIN_CLAIMS"
# The exit code of a daemon that would fail in the same way at each start (``serving.aio.daemon``).
_CANNOT_START_EXIT = 2
_BACKLOG = 4096
_ACTIVATOR = "serving.activator.main"
# In the names of sockets that containers.gateway has bound.
_FOR_PODS = "-pods-"
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
_IDLE_S = 3600.0
# The pipe to the template is full: a new template reads it soon.
_UNSENT_PAUSE_S = 0.1

_NOTHING: Mapping[str, str] = MappingProxyType({})

Ports = Mapping[str, int]
"""Port of each listening socket by name: public, inner, api, stats."""


class Child:
    """One child process: its name, its module, the sockets that it takes over, and what its environment has besides."""

    def __init__(self, name: str, module: str, *sockets: str, environment: Mapping[str, str] = _NOTHING) -> None:
        self.name, self.module, self.sockets, self.environment = name, module, sockets, environment
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0
        self.pause_s = 0.0


def CHILDREN(activator_count: int = 1, *, has_node_groups: bool = False) -> list[Child]:  # noqa: N802 - a fresh list of what is always the same
    """The children, in the order of their start."""
    groups = {"SERVING_NODEGROUP_CLOUD_PROVIDER": "local", "SERVING_NODEGROUP_SCAN_INTERVAL_S": _SCAN_INTERVAL_S}
    return [
        Child(_TEMPLATE, "serving.local.template", _TEMPLATE),
        Child("control", "serving.local.control", "api", "control-metrics"),
        *(
            [Child("nodegroup", "serving.nodegroup.main", "nodegroup-metrics", environment=groups)]
            if has_node_groups
            else []
        ),
        Child("autoscaler", "serving.autoscaler.main", "stats"),
        Child("dashboard", "serving.dashboard.main", "dashboard"),
        *(_activator(index, activator_count) for index in range(activator_count)),
    ]


def _activator(index: int, count: int) -> Child:
    """One of those that accept from the same sockets. The first has the name and the port that one alone has."""
    name = f"activator-{index}" if index else "activator"
    environment = {
        "SERVING_ACTIVATOR_INDEX": str(index),
        "SERVING_ACTIVATOR_COUNT": str(count),
        # Readiness is pushed here; a probe would only take the starting pods' CPU.
        "SERVING_ACTIVATOR_PROBE_UNREADY_PODS": "false",
    }
    if index:
        # To the autoscaler each is another one, whose loads add up.
        environment["SERVING_ACTIVATOR_NAME"] = name
    return Child(name, _ACTIVATOR, "public", "tls", "inner", f"{name}-metrics", environment=environment)


def bind(ports: Ports, *, unheard: Collection[str] = ()) -> dict[str, socket.socket]:
    """A listening socket on 127.0.0.1 for each port.

    Those named in ``unheard`` are bound and refuse connections until the activator listens; they are left out where the
    port is taken.

    Raises:
        SettingsError: with a problem for each port that is taken.
    """
    found: dict[str, socket.socket] = {}
    problems = []
    for name, port in ports.items():
        try:
            found[name] = (
                _bound(port) if name in unheard else socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
            )
        except OSError as error:
            if name in unheard:
                continue
            what = f"port {port} cannot be taken: {os.strerror(error.errno or 0)}"
            problems.append(Problem(where=f"--{name}-port", what=what, expected="a free port"))
    if problems:
        for one in found.values():
            one.close()
        raise SettingsError(problems)
    return found


def _bound(port: int) -> socket.socket:
    one = socket.socket()
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))
    except OSError:
        one.close()
        raise
    return one


class Supervisor:
    """Children and sockets. ``run`` returns an exit code after SIGTERM or SIGINT.

    ``environment`` is what the daemons have besides; pods do not.
    """

    def __init__(
        self,
        state: StateFolder,
        sockets: Mapping[str, socket.socket],
        children: Sequence[Child],
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._environment = environment
        self._state = state
        self._sockets = sockets
        self._children = list(children)
        self._events = ProcessEvents()
        self._is_stopping = False
        self._exit_code = 0

    def run(self, on_started: Callable[[], None] = lambda: None) -> int:
        """Start all, keep them, and end all on SIGTERM or SIGINT."""
        adopt_orphans()
        # Blocked signals wait to be asked for: none is lost between two looks, and no handler runs in between.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for child in self._children:
            self._start(child)
        on_started()
        while not self._is_stopping:
            received = signal.sigtimedwait(_SIGNALS, self._next_start_s())
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._is_stopping = True
            self._reap()
            self._events.send()
            for child in self._children:
                is_due = time.monotonic() >= child.started_s + child.pause_s
                if child.process is None and is_due and not self._is_stopping:
                    self._start(child)
        self._stop_all()
        return self._exit_code

    def _next_start_s(self) -> float:
        if self._events.has_unsent:
            return _UNSENT_PAUSE_S
        waiting = [child.started_s + child.pause_s for child in self._children if child.process is None]
        return max(0.0, min(waiting) - time.monotonic()) if waiting else _IDLE_S

    def _start(self, child: Child) -> None:
        # There is no socket for TLS where there is no certificate.
        descriptors = {name: self._sockets[name].fileno() for name in child.sockets if name in self._sockets}
        if child.module == _ACTIVATOR:
            # Where the pods of this machine find services.
            descriptors |= {name: one.fileno() for name, one in self._sockets.items() if _FOR_PODS in name}
        if child.name == _TEMPLATE:
            descriptors |= zip(("events", "events-writer"), self._events.descriptors, strict=True)
            # Pods are forked from the template: it does not even know where secrets are.
            more: Mapping[str, str] = {"SERVING_PROCESS_RECORDS": str(self._state.processes)}
        else:
            more = {**self._addresses(), **self._environment, **child.environment}
        environment = {**os.environ, "SERVING_LISTEN_FDS": json.dumps(descriptors), **more}
        log = (self._state.logs / f"{child.name}.log").open("ab")
        with log:
            child.process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", child.module],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=list(descriptors.values()),
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one thread, by design
            )
        child.started_s = time.monotonic()

    def _addresses(self) -> dict[str, str]:
        public, inner, stats = (self._sockets[name].getsockname() for name in ("public", "inner", "stats"))
        pages = [
            self._sockets[name].getsockname()
            for child in self._children
            for name in child.sockets
            if child.module == _ACTIVATOR and name.endswith("-metrics")
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
            "SERVING_KEY_FILE": str(self._state.key),
            "SERVING_STATE": str(self._state.path),
            "SERVING_AUTOSCALER_ACTIVATOR_ADDRESS": f"{public[0]}:{public[1]}",
            "SERVING_ACTIVATOR_STATS_URL": f"ws://{stats[0]}:{stats[1]}/stats",
            "SERVING_ACTIVATOR_PEER_FOLDER": str(self._state.path),
            "SERVING_STATS_URL": f"ws://{stats[0]}:{stats[1]}/stats",
            "SERVING_DASHBOARD_TOKEN_FILE": str(self._state.dashboard_token),
            "SERVING_DASHBOARD_ACTIVATOR_ADDRESS": f"{public[0]}:{public[1]}",
            "SERVING_DASHBOARD_AUTOSCALER_URL": f"http://{stats[0]}:{stats[1]}",
            "SERVING_DASHBOARD_ACTIVATOR_METRICS_URL": ",".join(
                f"http://{host}:{port}/metrics" for host, port in pages
            ),
            "SERVING_CONTROLLER_ACTIVATOR_PAGES": ",".join(f"{host}:{port}" for host, port in pages),
            # What clients see may be another port: behind a proxy at port 80 the user's own setting is right.
            **{
                name: os.environ.get(name, str(port))
                for name, port in zip(_CLIENT_PORTS, (public[1], inner[1]), strict=True)
            },
            # Where the inner listener is, whatever port URLs name.
            "SERVING_LOCAL_INNER_PORT": str(inner[1]),
        }

    def _reap(self) -> None:
        """Collect every child that ended, and report the end of each process that was adopted."""
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                child = next((one for one in self._children if one.process and one.process.pid == found.si_pid), None)
                if child is None:
                    # Its group, before it is collected: until then its process id cannot be used again.
                    kill_group(found.si_pid, signal.SIGKILL)
                _, status = os.waitpid(found.si_pid, 0)
                code = os.waitstatus_to_exitcode(status)
                if child is None:
                    self._events.report_exit(found.si_pid, code)
                elif child.process is not None:
                    child.process.returncode = code
                    self._ended(child)

    def _ended(self, child: Child) -> None:
        code = child.process.returncode if child.process else None
        child.process = None
        lived_s = time.monotonic() - child.started_s
        child.pause_s = (
            _PAUSE_FIRST_S if lived_s >= _SOUND_S else min(_PAUSE_MAX_S, max(_PAUSE_FIRST_S, child.pause_s * 2))
        )
        log = self._state.logs / f"{child.name}.log"
        if self._is_stopping:
            return
        if code == _CANNOT_START_EXIT:
            sys.stderr.write(f"serving: {child.name} cannot start: {_last_error(log)}\n")
            self._exit_code, self._is_stopping = code, True
        else:
            sys.stderr.write(f"serving: {child.name} ended with {code}, starts again; see {log}\n")

    def _stop_all(self) -> None:
        """Stop the children in reverse order. A second signal kills all of them at once."""
        for child in reversed(self._children):
            if not self._stop(child):
                break
        for child in self._children:
            _signal(child, signal.SIGKILL)
        deadline_s = time.monotonic() + _STOP_S
        while children_of(os.getpid()) and time.monotonic() < deadline_s:
            self._end_orphans()
            signal.sigtimedwait(_SIGNALS, _KILL_S)
            self._reap()

    def _stop(self, child: Child) -> bool:
        """Ask one to end, and wait for it; False if there was a second signal meanwhile."""
        _signal(child, signal.SIGTERM)
        deadline_s = time.monotonic() + _STOP_S
        while child.process is not None and time.monotonic() < deadline_s:
            received = signal.sigtimedwait(_SIGNALS, max(0.0, deadline_s - time.monotonic()))
            if received is not None and received.si_signo != signal.SIGCHLD:
                return False
            self._reap()
        return True

    def _end_orphans(self) -> None:
        ours = {child.process.pid for child in self._children if child.process is not None}
        for pid in children_of(os.getpid()):
            if pid not in ours:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _signal(child: Child, number: signal.Signals) -> None:
    if child.process is not None:
        child.process.send_signal(number)


def _last_error(log: Path) -> str:
    """What a daemon has written last: the error of a line of JSON, or the line as it is."""
    lines = log.read_text(errors="replace").splitlines() or [f"see {log}"]
    try:
        return str(json.loads(lines[-1])["error"])
    except (ValueError, KeyError, TypeError):
        return lines[-1]
