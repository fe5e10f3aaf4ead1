"""Watches: their events, their start, and their filters."""

import asyncio

import pytest

from serving.core.model.errors import ClusterError, Gone, Invalid, Unavailable
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, REVISION
from serving.net.cluster.port import Cluster, EventType
from tests.conformance.cluster.objects import changes_after, config_map, deployment, revision, version


async def now(cluster: Cluster, namespace: str) -> str:
    return (await cluster.list(CONFIG_MAP, namespace)).resource_version


async def test_watch_reports_changes_after_its_version_in_order(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    for name in ("a", "b"):
        await cluster.create(CONFIG_MAP, config_map(namespace, name))
    await cluster.patch(CONFIG_MAP, namespace, "a", patch={"data": {"key": "x"}})
    await cluster.delete(CONFIG_MAP, namespace, "b")
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    reported = await changes_after(cluster, CONFIG_MAP, namespace, start, until="end")
    assert reported == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


async def test_watch_from_the_first_version_is_gone(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    with pytest.raises(Gone):
        async with asyncio.timeout(60), cluster.watch(CONFIG_MAP, namespace, resource_version="1") as events:
            await anext(aiter(events))


async def test_watch_does_not_report_earlier_objects(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "before"))
    start = await now(cluster, namespace)
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    assert await changes_after(cluster, CONFIG_MAP, namespace, start, until="end") == []


async def test_watch_from_an_object_version_starts_after_it(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    await cluster.create(CONFIG_MAP, config_map(namespace, "b"))
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    reported = await changes_after(cluster, CONFIG_MAP, namespace, version(new_config_map), until="end")
    assert reported == [("ADDED", "b")]


async def test_open_watch_reports_new_objects(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    async with asyncio.timeout(60), cluster.watch(CONFIG_MAP, namespace, resource_version=start) as events:
        new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
        event = await anext(aiter(events))
    assert (event.type, event.object) == (EventType.ADDED, new_config_map)


async def test_watch_event_contains_the_object_of_its_version(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    last = await cluster.patch(CONFIG_MAP, namespace, "a", patch={"data": {"key": "x"}})
    async with asyncio.timeout(60), cluster.watch(CONFIG_MAP, namespace, resource_version=start) as events:
        first, second = await anext(aiter(events)), await anext(aiter(events))
    assert first.object["data"] == {"key": "value"}
    assert second.object == last


async def test_deleted_event_contains_the_last_state_and_a_newer_version(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    await cluster.delete(CONFIG_MAP, namespace, "a")
    async with (
        asyncio.timeout(60),
        cluster.watch(CONFIG_MAP, namespace, resource_version=version(new_config_map)) as events,
    ):
        event = await anext(aiter(events))
    assert (event.type, event.object["data"]) == (EventType.DELETED, {"key": "value"})
    assert int(version(event.object)) > int(version(new_config_map))


async def test_watch_is_limited_to_its_namespace(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    await cluster.create(CONFIG_MAP, config_map("default", f"{namespace}-elsewhere"))
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    reported = await changes_after(cluster, CONFIG_MAP, namespace, start, until="end")
    await cluster.delete(CONFIG_MAP, "default", f"{namespace}-elsewhere")
    assert reported == []


async def test_watch_is_limited_to_its_kind(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    await cluster.create(DEPLOYMENT, deployment(namespace, "other"))
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    assert await changes_after(cluster, CONFIG_MAP, namespace, start, until="end") == []


async def test_selector_watch_reports_entering_as_added_and_leaving_as_deleted(
    cluster: Cluster, namespace: str
) -> None:
    start = await now(cluster, namespace)
    await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    for label in ("web", "web2", None):
        await cluster.patch(CONFIG_MAP, namespace, "a", patch={"metadata": {"labels": {"tier": label}}})
    await cluster.delete(CONFIG_MAP, namespace, "a")
    await cluster.create(CONFIG_MAP, config_map(namespace, "end", tier="web"))
    reported = await changes_after(
        cluster, CONFIG_MAP, namespace, start, until="end", label_selector="tier in (web, web2)"
    )
    assert reported == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_object_leaving_the_selector_is_reported_in_its_last_matching_state(
    cluster: Cluster, namespace: str
) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "a", tier="web"))
    patch = {"metadata": {"labels": {"tier": None}}, "data": {"key": "unseen"}}
    last = await cluster.patch(CONFIG_MAP, namespace, "a", patch=patch)
    async with (
        asyncio.timeout(60),
        cluster.watch(
            CONFIG_MAP, namespace, resource_version=version(new_config_map), label_selector="tier=web"
        ) as events,
    ):
        event = await anext(aiter(events))
    assert (event.type, event.object["data"]) == (EventType.DELETED, {"key": "value"})
    assert version(event.object) == version(last)


async def test_watch_by_name_reports_one_object(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    for name in ("a", "b"):
        await cluster.create(CONFIG_MAP, config_map(namespace, name))
    async with (
        asyncio.timeout(60),
        cluster.watch(CONFIG_MAP, namespace, resource_version=start, field_selector="metadata.name=b") as events,
    ):
        event = await anext(aiter(events))
    assert event.object["metadata"]["name"] == "b"


async def test_status_change_is_reported_by_a_watch(cluster: Cluster, namespace: str) -> None:
    new_revision = await cluster.create(REVISION, revision(namespace, "a"))
    await cluster.patch(REVISION, namespace, "a", patch={"status": {"actualReplicas": 2}}, subresource="status")
    await cluster.create(REVISION, revision(namespace, "end"))
    assert await changes_after(cluster, REVISION, namespace, version(new_revision), until="end") == [("MODIFIED", "a")]


async def test_patch_without_a_change_is_not_reported_by_a_watch(cluster: Cluster, namespace: str) -> None:
    new_revision = await cluster.create(REVISION, revision(namespace, "a"))
    await cluster.patch(REVISION, namespace, "a", patch={"metadata": {"labels": {"none": None}}})
    await cluster.create(REVISION, revision(namespace, "end"))
    assert await changes_after(cluster, REVISION, namespace, version(new_revision), until="end") == []


async def test_concurrent_watches_receive_equal_events(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    reported = await asyncio.gather(
        *(changes_after(cluster, CONFIG_MAP, namespace, start, until="end") for _ in range(2))
    )
    assert reported[0] == reported[1] == [("ADDED", "a")]


async def test_watch_is_canceled_by_a_timeout(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), cluster.watch(CONFIG_MAP, namespace, resource_version=start) as events:
            await anext(aiter(events))


@pytest.mark.parametrize("nonsense", ["x", "-1"])
async def test_invalid_watch_version_is_rejected(cluster: Cluster, namespace: str, nonsense: str) -> None:
    # A kube-apiserver returns 400 for a list and 500 for a watch.
    with pytest.raises((Invalid, Unavailable)):
        async with cluster.watch(CONFIG_MAP, namespace, resource_version=nonsense) as events:
            await anext(aiter(events))


async def test_watch_from_an_old_version_is_complete_or_gone(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    for number in range(100):
        await cluster.patch(CONFIG_MAP, namespace, "a", patch={"data": {"key": str(number)}})
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    try:
        reported = await changes_after(cluster, CONFIG_MAP, namespace, version(new_config_map), until="end")
    except Gone:
        return
    assert reported == [("MODIFIED", "a")] * 100


async def test_watch_from_a_future_version_is_rejected_or_silent(cluster: Cluster, namespace: str) -> None:
    future = str(int(await now(cluster, namespace)) + 10**12)
    # The own servers reject it; a real server accepts it and sends nothing until that version.
    with pytest.raises((ClusterError, TimeoutError)):
        async with asyncio.timeout(5), cluster.watch(CONFIG_MAP, namespace, resource_version=future) as events:
            await anext(aiter(events))


async def test_watch_from_version_0_starts_with_all_objects(cluster: Cluster, namespace: str) -> None:
    for name in ("a", "b"):
        await cluster.create(CONFIG_MAP, config_map(namespace, name, ours="yes"))
    await cluster.patch(CONFIG_MAP, namespace, "a", patch={"data": {"key": "x"}})
    await cluster.create(CONFIG_MAP, config_map(namespace, "end", ours="yes"))
    reported = await changes_after(cluster, CONFIG_MAP, namespace, "0", until="end", label_selector="ours=yes")
    assert reported == [("ADDED", "a"), ("ADDED", "b")]
