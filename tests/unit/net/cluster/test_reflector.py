"""The reflector on a virtual clock, over the memory store and a faulty one."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest

from serving.core.model.errors import ClusterError, Forbidden, Gone, Unavailable
from serving.core.model.objects import Object
from serving.home.store.history import StoreLimits
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.cluster import reflector
from serving.net.cluster.fenced import FencedCluster
from serving.net.cluster.kinds import CONFIG_MAP
from serving.net.cluster.port import EventType, Listing, Selection, WatchEvent
from serving.net.cluster.reflector import CacheChange, PackedObjects, Reflector, ReflectorSettings, objects_map
from tests.virtual_time import pass_s, run_virtually


class Steady(random.Random):
    """A random source that returns the longest delay, and no jitter of the list period."""

    def uniform(self, a: float, b: float) -> float:
        return 1.0 if (a, b) == (0.8, 1.2) else b


class FaultyCluster(MemoryCluster):
    """A memory store whose lists and watches fail, end or drop events on demand. Copies of it are packed."""

    is_in_process = False

    def __init__(self) -> None:
        super().__init__(limits=StoreLimits(history_count_max=5))
        self.list_failures: list[ClusterError] = []
        self.list_times_s: list[float] = []
        self.watch_times_s: list[float] = []
        self.watch_scripts: list[list[WatchEvent | ClusterError]] = []
        self.drops: Callable[[WatchEvent], bool] = lambda _: False

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        self.list_times_s.append(round(now_s(), 6))
        if self.list_failures:
            raise self.list_failures.pop(0)
        return await super().list_selection(selection, page_size=page_size, page=page)

    @contextlib.asynccontextmanager
    async def watch_selection(  # type: ignore[override] # the port's, wider than the store's
        self, selection: Selection, resource_version: str
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        self.watch_times_s.append(round(now_s(), 6))
        async with super().watch_selection(selection, resource_version) as events:
            yield self._played(self.watch_scripts.pop(0)) if self.watch_scripts else self._thinned(events)

    async def _played(self, script: Sequence[WatchEvent | ClusterError]) -> AsyncIterator[WatchEvent]:
        for step in script:
            if isinstance(step, ClusterError):
                raise step
            yield step

    async def _thinned(self, events: AsyncIterator[WatchEvent]) -> AsyncIterator[WatchEvent]:
        async for event in events:
            if not self.drops(event):
                yield event


class Followed:
    """A running reflector, and its events. ``on_change`` is called after an event is recorded."""

    def __init__(
        self,
        on_change: Callable[[CacheChange], None] = lambda _: None,
        on_list: Callable[[str], None] | None = None,
        **settings: object,
    ) -> None:
        def changed(change: CacheChange) -> None:
            self.reported.append((change.type.value, change.key[1]))
            on_change(change)

        self.cluster = FaultyCluster()
        self.reflector = Reflector(
            self.cluster,
            CONFIG_MAP,
            settings=ReflectorSettings(**settings),  # type: ignore[arg-type]
            dice=Steady(),
            on_change=changed,
            on_list=on_list,
        )
        self.reported: list[tuple[str, str]] = []

    async def make(self, *names: str) -> None:
        for name in names:
            await self.cluster.create(CONFIG_MAP, {"metadata": {"name": name}})

    async def change(self, name: str, value: str) -> None:
        await self.cluster.patch(CONFIG_MAP, "default", name, patch={"data": {"key": value}})

    async def remove(self, name: str) -> None:
        await self.cluster.delete(CONFIG_MAP, "default", name)

    def names(self) -> list[str]:
        return sorted(name for _, name in self.reflector.cache)


def run_scenario(scenario: Callable[[Followed], Coroutine[Any, Any, None]], **settings: Any) -> Followed:  # noqa: ANN401 - of the constructor
    """Run a scenario with a running reflector."""

    async def both() -> Followed:
        followed = Followed(**settings)
        running = asyncio.create_task(followed.reflector.run())
        await scenario(followed)
        running.cancel()
        return followed

    return run_virtually(both())


async def turn() -> None:
    """Run everything that is due now."""
    await pass_s(0.001)


def test_first_list_is_reported_before_sync() -> None:
    async def scenario(followed: Followed) -> None:
        assert not followed.reflector.synced.is_set()
        await followed.make("a", "b")
        await followed.reflector.synced.wait()

    followed = run_scenario(scenario)
    assert followed.reported == [("ADDED", "a"), ("ADDED", "b")]


def test_paginated_list_is_read_to_its_end() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.make("a", "b", "c")
        await followed.reflector.synced.wait()
        assert followed.names() == ["a", "b", "c"]

    run_scenario(scenario, page_size=2)


def test_changes_are_reported_with_previous_object() -> None:
    seen: list[CacheChange] = []

    async def scenario(followed: Followed) -> None:
        await followed.reflector.synced.wait()
        await followed.make("a")
        await followed.change("a", "x")
        await followed.remove("a")
        await turn()

    run_scenario(scenario, on_change=seen.append)
    data = [((change.old or {}).get("data"), change.new.get("data")) for change in seen]
    assert [change.type for change in seen] == [EventType.ADDED, EventType.MODIFIED, EventType.DELETED]
    assert data == [(None, None), (None, {"key": "x"}), ({"key": "x"}, {"key": "x"})]


def test_transformed_objects_are_reported_and_cached() -> None:
    seen: list[CacheChange] = []

    def metadata_only(resource: Object) -> Object:
        return {"metadata": resource["metadata"]}

    async def scenario(followed: Followed) -> None:
        await followed.make("listed")
        await followed.change("listed", "x")
        reflector = Reflector(
            followed.cluster, CONFIG_MAP, settings=ReflectorSettings(transform=metadata_only), on_change=seen.append
        )
        running = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        await followed.change("listed", "y")
        await followed.remove("listed")
        await turn()
        running.cancel()

    run_scenario(scenario)
    assert [change.type for change in seen] == [EventType.ADDED, EventType.MODIFIED, EventType.DELETED]
    assert [resource.keys() for change in seen for resource in (change.old, change.new) if resource is not None] == [
        {"metadata"}
    ] * 5


def test_ended_watch_is_resumed_without_new_list() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.make("a")
        followed.cluster.watch_scripts = [[]]
        await followed.reflector.synced.wait()
        await followed.make("b")
        await pass_s(1)

    followed = run_scenario(scenario, retry_first_s=0.5)
    assert followed.reported == [("ADDED", "a"), ("ADDED", "b")]
    assert (len(followed.cluster.list_times_s), followed.cluster.watch_times_s) == (1, [0, 0.5])


def test_gone_error_lists_again_and_reports_missed_changes() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.make("a", "b")
        followed.cluster.watch_scripts = [[Gone("too old")]]
        await followed.reflector.synced.wait()
        await followed.change("a", "x")
        await followed.remove("b")
        await followed.make("c")
        await pass_s(1)

    followed = run_scenario(scenario, retry_first_s=0.5)
    assert followed.reported[2:] == [("DELETED", "b"), ("MODIFIED", "a"), ("ADDED", "c")]


def test_periodic_list_reports_events_that_watch_dropped() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.reflector.synced.wait()
        followed.cluster.drops = lambda _: True
        await followed.make("a")
        await pass_s(5)
        assert followed.reported == []
        await pass_s(10)

    followed = run_scenario(scenario, relist_s=10)
    assert (followed.reported, followed.cluster.list_times_s) == ([("ADDED", "a")], [0, 10])


def test_successful_list_clears_forbidden_state() -> None:
    async def check() -> None:
        cluster = FaultyCluster()
        cluster.list_failures.append(Forbidden("no"))
        new_reflector = Reflector(cluster, CONFIG_MAP)
        running = asyncio.create_task(new_reflector.run())
        await pass_s(0.0)
        assert (new_reflector.is_forbidden, new_reflector.synced.is_set()) == (True, False)
        await new_reflector.synced.wait()
        assert not new_reflector.is_forbidden
        running.cancel()

    run_virtually(check())


def test_retry_delay_doubles_up_to_maximum() -> None:
    async def scenario(followed: Followed) -> None:
        followed.cluster.list_failures = [Unavailable("no")] * 5
        await followed.reflector.synced.wait()

    followed = run_scenario(scenario, retry_first_s=1, retry_max_s=5)
    assert followed.cluster.list_times_s == [0, 1, 3, 7, 12, 17]


def test_watches_that_end_immediately_are_retried_with_backoff() -> None:
    async def scenario(followed: Followed) -> None:
        followed.cluster.watch_scripts = [[] for _ in range(5)]
        await pass_s(40)

    followed = run_scenario(scenario, retry_first_s=1, retry_max_s=8)
    assert followed.cluster.watch_times_s == [0, 1, 3, 7, 15, 23]


def test_long_watch_resets_retry_delay() -> None:
    async def scenario(followed: Followed) -> None:
        followed.cluster.list_failures = [Unavailable("no")] * 3
        await followed.reflector.synced.wait()
        await pass_s(20)
        followed.cluster.list_failures = [Unavailable("no")]
        await pass_s(100)

    followed = run_scenario(scenario, retry_first_s=1, relist_s=50)
    # Three failures, a list, a failed periodic list, and its retry one second later.
    assert followed.cluster.list_times_s[:6] == [0, 1, 3, 7, 57, 58]


def config_map(name: str, version: int, uid: str = "u") -> Object:
    return {"metadata": {"name": name, "namespace": "default", "resourceVersion": str(version), "uid": uid}}


def event(kind: EventType, name: str, version: int) -> WatchEvent:
    return WatchEvent(type=kind, object=config_map(name, version))


def reported_of(*script: WatchEvent) -> list[tuple[str, str]]:
    """The reported events of a watch that sends these."""

    async def scenario(followed: Followed) -> None:
        followed.cluster.watch_scripts = [list(script)]
        await followed.reflector.synced.wait()
        await turn()

    return run_scenario(scenario).reported


@pytest.mark.parametrize(
    "script",
    [
        [event(EventType.ADDED, "a", 5), event(EventType.ADDED, "a", 5)],
        [event(EventType.ADDED, "a", 5), event(EventType.MODIFIED, "a", 4)],
        [event(EventType.ADDED, "a", 5), event(EventType.DELETED, "a", 4)],
        [event(EventType.DELETED, "b", 4), event(EventType.ADDED, "a", 5)],
        [event(EventType.BOOKMARK, "b", 4), event(EventType.ADDED, "a", 5)],
        [event(EventType.MODIFIED, "a", 5)],
    ],
    ids=["repeated", "older", "older removal", "unknown removal", "bookmark", "unknown change"],
)
def test_repeated_or_outdated_watch_event_is_reported_once(script: list[WatchEvent]) -> None:
    assert reported_of(*script) == [("ADDED", "a")]


def test_failing_change_callback_does_not_end_watch(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: CacheChange) -> None:
        raise ValueError

    async def scenario(followed: Followed) -> None:
        await followed.reflector.synced.wait()
        await followed.make("a", "b")
        await turn()

    assert run_scenario(scenario, on_change=fail).reported == [("ADDED", "a"), ("ADDED", "b")]
    assert [record.getMessage() for record in caplog.records] == ["reflector.object_skipped"] * 2


async def test_reflector_lists_by_selectors_and_namespace() -> None:
    store = MemoryCluster()
    for name, label in (("a", "yes"), ("b", "no")):
        await store.create(CONFIG_MAP, {"metadata": {"name": name, "labels": {"ours": label}}})
    reflector = Reflector(store, CONFIG_MAP, "default", label_selector="ours=yes", field_selector="metadata.name!=x")
    running = asyncio.create_task(reflector.run())
    await reflector.synced.wait()
    running.cancel()
    assert list(reflector.cache) == [("default", "a")]


def test_repeat_all_reports_cached_objects_as_modified() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.make("a", "b")
        await followed.reflector.synced.wait()
        await turn()
        followed.reported.clear()
        followed.reflector.repeat_all()
        await turn()

    assert sorted(run_scenario(scenario).reported) == [("MODIFIED", "a"), ("MODIFIED", "b")]


def new_object(number: int, version: str = "1") -> Object:
    return {"metadata": {"namespace": "a", "name": f"n{number}", "resourceVersion": version}, "spec": {"size": number}}


def test_packed_objects_equal_stored_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "_UNPACKED_MAX", 2)
    objects, count = PackedObjects(), 5
    for number in range(count):
        objects["a", f"n{number}"] = new_object(number)
    assert dict(objects) == {("a", f"n{number}"): new_object(number) for number in range(count)}
    # A recently read object is returned without unpacking it again.
    assert objects["a", "n0"] is objects["a", "n0"]
    assert len(objects) == count


def test_packed_objects_apply_changes_and_deletions() -> None:
    objects = PackedObjects()
    objects["a", "n0"] = new_object(0)
    objects["a", "n0"] = new_object(0, "2")
    assert objects.version(("a", "n0")) == "2"
    assert objects["a", "n0"] == new_object(0, "2")
    del objects["a", "n0"]
    assert ("a", "n0") not in objects
    assert objects.get(("a", "n0")) is None
    with pytest.raises(KeyError):
        del objects["a", "n0"]


async def test_objects_of_in_process_store_are_not_packed() -> None:
    cluster = MemoryCluster()
    assert isinstance(objects_map(cluster), dict)
    assert isinstance(objects_map(FencedCluster(cluster, lambda: None)), dict)
    await cluster.close()


def readable(shared: Object) -> Object:
    """A transform that fails for a ConfigMap whose data is not a mapping."""
    return {**shared, "data": dict(shared.get("data") or {})}


def broken(name: str, version: int) -> Object:
    return {**config_map(name, version), "data": 7}


def test_unreadable_watch_object_is_counted_and_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """Its last readable state and the watch remain; an object without a name is skipped too."""
    before = reflector.UNREADABLE["configmaps"]

    async def scenario(followed: Followed) -> None:
        watched: list[WatchEvent | ClusterError] = [
            WatchEvent(type=EventType.ADDED, object=broken("a", 3)),
            event(EventType.ADDED, "b", 4),
            WatchEvent(type=EventType.MODIFIED, object=broken("b", 5)),
            WatchEvent(type=EventType.MODIFIED, object={"metadata": None}),
            event(EventType.ADDED, "c", 6),
        ]
        followed.cluster.watch_scripts = [watched]
        await followed.reflector.synced.wait()
        await turn()
        assert sorted(followed.reflector.cache) == [("default", "b"), ("default", "c")]
        assert followed.reflector.cache["default", "b"]["metadata"]["resourceVersion"] == "4"

    seen = run_scenario(scenario, transform=readable)
    assert seen.reported == [("ADDED", "b"), ("ADDED", "c")]
    assert len(seen.cluster.watch_times_s) == 1, "the watch continued"
    assert reflector.UNREADABLE["configmaps"] - before == 3
    assert [vars(record)["key"][1] for record in caplog.records] == ["a", "b", ""]


def test_unreadable_listed_object_is_not_reported_as_deleted() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.make("a", "b")
        await followed.reflector.synced.wait()
        await followed.cluster.patch(CONFIG_MAP, "default", "a", patch={"data": 7})
        await followed.make("c")
        await pass_s(700)

    seen = run_scenario(scenario, transform=readable, relist_s=600.0)
    assert ("DELETED", "a") not in seen.reported
    assert set(seen.reported) == {("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")}


def test_failing_list_callback_does_not_end_watch() -> None:
    def fail(_: str) -> None:
        raise ValueError

    async def scenario(followed: Followed) -> None:
        await followed.reflector.synced.wait()
        await followed.make("a")
        await turn()

    assert run_scenario(scenario, on_list=fail).reported == [("ADDED", "a")]
