"""The pods that may start at once, and the end of a turn."""

import asyncio
import gc
import os
import sys

import pytest

from serving.home.kubelet.startpace import StartPacer, until_started
from tests.eventually import until


async def test_no_more_pods_start_at_once_than_there_are_turns() -> None:
    pacer = StartPacer(2)
    assert [await pacer.take("a"), await pacer.take("a")] == [True, False]
    third = asyncio.create_task(pacer.take("a"))
    await until(lambda: pacer._waiting)
    assert not third.done()
    pacer.give_back()
    assert await third is False


async def test_the_revision_with_the_fewest_turns_is_next() -> None:
    pacer, order = StartPacer(1), []

    async def start(revision: str) -> None:
        await pacer.take(revision)
        order.append(revision)
        pacer.give_back()

    await pacer.take("grows")
    waiting = [asyncio.create_task(start(name)) for name in ("grows", "grows", "wakes")]
    await until(lambda: len(pacer._waiting) == 3)
    pacer.give_back()
    await asyncio.gather(*waiting)
    assert order == ["wakes", "grows", "grows"]


async def test_a_pod_that_is_deleted_while_it_waits_takes_no_turn() -> None:
    pacer = StartPacer(1)
    await pacer.take("a")
    deleted, following = asyncio.create_task(pacer.take("a")), asyncio.create_task(pacer.take("a"))
    await until(lambda: len(pacer._waiting) == 2)
    deleted.cancel()
    await asyncio.gather(deleted, return_exceptions=True)
    pacer.give_back()
    await following
    # Given and cancelled in one step: the turn is given back.
    last = asyncio.create_task(pacer.take("a"))
    await until(lambda: pacer._waiting)
    pacer.give_back()
    last.cancel()
    with pytest.raises(asyncio.CancelledError):
        await last
    assert await pacer.take("b") is True


async def test_the_first_pod_of_a_revision_is_alone_until_it_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.home.kubelet.startpace._LEAD_MAX_S", 60.0)
    pacer, first, later = StartPacer(), asyncio.Event(), asyncio.Event()
    await pacer.let_first_lead("a", first)
    following = asyncio.create_task(pacer.let_first_lead("a", later))
    await pacer.let_first_lead("b", asyncio.Event())
    waiters = first._waiters
    await until(lambda: waiters)
    assert not following.done()
    first.set()
    await following
    await pacer.let_first_lead("a", later)
    # Once that pod is gone, nothing is kept of it.
    del first, later, following
    gc.collect()
    assert "a" not in pacer._first_settled


async def test_the_first_pod_of_a_revision_is_not_alone_for_long() -> None:
    pacer, first = StartPacer(), asyncio.Event()
    await pacer.let_first_lead("a", first)
    await pacer.let_first_lead("a", asyncio.Event())
    assert not first.is_set()


async def test_a_turn_ends_when_the_pod_is_ready() -> None:
    settled = asyncio.Event()
    turn = asyncio.create_task(until_started(settled, lambda: [os.getpid()]))
    settled.set()
    async with asyncio.timeout(60):
        await turn


async def test_a_turn_ends_when_the_program_waits_for_something_else_than_a_core() -> None:
    program = "import signal; signal.pause()"
    sleeping = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", program)
    try:
        async with asyncio.timeout(60):
            await until_started(asyncio.Event(), lambda: [sleeping.pid])
    finally:
        sleeping.kill()
        await sleeping.wait()
