"""Containers that are being started: the template goes on while crun or runc starts them, which takes tens of milliseconds.

Until a container has started, its signals wait, and so does the end of its pod. A new control process gets an inventory
when all have started.
"""

import contextlib
import time
from collections.abc import Callable

from serving.home.processes.containerlaunch import ContainerLaunch
from serving.home.processes.orders import ForgetPod, Order, SendSignal, StartProcess
from serving.home.processes.process_lifetime import start_ticks
from serving.home.processes.processrecords import ProcessRecord, ProcessRecords

_Key = tuple[str, str]


class Launches:
    """The containers. ``follow`` calls back when a descriptor can be read, ``unfollow`` ends that.

    ``started`` gets each order with its process, or with the reason why there is none.
    """

    def __init__(
        self,
        records: ProcessRecords,
        *,
        follow: Callable[[int, Callable[[], None]], None],
        unfollow: Callable[[int], object],
        started: Callable[[StartProcess, ProcessRecord | OSError], None],
    ) -> None:
        self._records = records
        self._follow, self._unfollow, self._started = follow, unfollow, started
        self._running: dict[_Key, ContainerLaunch] = {}
        self._deferred: list[Order] = []
        # By process id: a container may end before the runtime that started it does.
        self._exit_codes: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"Launches({len(self._running)} running, {len(self._deferred)} orders deferred)"

    def __contains__(self, key: _Key) -> bool:
        """Whether a container of a pod is being started."""
        return key in self._running

    def start(self, order: StartProcess) -> None:
        """Begin to start a container. Raises ``OSError``."""
        launch = ContainerLaunch(order)
        self._running[order.pod, order.name] = launch
        self._follow(launch.descriptor, lambda: self._finish(launch))

    def defers(self, order: Order) -> bool:
        """Whether an order waits for a container that is being started; ``take_deferred`` has it then."""
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

    def note_exit(self, pid: int, exit_code: int) -> None:
        """Take the end of a process that is not known: it may be a container's."""
        if self._running:
            self._exit_codes[pid] = exit_code

    def take_exit(self, pid: int) -> int | None:
        """The exit code of a container that has started; None while it runs."""
        exit_code = self._exit_codes.pop(pid, None)
        if not self._running:
            self._exit_codes.clear()
        return exit_code

    def take_deferred(self) -> list[Order]:
        """The orders that have waited. Those that still have to are deferred once more."""
        found, self._deferred = self._deferred, []
        return found

    def due_in_s(self, now_s: float) -> float | None:
        """When ``finish`` has to end one that takes too long; None while there is none."""
        ends_s = [launch.end_s for launch in self._running.values()]
        return max(0.0, min(ends_s) - now_s) if ends_s else None

    def finish(self, *, is_all: bool) -> None:
        """Take what has been started, and end what takes too long; ``is_all`` waits for the rest."""
        for launch in list(self._running.values()):
            if is_all or launch.has_ended or launch.end_s <= time.monotonic():
                self._finish(launch)

    def _finish(self, launch: ContainerLaunch) -> None:
        order = launch.order
        del self._running[order.pod, order.name]
        self._unfollow(launch.descriptor)
        try:
            pid = launch.finish()
        except OSError as error:
            self._started(order, error)
            return
        assert order.launch is not None
        record = ProcessRecord(
            pod=order.pod,
            name=order.name,
            is_app=True,
            is_exec=order.is_exec,
            pid=pid,
            start_ticks=start_ticks(pid) or 0,
        )
        record.stop_signal = order.launch.stop_signal
        with contextlib.suppress(OSError):
            # Without a record, on a full disk, the process only lives as long as the template.
            self._records.write(record)
        self._started(order, record)
