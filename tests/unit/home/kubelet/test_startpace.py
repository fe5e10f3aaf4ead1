"""Start turns of pods: acquisition and end."""

import asyncio
import os
import sys

import pytest

from serving.home.kubelet import startpace
from serving.home.kubelet.startpace import StartPacer, until_started
from serving.net.aio.supervise import supervise
from tests.eventually import until


def _pod(name: str, revision: str) -> dict[str, object]:
    labels = {"serving.knative.dev/revision": revision} if revision else {}
    return {"metadata": {"namespace": "default", "name": name, "uid": name, "labels": labels}}


async def test_start_turn_begins_when_another_ends() -> None:
    pacer, never, settled = StartPacer(1), asyncio.Event(), asyncio.Event()
    first, following = pacer.turn_of(_pod("1", "a")), pacer.turn_of(_pod("2", "a"))
    assert await first.acquire(never)
    assert first.niceness == 0
    async with supervise() as group:
        first.watch(group, lambda: [os.getpid()])
        waiting = group.start(following.acquire(never), name="following")
        waiting.add_done_callback(lambda _: settled.set())
        first.settle()
        await settled.wait()
    assert [first.is_held, following.is_held] == [False, True]
    assert following.niceness > 0


async def test_pod_deleted_while_queued_gets_no_turn() -> None:
    pacer, stop, never = StartPacer(1), asyncio.Event(), asyncio.Event()
    running, deleted, other = (pacer.turn_of(_pod(name, name)) for name in "abc")
    assert await running.acquire(never)
    waiting = [asyncio.create_task(deleted.acquire(stop)), asyncio.create_task(other.acquire(never))]
    await until(lambda: pacer._queue.waiting_count == 2)
    stop.set()
    assert await waiting[0] is False
    deleted.release()
    running.release()
    assert await waiting[1]


async def test_additional_pod_gets_a_turn_without_further_events() -> None:
    pacer, never = StartPacer(2), asyncio.Event()
    first, following = pacer.turn_of(_pod("1", "a")), pacer.turn_of(_pod("2", "a"))
    assert await first.acquire(never)
    async with asyncio.timeout(60):
        assert await following.acquire(never)
    assert first.is_held


async def test_adopted_pods_and_pods_without_revision_do_not_wait() -> None:
    pacer, never = StartPacer(4), asyncio.Event()
    adopted = pacer.turn_of(_pod("1", "a"), runs_already=True)
    assert adopted.is_held
    assert adopted.niceness == 0
    jobs = [pacer.turn_of(_pod(name, "")) for name in "xy"]
    assert [await job.acquire(never) for job in jobs] == [True, True]
    assert [job.niceness for job in jobs] == [0, 0]


async def test_pod_pulling_images_returns_its_turn_and_gets_another() -> None:
    pacer, never = StartPacer(1), asyncio.Event()
    images: list[int] = []

    def process_ids() -> list[int] | None:
        return images or None

    pulling, other = pacer.turn_of(_pod("1", "a")), pacer.turn_of(_pod("2", "b"))
    assert await pulling.acquire(never)
    async with asyncio.timeout(60), supervise() as group:
        pulling.watch(group, process_ids)
        assert await other.acquire(never)
        assert [pulling.is_held, other.is_held] == [False, True]
        images.append(os.getpid())
        again = group.start(pulling.acquire_again(never, group, process_ids), name="again")
        await until(lambda: pacer._queue.waiting_count == 1)
        other.release()
        await again
        assert [pulling.is_held] == [True]
        await pulling.acquire_again(never, group, process_ids)
        pulling.release()


async def test_turn_ends_when_the_pod_is_ready() -> None:
    settled = asyncio.Event()
    turn = asyncio.create_task(until_started(settled, lambda: [os.getpid()]))
    settled.set()
    async with asyncio.timeout(60):
        await turn


async def test_turn_ends_when_the_program_blocks() -> None:
    program = "import signal; signal.pause()"
    sleeping = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", program)
    try:
        async with asyncio.timeout(60):
            await until_started(asyncio.Event(), lambda: [sleeping.pid])
    finally:
        sleeping.kill()
        await sleeping.wait()


async def test_turn_of_a_computing_program_ends_after_maximum_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startpace, "_TURN_CPU_MAX_S", 0.5)
    computing = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "while True: pass")
    try:
        async with asyncio.timeout(60):
            await until_started(asyncio.Event(), lambda: [computing.pid])
        assert startpace._core_times_s([computing.pid])[0] >= 0.5
    finally:
        computing.kill()
        await computing.wait()
