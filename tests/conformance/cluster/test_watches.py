"""Watches: their events, their start, and their filters."""

import asyncio

import pytest

from serving.core.model.errors import ClusterError, Gone, Invalid, Unavailable
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, REVISION
from serving.net.cluster.port import Cluster, EventType
from tests.conformance.cluster.objects import changes_after, config_map, deployment, revision, version


async def now(cluster: Cluster, namespace: str) -> str:
    return (await cluster.list(CONFIG_MAP, namespace)).resource_version


async def test_a_watch_reports_what_comes_after_its_version_in_order(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    for name in ("a", "b"):
        await cluster.create(CONFIG_MAP, config_map(namespace, name))
    await cluster.patch(CONFIG_MAP, namespace, "a", patch={"data": {"key": "x"}})
    await cluster.delete(CONFIG_MAP, namespace, "b")
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    reported = await changes_after(cluster, CONFIG_MAP, namespace, start, until="end")
    assert reported == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


async def test_a_watch_from_the_first_version_of_all_is_gone(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    with pytest.raises(Gone):
        async with asyncio.timeout(60), cluster.watch(CONFIG_MAP, namespace, resource_version="1") as events:
            await anext(aiter(events))


async def test_a_watch_invents_nothing_of_before(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "before"))
    start = await now(cluster, namespace)
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    assert await changes_after(cluster, CONFIG_MAP, namespace, start, until="end") == []


async def test_a_watch_from_an_objects_version_begins_behind_it(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    await cluster.create(CONFIG_MAP, config_map(namespace, "b"))
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    reported = await changes_after(cluster, CONFIG_MAP, namespace, version(new_config_map), until="end")
    assert reported == [("ADDED", "b")]


async def test_a_watch_reports_what_comes_while_it_is_open(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    async with asyncio.timeout(60), cluster.watch(CONFIG_MAP, namespace, resource_version=start) as events:
        new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
        event = await anext(aiter(events))
    assert (event.type, event.object) == (EventType.ADDED, new_config_map)


async def test_an_event_carries_the_object_as_it_was_then(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    last = await cluster.patch(CONFIG_MAP, namespace, "a", patch={"data": {"key": "x"}})
    async with asyncio.timeout(60), cluster.watch(CONFIG_MAP, namespace, resource_version=start) as events:
        first, second = await anext(aiter(events)), await anext(aiter(events))
    assert first.object["data"] == {"key": "value"}
    assert second.object == last


async def test_a_removal_carries_the_last_state_and_a_newer_version(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    await cluster.delete(CONFIG_MAP, namespace, "a")
    async with (
        asyncio.timeout(60),
        cluster.watch(CONFIG_MAP, namespace, resource_version=version(new_config_map)) as events,
    ):
        event = await anext(aiter(events))
    assert (event.type, event.object["data"]) == (EventType.DELETED, {"key": "value"})
    assert int(version(event.object)) > int(version(new_config_map))


async def test_a_watch_sees_its_namespace_only(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    await cluster.create(CONFIG_MAP, config_map("default", f"{namespace}-elsewhere"))
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    reported = await changes_after(cluster, CONFIG_MAP, namespace, start, until="end")
    await cluster.delete(CONFIG_MAP, "default", f"{namespace}-elsewhere")
    assert reported == []


async def test_a_watch_sees_its_kind_only(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    await cluster.create(DEPLOYMENT, deployment(namespace, "other"))
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    assert await changes_after(cluster, CONFIG_MAP, namespace, start, until="end") == []


async def test_a_selector_says_added_on_entering_and_deleted_on_leaving(cluster: Cluster, namespace: str) -> None:
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


async def test_an_object_that_leaves_is_reported_as_it_last_matched(cluster: Cluster, namespace: str) -> None:
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


async def test_a_watch_may_be_of_one_object(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    for name in ("a", "b"):
        await cluster.create(CONFIG_MAP, config_map(namespace, name))
    async with (
        asyncio.timeout(60),
        cluster.watch(CONFIG_MAP, namespace, resource_version=start, field_selector="metadata.name=b") as events,
    ):
        event = await anext(aiter(events))
    assert event.object["metadata"]["name"] == "b"


async def test_a_change_of_status_is_reported(cluster: Cluster, namespace: str) -> None:
    new_revision = await cluster.create(REVISION, revision(namespace, "a"))
    await cluster.patch(REVISION, namespace, "a", patch={"status": {"actualReplicas": 2}}, subresource="status")
    await cluster.create(REVISION, revision(namespace, "end"))
    assert await changes_after(cluster, REVISION, namespace, version(new_revision), until="end") == [("MODIFIED", "a")]


async def test_a_patch_that_changes_nothing_is_not_reported(cluster: Cluster, namespace: str) -> None:
    new_revision = await cluster.create(REVISION, revision(namespace, "a"))
    await cluster.patch(REVISION, namespace, "a", patch={"metadata": {"labels": {"none": None}}})
    await cluster.create(REVISION, revision(namespace, "end"))
    assert await changes_after(cluster, REVISION, namespace, version(new_revision), until="end") == []


async def test_two_watches_get_the_same_events(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    reported = await asyncio.gather(
        *(changes_after(cluster, CONFIG_MAP, namespace, start, until="end") for _ in range(2))
    )
    assert reported[0] == reported[1] == [("ADDED", "a")]


async def test_leaving_the_context_while_waiting_ends_the_watch(cluster: Cluster, namespace: str) -> None:
    start = await now(cluster, namespace)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), cluster.watch(CONFIG_MAP, namespace, resource_version=start) as events:
            await anext(aiter(events))


@pytest.mark.parametrize("nonsense", ["x", "-1"])
async def test_a_version_that_is_none_is_refused(cluster: Cluster, namespace: str, nonsense: str) -> None:
    # A kube-apiserver answers a list 400 and a watch 500.
    with pytest.raises((Invalid, Unavailable)):
        async with cluster.watch(CONFIG_MAP, namespace, resource_version=nonsense) as events:
            await anext(aiter(events))


async def test_a_watch_from_long_ago_reports_all_or_is_gone(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "a"))
    for number in range(100):
        await cluster.patch(CONFIG_MAP, namespace, "a", patch={"data": {"key": str(number)}})
    await cluster.create(CONFIG_MAP, config_map(namespace, "end"))
    try:
        reported = await changes_after(cluster, CONFIG_MAP, namespace, version(new_config_map), until="end")
    except Gone:
        return
    assert reported == [("MODIFIED", "a")] * 100


async def test_a_version_from_the_future_is_refused_or_reports_nothing(cluster: Cluster, namespace: str) -> None:
    future = str(int(await now(cluster, namespace)) + 10**12)
    # Ours refuse it; a real server takes it, and is silent until it gets there.
    with pytest.raises((ClusterError, TimeoutError)):
        async with asyncio.timeout(5), cluster.watch(CONFIG_MAP, namespace, resource_version=future) as events:
            await anext(aiter(events))


async def test_a_watch_from_no_version_begins_with_all_there_is(cluster: Cluster, namespace: str) -> None:
    for name in ("a", "b"):
        await cluster.create(CONFIG_MAP, config_map(namespace, name, ours="yes"))
    await cluster.patch(CONFIG_MAP, namespace, "a", patch={"data": {"key": "x"}})
    await cluster.create(CONFIG_MAP, config_map(namespace, "end", ours="yes"))
    reported = await changes_after(cluster, CONFIG_MAP, namespace, "0", until="end", label_selector="ours=yes")
    assert reported == [("ADDED", "a"), ("ADDED", "b")]
