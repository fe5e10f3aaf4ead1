"""Deletion: preconditions, finalizers, the grace period of pods, and dependents."""

import functools

import pytest

from serving.core.model.errors import Conflict, Forbidden, Invalid, NotFound
from serving.core.model.objects import Object
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, NAMESPACE, POD, Kind
from serving.net.cluster.port import Cluster
from tests.conformance.cluster.objects import config_map, deployment, eventually, is_gone, pod, version


async def test_deleted_object_is_not_found(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    await cluster.delete(CONFIG_MAP, namespace, "one")
    assert await is_gone(cluster, CONFIG_MAP, namespace, "one")


async def test_delete_of_a_missing_object_is_not_found(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(NotFound):
        await cluster.delete(CONFIG_MAP, namespace, "nothing")


async def test_recreated_object_has_a_new_uid(cluster: Cluster, namespace: str) -> None:
    first = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    await cluster.delete(CONFIG_MAP, namespace, "one")
    second = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


async def test_delete_with_a_wrong_uid_conflicts(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    with pytest.raises(Conflict):
        await cluster.delete(CONFIG_MAP, namespace, "one", uid="11111111-2222-4333-8444-555555555555")
    assert not await is_gone(cluster, CONFIG_MAP, namespace, "one")


async def test_delete_with_a_stale_version_conflicts(cluster: Cluster, namespace: str) -> None:
    stale = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    await cluster.patch(CONFIG_MAP, namespace, "one", patch={"data": {"key": "newer"}})
    with pytest.raises(Conflict):
        await cluster.delete(CONFIG_MAP, namespace, "one", resource_version=version(stale))


async def test_delete_with_matching_preconditions_succeeds(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    await cluster.delete(
        CONFIG_MAP, namespace, "one", uid=new_config_map["metadata"]["uid"], resource_version=version(new_config_map)
    )
    assert await is_gone(cluster, CONFIG_MAP, namespace, "one")


async def create_finalizing(cluster: Cluster, namespace: str) -> None:
    body = config_map(namespace, "held")
    body["metadata"]["finalizers"] = ["example.com/one"]
    await cluster.create(CONFIG_MAP, body)
    await cluster.delete(CONFIG_MAP, namespace, "held")


async def remove_finalizers(cluster: Cluster, namespace: str) -> Object:
    return await cluster.patch(CONFIG_MAP, namespace, "held", patch={"metadata": {"finalizers": None}})


async def test_deleted_object_with_a_finalizer_has_a_deletion_timestamp(cluster: Cluster, namespace: str) -> None:
    await create_finalizing(cluster, namespace)
    current_config_map = await cluster.get(CONFIG_MAP, namespace, "held")
    await remove_finalizers(cluster, namespace)
    assert current_config_map["metadata"]["deletionTimestamp"]


async def test_object_is_removed_with_its_last_finalizer(cluster: Cluster, namespace: str) -> None:
    await create_finalizing(cluster, namespace)
    await remove_finalizers(cluster, namespace)
    assert await is_gone(cluster, CONFIG_MAP, namespace, "held")


async def test_second_delete_of_a_finalizing_object_changes_nothing(cluster: Cluster, namespace: str) -> None:
    await create_finalizing(cluster, namespace)
    before = await cluster.get(CONFIG_MAP, namespace, "held")
    await cluster.delete(CONFIG_MAP, namespace, "held")
    after = await cluster.get(CONFIG_MAP, namespace, "held")
    await remove_finalizers(cluster, namespace)
    assert after == before


async def test_deleting_object_rejects_a_new_finalizer(cluster: Cluster, namespace: str) -> None:
    await create_finalizing(cluster, namespace)
    patch = {"metadata": {"finalizers": ["example.com/one", "example.com/two"]}}
    with pytest.raises(Invalid):
        await cluster.patch(CONFIG_MAP, namespace, "held", patch=patch)
    await remove_finalizers(cluster, namespace)


async def test_deletion_timestamp_cannot_be_removed(cluster: Cluster, namespace: str) -> None:
    await create_finalizing(cluster, namespace)
    await cluster.patch(
        CONFIG_MAP, namespace, "held", patch={"metadata": {"deletionTimestamp": None, "labels": {"a": "b"}}}
    )
    current_config_map = await cluster.get(CONFIG_MAP, namespace, "held")
    await remove_finalizers(cluster, namespace)
    assert current_config_map["metadata"]["deletionTimestamp"]


async def running_pod(cluster: Cluster, namespace: str, *, grace_s: int = 30) -> None:
    body = pod(namespace, "one")
    body["spec"] |= {"nodeName": "nowhere", "terminationGracePeriodSeconds": grace_s}
    await cluster.create(POD, body)
    await cluster.patch(POD, namespace, "one", patch={"status": {"phase": "Running"}}, subresource="status")


async def test_deleted_running_pod_remains_for_its_grace_period(cluster: Cluster, namespace: str) -> None:
    await running_pod(cluster, namespace, grace_s=45)
    await cluster.delete(POD, namespace, "one")
    metadata = (await cluster.get(POD, namespace, "one"))["metadata"]
    await cluster.delete(POD, namespace, "one", grace_s=0)
    assert (bool(metadata["deletionTimestamp"]), metadata["deletionGracePeriodSeconds"]) == (True, 45)


async def test_delete_with_grace_0_removes_a_pod(cluster: Cluster, namespace: str) -> None:
    await running_pod(cluster, namespace)
    await cluster.delete(POD, namespace, "one")
    await cluster.delete(POD, namespace, "one", grace_s=0)
    assert await is_gone(cluster, POD, namespace, "one")


async def test_later_delete_can_only_shorten_the_grace_period(cluster: Cluster, namespace: str) -> None:
    await running_pod(cluster, namespace)
    for grace_s in (20, 5, 60):
        await cluster.delete(POD, namespace, "one", grace_s=grace_s)
    current_pod = await cluster.get(POD, namespace, "one")
    await cluster.delete(POD, namespace, "one", grace_s=0)
    assert current_pod["metadata"]["deletionGracePeriodSeconds"] == 5


async def test_unscheduled_pod_is_removed_immediately(cluster: Cluster, namespace: str) -> None:
    await cluster.create(POD, pod(namespace, "one"))
    await cluster.delete(POD, namespace, "one")
    assert await is_gone(cluster, POD, namespace, "one")


def owned_by(child: Object, *owners: Object) -> Object:
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
        for owner in owners
    ]
    return {**child, "metadata": {**child["metadata"], "ownerReferences": references}}


async def gone(cluster: Cluster, kind: Kind, namespace: str, name: str) -> None:
    await eventually(functools.partial(is_gone, cluster, kind, namespace, name))


async def test_dependents_are_deleted_with_their_owner(cluster: Cluster, namespace: str) -> None:
    owner = await cluster.create(DEPLOYMENT, deployment(namespace, "owner", replicas=0))
    child = await cluster.create(CONFIG_MAP, owned_by(config_map(namespace, "child"), owner))
    await cluster.create(CONFIG_MAP, owned_by(config_map(namespace, "grandchild"), child))
    await cluster.delete(DEPLOYMENT, namespace, "owner")
    await gone(cluster, CONFIG_MAP, namespace, "grandchild")


async def test_dependent_is_retained_until_its_last_owner_is_deleted(cluster: Cluster, namespace: str) -> None:
    owners = [await cluster.create(CONFIG_MAP, config_map(namespace, name)) for name in ("a", "b")]
    await cluster.create(CONFIG_MAP, owned_by(config_map(namespace, "child"), *owners))
    await cluster.create(CONFIG_MAP, owned_by(config_map(namespace, "witness"), owners[0]))
    await cluster.delete(CONFIG_MAP, namespace, "a")
    await gone(cluster, CONFIG_MAP, namespace, "witness")
    assert not await is_gone(cluster, CONFIG_MAP, namespace, "child")
    await cluster.delete(CONFIG_MAP, namespace, "b")
    await gone(cluster, CONFIG_MAP, namespace, "child")


async def test_dependent_of_a_deleted_owner_is_collected(cluster: Cluster, namespace: str) -> None:
    owner = await cluster.create(CONFIG_MAP, config_map(namespace, "owner"))
    await cluster.delete(CONFIG_MAP, namespace, "owner")
    await cluster.create(CONFIG_MAP, owned_by(config_map(namespace, "late"), owner))
    await gone(cluster, CONFIG_MAP, namespace, "late")


async def test_orphaned_dependent_remains_without_owner_reference(cluster: Cluster, namespace: str) -> None:
    owner = await cluster.create(CONFIG_MAP, config_map(namespace, "owner"))
    await cluster.create(CONFIG_MAP, owned_by(config_map(namespace, "child"), owner))
    await cluster.delete(CONFIG_MAP, namespace, "owner", propagation="Orphan")
    await gone(cluster, CONFIG_MAP, namespace, "owner")
    child = await cluster.get(CONFIG_MAP, namespace, "child")
    assert not child["metadata"].get("ownerReferences")


async def test_foreground_deleted_owner_outlives_its_dependents(cluster: Cluster, namespace: str) -> None:
    owner = await cluster.create(CONFIG_MAP, config_map(namespace, "owner"))
    child = owned_by(config_map(namespace, "child"), owner)
    child["metadata"]["finalizers"] = ["example.com/one"]
    await cluster.create(CONFIG_MAP, child)
    await cluster.delete(CONFIG_MAP, namespace, "owner", propagation="Foreground")

    async def child_is_deleted() -> bool:
        return "deletionTimestamp" in (await cluster.get(CONFIG_MAP, namespace, "child"))["metadata"]

    await eventually(child_is_deleted)
    assert not await is_gone(cluster, CONFIG_MAP, namespace, "owner")
    await cluster.patch(CONFIG_MAP, namespace, "child", patch={"metadata": {"finalizers": None}})
    await gone(cluster, CONFIG_MAP, namespace, "owner")


async def test_deleted_namespace_deletes_its_objects(cluster: Cluster, namespace: str) -> None:
    name = f"{namespace}-full"
    await cluster.create(NAMESPACE, {"metadata": {"name": name}})
    await cluster.create(CONFIG_MAP, config_map(name, "one"))
    await cluster.delete(NAMESPACE, "", name)
    await gone(cluster, NAMESPACE, "", name)
    assert await is_gone(cluster, CONFIG_MAP, name, "one")


async def test_terminating_namespace_rejects_new_objects(cluster: Cluster, namespace: str) -> None:
    name = f"{namespace}-full"
    await cluster.create(NAMESPACE, {"metadata": {"name": name}})
    body = config_map(name, "held")
    body["metadata"]["finalizers"] = ["example.com/one"]
    await cluster.create(CONFIG_MAP, body)
    await cluster.delete(NAMESPACE, "", name)
    with pytest.raises(Forbidden):
        await cluster.create(CONFIG_MAP, config_map(name, "late"))
    await cluster.patch(CONFIG_MAP, name, "held", patch={"metadata": {"finalizers": None}})
    await gone(cluster, NAMESPACE, "", name)


@pytest.mark.parametrize("name", ["default", "kube-system"])
async def test_system_namespace_cannot_be_deleted(cluster: Cluster, name: str) -> None:
    with pytest.raises(Forbidden):
        await cluster.delete(NAMESPACE, "", name)
