"""Shares an event loop's time among tasks that always have work.

All tasks that run between two polls of the loop's sockets and timers delay the loop. Yielding after each step is not
enough if fifty tasks have a step each. So tasks share the time of one loop iteration, and call ``await turn()`` before
or after each step. The caller continues if the iteration has used less than its budget. Otherwise the caller waits for
a later iteration, and the longest waiter continues first. With the budget of 4 ms, and no step longer than 1 ms, other
work waits little longer than 5 ms.

``turn`` is for large numbers of background steps: writes of a store, changes of a watch, keys of a queue. Code that
serves a socket does not call it, and so has priority.

A single long computation has no steps: ``computed`` runs it in a thread within ``costly``, where the interpreter shares
the time.
"""

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from serving.net.aio.supervise import TaskOwner

_P = ParamSpec("_P")
_T = TypeVar("_T")

BUDGET_S = 0.004
"""Longest use of the loop, in seconds, before it polls its sockets; at 4 ms the 10 µs of a poll are negligible."""

# Most steps between two polls: consumers of their results have room for a hundred.
_STEPS_MAX = 64
# Consecutive steps of one task while another waits for its first step.
_PASSED_MAX = 8
# Most tasks woken at a time. A task without time left is woken in vain, which costs almost as much as its step.
_WOKEN_MAX = 16

_is_costly: contextvars.ContextVar[bool] = contextvars.ContextVar("is_costly", default=False)


class _Turns:
    """Bounds the time that all steps together use between two polls of one loop, and queues the waiting tasks."""

    __slots__ = ("_ends_s", "_is_open", "_numbers", "_passed", "_resumed", "_steps", "_waiting", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._is_open = False
        self._ends_s = 0.0
        self._steps = 0
        self._passed = 0
        # Waiting tasks that continued since the last poll.
        self._resumed = 0
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def may_go_on(self) -> bool:
        """Whether the next step may run now.

        A few consecutive steps may run while other tasks wait, because a switch of tasks costs as much as a step.
        """
        if self._waiting:
            self._passed += 1
            if self._passed > _PASSED_MAX:
                return False
        return self._has_time()

    async def wait(self) -> None:
        """Wait for an iteration of the loop that has time left."""
        number = next(self._numbers)
        while True:
            self._open()
            future = self.loop.create_future()
            # Keeps its first number, so that a task woken in vain keeps its place.
            heapq.heappush(self._waiting, (number, future))
            await future
            if self._has_time():
                self._passed = 0
                self._resumed += 1
                return

    def _has_time(self) -> bool:
        self._open()
        self._steps += 1
        return self._steps <= _STEPS_MAX and time.perf_counter() < self._ends_s

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._ends_s = time.perf_counter() + BUDGET_S
            self._steps = 0
            # ``call_soon`` callbacks run in the loop's next iteration.
            self.loop.call_soon(self._close)

    def _close(self) -> None:
        """End the time of the current iteration, and wake the longest-waiting tasks; cancelled waiters are skipped.

        One more is woken than had time since the last poll.
        """
        self._is_open = False
        woken, woken_max = 0, min(_WOKEN_MAX, self._resumed + 1)
        self._resumed = 0
        while self._waiting and woken < woken_max:
            _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)
                woken += 1
        if self._waiting:
            # Runs after the woken tasks, and does nothing if one of them has begun a new use.
            self.loop.call_soon(self._open)


class _Present(threading.local):
    """Caches the state of this thread's last loop, because each step looks it up."""

    turns: _Turns | None = None


_present = _Present()


async def turn() -> None:
    """Continue immediately if time remains in this loop iteration, else in a later one."""
    loop = asyncio.get_running_loop()
    turns = _present.turns
    if turns is None or turns.loop is not loop:
        turns = _present.turns = _Turns(loop)
    if not turns.may_go_on():
        await turns.wait()


@contextlib.contextmanager
def costly() -> Iterator[None]:
    """Within the block, ``computed`` runs in a thread, because its computations are too long for the event loop."""
    token = _is_costly.set(True)
    try:
        yield
    finally:
        _is_costly.reset(token)


async def computed(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a pure computation and return its result: in a thread inside ``costly``, otherwise immediately."""
    if _is_costly.get():
        return await asyncio.to_thread(work, *args, **kwargs)
    return work(*args, **kwargs)


async def finished_in_thread(work: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Run blocking work in a thread, and wait for its end even if the task is cancelled.

    The caller can then safely remove what the work has created.
    """
    task = TaskOwner().start(asyncio.to_thread(work, *args, **kwargs), name="thread", is_awaited=True)
    try:
        await asyncio.shield(task)
    finally:
        await asyncio.wait((task,))
