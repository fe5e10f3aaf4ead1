"""A work queue by key: one worker per key, and several requests for a waiting key count as one.

A reflector's callback calls ``add``; ``run`` keeps a number of workers busy with a handler. An exception of the handler
goes to ``on_error``, and the key is retried with exponential back-off and jitter. The handler returns the delay in
seconds until the key's next run; None waits for the next ``add``. A key that is added while a worker processes it runs
again afterwards. The number of keys bounds the queue. Starts may be rate-limited. Follows client-go's workqueue.
"""

import asyncio
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from serving.core.traffic.backoff import backoff_s
from serving.net.aio.clock import now_s
from serving.net.aio.cooperative import turn
from serving.net.aio.supervise import supervise

_log = logging.getLogger(__name__)

# A timer may fire one clock tick early: a shorter delay would repeat within one instant.
_DELAY_MIN_S = 0.001
# A timer that fires so many seconds late fires once more after as many.
_LATE_S = 0.5
# Longest time in seconds that a key added with ``is_last`` waits behind other keys.
_LAST_MAX_S = 60.0

Key = TypeVar("Key", bound=Hashable)
Handler = Callable[[Key], Awaitable[float | None]]


class WorkQueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The retry delays and the rate of a queue.

    The wait after the first failure of a key is ``retry_first_s`` seconds (above 0; client-go's 5 ms). It doubles with
    each failure, up to ``retry_max_s``; client-go's 1000 s outlasts most causes. ``starts_per_s_max`` limits handler
    calls per second, over all workers (0: no limit). After a quiet time, ``start_burst_max`` calls may start
    immediately (client-go's 100).
    """

    retry_first_s: float = 0.005
    retry_max_s: float = 60.0
    starts_per_s_max: float = 0.0
    start_burst_max: int = 100


class WorkQueue(Generic[Key]):
    """A work queue of keys. Everything except ``run`` and ``settled`` is synchronous and needs no worker."""

    def __init__(
        self,
        name: str,
        *,
        settings: WorkQueueSettings | None = None,
        dice: random.Random | None = None,
        on_error: Callable[[Key, Exception], None] | None = None,
    ) -> None:
        self._name = name
        self._settings = settings or WorkQueueSettings()
        self._dice = dice or random.Random()  # noqa: S311 - spreads retries
        self._on_error = on_error or self._log_error
        # An OrderedDict, because finding the first key of a dict scans all deleted entries.
        self._ready: OrderedDict[Key, None] = OrderedDict()
        # Keys that run while no other is ready, and since when they are here.
        self._last: OrderedDict[Key, float] = OrderedDict()
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        # With its time, which uvloop's handle of a due timer lacks.
        self._timers: dict[Key, tuple[float, asyncio.Handle]] = {}
        # Idle workers. An event would wake all of them for each key.
        self._idle: deque[asyncio.Future[None]] = deque()
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()
        self._next_start_s = 0.0
        self._limit: Callable[[], int] = lambda: 1

    def __repr__(self) -> str:
        return (
            f"WorkQueue({self._name}, {len(self._ready)} ready, {len(self._last)} last, {len(self._active)} active,"
            f" {len(self._timers)} later)"
        )

    def __len__(self) -> int:
        """The number of keys that are ready, without those added with ``is_last``."""
        return len(self._ready)

    def add(self, key: Key) -> None:
        """Make a key ready now, even if it waits for a delay."""
        self._cancel_timer(key)
        if key in self._active:
            self._again.add(key)
            return
        self._last.pop(key, None)
        self._ready[key] = None
        self._is_quiet.clear()
        self._wake_worker()

    def add_after(self, key: Key, delay_s: float, *, is_last: bool = False) -> None:
        """Make a key ready after a delay; the earliest of several delays wins.

        A key added with ``is_last`` then waits until no other key is ready, at most a minute.
        """
        if delay_s <= 0 and not is_last:
            self.add(key)
            return
        if is_last and (key in self._ready or key in self._last):
            return
        loop = asyncio.get_running_loop()
        due_s = loop.time() + max(delay_s, _DELAY_MIN_S)
        timer = self._timers.get(key)
        if timer is None or timer[0] > due_s:
            self._cancel_timer(key)
            add = self._add_last if is_last else self._add_due
            self._timers[key] = (due_s, loop.call_at(due_s, add, key))

    def _add_due(self, key: Key) -> None:
        # After a standstill of the machine, the events of that time arrive after its timers.
        loop, due_s = asyncio.get_running_loop(), self._timers[key][0]
        if loop.time() - due_s > _LATE_S:
            self._timers[key] = (due_s, loop.call_later(_LATE_S, self.add, key))
        else:
            self.add(key)

    def _add_last(self, key: Key) -> None:
        if key in self._active:
            self.add(key)
            return
        self._cancel_timer(key)
        self._last[key] = now_s()
        self._is_quiet.clear()
        self._wake_worker()

    @property
    def active_count(self) -> int:
        """The number of keys being processed."""
        return len(self._active)

    def forget(self, key: Key) -> None:
        """Drop a waiting key and its failure count, because its object is deleted."""
        self._cancel_timer(key)
        self._failures.pop(key, None)
        self._again.discard(key)
        self._ready.pop(key, None)
        self._last.pop(key, None)
        self._check_quiet()

    async def run(self, workers: int, handler: Handler[Key], *, limit: Callable[[], int] | None = None) -> None:
        """Process keys until cancelled. On cancellation, keys being processed become ready again.

        ``limit`` returns how many workers may work now, and is called before each key; None: all workers.
        """
        self._limit = limit or (lambda: workers)
        try:
            async with supervise() as group:
                for number in range(workers):
                    group.start(self._work(handler), name=f"{self._name}-{number}")
        finally:
            for key in list(self._timers):
                self.add(key)

    async def settled(self) -> None:
        """Wait until no key is ready or being processed; delayed keys do not count."""
        await self._is_quiet.wait()

    async def _work(self, handler: Handler[Key]) -> None:
        while True:
            key = await self._next()
            try:
                delay_s = await handler(key)
            except Exception as error:  # noqa: BLE001 - the outermost frame of one piece of work
                self._complete(key)
                self._retry(key, error)
            except BaseException:
                self._complete(key)
                self.add(key)
                raise
            else:
                self._failures.pop(key, None)
                self._complete(key)
                if delay_s is not None and key not in self._ready:
                    self.add_after(key, delay_s)
            self._check_quiet()
            # Work that never awaits, as with the memory adapter, must not block the event loop.
            await turn()

    async def _next(self) -> Key:
        while True:
            if self._has_work():
                await self._pace()
            if self._has_work():
                key = self._pop()
                self._active.add(key)
                # The limit may have risen since the keys were added.
                self._wake_worker()
                return key
            worker = asyncio.get_running_loop().create_future()
            self._idle.append(worker)
            await worker

    def _pop(self) -> Key:
        is_overdue = bool(self._last) and next(iter(self._last.values())) + _LAST_MAX_S <= now_s()
        return (self._last if is_overdue or not self._ready else self._ready).popitem(last=False)[0]

    def _has_work(self) -> bool:
        return bool(self._ready or self._last) and len(self._active) < max(1, self._limit())

    def _wake_worker(self) -> None:
        """Wake one idle worker if the limit allows."""
        while self._idle and self._has_work():
            worker = self._idle.popleft()
            if not worker.done():
                worker.set_result(None)
                return

    async def _pace(self) -> None:
        """Wait for a start slot. Slots are 1/rate apart; unused slots accumulate up to a burst."""
        rate = self._settings.starts_per_s_max
        if rate <= 0:
            return
        earliest_s = now_s() - (self._settings.start_burst_max - 1) / rate
        turn_s = max(self._next_start_s, earliest_s)
        self._next_start_s = turn_s + 1 / rate
        await asyncio.sleep(max(0.0, turn_s - now_s()))

    def _complete(self, key: Key) -> None:
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        else:
            self._wake_worker()

    def _retry(self, key: Key, error: Exception) -> None:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        self._on_error(key, error)
        delay_s = backoff_s(count, first_s=self._settings.retry_first_s, max_s=self._settings.retry_max_s)
        if key not in self._ready:
            self.add_after(key, delay_s * self._dice.uniform(0.5, 1.0))

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer[1].cancel()

    def _check_quiet(self) -> None:
        if not self._ready and not self._last and not self._active:
            self._is_quiet.set()

    def _log_error(self, key: Key, error: Exception) -> None:
        extra = {"queue": self._name, "key": str(key), "error": str(error), "failures": self._failures.get(key, 0)}
        _log.warning("work.failed", extra=extra, exc_info=error)
