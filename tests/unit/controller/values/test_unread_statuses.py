"""Delayed statuses: who writes them, and when none is delayed."""

from serving.controller.values.writes import UnreadStatuses


async def test_a_read_writes_the_statuses_of_all_writers() -> None:
    statuses, written = UnreadStatuses(), list[str]()

    async def write_one() -> None:
        written.append("one")

    async def write_other() -> None:
        written.append("other")

    statuses.add(write_one)
    statuses.add(write_other)
    await statuses.refresh("default", "hello-00001")
    assert written == ["one", "other"]


def test_statuses_are_watched_until_the_last_watch_ends() -> None:
    statuses = UnreadStatuses()
    with statuses.watched():
        with statuses.watched():
            assert statuses.is_watched
        assert statuses.is_watched
    assert not statuses.is_watched
