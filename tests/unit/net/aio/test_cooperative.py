"""Turns of a real loop: their order, not their duration, except for one with a budget."""

import asyncio
import time
import types
from collections.abc import Callable, Generator

from serving.net.aio.cooperative import BUDGET_S, turn
from tests.eventually import next_turn
from tests.virtual_time import run_virtually


async def select_counts(working: Callable[[], bool]) -> int:
    """The number of loop turns while something works."""
    count = 0
    while working():
        count += 1
        await next_turn()
    return count


async def test_who_is_alone_continues_without_the_loop_for_a_while() -> None:
    looks = 0

    def count_select() -> None:
        nonlocal looks
        looks += 1

    asyncio.get_running_loop().call_soon(count_select)
    await turn()
    await turn()
    assert looks == 0


async def test_who_never_waits_lets_the_loop_come_round_after_some_steps() -> None:
    looked = asyncio.Event()
    asyncio.get_running_loop().call_soon(looked.set)
    steps = 0
    while not looked.is_set():
        await turn()
        steps += 1
    assert 1 < steps <= 100


async def test_a_step_that_takes_the_whole_time_is_the_last_of_its_turn() -> None:
    await turn()
    looked = asyncio.Event()
    asyncio.get_running_loop().call_soon(looked.set)
    until_s = time.perf_counter() + BUDGET_S
    while time.perf_counter() < until_s:
        pass
    await turn()
    assert looked.is_set()


def test_a_slow_machine_ends_no_turn_on_virtual_time() -> None:
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


async def test_the_loop_comes_round_between_the_steps_of_many() -> None:
    async def work() -> None:
        for _ in range(100):
            await turn()

    working = asyncio.gather(*(work() for _ in range(50)))
    # 5,000 steps of at most 64 a turn.
    assert await select_counts(lambda: not working.done()) >= 5_000 // 64
    await working


async def test_everybody_gets_turns_whatever_the_others_have_to_do() -> None:
    results: list[int] = []

    async def work(who: int) -> None:
        for _ in range(200):
            results.append(who)
            await turn()

    await asyncio.gather(*(work(who) for who in range(30)))
    # Before anybody has made all of his steps, everybody has made some.
    first_end = min(len(results) - 1 - results[::-1].index(who) for who in range(30))
    assert set(results[: first_end + 1]) == set(range(30))


async def test_a_cancelled_waiter_delays_no_other() -> None:
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


async def test_waiting_tasks_are_rarely_woken_without_time_left() -> None:
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
    # One step uses all the time between two polls, so that a second woken task has none.
    assert wakes <= 2 * steps + 16


def test_each_loop_has_turns_of_its_own() -> None:
    async def work() -> int:
        steps = 0
        while steps < 200:
            await turn()
            steps += 1
        return steps

    assert [asyncio.run(work()) for _ in range(2)] == [200, 200]
