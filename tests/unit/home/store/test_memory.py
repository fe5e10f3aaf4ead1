"""Behaviour specific to MemoryCluster; the contract of all clusters is tested in tests/conformance/cluster."""

import asyncio
import contextlib
import random
from typing import Any

import msgspec
import pytest

from serving.core.model.errors import AlreadyExists, Gone, Invalid, NotFound
from serving.core.model.objects import Object
from serving.home.schemas.schema import DEPTH_MAX
from serving.home.store.history import StoreLimits
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, KINDS, NAMESPACE, POD, REVISION, Kind
from serving.net.cluster.port import EventType, PatchType, Selection, Subresource, WatchEvent
from tests.eventually import next_turn


def config_map(name: str = "one", **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


class FewSuffixes(random.Random):
    """A random source for colliding names: each suffix is returned twice."""

    def __init__(self) -> None:
        super().__init__(1)
        self._choice_count = 0

    def choices(self, population: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - as random.Random
        self._choice_count += 1
        return [population[self._choice_count // 2]] * 5


async def test_watch_event_is_encoded_once_for_all_watches() -> None:
    cluster = MemoryCluster()
    async with (
        cluster.watch(CONFIG_MAP, resource_version="0") as async_iterator,
        cluster.watch(CONFIG_MAP, resource_version="0", label_selector="!nothing") as other,
    ):
        await cluster.create(CONFIG_MAP, config_map())
        first, second = await anext(async_iterator), await anext(other)
    assert first.encoded is second.encoded
    assert first.encoded is await cluster.get_encoded(CONFIG_MAP, "default", "one")


async def test_deselection_event_is_encoded_once_for_all_watches() -> None:
    cluster = MemoryCluster()
    new_config_map = await cluster.create(CONFIG_MAP, {"metadata": {"name": "one", "labels": {"a": "b"}}})
    start = new_config_map["metadata"]["resourceVersion"]
    await cluster.patch(CONFIG_MAP, "default", "one", patch={"metadata": {"labels": None}})
    reported = []
    for _ in range(2):
        async with cluster.watch(CONFIG_MAP, resource_version=start, label_selector="a=b") as events:
            reported.append(await anext(events))
    assert reported[0].encoded is reported[1].encoded


async def test_slow_watch_is_closed_without_blocking_writes() -> None:
    cluster = MemoryCluster(limits=StoreLimits(watch_count_max=3))
    async with cluster.watch(CONFIG_MAP, resource_version="0") as slow:
        for number in range(5):
            await cluster.create(CONFIG_MAP, config_map(f"map-{number}"))
        with pytest.raises(Gone, match="fell behind"):
            await anext(slow)
    assert len((await cluster.list(CONFIG_MAP)).items) == 5


async def test_replayed_events_do_not_count_towards_the_watch_limit() -> None:
    cluster = MemoryCluster(limits=StoreLimits(watch_count_max=2))
    start = (await cluster.list(CONFIG_MAP)).resource_version
    for number in range(5):
        await cluster.create(CONFIG_MAP, config_map(f"map-{number}"))
    async with cluster.watch(CONFIG_MAP, resource_version=start) as events:
        await cluster.create(CONFIG_MAP, config_map("map-5"))
        reported = [(await anext(events)).object["metadata"]["name"] for _ in range(6)]
    assert reported == [f"map-{number}" for number in range(6)]


async def test_pop_queued_returns_events_only_after_the_replay() -> None:
    cluster = MemoryCluster()
    await cluster.create(CONFIG_MAP, config_map("old"))
    async with cluster.watch_selection(Selection(kind=CONFIG_MAP), "0") as events:
        for number in range(4):
            await cluster.create(CONFIG_MAP, config_map(f"map-{number}"))
        assert events.pop_queued(9) == []
        reported = [await anext(events), await anext(events), *events.pop_queued(2), *events.pop_queued(9)]
        assert events.pop_queued(9) == []
    names = ["old", *(f"map-{number}" for number in range(4))]
    assert [event.object["metadata"]["name"] for event in reported] == names


@pytest.mark.parametrize("limits", [StoreLimits(history_count_max=3), StoreLimits(history_bytes_max=800)])
async def test_history_is_limited_by_count_and_bytes(limits: StoreLimits) -> None:
    cluster = MemoryCluster(limits=limits)
    versions = [
        (await cluster.create(CONFIG_MAP, config_map(f"map-{number}")))["metadata"]["resourceVersion"]
        for number in range(20)
    ]
    with pytest.raises(Gone, match="too old"):
        async with cluster.watch(CONFIG_MAP, resource_version=versions[0]):
            pass
    async with cluster.watch(CONFIG_MAP, resource_version=versions[-2]) as events:
        assert (await anext(events)).object["metadata"]["name"] == "map-19"


async def test_history_drops_old_events_except_the_newest() -> None:
    wall = [1000.0]
    cluster = MemoryCluster(limits=StoreLimits(history_age_s=30, history_count_min=2), wall_s=lambda: wall[0])
    versions = []
    for number in range(5):
        new_config_map = await cluster.create(CONFIG_MAP, config_map(f"map-{number}"))
        versions.append(new_config_map["metadata"]["resourceVersion"])
        wall[0] += 15
    # At 60 s, the history has the events of 30, 45 and 60 s.
    with pytest.raises(Gone, match="too old"):
        async with cluster.watch(CONFIG_MAP, resource_version=versions[0]):
            pass
    async with cluster.watch(CONFIG_MAP, resource_version=versions[1]) as events:
        assert (await anext(events)).object["metadata"]["name"] == "map-2"
    wall[0] += 1000
    await cluster.create(CONFIG_MAP, config_map("map-5"))
    async with cluster.watch(CONFIG_MAP, resource_version=versions[3]) as events:
        assert (await anext(events)).object["metadata"]["name"] == "map-4"


async def test_history_limit_applies_per_kind() -> None:
    cluster = MemoryCluster(limits=StoreLimits(history_count_max=3))
    start = (await cluster.list(CONFIG_MAP)).resource_version
    await cluster.create(CONFIG_MAP, config_map())
    for number in range(20):
        await cluster.create(POD, {"metadata": {"name": f"pod-{number}"}, "spec": {}})
    async with cluster.watch(CONFIG_MAP, resource_version=start) as events:
        assert (await anext(events)).type is EventType.ADDED


async def test_watch_from_a_future_version_is_gone() -> None:
    with pytest.raises(Gone, match="too large"):
        async with MemoryCluster().watch(CONFIG_MAP, resource_version="999"):
            pass


async def test_watch_version_of_5000_digits_is_rejected() -> None:
    with pytest.raises(Invalid, match="not a version of this server"):
        async with MemoryCluster().watch(CONFIG_MAP, resource_version="9" * 5000):
            pass


async def test_close_ends_watches_after_queued_events() -> None:
    cluster = MemoryCluster()
    async with cluster.watch(CONFIG_MAP, resource_version="0") as events:
        await cluster.create(CONFIG_MAP, config_map())
        await cluster.close()
        assert [event.type async for event in events] == [EventType.ADDED]


async def test_close_ends_a_waiting_watch() -> None:
    cluster = MemoryCluster()
    async with cluster.watch(CONFIG_MAP, resource_version="0") as events:
        reading = asyncio.create_task(anext(events, None))
        await next_turn()
        await cluster.close()
        assert await reading is None


async def test_cancelled_watch_read_loses_no_event() -> None:
    cluster = MemoryCluster()
    async with cluster.watch(CONFIG_MAP, resource_version="0") as events:
        reading = asyncio.create_task(anext(events, None))
        await next_turn()
        await cluster.create(CONFIG_MAP, config_map())
        reading.cancel()
        # Whether the event reaches the reader before the cancellation differs between versions of Python.
        (event,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(event, asyncio.CancelledError):
            event = await anext(events)
        assert isinstance(event, WatchEvent)
        assert event.object["metadata"]["name"] == "one"


async def test_exited_watch_is_removed() -> None:
    cluster = MemoryCluster()
    async with cluster.watch(CONFIG_MAP, resource_version="0"):
        pass
    assert cluster._state.table(CONFIG_MAP).watches == []


async def test_continuous_writer_does_not_starve_watch_readers() -> None:
    cluster = MemoryCluster(limits=StoreLimits(watch_count_max=100))

    async def read() -> int:
        async with cluster.watch(POD, resource_version="0") as events:
            count = 0
            async for _ in events:
                count += 1
                if count == 1000:
                    break
        return count

    reading = asyncio.create_task(read())
    await next_turn()
    for number in range(1000):
        await cluster.create(POD, {"metadata": {"name": f"pod-{number}"}, "spec": {}})
    assert await reading == 1000


async def test_encoded_list_equals_the_decoded_list() -> None:
    cluster = MemoryCluster()
    for name in "abc":
        await cluster.create(CONFIG_MAP, config_map(name))
    listing = await cluster.list(CONFIG_MAP, page_size=2)
    encoded = cluster.list_encoded(Selection(kind=CONFIG_MAP), page_size=2)
    assert [msgspec.json.decode(item) for item in encoded.items] == listing.items
    assert (encoded.resource_version, encoded.next_page) == (listing.resource_version, listing.next_page)


async def test_list_is_a_snapshot_during_concurrent_deletion() -> None:
    cluster = MemoryCluster()
    for number in range(200):
        await cluster.create(CONFIG_MAP, config_map(f"map-{number:03}"))
    listing = asyncio.create_task(cluster.list(CONFIG_MAP))
    await next_turn()
    await cluster.delete(CONFIG_MAP, "default", "map-199")
    assert len((await listing).items) == 200


async def test_colliding_generated_name_is_generated_again() -> None:
    cluster = MemoryCluster(dice=FewSuffixes())
    results = [await cluster.create(CONFIG_MAP, {"metadata": {"generateName": "one-"}}) for _ in range(3)]
    assert len({resource["metadata"]["name"] for resource in results}) == 3


async def test_persistently_colliding_generated_name_is_rejected() -> None:
    class OneSuffix(FewSuffixes):
        def choices(self, population: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - as random.Random
            return [population[0]] * 5

    cluster = MemoryCluster(dice=OneSuffix())
    await cluster.create(CONFIG_MAP, {"metadata": {"generateName": "one-"}})
    with pytest.raises(AlreadyExists):
        await cluster.create(CONFIG_MAP, {"metadata": {"generateName": "one-"}})


async def test_oversized_object_is_rejected() -> None:
    cluster = MemoryCluster(limits=StoreLimits(object_bytes_max=1000))
    await cluster.create(CONFIG_MAP, config_map())
    with pytest.raises(Invalid, match="bytes"):
        await cluster.create(CONFIG_MAP, config_map("two", a="x" * 1000))
    with pytest.raises(Invalid, match="bytes"):
        await cluster.create(CONFIG_MAP, config_map("two", a="x" * 1000), dry_run=True)
    with pytest.raises(Invalid, match="bytes"):
        await cluster.patch(CONFIG_MAP, "default", "one", patch={"data": {"a": "x" * 1000}})
    assert (await cluster.get(CONFIG_MAP, "default", "one"))["data"] == {}


@pytest.mark.parametrize("value", ["\ud800", 2**70, 10**400])
async def test_unrepresentable_json_value_is_rejected_or_preserved(value: object) -> None:
    cluster = MemoryCluster()
    body = {"metadata": {"name": "one"}, "data": {"a": value}}
    try:
        new_config_map = await cluster.create(CONFIG_MAP, body)
    except Invalid:
        return
    assert new_config_map["data"] == {"a": value}


async def test_too_deeply_nested_object_is_rejected() -> None:
    deep: dict[str, Any] = {}
    for _ in range(DEPTH_MAX):
        deep = {"a": deep}
    with pytest.raises(Invalid, match="nested too deep: expected at most 200 levels"):
        await MemoryCluster().create(CONFIG_MAP, {"metadata": {"name": "one"}, "data": deep})


async def test_too_deeply_nested_patch_is_rejected() -> None:
    cluster = MemoryCluster()
    await cluster.create(CONFIG_MAP, config_map())
    deep: dict[str, Any] = {}
    for _ in range(DEPTH_MAX):
        deep = {"a": deep}
    with pytest.raises(Invalid, match="nested too deep"):
        await cluster.patch(CONFIG_MAP, "default", "one", patch=deep)


@pytest.mark.parametrize("grace_s", [10**12, 2**63 - 1])
async def test_pod_with_any_grace_period_can_be_deleted(grace_s: int) -> None:
    cluster = MemoryCluster()
    for name, spec, delete_grace_s in (
        ("of-spec", {"terminationGracePeriodSeconds": grace_s}, None),
        ("of-call", {}, grace_s),
    ):
        await cluster.create(POD, {"metadata": {"name": name}, "spec": {"nodeName": "n", **spec}})
        await cluster.delete(POD, "default", name, grace_s=delete_grace_s)
        assert (await cluster.get(POD, "default", name))["metadata"]["deletionTimestamp"] < "2100"
        await cluster.delete(POD, "default", name, grace_s=0)


async def test_json_patch_copy_that_nests_too_deeply_is_rejected() -> None:
    cluster, value = MemoryCluster(), dict[str, Any]()
    for _ in range(DEPTH_MAX - 10):
        value = {"a": value}
    await cluster.create(CONFIG_MAP, {"metadata": {"name": "one"}, "data": value})
    path = "/data" + "/a" * 50
    with pytest.raises(Invalid, match="nested too deep"):
        await cluster.patch(
            CONFIG_MAP,
            "default",
            "one",
            patch=[{"op": "copy", "from": "/data", "path": path}],
            patch_type=PatchType.JSON,
        )


@pytest.mark.parametrize(
    ("patch", "patch_type"),
    [
        ([], PatchType.MERGE),
        ({}, PatchType.JSON),
        ([], PatchType.STRATEGIC),
        ([{"op": "add", "path": "", "value": []}], PatchType.JSON),
        ({"metadata": []}, PatchType.MERGE),
        ({"metadata": {"name": "two"}}, PatchType.MERGE),
        ({"metadata": {"namespace": "two"}}, PatchType.MERGE),
        ({"kind": "Other"}, PatchType.MERGE),
        ({"apiVersion": "v2"}, PatchType.MERGE),
    ],
)
async def test_invalid_patch_is_rejected_and_changes_nothing(patch: Any, patch_type: PatchType) -> None:  # noqa: ANN401 - JSON
    cluster = MemoryCluster()
    await cluster.create(CONFIG_MAP, config_map())
    before = await cluster.get(CONFIG_MAP, "default", "one")
    with pytest.raises(Invalid):
        await cluster.patch(CONFIG_MAP, "default", "one", patch=patch, patch_type=patch_type)
    assert await cluster.get(CONFIG_MAP, "default", "one") == before


@pytest.mark.parametrize("body", [{"spec": []}, {"spec": {"selector": []}}, {"spec": None}, {}])
async def test_scale_of_a_malformed_deployment_is_readable_and_writable(body: Object) -> None:
    cluster = MemoryCluster()
    await cluster.create(DEPLOYMENT, {"metadata": {"name": "one"}, **body})
    assert (await cluster.get(DEPLOYMENT, "default", "one", subresource="scale"))["spec"] == {"replicas": 1}
    deployment = await cluster.patch(DEPLOYMENT, "default", "one", patch={"spec": {"replicas": 2}}, subresource="scale")
    assert deployment["spec"] == {"replicas": 2}


@pytest.mark.parametrize("replicas", ["2", True, 1.5, None, -1])
async def test_scale_replicas_must_be_a_non_negative_integer(replicas: object) -> None:
    cluster = MemoryCluster()
    await cluster.create(DEPLOYMENT, {"metadata": {"name": "one"}, "spec": {"replicas": 1}})
    body = {"metadata": {"name": "one"}, "spec": {"replicas": replicas}}
    with pytest.raises(Invalid):
        await cluster.replace(DEPLOYMENT, body, subresource="scale")


async def test_patch_from_1_to_true_is_a_change() -> None:
    cluster = MemoryCluster()
    await cluster.create(CONFIG_MAP, {"metadata": {"name": "one"}, "data": {"a": 1}})
    current_config_map = await cluster.patch(CONFIG_MAP, "default", "one", patch={"data": {"a": True}})
    assert current_config_map["data"] == {"a": True}


async def test_creation_with_resource_version_is_rejected() -> None:
    body = {"metadata": {"name": "one", "resourceVersion": "1"}}
    with pytest.raises(Invalid, match="resourceVersion"):
        await MemoryCluster().create(CONFIG_MAP, body)


async def test_server_set_metadata_of_a_creation_is_ignored() -> None:
    claimed = {"uid": "mine", "generation": 7, "creationTimestamp": "1999-01-01T00:00:00Z", "managedFields": [{}]}
    claimed |= {"deletionTimestamp": "1999-01-01T00:00:00Z", "selfLink": "x"}
    revision = await MemoryCluster().create(REVISION, {"metadata": {"name": "one", **claimed}, "spec": {}})
    metadata = revision["metadata"]
    assert (metadata["generation"], "deletionTimestamp" in metadata) == (1, False)
    assert not {"managedFields", "selfLink"} & set(metadata)
    assert metadata["uid"] != "mine"
    assert metadata["creationTimestamp"] > "2000"


async def test_unknown_kind_is_not_found() -> None:
    other = Kind(group="example.com", version="v1", name="Other", plural="others")
    with pytest.raises(NotFound):
        await MemoryCluster().get(other, "default", "one")


async def test_every_kind_can_be_stored_and_read() -> None:
    cluster = MemoryCluster()
    for kind in KINDS:
        await cluster.create(kind, {"metadata": {"name": "one"}})
        assert (await cluster.get(kind, "default", "one"))["kind"] == kind.name


async def test_admission_receives_each_write_with_the_old_object() -> None:
    seen: list[tuple[str, bool, str | None]] = []

    def admit(kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None) -> Object:
        seen.append((kind.name, old is not None, subresource))
        return {**new, "data": {**new.get("data", {}), "admitted": "yes"}}

    cluster = MemoryCluster(admit=admit)
    new_config_map = await cluster.create(CONFIG_MAP, config_map())
    await cluster.patch(CONFIG_MAP, "default", "one", patch={"data": {"a": "b"}})
    assert new_config_map["data"] == {"admitted": "yes"}
    assert seen == [("ConfigMap", False, None), ("ConfigMap", True, None)]


async def test_deleted_namespace_is_terminating() -> None:
    cluster = MemoryCluster()
    await cluster.create(NAMESPACE, {"metadata": {"name": "one"}})
    await cluster.delete(NAMESPACE, "", "one")
    namespace = await cluster.get(NAMESPACE, "", "one")
    assert namespace["status"]["phase"] == "Terminating"


async def test_replaced_namespace_retains_its_finalizer() -> None:
    cluster = MemoryCluster()
    await cluster.create(NAMESPACE, {"metadata": {"name": "one"}})
    namespace = await cluster.replace(NAMESPACE, {"metadata": {"name": "one", "labels": {"a": "b"}}})
    assert namespace["spec"] == {"finalizers": ["kubernetes"]}


async def test_names_and_uids_are_determined_by_the_random_source() -> None:
    results = [
        await MemoryCluster(dice=random.Random(5)).create(CONFIG_MAP, {"metadata": {"generateName": "a-"}})
        for _ in range(2)
    ]
    assert results[0]["metadata"]["name"] == results[1]["metadata"]["name"]
    assert results[0]["metadata"]["uid"] == results[1]["metadata"]["uid"]


async def test_creation_timestamp_uses_the_injected_clock() -> None:
    new_config_map = await MemoryCluster(wall_s=lambda: 86_400.0).create(CONFIG_MAP, config_map())
    assert new_config_map["metadata"]["creationTimestamp"] == "1970-01-02T00:00:00Z"


async def test_restored_pod_retains_uid_and_creation_time() -> None:
    cluster = MemoryCluster()
    earlier = {"uid": "of-before", "creationTimestamp": "2026-01-01T00:00:00Z"}
    pod = {"metadata": {"name": "one", "namespace": "default", **earlier}, "spec": {"containers": []}}
    metadata = (await cluster.create(POD, pod))["metadata"]
    assert not earlier.items() & metadata.items()
    await cluster.delete(POD, "default", "one", grace_s=0)
    restored = (await cluster.restore(POD, pod))["metadata"]
    assert earlier.items() <= restored.items()
    # A pod written by a version before 0.2.0 has no uid.
    assert (await cluster.restore(POD, {**pod, "metadata": {"name": "two"}}))["metadata"]["uid"]


async def test_object_with_a_duplicate_owner_can_be_deleted() -> None:
    cluster = MemoryCluster()
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}
    await cluster.create(CONFIG_MAP, {"metadata": {"name": "one", "ownerReferences": [owner, owner]}})
    await cluster.delete(CONFIG_MAP, "default", "one")
    with pytest.raises(NotFound):
        await cluster.get(CONFIG_MAP, "default", "one")


async def test_patches_cannot_exceed_the_value_limit() -> None:
    cluster = MemoryCluster()
    await cluster.create(CONFIG_MAP, config_map())
    for part in range(3):
        patch = {"data": {f"{part}-{number}": "" for number in range(9_000)}}
        with pytest.raises(Invalid, match="at most 20000 values") if part > 1 else contextlib.nullcontext():
            await cluster.patch(CONFIG_MAP, "default", "one", patch=patch, patch_type=PatchType.MERGE)
