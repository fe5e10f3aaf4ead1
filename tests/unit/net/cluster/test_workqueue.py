"""The work queue on a virtual clock, where times are exact."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from serving.net.aio.clock import now_s
from serving.net.cluster.workqueue import WorkQueue, WorkQueueSettings
from tests.virtual_time import pass_s, run_virtually, stand_still

Work = Callable[[str], Awaitable[float | None]]


class Steady(random.Random):
    """A random source that returns the longest delay."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


def new_queue(**settings: float) -> WorkQueue[str]:
    return WorkQueue("test", settings=WorkQueueSettings(**settings), dice=Steady(), on_error=lambda *_: None)  # type: ignore[arg-type]


async def run_for(queue: WorkQueue[str], work: Work, *, seconds: float, workers: int = 1) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await queue.run(workers, work)


class Worker:
    """Records keys and times. A key takes ``takes_s``; the first ``failures`` calls fail."""

    def __init__(self, *, takes_s: float = 0.0, failures: int = 0, again_s: float | None = None) -> None:
        self.seen: list[tuple[float, str]] = []
        self.active: list[str] = []
        self.most_at_once = 0
        self._takes_s = takes_s
        self._failures = failures
        self._again_s = again_s

    async def __call__(self, key: str) -> float | None:
        assert key not in self.active
        self.seen.append((round(now_s(), 6), key))
        self.active.append(key)
        self.most_at_once = max(self.most_at_once, len(self.active))
        await pass_s(self._takes_s)
        self.active.remove(key)
        if self._failures:
            self._failures -= 1
            raise ValueError(key)
        return self._again_s


def test_tiny_requeue_delay_runs_key_once_per_millisecond() -> None:
    queue, worker = new_queue(), Worker(again_s=1e-12)
    queue.add("a")
    run_virtually(run_for(queue, worker, seconds=0.0105))
    assert len(worker.seen) == 11


def test_keys_are_processed_in_order_of_addition() -> None:
    queue, worker = new_queue(), Worker()
    for key in "bac":
        queue.add(key)
    run_virtually(run_for(queue, worker, seconds=1))
    assert [key for _, key in worker.seen] == ["b", "a", "c"]


def test_key_added_twice_runs_once() -> None:
    queue, worker = new_queue(), Worker()
    queue.add("a")
    queue.add("a")
    run_virtually(run_for(queue, worker, seconds=1))
    assert len(worker.seen) == 1


def test_active_key_added_again_runs_after_it_completes() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker(takes_s=1)
        queue.add("a")
        asyncio.get_running_loop().call_later(0.5, queue.add, "a")
        await run_for(queue, worker, seconds=5, workers=3)
        return worker

    assert run_virtually(scenario()).seen == [(0, "a"), (1, "a")]


def test_workers_run_concurrently() -> None:
    queue, worker = new_queue(), Worker(takes_s=1)
    for key in "abcde":
        queue.add(key)
    run_virtually(run_for(queue, worker, seconds=2.5, workers=3))
    assert (worker.most_at_once, len(worker.seen)) == (3, 5)


def test_failed_key_is_retried_with_growing_delay() -> None:
    queue, worker = new_queue(retry_first_s=1, retry_max_s=5), Worker(failures=5)
    queue.add("a")
    run_virtually(run_for(queue, worker, seconds=60))
    # Waits of 1, 2, 4, then 5 and 5, the bound.
    assert [at_s for at_s, _ in worker.seen] == [0, 1, 3, 7, 12, 17]


def test_success_resets_failure_count() -> None:
    queue, worker = new_queue(retry_first_s=1), Worker(failures=2)
    queue.add("a")
    run_virtually(run_for(queue, worker, seconds=60))
    assert "a" not in queue._failures


def test_failures_are_reported_and_counted() -> None:
    reported: list[tuple[str, str]] = []
    queue: WorkQueue[str] = WorkQueue(
        "test",
        settings=WorkQueueSettings(retry_first_s=50),
        on_error=lambda key, error: reported.append((key, str(error))),
    )
    queue.add("a")
    run_virtually(run_for(queue, Worker(failures=1), seconds=1))
    assert (reported, queue._failures["a"]) == ([("a", "a")], 1)


def test_add_runs_failed_key_before_its_retry() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(retry_first_s=50), Worker(failures=1)
        queue.add("a")
        asyncio.get_running_loop().call_later(2, queue.add, "a")
        await run_for(queue, worker, seconds=200)
        return worker

    assert run_virtually(scenario()).seen == [(0, "a"), (2, "a")]


def test_returned_delay_requeues_key() -> None:
    queue, worker = new_queue(), Worker(again_s=10)
    queue.add("a")
    run_virtually(run_for(queue, worker, seconds=25))
    assert [at_s for at_s, _ in worker.seen] == [0, 10, 20]


def test_earliest_of_several_delays_applies() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker()
        for delay_s in (5, 2, 9):
            queue.add_after("a", delay_s)
        queue.add_after("b", 0)
        await run_for(queue, worker, seconds=20)
        return worker

    assert run_virtually(scenario()).seen == [(0, "b"), (2, "a")]


def test_timer_delayed_by_standstill_waits_for_pending_events() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker()
        loop = asyncio.get_running_loop()
        queue.add_after("a", 2)
        queue.add_after("b", 2)
        loop.call_at(1, stand_still, 5)
        # An event that was sent during the standstill is received right after it.
        loop.call_at(6.01, queue.add, "a")
        await run_for(queue, worker, seconds=20)
        return worker

    assert run_virtually(scenario()).seen == [(6.01, "a"), (6.5, "b")]


