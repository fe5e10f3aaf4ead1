"""Collecting garbage, beyond what tests/conformance/cluster/test_deletion.py shows of every server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from serving.cluster.garbage import collect_garbage
from serving.cluster.journal import Journal
from serving.cluster.kinds import CONFIG_MAP, DEPLOYMENT, NAMESPACE, POD, SERVING_SERVICE
from serving.cluster.memory import MemoryCluster
from serving.cluster.port import Object


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
    return [one["metadata"]["name"] for one in (await cluster.list(CONFIG_MAP)).items]


async def test_an_owner_in_another_namespace_is_none() -> None:
    async with collected() as cluster:
        await cluster.create(NAMESPACE, {"metadata": {"name": "other"}})
        owner = await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner", "namespace": "other"}})
        await cluster.create(CONFIG_MAP, owned("child", owner))
        assert await names(cluster) == ["owner"]


async def test_an_owner_outside_of_namespaces_counts_everywhere() -> None:
    async with collected() as cluster:
        owner = await cluster.create(NAMESPACE, {"metadata": {"name": "owner"}})
        await cluster.create(CONFIG_MAP, owned("child", owner))
        assert await names(cluster) == ["child"]


async def test_another_object_of_an_owners_name_is_not_the_owner() -> None:
    async with collected() as cluster:
        owner = await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner"}})
        await cluster.delete(CONFIG_MAP, "default", "owner")
        await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner"}})
        await cluster.create(CONFIG_MAP, owned("child", owner))
        assert await names(cluster) == ["owner"]


async def test_an_owner_that_is_changed_lets_its_dependents_be() -> None:
    async with collected() as cluster:
        owner = await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner"}})
        await cluster.create(CONFIG_MAP, owned("child", owner))
        await cluster.patch(CONFIG_MAP, "default", "owner", patch={"data": {"a": "b"}})
        assert await names(cluster) == ["child", "owner"]


async def test_who_disowns_itself_stays() -> None:
    async with collected() as cluster:
        owner = await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner"}})
        await cluster.create(CONFIG_MAP, owned("child", owner))
        await cluster.patch(CONFIG_MAP, "default", "child", patch={"metadata": {"ownerReferences": None}})
        await cluster.delete(CONFIG_MAP, "default", "owner")
        assert await names(cluster) == ["child"]


async def test_pods_of_a_deleted_deployment_get_their_grace() -> None:
    async with collected() as cluster:
        owner = await cluster.create(DEPLOYMENT, {"metadata": {"name": "owner"}, "spec": {}})
        body = owned("pod", owner) | {"spec": {"nodeName": "here", "terminationGracePeriodSeconds": 7}}
        await cluster.create(POD, body)
        await cluster.delete(DEPLOYMENT, "default", "owner")
        await cluster.owners.suspects.settled()
        found = await cluster.get(POD, "default", "pod")
    assert found["metadata"]["deletionGracePeriodSeconds"] == 7


async def test_a_thousand_dependents_go_with_their_owner() -> None:
    async with collected() as cluster:
        owner = await cluster.create(CONFIG_MAP, {"metadata": {"name": "owner"}})
        for number in range(1000):
            await cluster.create(CONFIG_MAP, owned(f"child-{number}", owner))
        await cluster.delete(CONFIG_MAP, "default", "owner")
        assert await names(cluster) == []
        assert repr(cluster.owners) == "Owners(3 objects, 0 owners, 0 suspects)"


async def test_what_lost_its_owner_in_a_crash_is_collected_at_the_next_start(tmp_path: Path) -> None:
    # Without a collector: the process died between the two deletions.
    first = MemoryCluster(Journal(tmp_path / "journal.db"))
    owner = await first.create(SERVING_SERVICE, {"metadata": {"name": "owner"}})
    await first.create(CONFIG_MAP, owned("child", owner))
    await first.create(CONFIG_MAP, owned("other", await first.create(CONFIG_MAP, {"metadata": {"name": "alive"}})))
    await first.delete(SERVING_SERVICE, "default", "owner")
    await first.close()
    async with collected(Journal(tmp_path / "journal.db")) as cluster:
        assert await names(cluster) == ["alive", "other"]


async def test_a_namespace_that_was_going_goes_on_after_a_restart(tmp_path: Path) -> None:
    first = MemoryCluster(Journal(tmp_path / "journal.db"))
    await first.create(NAMESPACE, {"metadata": {"name": "one"}})
    await first.create(CONFIG_MAP, {"metadata": {"name": "map", "namespace": "one"}})
    await first.delete(NAMESPACE, "", "one")
    await first.close()
    async with collected(Journal(tmp_path / "journal.db")) as cluster:
        await cluster.owners.suspects.settled()
        found = [one["metadata"]["name"] for one in (await cluster.list(NAMESPACE)).items]
    assert found == ["default", "knative-serving", "kube-system"]
