"""Turns on a real event loop: their order, and the time budget of a turn."""

import asyncio
import time
import types
from collections.abc import Callable, Generator

from serving.net.aio.cooperative import BUDGET_S, turn
from tests.eventually import next_turn
from tests.virtual_time import run_virtually


async def select_counts(working: Callable[[], bool]) -> int:
    """The number of loop iterations while ``working`` returns true."""
    count = 0
    while working():
        count += 1
        await next_turn()
    return count


async def test_single_task_takes_turns_without_returning_to_the_loop() -> None:
    looks = 0

    def count_select() -> None:
        nonlocal looks
        looks += 1

    asyncio.get_running_loop().call_soon(count_select)
    await turn()
    await turn()
    assert looks == 0


async def test_busy_task_returns_to_the_loop_after_at_most_100_steps() -> None:
    looked = asyncio.Event()
    asyncio.get_running_loop().call_soon(looked.set)
    steps = 0
    while not looked.is_set():
        await turn()
        steps += 1
    assert 1 < steps <= 100


async def test_step_that_uses_the_budget_ends_the_turn() -> None:
    await turn()
    looked = asyncio.Event()
    asyncio.get_running_loop().call_soon(looked.set)
    until_s = time.perf_counter() + BUDGET_S
    while time.perf_counter() < until_s:
        pass
    await turn()
    assert looked.is_set()


def test_virtual_loop_ignores_real_time_of_steps() -> None:
    async def work() -> bool:
        await turn()
        looked = asyncio.Event()
        asyncio.get_running_loop().call_soon(looked.set)
        until_s = time.monotonic() + BUDGET_S
        while time.monotonic() < until_s:
            pass
        await turn()
        return looked.is_set()

    assert not run_virtually(work())


async def test_loop_iterates_between_steps_of_many_tasks() -> None:
    async def work() -> None:
        for _ in range(100):
            await turn()

    working = asyncio.gather(*(work() for _ in range(50)))
    # 5,000 steps of at most 64 a turn.
    assert await select_counts(lambda: not working.done()) >= 5_000 // 64
    await working


async def test_every_task_gets_turns_before_any_task_ends() -> None:
    results: list[int] = []

    async def work(who: int) -> None:
        for _ in range(200):
            results.append(who)
            await turn()

    await asyncio.gather(*(work(who) for who in range(30)))
    # Before any task has done all its steps, every task has done some.
    first_end = min(len(results) - 1 - results[::-1].index(who) for who in range(30))
    assert set(results[: first_end + 1]) == set(range(30))


async def test_cancelled_tasks_do_not_block_waiting_tasks() -> None:
    done: list[int] = []

    async def work(who: int) -> None:
        for _ in range(100):
            await turn()
        done.append(who)

    tasks = [asyncio.create_task(work(who)) for who in range(40)]
    for _ in range(3):
        await next_turn()
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(done) == list(range(1, 40, 2))


async def test_waiting_tasks_are_woken_at_most_twice_per_step() -> None:
    wakes = steps = 0

    @types.coroutine
    def counted_turn() -> Generator[object, None, None]:
        nonlocal wakes
        for future in turn().__await__():
            yield future
            wakes += 1

    async def work() -> None:
        nonlocal steps
        for _ in range(3):
            await counted_turn()
            steps += 1
            until_s = time.perf_counter() + BUDGET_S
            while time.perf_counter() < until_s:
                pass

    await asyncio.gather(*(work() for _ in range(20)))
    # One step uses the whole budget between two polls, so that a second woken task has no time left.
    assert wakes <= 2 * steps + 16


def test_each_event_loop_has_separate_turns() -> None:
    async def work() -> int:
        steps = 0
        while steps < 200:
            await turn()
            steps += 1
        return steps

    assert [asyncio.run(work()) for _ in range(2)] == [200, 200]
