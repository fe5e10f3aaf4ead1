"""Delayed status writes: when they are executed, and when writes are not delayed."""

import asyncio
import functools

from serving.controller.io.plan_writer import UnreadWrites
from serving.net.cluster import kinds

REVISION, OTHER = ((kinds.REVISION, "default", f"hello-0000{number}") for number in (1, 2))


async def test_refresh_writes_each_delayed_status_once() -> None:
    statuses, written = UnreadWrites(), list[str]()

    async def write(name: str) -> None:
        written.append(name)

    assert statuses.delay(REVISION, functools.partial(write, "replaced"))
    assert statuses.delay(REVISION, functools.partial(write, "revision"))
    deployment = (kinds.DEPLOYMENT, "default", "hello-00001-deployment")
    assert statuses.delay(deployment, functools.partial(write, "deployment"))
    assert statuses.delay(OTHER, functools.partial(write, "cancelled"))
    statuses.cancel(OTHER)
    statuses.cancel(OTHER)
    await statuses.refresh("default", "hello-00001")
    await statuses.refresh()
    assert written == ["revision", "deployment"]


async def test_refresh_waits_for_writes_of_concurrent_refresh() -> None:
    statuses, steps, begun, end = UnreadWrites(), list[str](), asyncio.Event(), asyncio.Event()

    async def write() -> None:
        begun.set()
        await end.wait()
        steps.append("written")

    async def read() -> None:
        await statuses.refresh()
        steps.append("read")

    assert statuses.delay(REVISION, write)
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(read())
        await begun.wait()
        end.set()
    assert steps == ["written", "read", "read"]


async def test_oldest_write_above_maximum_is_dropped() -> None:
    events, written = UnreadWrites(2), list[str]()

    async def write(name: str) -> None:
        written.append(name)

    for key, name in ((REVISION, "replaced"), (OTHER, "dropped"), (REVISION, "a")):
        assert events.delay(key, functools.partial(write, name))
    assert events.delay((kinds.EVENT, "default", "b"), functools.partial(write, "b"))
    await events.refresh()
    assert written == ["a", "b"]


def test_writes_are_not_delayed_while_statuses_are_watched() -> None:
    statuses = UnreadWrites()
    with statuses.watched():
        with statuses.watched():
            assert statuses.is_watched
        assert statuses.is_watched
        assert not statuses.delay(REVISION, statuses.refresh)
    assert not statuses.is_watched