def test_last_keys_run_once_after_all_other_keys() -> None:
    async def scenario() -> list[str]:
        queue, seen = new_queue(), list[str]()

        async def work(key: str) -> None:
            seen.append(key)
            if key.startswith("first") and len(key) < 12:
                queue.add(key + "+")

        for number in range(3):
            queue.add_after(f"last{number}", 1 + number / 10, is_last=True)
        await pass_s(2)
        queue.add("first")
        await run_for(queue, work, seconds=5)
        return seen

    seen = run_virtually(scenario())
    assert seen[-3:] == ["last0", "last1", "last2"]
    assert seen[:-3] == ["first" + "+" * count for count in range(8)]


def test_last_key_added_again_runs_as_normal_key() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker(takes_s=1)
        queue.add_after("b", 1, is_last=True)
        queue.add_after("a", 0)
        await pass_s(2)
        queue.add("b")
        queue.add_after("b", 1, is_last=True)
        await run_for(queue, worker, seconds=20)
        return worker

    assert [key for _, key in run_virtually(scenario()).seen] == ["a", "b"]


def test_last_key_waits_at_most_one_minute() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker(takes_s=1)
        queue.add_after("last", 1, is_last=True)
        for number in range(100):
            queue.add(str(number))
        await run_for(queue, worker, seconds=200)
        return worker

    at_s = next(at_s for at_s, key in run_virtually(scenario()).seen if key == "last")
    assert at_s == 61


def test_active_key_added_as_last_runs_again() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker(takes_s=3)
        queue.add("a")
        running = asyncio.create_task(run_for(queue, worker, seconds=20))
        await pass_s(1)
        queue.add_after("a", 1, is_last=True)
        await running
        return worker

    assert [at_s for at_s, _ in run_virtually(scenario()).seen] == [0, 3]


def test_starts_are_rate_limited_after_burst() -> None:
    queue, worker = new_queue(starts_per_s_max=2, start_burst_max=3), Worker()
    for key in "abcdef":
        queue.add(key)

    async def scenario() -> None:
        # An idle time first, in which a burst accumulates.
        await pass_s(100)
        await run_for(queue, worker, seconds=20, workers=2)

    run_virtually(scenario())
    assert [at_s - 100 for at_s, _ in worker.seen] == [0, 0, 0, 0.5, 1, 1.5]


def test_forgotten_key_does_not_run() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker()
        queue.add("a")
        queue.add_after("b", 1)
        queue.forget("a")
        queue.forget("b")
        await run_for(queue, worker, seconds=20)
        return worker

    assert run_virtually(scenario()).seen == []


def test_settled_waits_for_ready_and_active_keys() -> None:
    async def scenario() -> float:
        queue, worker = new_queue(), Worker(takes_s=3)
        queue.add("a")
        queue.add("b")
        running = asyncio.create_task(queue.run(1, worker))
        await queue.settled()
        running.cancel()
        return now_s()

    assert run_virtually(scenario()) == 6


def test_empty_queue_is_settled() -> None:
    run_virtually(new_queue().settled())


def test_key_active_at_stop_is_ready_again() -> None:
    queue = new_queue()
    queue.add("a")
    run_virtually(run_for(queue, Worker(takes_s=10), seconds=1))
    again = Worker()
    run_virtually(run_for(queue, again, seconds=1))
    assert [key for _, key in again.seen] == ["a"]


def test_pending_retry_at_stop_is_ready_again() -> None:
    queue = new_queue(retry_first_s=50)
    queue.add("a")
    run_virtually(run_for(queue, Worker(failures=1), seconds=1))
    assert len(queue) == 1


def test_failure_without_error_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    queue: WorkQueue[str] = WorkQueue("test", settings=WorkQueueSettings(retry_first_s=50))
    queue.add("a")
    run_virtually(run_for(queue, Worker(failures=1), seconds=1))
    assert [record.getMessage() for record in caplog.records] == ["work.failed"]


def test_due_key_can_be_added_again_on_uvloop() -> None:
    async def twice() -> None:
        queue = new_queue()
        # uvloop rounds to milliseconds: this key is due now.
        queue.add_after("a", 0.0001)
        queue.add_after("a", 0.00005)
        assert repr(queue) == "WorkQueue(test, 0 ready, 0 last, 0 active, 1 later)"

    uvloop.run(twice())


async def test_twenty_thousand_keys_run_in_order_within_10_s() -> None:
    queue: WorkQueue[int] = WorkQueue("many")
    processed: list[int] = []

    async def work(key: int) -> None:
        processed.append(key)

    for key in range(20_000):
        queue.add(key)
    running = asyncio.create_task(queue.run(2, work))
    async with asyncio.timeout(10):
        await queue.settled()
    running.cancel()
    assert processed == list(range(20_000))


def test_active_workers_stay_within_limit() -> None:
    async def scenario() -> None:
        worker, queue, limits = Worker(takes_s=1.0), new_queue(), [2]
        for number in range(8):
            queue.add(f"k{number}")
        task = asyncio.create_task(queue.run(8, worker, limit=lambda: limits[0]))
        await pass_s(1.5)
        assert (worker.most_at_once, queue.active_count) == (2, 2)
        limits[0] = 4
        await queue.settled()
        assert worker.most_at_once == 4
        assert len(worker.seen) == 8
        task.cancel()

    run_virtually(scenario())


def test_completed_key_does_not_wake_workers_beyond_limit() -> None:
    count = itertools.count()

    def limit() -> int:
        next(count)
        return 1

    async def scenario() -> None:
        worker, queue = Worker(), new_queue()
        for number in range(100):
            queue.add(f"k{number}")
        task = asyncio.create_task(queue.run(16, worker, limit=limit))
        await queue.settled()
        assert len(worker.seen) == 100
        task.cancel()

    run_virtually(scenario())
    # Each worker reads the limit before it takes a key; 16 workers for each key would be 1,600 reads.
    assert next(count) < 800
