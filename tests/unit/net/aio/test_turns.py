"""Deferred work: one piece in each turn of the loop, in order."""

import asyncio

from serving.net.aio.turns import FairTurns
from tests.eventually import next_turn


async def test_each_turn_of_the_loop_runs_one_piece_of_work_in_order() -> None:
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


async def test_work_that_fails_does_not_stop_the_work_behind_it() -> None:
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
