"""``python -m serving.local.template``: the process that all processes of pods are forked from, and that owns them.

It has loaded what a queue-proxy needs and waits for orders on a unix socket (``orders``; the listening socket is
handed down by the supervisor in ``SERVING_LISTEN_FDS`` as "template"). It has no loop and no thread. Pods belong to it and
not to the control process, so they survive its restart; the next control process gets an inventory when it connects. The newest connection counts. When it ends, all pods end: apps are asked, then killed. Queue-proxies are
killed at once, because the ingress has been drained before.
"""

if __name__ == "__main__":
    # Before the imports below, which take long: see there.
    from serving.aio.startup import exit_on_signals

    exit_on_signals()


import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from serving.local.orders import (
    ForgetPod,
    HeldPod,
    HeldProcess,
    Inventory,
    KeepNote,
    Lines,
    Order,
    ProcessEnded,
    ProcessStarted,
    ReadinessChanged,
    Report,
    SendSignal,
    StartFailed,
    StartProcess,
    encode,
    read_order,
)
from serving.local.process_lifetime import adopt_orphans, children_of, environment_of, kill_group
from serving.local.spawn import exec_app, fork_queue_proxy

__all__ = ["Template", "main"]

_PIECE_BYTES = 65536
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
# How long apps have to end when the whole system stops.
_APP_GRACE_S = 2.0


class _ForkedProcess:
    """A child process and its state."""

    def __init__(self, order: StartProcess, pid: int) -> None:
        self.pod, self.name, self.pid = order.pod, order.name, pid
        self.is_app = bool(order.arguments)
        self.is_container = order.launch is not None
        # By its port, which no other pod has, what an app has left behind is found.
        self.mark = f"PORT={order.environment.get('PORT', '')}"
        self.exit_code: int | None = None
        self.is_ready = self.is_drained = False


