"""The template: ``python -m serving.home.processes.template`` forks and tracks all processes of pods.

The template has loaded all modules of a queue-proxy, and waits for orders (``orders``) on a unix socket, which is
"template" in ``SERVING_LISTEN_FDS``. It has no loop and no thread. It owns the pods, so they survive a restart of the
control process; the next control process gets an inventory when it connects. Only the newest connection is used.

SIGHUP ends the template between two orders, and its successor adopts the pods. Pods survive the template: the
supervisor is their parent and reports exits through a pipe, and files record them (``processrecords``). A stop ends all
pods: apps get SIGTERM first, and queue-proxies are killed immediately, because the ingress has already drained.
"""

if __name__ == "__main__":
    # Before the slow imports below; see ``serving.net.aio.startup``.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()


import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from serving.core.model.errors import NewerFormat
from serving.home.processes.confine import ISOLATION_VARIABLE
from serving.home.processes.launches import ContainerLaunch, Launches
from serving.home.processes.orders import (
    LINE_BYTES_MAX,
    ForgetPod,
    Inventory,
    InventoryPod,
    KeepNote,
    Lines,
    Order,
    ProcessEnded,
    ProcessStarted,
    ReadinessChanged,
    Report,
    SendSignal,
    StartedProcess,
    StartFailed,
    StartProcess,
    Warned,
    encode,
    read_order,
    read_start_key,
)
from serving.home.processes.podfreezers import PodSignals, find_freezers, signal_process
from serving.home.processes.preload_apps import PreloadedApps
from serving.home.processes.process_lifetime import children_of, environment_of, kill_group, set_niceness
from serving.home.processes.processrecords import EventReader, ProcessRecord, ProcessRecords
from serving.home.processes.readinesspipes import ReadinessPipes
from serving.home.processes.spawn import Spawner, warm_up
from serving.net.aio.output import write_error
from serving.net.aio.ownlog import OwnLog
from serving.net.aio.startup import ALIVE_S, READY_VARIABLE, report_alive, report_serving
from serving.queueproxy.io.readiness import PUSH_AGAIN

_PIECE_BYTES = 65536
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Another template takes over: this one ends, and the pods continue.
_HAND_OVER = signal.SIGHUP
# Time for apps to end when the whole system stops, in seconds.
_APP_GRACE_S = 2.0
# Time for queue-proxies to repeat their readiness, in seconds; later ones report it themselves.
_REPEAT_S = 1.0
_KILLED = -signal.SIGKILL
# Folders of container runtimes, the serving report, and the isolation of apps.
_KEPT_VARIABLES = {"PATH", READY_VARIABLE, ISOLATION_VARIABLE}


