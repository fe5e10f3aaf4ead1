"""Control's end of the connection to the template: processes of pods as objects that can be waited for.

``run`` keeps the connection. When the template was restarted, all its processes are gone, and whoever waits for one
hears that it was killed. When this process was restarted, ``held`` says which pods there are, and ``take_over`` gives
their processes.
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    read_report,
)
from serving.local.state import short_path

__all__ = ["ProcessRuntime", "TemplateProcess"]

_log = logging.getLogger("host")

_PIECE_BYTES = 65536
_RETRY_S = 0.05
_KILLED = -signal.SIGKILL


class TemplateProcess:
    """A process of a pod. ``started`` raises ``OSError`` with the reason when it cannot be; ``ended`` is its exit code.

    ``drained`` is done when a queue-proxy reports that its app may end.
    """

    def __init__(
        self, host: "ProcessRuntime", pod: str, name: str, *, on_ready: Callable[[bool], None] | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._host, self._pod, self._name = host, pod, name
        self._on_ready = on_ready
        self.pid = 0
        self.started: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()

    def __repr__(self) -> str:
        state = "starting" if not self.started.done() else "ended" if self.ended.done() else f"pid {self.pid}"
        return f"TemplateProcess({self._pod}/{self._name}, {state})"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and its group."""
        if not self.ended.done():
            self._host.order(SendSignal(pod=self._pod, name=self._name, signal=number))

    async def end(self, *, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after the grace; 0 is SIGKILL at once. Returns when it is over."""
        if grace_s > 0:
            self.send(signal.SIGTERM)
        await self.outlast(grace_s)

    async def outlast(self, patience_s: float) -> None:
        """Wait for its end, and kill it when it takes longer than that."""
        if patience_s > 0:
            await asyncio.wait([self.ended], timeout=patience_s)
        self.send(signal.SIGKILL)
        await asyncio.wait([self.ended])

    def hear(self, report: Report) -> None:
        """Take over what the template says of it."""
        match report:
            case ProcessStarted(pid=pid):
                self.pid = pid
                _settle(self.started, None)
            case StartFailed(why=why):
                if not self.started.done():
                    self.started.set_exception(OSError(why))
                    # Who starts a pod that is stopped at once may not look.
                    self.started.exception()
                _settle(self.ended, _KILLED)
            case ProcessEnded(exit_code=exit_code):
                _settle(self.started, None)
                _settle(self.ended, exit_code)
            case ReadinessChanged(is_ready=is_ready, is_drained=is_drained):
                if is_drained:
                    _settle(self.drained, None)
                if self._on_ready is not None:
                    self._on_ready(is_ready)
            case _:
                return


class ProcessRuntime:
    """The template, seen from here. ``held`` is what it had when it was connected first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._processes: dict[tuple[str, str], TemplateProcess] = {}
        self._held: dict[tuple[str, str], HeldProcess] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: list[Order] = []
        self.connected = asyncio.Event()
        self.held: list[HeldPod] = []

    def __repr__(self) -> str:
        return f"ProcessRuntime({len(self._processes)} processes, {'not ' * (self._writer is None)}connected)"

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            try:
                with short_path(self._path) as path:
                    reader, writer = await asyncio.open_unix_connection(path)
                await self._listen(reader, writer)
            except OSError as error:
                _log.debug("host.disconnected", extra={"error": str(error)})
            await asyncio.sleep(_RETRY_S)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = Lines()
        try:
            while piece := await reader.read(_PIECE_BYTES):
                for line in lines.feed(piece):
                    self._hear(read_report(line), writer)
        finally:
            self._writer = None
            writer.close()

    def _hear(self, report: Report, writer: asyncio.StreamWriter) -> None:
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
            process.hear(report)
        elif key in self._held:
            # Nobody has taken it over yet; whoever does shall know.
            self._held[key] = _after(self._held[key], report)

    def _compare(self, have: Inventory) -> None:
        """What we believe to run and is not there was killed with the template."""
        found = {(pod.pod, one.name): one for pod in have.pods for one in pod.processes}
        waiting = {(order.pod, order.name) for order in self._waiting if isinstance(order, StartProcess)}
        for key, process in self._processes.items():
            now = found.get(key)
            if now is not None:
                _catch_up(process, now)
            elif key not in waiting:
                _settle(process.started, None)
                _settle(process.ended, _KILLED)
        if not self.connected.is_set():
            self._held, self.held = found, have.pods
            self.connected.set()

    def order(self, order: Order) -> None:
        """Have something done, now or as soon as there is a connection."""
        if self._writer is None:
            self._waiting.append(order)
        else:
            self._writer.write(encode(order))

    def start(self, start: StartProcess, *, on_ready: Callable[[bool], None] | None = None) -> TemplateProcess:
        """Start a process; its ``started`` tells whether that worked."""
        process = TemplateProcess(self, start.pod, start.name, on_ready=on_ready)
        self._processes[start.pod, start.name] = process
        self.order(start)
        return process

    def take_over(
        self, pod: str, name: str, *, on_ready: Callable[[bool], None] | None = None
    ) -> TemplateProcess | None:
        """A process that the template had already; None if there was none such."""
        held = self._held.get((pod, name))
        if held is None:
            return None
        process = TemplateProcess(self, pod, name, on_ready=on_ready)
        self._processes[pod, name] = process
        _catch_up(process, held)
        return process

    def keep(self, pod: str, note: dict[str, Any]) -> None:
        """Leave word about a pod for the next control process."""
        self.order(KeepNote(pod=pod, note=note))

    def forget(self, pod: str) -> None:
        """A pod is over; whatever of it still runs is killed."""
        for key in [key for key in self._processes if key[0] == pod]:
            del self._processes[key]
        self.order(ForgetPod(pod=pod))


def _after(held: HeldProcess, report: Report) -> HeldProcess:
    match report:
        case ProcessEnded(exit_code=exit_code):
            return msgspec.structs.replace(held, exit_code=exit_code, is_ready=False)
        case ReadinessChanged(is_ready=is_ready, is_drained=is_drained):
            return msgspec.structs.replace(held, is_ready=is_ready, is_drained=is_drained)
        case _:
            return held


def _catch_up(process: TemplateProcess, held: HeldProcess) -> None:
    process.hear(ProcessStarted(pod="", name=held.name, pid=held.pid))
    if held.exit_code is not None:
        process.hear(ProcessEnded(pod="", name=held.name, exit_code=held.exit_code))
    elif held.is_ready or held.is_drained:
        process.hear(ReadinessChanged(pod="", name=held.name, is_ready=held.is_ready, is_drained=held.is_drained))


def _settle(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)
