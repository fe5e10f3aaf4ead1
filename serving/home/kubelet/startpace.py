"""Paces the starts of pods on one machine by its cores.

Starting a program takes a core for tenths of a second. When many pods start at once, all are ready late, and ready pods get no
core meanwhile. So only a few pods may start at a time. A turn ends when its pod is ready or has failed, when it waits for
anything but a core, or after ten seconds. The next turn is for the revision with the fewest turns, so that a service that wakes
up does not wait for another one that grows. The first pod of a revision is alone for a moment: a request waits for it, and the others
are not needed for that.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from weakref import WeakValueDictionary

from serving.aio.clock import now_s
from serving.aio.periodic import wait_for

_TURN_MAX_S = 10.0
_CHECK_PERIOD_S = 0.25
# A small program is ready by then. For others this is little of their own start.
_LEAD_MAX_S = 0.05
# A program that runs or waits for a core for less than this part of the time waits for something else.
_DEMAND_MIN = 0.2
# One more than there are cores: between two turns a core would be idle.
_SPARE_TURNS = 1
# A third of the weight of a process that is not nice (sched(7)).
_STARTING_NICENESS = 5


class StartPacer:
    """Limits parallel starts to ``turn_count`` pods; None is one more than there are cores."""

    def __init__(self, turn_count: int | None = None) -> None:
        self._free_count = turn_count or len(os.sched_getaffinity(0)) + _SPARE_TURNS
        self._had: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[bool]]] = []
        # Of the first pod of each revision, as long as there is this pod.
        self._first_settled: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    async def let_first_lead(self, revision: str, settled: asyncio.Event) -> None:
        """Wait until the first of the pods of a revision that start is settled, for at most ``_LEAD_MAX_S``.

        ``settled`` is the caller's own event; the first caller does not wait.
        """
        first = self._first_settled.get(revision)
        if first is None or first.is_set():
            self._first_settled[revision] = settled
        else:
            await wait_for(first, until_s=now_s() + _LEAD_MAX_S)

    async def take(self, revision: str) -> bool:
        """Wait for a turn; return whether it is the revision's first in this burst. ``give_back`` ends it."""
        if self._free_count and not self._waiting:
            return self._begin(revision)
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, turn))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            else:
                self._waiting.remove((revision, turn))
            raise

    def give_back(self) -> None:
        """End a turn."""
        self._free_count += 1
        if self._waiting:
            following = min(self._waiting, key=lambda one: self._had[one[0]])
            self._waiting.remove(following)
            following[1].set_result(self._begin(following[0]))
        else:
            self._had.clear()

    def _begin(self, revision: str) -> bool:
        self._free_count -= 1
        self._had[revision] += 1
        return self._had[revision] == 1


async def begin_turn(
    pacer: StartPacer | None,
    revision: str,
    *,
    group: asyncio.TaskGroup,
    settled: asyncio.Event,
    process_ids: Callable[[], Iterable[int]],
) -> int:
    """Wait until a pod may start, and return the nice value of its processes; a task of ``group`` ends the turn.

    The first pod of a revision has requests that wait for it; later ones leave the cores to those that are ready. A pod that
    runs already has no pacer.
    """
    if pacer is None:
        return 0
    await pacer.let_first_lead(revision, settled)
    is_first = await pacer.take(revision)
    turn = group.create_task(until_started(settled, process_ids), name="turn")
    turn.add_done_callback(lambda _: pacer.give_back())
    return 0 if is_first else _STARTING_NICENESS


async def until_started(settled: asyncio.Event, process_ids: Callable[[], Iterable[int]]) -> None:
    """Wait until a pod is ready, has failed or needs no core for now; at most ten seconds."""
    end_s = now_s() + _TURN_MAX_S
    demand_s = 0.0
    while now_s() < end_s:
        before_s, demand_s = demand_s, sum(map(_core_demand_s, process_ids()))
        if before_s and demand_s - before_s < _DEMAND_MIN * _CHECK_PERIOD_S:
            return
        if await wait_for(settled, until_s=now_s() + _CHECK_PERIOD_S):
            return


def _core_demand_s(process_id: int) -> float:
    """The time a process's threads ran or waited for a core, in seconds (schedstat of proc_pid(5))."""
    total_ns = 0
    for task in Path(f"/proc/{process_id}/task").glob("*"):
        with contextlib.suppress(OSError, ValueError):
            running_ns, waiting_ns, _ = (task / "schedstat").read_text().split()
            total_ns += int(running_ns) + int(waiting_ns)
    return total_ns / 1e9
