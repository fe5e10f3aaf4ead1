"""Garbage collection; further cases are in tests/conformance/cluster/test_deletion.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from serving.core.model.objects import Object
from serving.home.controllers.garbage import EventAges, collect_events, collect_garbage
from serving.home.store.journal import Journal
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, EVENT, NAMESPACE, POD, SERVING_SERVICE
from serving.net.cluster.port import EventType, WatchEvent


@asynccontextmanager
async def collected(journal: Journal | None = None) -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster(journal)
    collector = asyncio.create_task(collect_garbage(cluster))
    try:
        yield cluster
    finally:
        collector.cancel()
        with suppress(asyncio.CancelledError):
            await collector
        await cluster.close()


def owned(name: str, owner: Object, namespace: str = "default") -> Object:
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    return {"metadata": {"name": name, "namespace": namespace, "ownerReferences": [reference]}}


async def names(cluster: MemoryCluster) -> list[str]:
    await cluster.owners.suspects.settled()
    return [config_map["metadata"]["name"] for config_map in (await cluster.list(CONFIG_MAP)).items]


async def test_dependent_of_owner_in_another_namespace_is_deleted() -> None:
    async with collected() as cluster:
        await cluster.create(NAMESPACE, {"metadata": {"name": "other"}})
        owner = await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner", "namespace": "other"}})
        await cluster.create(CONFIG_MAP, owned("child", owner))
        assert await names(cluster) == ["owner"]


async def test_dependent_of_cluster_scoped_owner_is_retained() -> None:
    async with collected() as cluster:
        owner = await cluster.create(NAMESPACE, {"metadata": {"name": "owner"}})
        await cluster.create(CONFIG_MAP, owned("child", owner))
        assert await names(cluster) == ["child"]


async def test_recreated_owner_with_another_uid_is_not_the_owner() -> None:
    async with collected() as cluster:
        owner = await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner"}})
        await cluster.delete(CONFIG_MAP, "default", "owner")
        await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner"}})
        await cluster.create(CONFIG_MAP, owned("child", owner))
        assert await names(cluster) == ["owner"]


async def test_changed_owner_retains_its_dependents() -> None:
    async with collected() as cluster:
        owner = await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner"}})
        await cluster.create(CONFIG_MAP, owned("child", owner))
        await cluster.patch(CONFIG_MAP, "default", "owner", patch={"data": {"a": "b"}})
        assert await names(cluster) == ["child", "owner"]


async def test_dependent_without_owner_reference_is_retained() -> None:
    async with collected() as cluster:
        owner = await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner"}})
        await cluster.create(CONFIG_MAP, owned("child", owner))
        await cluster.patch(CONFIG_MAP, "default", "child", patch={"metadata": {"ownerReferences": None}})
        await cluster.delete(CONFIG_MAP, "default", "owner")
        assert await names(cluster) == ["child"]


async def test_pods_of_deleted_deployment_get_their_grace_period() -> None:
    async with collected() as cluster:
        owner = await cluster.create(DEPLOYMENT, {"metadata": {"name": "owner"}, "spec": {}})
        body = owned("pod", owner) | {"spec": {"nodeName": "here", "terminationGracePeriodSeconds": 7}}
        await cluster.create(POD, body)
        await cluster.delete(DEPLOYMENT, "default", "owner")
        await cluster.owners.suspects.settled()
        pod = await cluster.get(POD, "default", "pod")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 7


async def test_thousand_dependents_are_deleted_with_their_owner() -> None:
    async with collected() as cluster:
        owner = await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner"}})
        for number in range(1000):
            await cluster.create(CONFIG_MAP, owned(f"child-{number}", owner))
        await cluster.delete(CONFIG_MAP, "default", "owner")
        assert await names(cluster) == []


async def test_orphans_of_a_crash_are_deleted_at_the_next_start(tmp_path: Path) -> None:
    # Without a collector, as if the process died between the two deletions.
    first = MemoryCluster(Journal(tmp_path / "journal.db"))
    owner = await first.create(SERVING_SERVICE, {"metadata": {"name": "owner"}})
    await first.create(CONFIG_MAP, owned("child", owner))
    await first.create(CONFIG_MAP, owned("other", await first.create(CONFIG_MAP, {"metadata": {"name": "alive"}})))
    await first.delete(SERVING_SERVICE, "default", "owner")
    await first.close()
    async with collected(Journal(tmp_path / "journal.db")) as cluster:
        assert await names(cluster) == ["alive", "other"]


async def test_terminating_namespace_is_deleted_after_restart(tmp_path: Path) -> None:
    first = MemoryCluster(Journal(tmp_path / "journal.db"))
    await first.create(NAMESPACE, {"metadata": {"name": "one"}})
    await first.create(CONFIG_MAP, {"metadata": {"name": "map", "namespace": "one"}})
    await first.delete(NAMESPACE, "", "one")
    await first.close()
    async with collected(Journal(tmp_path / "journal.db")) as cluster:
        await cluster.owners.suspects.settled()
        results = [namespace["metadata"]["name"] for namespace in (await cluster.list(NAMESPACE)).items]
    assert results == ["default", "knative-serving", "kube-system"]


def seen(name: str, version: str, *, is_deleted: bool = False) -> WatchEvent:
    metadata = {"namespace": "default", "name": name, "resourceVersion": version}
    return WatchEvent(type=EventType.DELETED if is_deleted else EventType.MODIFIED, object={"metadata": metadata})


def test_event_expires_an_hour_after_its_last_write() -> None:
    ages = EventAges()
    ages.put(seen("once", "1"), now_s=0)
    ages.put(seen("again", "2"), now_s=0)
    ages.put(seen("deleted", "3"), now_s=0)
    ages.put(seen("again", "4"), now_s=1800)
    ages.put(seen("deleted", "5", is_deleted=True), now_s=1800)
    assert list(ages.pop_expired(now_s=3600)) == []
    assert list(ages.pop_expired(now_s=3601)) == [(("default", "once"), "1")]
    assert list(ages.pop_expired(now_s=5401)) == [(("default", "again"), "4")]


def test_oldest_events_above_the_limit_expire() -> None:
    ages = EventAges(count_max=2)
    for number in range(5):
        ages.put(seen(f"e-{number}", str(number)), now_s=0)
    assert [key[1] for key, _ in ages.pop_expired(now_s=0)] == ["e-0", "e-1", "e-2"]


async def test_expired_events_are_deleted() -> None:
    cluster, ages = MemoryCluster(), EventAges(count_max=1)
    for name in ("first", "second", "third"):
        await cluster.create(EVENT, {"metadata": {"name": name}})
    start = (await cluster.list(EVENT)).resource_version
    collector = asyncio.create_task(collect_events(cluster, ages, pause_s=0.001))
    async with asyncio.timeout(60), cluster.watch(EVENT, resource_version=start) as events:
        gone = [(await anext(events)).object["metadata"]["name"] for _ in range(2)]
    collector.cancel()
    with suppress(asyncio.CancelledError):
        await collector
    assert (gone, [event["metadata"]["name"] for event in (await cluster.list(EVENT)).items]) == (
        ["first", "second"],
        ["third"],
    )