class Template:
    """The process template: starts the processes of all pods, and reports them to the control process.

    ``run`` lasts until SIGTERM, SIGINT or SIGHUP.
    """

    def __init__(self, listener: socket.socket, *, events: tuple[int, int], records: ProcessRecords) -> None:
        self._listener = listener
        self._events = events[0]
        self._event_reader = EventReader()
        self._records = records
        # The supervisor, which is the parent of all pods' processes too.
        self._owner = os.getppid()
        freezers = find_freezers(self._owner)
        self._signals = PodSignals(freezers, records)
        self._spawner = Spawner(records, owner=self._owner, events=events[1], freezers=freezers)
        self._selector = selectors.DefaultSelector()
        self._preloaded = PreloadedApps(
            records,
            owner=self._owner,
            watch=self._watch,
            unwatch=self._selector.unregister,
            warn=lambda order, reason, message: self._report(
                Warned(pod=order.pod, name=order.name, reason=reason, message=message)
            ),
        )
        self._launches = Launches(records, watch=self._watch, unwatch=self._selector.unregister, started=self._started)
        self._pipes = ReadinessPipes(
            records, watch=self._watch, unwatch=self._selector.unregister, changed=self._update_readiness
        )
        self._client: socket.socket | None = None
        self._lines = Lines()
        self._unsent = b""
        self._notes: dict[str, dict[str, object]] = {}
        self._processes: dict[tuple[str, str], ProcessRecord] = {}
        self._running: dict[int, ProcessRecord] = {}
        self._is_stopping = False
        self._hands_over = False

    def run(self, log: OwnLog) -> None:
        """Serve orders until a signal: SIGTERM and SIGINT end the pods too, SIGHUP does not."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (*_SIGNALS, _HAND_OVER):
            signal.signal(number, self._signalled)
        self._listener.setblocking(False)
        self._watch(woken, lambda: None)
        self._watch(self._events, self._on_reply)
        self._adopt()
        self._signals.sweep()
        self._watch(self._listener, self._connected)
        report_serving()
        while not self._is_stopping:
            now_s = time.monotonic()
            report_alive()
            waits_s = (
                ALIVE_S,
                self._spawner.standbys.due_in_s(now_s),
                self._preloaded.due_in_s,
                self._launches.due_in_s(now_s),
                self._pipes.due_in_s(now_s),
            )
            log.check()
            self._turn(min((wait_s for wait_s in waits_s if wait_s is not None), default=None))
            self._pipes.resume(time.monotonic())
            self._preloaded.drop_unused(time.monotonic())
            self._spawner.standbys.fill(time.monotonic())
            self._launches.finish(is_all=False)
        self._launches.finish(is_all=True)
        self._preloaded.end()
        if not self._hands_over:
            self._end_all()

    def _adopt(self) -> None:
        """Adopt the processes that an earlier template started.

        The pipe from the supervisor still contains the exits that have happened since then.
        """
        processes, self._notes = self._records.read()
        for process in processes:
            self._processes[process.pod, process.name] = process
            if process.exit_code is None:
                self._running[process.pid] = process
                if process.is_own_proxy:
                    self._pipes.open(process)
        self._on_reply()
        for process in list(self._running.values()):
            if not process.is_alive:
                self._ended(process, _KILLED)
        unheard = {pid: process for pid, process in self._running.items() if process.reports_readiness}
        for process in unheard.values():
            signal_process(process, PUSH_AGAIN)
        until_s = time.monotonic() + _REPEAT_S
        while not all(process.is_heard for process in unheard.values()) and time.monotonic() < until_s:
            self._turn(max(0.0, until_s - time.monotonic()))

    def _turn(self, timeout_s: float | None) -> None:
        for key, events in self._selector.select(timeout_s):
            if events & selectors.EVENT_WRITE:
                self._flush()
            # An earlier event of this iteration may have closed it, and its number may be reused. An unprocessed event
            # is reported again.
            if events & selectors.EVENT_READ and self._selector.get_map().get(key.fd) is key:
                key.data()

    def _watch(self, what: int | socket.socket, callback: Callable[[], None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, callback)

    def _signalled(self, number: int, _: object) -> None:
        self._is_stopping = True
        self._hands_over = number == _HAND_OVER

    def _on_reply(self) -> None:
        """Process exits reported by the supervisor, and readiness reported by queue-proxies."""
        try:
            piece = os.read(self._events, _PIECE_BYTES)
        except BlockingIOError:
            return
        # Record starts before ends.
        self._launches.finish(is_all=False)
        for event in self._event_reader.feed(piece):
            process = self._running.get(event["pid"])
            if process is None:
                if "exit" in event:
                    self._launches.record_exit(event["pid"], event["exit"])
                continue
            if "exit" in event:
                self._ended(process, event["exit"])
                continue
            self._update_readiness(process, event)

    def _update_readiness(self, process: ProcessRecord, event: Mapping[str, Any]) -> None:
        """Store the latest report of a queue-proxy in its record, and send it to the control process."""
        process.is_heard = True
        process.is_ready, process.is_drained = bool(event["ready"]), bool(event.get("drained"))
        process.is_dormant = bool(event.get("dormant"))
        if process.is_ready:
            self._preloaded.pod_ready(process.pod, time.monotonic())
            _restore_weight(record for record in self._running.values() if record.pod == process.pod)
        report = ReadinessChanged(
            pod=process.pod,
            name=process.name,
            is_ready=process.is_ready,
            is_drained=process.is_drained,
            is_dormant=process.is_dormant,
        )
        self._report(report)

    def _ended(self, process: ProcessRecord, exit_code: int) -> None:
        del self._running[process.pid]
        self._pipes.close(process.pid)
        process.exit_code, process.is_ready, process.is_dormant = exit_code, False, False
        if self._processes.get((process.pod, process.name)) is process:
            if process.is_exec:
                # Commands beside the containers are not kept: each has a unique name.
                del self._processes[process.pod, process.name]
            with contextlib.suppress(OSError):
                self._records.write(process)
        self._end_leftovers(process)
        self._report(ProcessEnded(pod=process.pod, name=process.name, exit_code=exit_code))

    def _end_leftovers(self, process: ProcessRecord) -> None:
        """Kill processes that an ended app has detached: children of the supervisor with the app's ``mark``."""
        if process.mark:
            for pid in children_of(self._owner):
                if pid not in self._running and process.mark in environment_of(pid):
                    kill_group(pid, signal.SIGKILL)

    def _connected(self) -> None:
        if self._client is not None:
            self._disconnected()
        report_alive(is_waiting=True)
        self._launches.finish(is_all=True)
        for process in [process for process in self._processes.values() if process.is_exec]:
            # The other end of its streams is closed.
            signal_process(process, signal.SIGKILL)
            self._ended(process, _KILLED)
        self._client, _ = self._listener.accept()
        self._client.setblocking(False)
        self._lines = Lines()
        self._unsent = b""
        self._watch(self._client, self._received)
        self._report(Inventory(pods=_inventory_pods(self._notes, self._processes.values())))

    def _disconnected(self) -> None:
        assert self._client is not None
        self._selector.unregister(self._client)
        self._client.close()
        self._client = None

    def _received(self) -> None:
        assert self._client is not None
        dropped_count = self._lines.dropped_count
        try:
            piece = self._client.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            write_error(f"template: {error}")
            piece = b""
        lines = self._lines.feed(piece)
        if self._lines.dropped_count > dropped_count:
            # The control process sends no such order, because it checks the length.
            write_error(f"template: an order of more than {LINE_BYTES_MAX} bytes is dropped")
        for line in lines:
            self._obey_line(line)
        if not piece and self._client is not None:
            self._disconnected()

    def _obey_line(self, line: bytes) -> None:
        """Execute an order. An invalid one, for example of another version, fails without affecting others."""
        try:
            order = read_order(line)
        except (msgspec.DecodeError, RecursionError) as error:
            write_error(f"template: an order cannot be read: {error}")
            key = read_start_key(line)
            if key is not None:
                self._report(StartFailed(pod=key[0], name=key[1], why=f"the template cannot read its order: {error}"))
            return
        self._obey(order)

    def _obey(self, order: Order) -> None:
        if self._launches.defers(order):
            return
        match order:
            case StartProcess():
                self._start(order)
            case SendSignal():
                process = self._processes.get((order.pod, order.name))
                if process is not None and process.exit_code is None:
                    self._signals.send(process, order.signal)
            case KeepNote():
                self._store_note(order)
            case ForgetPod():
                self._forget(order.pod)

    def _start(self, order: StartProcess) -> None:
        key = (order.pod, order.name)
        before = self._processes.get(key)
        if key in self._launches or (before is not None and before.exit_code is None):
            self._report(StartFailed(pod=order.pod, name=order.name, why="it runs already"))
            return
        try:
            record = self._spawner.record_of(order)
            if order.preload:
                # A warm process is awaited.
                report_alive(is_waiting=True)
            if order.launch is not None:
                self._launches.add(ContainerLaunch(order))
            elif forked := self._preloaded.start(order, record, time.monotonic()):
                self._started(order, forked)
            else:
                self._launches.add(self._spawner.begin(order, record))
        except OSError as error:
            self._started(order, error)

    def _started(self, order: StartProcess, outcome: ProcessRecord | OSError) -> None:
        """Report a started process or its failure. A process that has ended meanwhile is reported as ended too."""
        if isinstance(outcome, OSError):
            self._report(StartFailed(pod=order.pod, name=order.name, why=_why(outcome)))
        else:
            self._processes[order.pod, order.name] = self._running[outcome.pid] = outcome
            if outcome.is_own_proxy:
                self._pipes.open(outcome)
            self._report(ProcessStarted(pod=order.pod, name=order.name, pid=outcome.pid))
            exit_code = self._launches.take_exit(outcome.pid)
            if exit_code is not None:
                self._ended(outcome, exit_code)
        for deferred in self._launches.take_deferred():
            self._obey(deferred)

    def _store_note(self, order: KeepNote) -> None:
        self._notes[order.pod] = order.note
        try:
            self._records.write_note(order.pod, order.note)
        except OSError as error:
            # On a full disk. The control process sends the note to the next template again, unless both end together.
            write_error(f"template: the note about pod {order.pod} is not on disk: {error}")

    def _forget(self, pod: str) -> None:
        self._notes.pop(pod, None)
        for key in [key for key in self._processes if key[0] == pod]:
            process = self._processes.pop(key)
            if process.exit_code is None:
                signal_process(process, signal.SIGKILL)
        self._records.forget(pod)
        self._preloaded.forget(pod)
        self._signals.forget(pod)

    def _report(self, report: Report) -> None:
        if self._client is not None:
            self._unsent += encode(report)
            self._flush()

    def _flush(self) -> None:
        """Send as much as the connection accepts now, and the rest later."""
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
            self._signals.send(process, signal.SIGTERM if process.is_app else signal.SIGKILL)
        until_s = time.monotonic() + _APP_GRACE_S
        while self._running and time.monotonic() < until_s:
            self._turn(max(0.0, until_s - time.monotonic()))
        # The supervisor kills the remaining processes.
        for process in self._running.values():
            signal_process(process, signal.SIGKILL)
        self._signals.end()


