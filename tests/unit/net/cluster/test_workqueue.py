"""On a virtual clock: times are exact."""

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
    """Dice that always show the longest wait."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


def new_queue(**settings: float) -> WorkQueue[str]:
    return WorkQueue("test", settings=WorkQueueSettings(**settings), dice=Steady(), on_error=lambda *_: None)  # type: ignore[arg-type]


async def run_for(queue: WorkQueue[str], work: Work, *, seconds: float, workers: int = 1) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await queue.run(workers, work)


class Worker:
    """Records its keys with times; each takes ``takes_s``, and the first ``failures`` fail."""

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


def test_a_rest_of_rounding_does_not_run_a_key_over_and_over() -> None:
    queue, worker = new_queue(), Worker(again_s=1e-12)
    queue.add("a")
    run_virtually(run_for(queue, worker, seconds=0.0105))
    assert len(worker.seen) == 11


def test_keys_come_in_the_order_they_were_added() -> None:
    queue, worker = new_queue(), Worker()
    for key in "bac":
        queue.add(key)
    run_virtually(run_for(queue, worker, seconds=1))
    assert [key for _, key in worker.seen] == ["b", "a", "c"]


def test_asking_twice_is_asking_once() -> None:
    queue, worker = new_queue(), Worker()
    queue.add("a")
    queue.add("a")
    run_virtually(run_for(queue, worker, seconds=1))
    assert len(worker.seen) == 1


def test_a_key_is_worked_on_by_one_worker_and_comes_again_if_asked_for_meanwhile() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker(takes_s=1)
        queue.add("a")
        asyncio.get_running_loop().call_later(0.5, queue.add, "a")
        await run_for(queue, worker, seconds=5, workers=3)
        return worker

    assert run_virtually(scenario()).seen == [(0, "a"), (1, "a")]


def test_workers_work_at_the_same_time() -> None:
    queue, worker = new_queue(), Worker(takes_s=1)
    for key in "abcde":
        queue.add(key)
    run_virtually(run_for(queue, worker, seconds=2.5, workers=3))
    assert (worker.most_at_once, len(worker.seen)) == (3, 5)


def test_a_failure_is_tried_again_later_each_time() -> None:
    queue, worker = new_queue(retry_first_s=1, retry_max_s=5), Worker(failures=5)
    queue.add("a")
    run_virtually(run_for(queue, worker, seconds=60))
    # Waits of 1, 2, 4, then 5 and 5, the bound.
    assert [at_s for at_s, _ in worker.seen] == [0, 1, 3, 7, 12, 17]


def test_a_success_forgets_the_failures() -> None:
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


def test_an_add_does_not_wait_for_the_retry() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(retry_first_s=50), Worker(failures=1)
        queue.add("a")
        asyncio.get_running_loop().call_later(2, queue.add, "a")
        await run_for(queue, worker, seconds=200)
        return worker

    assert run_virtually(scenario()).seen == [(0, "a"), (2, "a")]


def test_a_handler_says_when_it_wants_its_key_again() -> None:
    queue, worker = new_queue(), Worker(again_s=10)
    queue.add("a")
    run_virtually(run_for(queue, worker, seconds=25))
    assert [at_s for at_s, _ in worker.seen] == [0, 10, 20]


def test_the_sooner_of_two_wishes_counts() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker()
        for delay_s in (5, 2, 9):
            queue.add_after("a", delay_s)
        queue.add_after("b", 0)
        await run_for(queue, worker, seconds=20)
        return worker

    assert run_virtually(scenario()).seen == [(0, "b"), (2, "a")]


def test_a_timer_that_a_standstill_delayed_waits_for_the_events_of_that_time() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker()
        loop = asyncio.get_running_loop()
        queue.add_after("a", 2)
        queue.add_after("b", 2)
        loop.call_at(1, stand_still, 5)
        # An event that was sent meanwhile is received right after it.
        loop.call_at(6.01, queue.add, "a")
        await run_for(queue, worker, seconds=20)
        return worker

    assert run_virtually(scenario()).seen == [(6.01, "a"), (6.5, "b")]


def test_last_keys_run_once_each_after_all_others() -> None:
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


def test_an_added_last_key_is_no_longer_last() -> None:
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


def test_a_last_key_waits_at_most_a_minute() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker(takes_s=1)
        queue.add_after("last", 1, is_last=True)
        for number in range(100):
            queue.add(str(number))
        await run_for(queue, worker, seconds=200)
        return worker

    at_s = next(at_s for at_s, key in run_virtually(scenario()).seen if key == "last")
    assert at_s == 61


def test_a_last_key_that_is_active_runs_again() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker(takes_s=3)
        queue.add("a")
        running = asyncio.create_task(run_for(queue, worker, seconds=20))
        await pass_s(1)
        queue.add_after("a", 1, is_last=True)
        await running
        return worker

    assert [at_s for at_s, _ in run_virtually(scenario()).seen] == [0, 3]


def test_starts_are_limited_to_a_rate_after_a_burst() -> None:
    queue, worker = new_queue(starts_per_s_max=2, start_burst_max=3), Worker()
    for key in "abcdef":
        queue.add(key)

    async def scenario() -> None:
        # A quiet time first, in which a burst is saved up.
        await pass_s(100)
        await run_for(queue, worker, seconds=20, workers=2)

    run_virtually(scenario())
    assert [at_s - 100 for at_s, _ in worker.seen] == [0, 0, 0, 0.5, 1, 1.5]


def test_a_key_that_is_forgotten_does_not_come() -> None:
    async def scenario() -> Worker:
        queue, worker = new_queue(), Worker()
        queue.add("a")
        queue.add_after("b", 1)
        queue.forget("a")
        queue.forget("b")
        await run_for(queue, worker, seconds=20)
        return worker

    assert run_virtually(scenario()).seen == []


def test_settled_waits_for_what_is_ready_and_what_is_worked_on() -> None:
    async def scenario() -> float:
        queue, worker = new_queue(), Worker(takes_s=3)
        queue.add("a")
        queue.add("b")
        running = asyncio.create_task(queue.run(1, worker))
        await queue.settled()
        running.cancel()
        return now_s()

    assert run_virtually(scenario()) == 6


def test_a_queue_of_nothing_is_settled() -> None:
    run_virtually(new_queue().settled())


def test_what_was_worked_on_when_it_stopped_is_ready_again() -> None:
    queue = new_queue()
    queue.add("a")
    run_virtually(run_for(queue, Worker(takes_s=10), seconds=1))
    again = Worker()
    run_virtually(run_for(queue, again, seconds=1))
    assert [key for _, key in again.seen] == ["a"]


def test_a_retry_that_waited_when_it_stopped_is_ready_again() -> None:
    queue = new_queue(retry_first_s=50)
    queue.add("a")
    run_virtually(run_for(queue, Worker(failures=1), seconds=1))
    assert len(queue) == 1


def test_a_failure_without_a_subscriber_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    queue: WorkQueue[str] = WorkQueue("test", settings=WorkQueueSettings(retry_first_s=50))
    queue.add("a")
    run_virtually(run_for(queue, Worker(failures=1), seconds=1))
    assert [record.getMessage() for record in caplog.records] == ["work.failed"]


def test_a_key_that_is_due_immediately_can_be_asked_for_again_on_uvloop() -> None:
    async def twice() -> None:
        queue = new_queue()
        # uvloop rounds to milliseconds: this one is due now.
        queue.add_after("a", 0.0001)
        queue.add_after("a", 0.00005)
        assert repr(queue) == "WorkQueue(test, 0 ready, 0 last, 0 active, 1 later)"

    uvloop.run(twice())


async def test_many_keys_are_taken_in_their_order_and_each_in_no_time() -> None:
    queue: WorkQueue[int] = WorkQueue("many")
    taken: list[int] = []

    async def work(key: int) -> None:
        taken.append(key)

    for key in range(20_000):
        queue.add(key)
    running = asyncio.create_task(queue.run(2, work))
    async with asyncio.timeout(10):
        await queue.settled()
    running.cancel()
    assert taken == list(range(20_000))


def test_no_more_workers_work_than_the_limit_says() -> None:
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


def test_a_finished_key_wakes_no_more_workers_than_may_work() -> None:
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
    # Each worker asks before it takes a key; 16 of them for each key would be 1,600 times.
    assert next(count) < 800