class Template:
    """Children and the one connection to control. ``run`` lasts until SIGTERM or SIGINT."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._client: socket.socket | None = None
        self._lines = Lines()
        self._unsent = b""
        self._notes: dict[str, dict[str, object]] = {}
        self._processes: dict[tuple[str, str], _ForkedProcess] = {}
        self._running: dict[int, _ForkedProcess] = {}
        self._is_stopping = False

    def run(self) -> None:
        """Take orders until SIGTERM or SIGINT."""
        adopt_orphans()
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._signalled)
        self._listener.setblocking(False)
        self._follow(woken, lambda: self._woken(woken))
        self._follow(self._listener, self._connected)
        while not self._is_stopping:
            self._turn(None)
        self._end_all()

    def _turn(self, timeout_s: float | None) -> None:
        for key, events in self._selector.select(timeout_s):
            if events & selectors.EVENT_WRITE:
                self._flush()
            if events & selectors.EVENT_READ and key.fileobj in self._selector.get_map():
                key.data()

    def _follow(self, what: int | socket.socket, callback: Callable[[], None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, callback)

    def _signalled(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:
            self._is_stopping = True

    def _woken(self, woken: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(woken, _PIECE_BYTES)
        self._reap()

    def _reap(self) -> None:
        """Reap every child that has ended, adopted ones too."""
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                process = self._running.pop(found.si_pid, None)
                if process is not None:
                    # Before the wait: until then its process id cannot be reused.
                    kill_group(process.pid, signal.SIGKILL)
                _, status = os.waitpid(found.si_pid, 0)
                if process is not None:
                    process.exit_code = os.waitstatus_to_exitcode(status)
                    process.is_ready = False
                    self._end_leftovers(process)
                    self._report(ProcessEnded(pod=process.pod, name=process.name, exit_code=process.exit_code))

    def _end_leftovers(self, process: _ForkedProcess) -> None:
        """Kill what an app has forked away: it became our child when its parent ended."""
        if process.is_app and not process.is_container:
            for pid in children_of(os.getpid()):
                if pid not in self._running and process.mark in environment_of(pid):
                    kill_group(pid, signal.SIGKILL)

    def _connected(self) -> None:
        if self._client is not None:
            self._disconnected()
        self._client, _ = self._listener.accept()
        self._client.setblocking(False)
        self._lines, self._unsent = Lines(), b""
        self._follow(self._client, self._received)
        self._report(Inventory(pods=self._held()))

    def _disconnected(self) -> None:
        assert self._client is not None
        self._selector.unregister(self._client)
        self._client.close()
        self._client = None

    def _held(self) -> list[HeldPod]:
        pods: dict[str, list[HeldProcess]] = {pod: [] for pod in self._notes}
        for one in self._processes.values():
            held = HeldProcess(
                name=one.name,
                pid=one.pid,
                exit_code=one.exit_code,
                is_ready=one.is_ready,
                is_drained=one.is_drained,
            )
            pods.setdefault(one.pod, []).append(held)
        return [HeldPod(pod=pod, note=self._notes.get(pod, {}), processes=them) for pod, them in pods.items()]

    def _received(self) -> None:
        assert self._client is not None
        try:
            piece = self._client.recv(_PIECE_BYTES)
            orders = [read_order(line) for line in self._lines.feed(piece)]
        except BlockingIOError:
            return
        except (OSError, OverflowError, msgspec.DecodeError) as error:
            sys.stderr.write(f"template: {error}\n")
            piece, orders = b"", []
        for order in orders:
            self._obey(order)
        if not piece and self._client is not None:
            self._disconnected()

    def _obey(self, order: Order) -> None:
        match order:
            case StartProcess():
                self._start(order)
            case SendSignal():
                process = self._processes.get((order.pod, order.name))
                if process is not None and process.exit_code is None:
                    kill_group(process.pid, order.signal)
            case KeepNote():
                self._notes[order.pod] = order.note
            case ForgetPod():
                self._forget(order.pod)

    def _start(self, order: StartProcess) -> None:
        key = (order.pod, order.name)
        before = self._processes.get(key)
        if before is not None and before.exit_code is None:
            self._report(StartFailed(pod=order.pod, name=order.name, why="it runs already"))
            return
        try:
            if order.arguments:
                process = _ForkedProcess(order, exec_app(order))
            else:
                pid, ready = fork_queue_proxy(order)
                process = _ForkedProcess(order, pid)
                lines = Lines()
                self._follow(ready, lambda: self._heard(process, ready, lines))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._report(StartFailed(pod=order.pod, name=order.name, why=_why(order, error)))
            return
        self._processes[key] = self._running[process.pid] = process
        self._report(ProcessStarted(pod=order.pod, name=order.name, pid=process.pid))

    def _heard(self, process: _ForkedProcess, ready: int, lines: Lines) -> None:
        piece = os.read(ready, _PIECE_BYTES)
        if not piece:
            self._selector.unregister(ready)
            os.close(ready)
            return
        for line in lines.feed(piece):
            pushed = json.loads(line)
            process.is_ready, process.is_drained = bool(pushed["ready"]), bool(pushed.get("drained"))
            report = ReadinessChanged(
                pod=process.pod, name=process.name, is_ready=process.is_ready, is_drained=process.is_drained
            )
            self._report(report)

    def _forget(self, pod: str) -> None:
        self._notes.pop(pod, None)
        for key in [key for key in self._processes if key[0] == pod]:
            process = self._processes.pop(key)
            if process.exit_code is None:
                kill_group(process.pid, signal.SIGKILL)

    def _report(self, report: Report) -> None:
        if self._client is not None:
            self._unsent += encode(report)
            self._flush()

    def _flush(self) -> None:
        """Send what the connection takes; the rest when it takes more."""
        if self._client is None:
            return
        try:
            sent = self._client.send(self._unsent) if self._unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._disconnected()
            return
        self._unsent = self._unsent[sent:]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._client, events, self._received)

    def _end_all(self) -> None:
        for process in self._running.values():
            kill_group(process.pid, signal.SIGTERM if process.is_app else signal.SIGKILL)
        until_s = time.monotonic() + _APP_GRACE_S
        while self._running and time.monotonic() < until_s:
            self._turn(max(0.0, until_s - time.monotonic()))
        for process in self._running.values():
            kill_group(process.pid, signal.SIGKILL)
        for pid in children_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _why(order: StartProcess, error: Exception) -> str:
    """The command or the folder that cannot be used, and the system's reason."""
    command = order.arguments[0] if order.arguments else ""
    if isinstance(error, FileNotFoundError) and command and "/" not in command:
        # Not the PATH of the shell that ran the deploy.
        return f"{command}: no such command in the pod's PATH {order.environment.get('PATH', '')}; say where it is"
    if isinstance(error, OSError):
        return f"{error.filename or (order.arguments or ('fork',))[0]}: {error.strerror}"
    return f"{order.arguments[0]}: {error}"


def main() -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    listener = socket.socket(fileno=json.loads(os.environ["SERVING_LISTEN_FDS"])["template"])
    listener.set_inheritable(False)
    # What is here now is shared by all children, as long as no collection touches it.
    gc.collect()
    gc.freeze()
    Template(listener).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