def _inventory_pods(notes: Mapping[str, dict[str, object]], processes: Iterable[ProcessRecord]) -> list[InventoryPod]:
    pods: dict[str, list[StartedProcess]] = {pod: [] for pod in notes}
    for process in processes:
        flags = {"is_ready": process.is_ready, "is_drained": process.is_drained, "is_dormant": process.is_dormant}
        pods.setdefault(process.pod, []).append(
            StartedProcess(name=process.name, pid=process.pid, exit_code=process.exit_code, **flags)
        )
    return [InventoryPod(pod=pod, note=notes.get(pod, {}), processes=them) for pod, them in pods.items()]


def _why(error: OSError) -> str:
    """The reason of a failed start as text. A child sends only this text."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def _restore_weight(processes: Iterable[ProcessRecord]) -> None:
    """Restore the normal niceness of a ready pod's processes, which have lower CPU priority while the pod starts."""
    for process in (process for process in processes if process.niceness):
        process.niceness = 0
        with contextlib.suppress(OSError):
            set_niceness(process.pid, 0)


def main() -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    descriptors = json.loads(os.environ["SERVING_LISTEN_FDS"])
    events = (descriptors["events"], descriptors["events-writer"])
    for descriptor in (*events, descriptors["template"]):
        os.set_inheritable(descriptor, False)
    listener = socket.socket(fileno=descriptors["template"])
    warm_up()
    records = ProcessRecords(Path(os.environ["SERVING_PROCESS_RECORDS"]))
    log = OwnLog.of(os.environ)
    # Otherwise each fork would have to clear them.
    for name in os.environ.keys() - _KEPT_VARIABLES:
        del os.environ[name]
    # All children share the existing objects, as long as no garbage collection writes to them.
    gc.collect()
    gc.freeze()
    try:
        Template(listener, events=events, records=records).run(log)
    except NewerFormat as error:
        sys.exit(f"template: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
