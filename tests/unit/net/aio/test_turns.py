"""Deferred work: one piece in each turn of the loop, in order."""

import asyncio

from serving.net.aio.turns import FairTurns
from tests.eventually import next_turn


async def test_each_loop_iteration_runs_one_deferred_call_in_order() -> None:
    turns, done = FairTurns(), list[str]()

    def work(name: str, left: int) -> None:
        done.append(name)
        if left:
            turns.defer(lambda: work(name, left - 1))

    for name in ("a", "b"):
        turns.defer(lambda name=name: work(name, 1))  # type: ignore[misc]
    seen = []
    for _ in range(5):
        await next_turn()
        seen.append("".join(done))
    assert seen == ["a", "ab", "aba", "abab", "abab"]


async def test_failed_deferred_call_does_not_stop_the_next() -> None:
    turns, done = FairTurns(), list[int]()
    failures = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fails() -> None:
        raise ValueError

    turns.defer(fails)
    turns.defer(lambda: done.append(1))
    for _ in range(3):
        await next_turn()
    assert (done, len(failures)) == ([1], 1)
