"""Paces the starts of pods on one machine by its cores (``pods.startqueue``).

A turn ends when its pod is ready or has failed, when the pod waits for something other than a core, or after ten
seconds of CPU time. The limit is not wall time: on overloaded cores, turns would end early, and more pods would start.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from serving.core.model.knative import REVISION_LABEL
from serving.core.model.objects import Object, labels_of
from serving.home.pods.startqueue import PodStart, StartQueue
from serving.net.aio.clock import now_s
from serving.net.aio.periodic import wait_for
from serving.net.aio.supervise import SupervisedTasks, TaskOwner

_TURN_CPU_MAX_S = 10.0
_TURN_MAX_S = 120.0
_CHECK_PERIOD_S = 0.25
# A program that runs or waits for a core for a smaller share of the time waits for something else.
_DEMAND_MIN = 0.2
# One more than the number of cores; otherwise a core would be idle between two starts.
_SPARE_TURNS = 1
# A ninth of the weight of a process with normal niceness (sched(7)).
_STARTING_NICENESS = 10


class StartPacer:
    """Limits the pods that start at the same time to ``turn_count``; None means one more than the number of cores."""

    def __init__(self, turn_count: int | None = None) -> None:
        self._queue = StartQueue(turn_count or len(os.sched_getaffinity(0)) + _SPARE_TURNS)
        self._waiting: dict[PodStart, asyncio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None

    def turn_of(self, pod: Object, *, runs_already: bool = False) -> "StartTurn":
        """The start slot of a pod. ``runs_already``: the pod is adopted and needs no slot."""
        metadata = pod["metadata"]
        of = labels_of(pod).get(REVISION_LABEL) or metadata["uid"]
        start = PodStart(revision=f"{metadata['namespace']}/{of}", is_first=runs_already)
        if runs_already:
            self._queue.adopt(start)
        return StartTurn(self, start, is_held=runs_already)

    def wait(self, pod: PodStart) -> asyncio.Event:
        """Request a start slot. The returned event is set when the slot begins."""
        begun = self._waiting[pod] = asyncio.Event()
        self._queue.add(pod, now_s=now_s())
        self._begin()
        return begun

    def end(self, pod: PodStart) -> None:
        """End the start slot of a pod."""
        self._queue.end(pod)
        self._begin()

    def remove(self, pod: PodStart) -> None:
        """Remove a pod that has ended or been deleted."""
        self._waiting.pop(pod, None)
        self._queue.remove(pod)
        self._begin()

    def _begin(self) -> None:
        now = now_s()
        for pod in self._queue.begin(now_s=now):
            self._waiting.pop(pod).set()
        if self._timer is not None:
            self._timer.cancel()
        due_s = self._queue.due_s(now_s=now)
        self._timer = None if due_s is None else asyncio.get_running_loop().call_later(due_s - now, self._begin)


class StartTurn:
    """The start slot of one pod. ``is_held``: the pod has it, or was adopted. Call ``release`` when the pod ends."""

    def __init__(self, pacer: StartPacer, pod: PodStart, *, is_held: bool) -> None:
        self._pacer = pacer
        self._pod = pod
        self._settled = asyncio.Event()
        self.is_held = is_held

    @property
    def niceness(self) -> int:
        """The nice value of the pod until it is ready.

        Requests wait for the first pod of a revision, so it has normal priority. Additional pods get lower priority
        than ready pods.
        """
        return 0 if self._pod.is_first else _STARTING_NICENESS

    async def acquire(self, stop: asyncio.Event) -> bool:
        """Wait for the start slot; return False if ``stop`` is set before."""
        begun = self._pacer.wait(self._pod)
        if not begun.is_set():
            async with TaskOwner() as tasks:
                waiting = [tasks.start(event.wait(), name="turn") for event in (begun, stop)]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        self.is_held = begun.is_set() and not stop.is_set()
        return self.is_held

    async def acquire_again(
        self, stop: asyncio.Event, group: SupervisedTasks, process_ids: Callable[[], Iterable[int] | None]
    ) -> None:
        """Wait for another start slot if the first ended before the pod was prepared, as during an image pull."""
        if not self.is_held and await self.acquire(stop):
            self.watch(group, process_ids)

    def watch(self, group: SupervisedTasks, process_ids: Callable[[], Iterable[int] | None]) -> None:
        """Start a task in ``group`` that ends the slot when the pod is ready, fails, or no longer needs a core.

        ``process_ids`` returns the pod's main processes, None before the first one may start.
        """
        if self.is_held:
            self._settled.clear()
            group.start(until_started(self._settled, process_ids), name="turn").add_done_callback(self._end)

    def settle(self) -> None:
        """Record that the pod is ready or has failed."""
        self._settled.set()

    def release(self) -> None:
        """Record that the pod has ended. If the revision has no other pod, its next pod starts with priority."""
        self._settled.set()
        self._pacer.remove(self._pod)

    def _end(self, _: object) -> None:
        self.is_held = False
        self._pacer.end(self._pod)


async def until_started(settled: asyncio.Event, process_ids: Callable[[], Iterable[int] | None]) -> None:
    """Wait until a pod is ready, has failed, waits for anything but a core, or has used ten seconds of CPU time.

    Wait for at most two minutes. ``process_ids`` returns None while images are pulled, which needs no core.
    """
    end_s = now_s() + _TURN_MAX_S
    demand_s = 0.0
    while now_s() < end_s:
        before_s = demand_s
        running_s, waiting_s = _core_times_s(process_ids() or ())
        demand_s = running_s + waiting_s
        if running_s >= _TURN_CPU_MAX_S or (before_s and demand_s - before_s < _DEMAND_MIN * _CHECK_PERIOD_S):
            return
        if await wait_for(settled, until_s=now_s() + _CHECK_PERIOD_S) or process_ids() is None:
            return


def _core_times_s(process_ids: Iterable[int]) -> tuple[float, float]:
    """How long the processes' threads have run and waited for a core, in seconds (schedstat of proc_pid(5))."""
    running_ns = waiting_ns = 0
    for process_id in process_ids:
        for task in Path(f"/proc/{process_id}/task").glob("*"):
            with contextlib.suppress(OSError, ValueError):
                ran_ns, waited_ns, _ = (task / "schedstat").read_text().split()
                running_ns += int(ran_ns)
                waiting_ns += int(waited_ns)
    return running_ns / 1e9, waiting_ns / 1e9
