"""Delayed statuses: who writes them, and when none is delayed."""

import functools

from serving.controller.values.writes import UnreadStatuses
from serving.net.cluster import kinds

REVISION, OTHER = ((kinds.REVISION, "default", f"hello-0000{number}") for number in (1, 2))


async def test_a_read_writes_each_delayed_status_once() -> None:
    statuses, written = UnreadStatuses(), list[str]()

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
    assert sorted(written) == ["deployment", "revision"]


def test_statuses_are_watched_until_the_last_watch_ends() -> None:
    statuses = UnreadStatuses()
    with statuses.watched():
        with statuses.watched():
            assert statuses.is_watched
        assert statuses.is_watched
        assert not statuses.delay(REVISION, statuses.refresh)
    assert not statuses.is_watched
