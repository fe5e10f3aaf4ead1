"""Forks standby processes ahead of pods, and assigns orders to them over sockets.

The template sends one assignment, a JSON line. The process answers with its record, and with the reason if it cannot start after
that. The end of the stream reports that it runs: exec closes the socket, and a queue-proxy closes it. The template does not wait
for it (``launches``). A process whose template ends first ends as well.
"""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable

import msgspec

from serving.home.processes.orders import StartProcess
from serving.home.processes.process_lifetime import kill_group
from serving.home.processes.processrecords import ProcessRecord
from serving.net.aio.output import write_error

# Of each kind: two services may wake up at once. An idle queue-proxy is 5 MB, an app before its exec 1 MB.
_COUNT = 2
# A start takes milliseconds; a process that is stopped must not stop the template.
_START_MAX_S = 10.0
# Delay of forks ahead after a start: by then its pod is ready, or imports its modules on one core of several.
_FILL_LAG_S = 0.15
# Pause between two forks: each takes some milliseconds, in which the template does not respond.
_FILL_PAUSE_S = 0.05
_RETRY_S = 5.0
_PIECE_BYTES = 65536
_END = b"\n"


class ProcessAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The role of a standby process: its start order, and its record without an id."""

    order: StartProcess
    record: ProcessRecord


class Standby:
    """The template's end of the control socket of one standby process.

    After ``begin``, ``order`` is what it starts, by ``end_s``, and ``descriptor`` is readable when ``has_ended`` may have changed.
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
        """Whether the stream has ended: the process runs as assigned, or has exited."""
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

        It then sends an empty line, which ``has_ended`` reads.
        """
        return bool(self._received)

    def begin(self, assignment: ProcessAssignment) -> None:
        """Assign a role to the process; ``finish`` returns what becomes of it. Raises ``OSError``."""
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
        """Kill the process by its record. Without a record it exits by itself."""
        with contextlib.suppress(msgspec.DecodeError):
            kill_group(msgspec.json.decode(self._received.strip(), type=ProcessRecord).pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process if it is still waiting."""
        self._control.close()


def _overdue() -> OSError:
    return OSError(f"the standby process did not start within {_START_MAX_S:g} s")


class Standbys:
    """The standby processes. ``fork`` creates one, of an app or a queue-proxy, and may raise ``OSError``."""

    def __init__(self, fork: Callable[[bool], Standby]) -> None:
        self._fork = fork
        self._waiting: dict[bool, list[Standby]] = {False: [], True: []}
        self._due_s = 0.0

    @property
    def is_full(self) -> bool:
        """Whether there are enough standby processes."""
        return all(len(waiting) >= _COUNT for waiting in self._waiting.values())

    def acquire(self, *, is_app: bool, now_s: float) -> Standby:
        """Return a waiting process, or fork one. Raises ``OSError``."""
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
        """Seconds until ``fill`` is due; None before the next start."""
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


def report_waiting(control: socket.socket) -> None:
    """Report from the process that it has finished its preparation."""
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
    """As ``receive``, on an event loop."""
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
