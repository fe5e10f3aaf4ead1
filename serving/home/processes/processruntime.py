"""Controls containers that are processes of the template, over a connection to it.

``run`` keeps the connection. A restarted template inherits its predecessor's processes; a process that its inventory
lacks was killed. After a restart of this process, ``inventory_pods`` has the pods of the template, and ``take_over`` returns
their processes.
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

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
    read_report,
)
from serving.home.state import short_path

_log = logging.getLogger("runtime")

_PIECE_BYTES = 65536
_RETRY_S = 0.05
_KILLED = -signal.SIGKILL


class TemplateProcess:
    """The first process of a container, which the template starts.

    ``pid`` is 0 until the process has started. ``started`` raises ``OSError`` if it cannot start. ``ended`` returns the
    exit code, which is negative if a signal ended the process: -9 for SIGKILL. ``drained`` is done when a queue-proxy
    allows its app to end.
    """

    def __init__(
        self,
        host: "ProcessRuntime",
        pod: str,
        name: str,
        *,
        on_ready: Callable[[ReadinessChanged], None] | None = None,
        on_warning: Callable[[str, str], None] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._host = host
        self._pod = pod
        self._name = name
        self._on_ready = on_ready
        self._on_warning = on_warning
        self.pid = 0
        self.started: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its group; ignored after its end."""
        if not self.ended.done():
            self._host.order(SendSignal(pod=self._pod, name=self._name, signal=number))

    async def end(self, *, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after ``grace_s`` (0: immediately). Return when it has ended."""
        if grace_s > 0:
            self.send(signal.SIGTERM)
        await self.outlast(grace_s)

    async def outlast(self, patience_s: float) -> None:
        """Wait for the end of the process; kill it after ``patience_s``."""
        if patience_s > 0:
            await asyncio.wait([self.ended], timeout=patience_s)
        self.send(signal.SIGKILL)
        await asyncio.wait([self.ended])

    def process_report(self, report: Report) -> None:
        """Record what the template reports about this process: its start or the failure to start, its readiness, its end."""
        match report:
            case ProcessStarted(pid=pid):
                self.pid = pid
                _settle(self.started, None)
            case StartFailed(why=why):
                if not self.started.done():
                    self.started.set_exception(OSError(why))
                    # The exception of a pod that is stopped immediately may never be retrieved.
                    self.started.exception()
                _settle(self.ended, _KILLED)
            case ProcessEnded(exit_code=exit_code):
                _settle(self.started, None)
                _settle(self.ended, exit_code)
            case ReadinessChanged(is_drained=is_drained):
                if is_drained:
                    _settle(self.drained, None)
                if self._on_ready is not None:
                    self._on_ready(report)
            case Warned(reason=reason, message=message):
                if self._on_warning is not None:
                    self._on_warning(reason, message)
            case _:
                return


class ProcessRuntime:
    """Starts processes and containers in the process template, which keeps them while the control process restarts.

    The template also stores a note per pod. ``connected`` is set once ``inventory_pods`` lists the pods that an earlier control
    process has left.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._processes: dict[tuple[str, str], TemplateProcess] = {}
        self._inherited: dict[tuple[str, str], StartedProcess] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: list[Order] = []
        self._notes: dict[str, KeepNote] = {}
        self.connected = asyncio.Event()
        self.inventory_pods: list[InventoryPod] = []

    async def run(self) -> None:
        """Maintain the connection to the process template until cancelled."""
        while True:
            try:
                with short_path(self._path) as path:
                    reader, writer = await asyncio.open_unix_connection(path)
                await self._listen(reader, writer)
            except OSError as error:
                _log.debug("runtime.disconnected", extra={"error": str(error)})
            await asyncio.sleep(_RETRY_S)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The template is trusted, and the inventory of thousands of pods is one line.
        lines = Lines(bytes_max=0)
        try:
            while piece := await reader.read(_PIECE_BYTES):
                for line in lines.feed(piece):
                    self._process_report(read_report(line), writer)
        finally:
            self._writer = None
            writer.close()

    def _process_report(self, report: Report, writer: asyncio.StreamWriter) -> None:
        if isinstance(report, Inventory):
            self._writer = writer
            self._compare(report)
            for order in self._waiting:
                self.order(order)
            self._waiting.clear()
            return
        key = (report.pod, report.name)
        process = self._processes.get(key)
        if process is not None:
            process.process_report(report)
        elif key in self._inherited:
            # Not adopted yet: keep the report for its adoption.
            self._inherited[key] = _after(self._inherited[key], report)

    def _compare(self, have: Inventory) -> None:
        """Reconcile the expected processes with the inventory ``have`` of a newly connected template.

        A missing process counts as killed. After a reconnection, a pod unknown here is ended. Orders that the previous
        template received but did not execute are also detected.
        """
        processes = {(pod.pod, process.name): process for pod in have.pods for process in pod.processes}
        waiting = {(order.pod, order.name) for order in self._waiting if isinstance(order, StartProcess)}
        for key, process in self._processes.items():
            now = processes.get(key)
            if now is not None:
                _catch_up(process, now)
            elif key not in waiting:
                _settle(process.started, None)
                _settle(process.ended, _KILLED)
        if not self.connected.is_set():
            self._inherited = processes
            self.inventory_pods = have.pods
            self.connected.set()
            return
        for note in self._notes.values():
            self.order(note)
        known = {pod for pod, _ in (*self._processes, *self._inherited)} | self._notes.keys()
        for pod in have.pods:
            if pod.pod not in known:
                self.order(ForgetPod(pod=pod.pod))

    def order(self, order: Order) -> None:
        """Send an order now, or once the template is connected. A start order that is too long fails instead."""
        if self._writer is None:
            self._waiting.append(order)
            return
        line = encode(order)
        if len(line) > LINE_BYTES_MAX:
            self._fail(order, len(line))
        else:
            self._writer.write(line)

    def _fail(self, order: Order, byte_count: int) -> None:
        why = f"its order has {byte_count} bytes; expected at most {LINE_BYTES_MAX}"
        _log.error("runtime.order_too_long", extra={"pod": order.pod, "bytes": byte_count})
        if not isinstance(order, StartProcess):
            return
        process = self._processes.get((order.pod, order.name))
        if process is not None:
            process.process_report(StartFailed(pod=order.pod, name=order.name, why=why))

    def start(
        self,
        start: StartProcess,
        *,
        on_ready: Callable[[ReadinessChanged], None] | None = None,
        on_warning: Callable[[str, str], None] | None = None,
    ) -> TemplateProcess:
        """Start a process or container.

        ``on_ready`` is called with each change of readiness that a queue-proxy reports, ``on_warning`` with the reason
        and message of an Event.
        """
        process = TemplateProcess(self, start.pod, start.name, on_ready=on_ready, on_warning=on_warning)
        key = (start.pod, start.name)
        self._processes[key] = process
        if start.is_exec:
            process.ended.add_done_callback(lambda _: self._forget_exec(key, process))
        self.order(start)
        return process

    def _forget_exec(self, key: tuple[str, str], process: TemplateProcess) -> None:
        if self._processes.get(key) is process:
            del self._processes[key]

    def adopt(
        self,
        pod: str,
        name: str,
        *,
        on_ready: Callable[[ReadinessChanged], None] | None = None,
        on_warning: Callable[[str, str], None] | None = None,
    ) -> TemplateProcess | None:
        """The process of a container that an earlier control process started; None if there is none."""
        inherited = self._inherited.get((pod, name))
        if inherited is None:
            return None
        process = TemplateProcess(self, pod, name, on_ready=on_ready, on_warning=on_warning)
        self._processes[pod, name] = process
        _catch_up(process, inherited)
        return process

    def store_note(self, pod: str, note: dict[str, Any]) -> None:
        """Store a note about a pod for the next control process."""
        self._notes[pod] = KeepNote(pod=pod, note=note)
        self.order(self._notes[pod])

    def forget(self, pod: str) -> None:
        """Drop the note of a pod, and kill the pod's remaining processes."""
        for key in [key for key in self._processes if key[0] == pod]:
            # Its end is not reported any more, but an exec waits for it.
            self._processes.pop(key).process_report(StartFailed(pod=pod, name=key[1], why="the pod has ended"))
        self._notes.pop(pod, None)
        self.order(ForgetPod(pod=pod))


def _after(process: StartedProcess, report: Report) -> StartedProcess:
    match report:
        case ProcessEnded(exit_code=exit_code):
            return msgspec.structs.replace(process, exit_code=exit_code, is_ready=False)
        case ReadinessChanged(is_ready=is_ready, is_drained=is_drained, is_dormant=is_dormant):
            return msgspec.structs.replace(process, is_ready=is_ready, is_drained=is_drained, is_dormant=is_dormant)
        case _:
            return process


def _catch_up(process: TemplateProcess, inherited: StartedProcess) -> None:
    process.process_report(ProcessStarted(pod="", name=inherited.name, pid=inherited.pid))
    if inherited.exit_code is not None:
        process.process_report(ProcessEnded(pod="", name=inherited.name, exit_code=inherited.exit_code))
    elif inherited.is_ready or inherited.is_drained:
        process.process_report(
            ReadinessChanged(
                pod="",
                name=inherited.name,
                is_ready=inherited.is_ready,
                is_drained=inherited.is_drained,
                is_dormant=inherited.is_dormant,
            )
        )


def _settle(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)
