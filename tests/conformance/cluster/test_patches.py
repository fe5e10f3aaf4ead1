"""The three patch types, on objects and on their subresources."""

from typing import Any

import pytest

from serving.core.model.errors import Conflict, Invalid, NotFound, Unsupported
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, POD, REVISION
from serving.net.cluster.port import Cluster, PatchType
from tests.conformance.cluster.objects import config_map, deployment, pod, revision, version


async def test_merge_patch_sets_fields_and_removes_null_fields(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    patch = {"data": {"key": None, "other": "x"}, "metadata": {"labels": {"a": "b"}}}
    current_config_map = await cluster.patch(CONFIG_MAP, namespace, "one", patch=patch)
    assert (current_config_map["data"], current_config_map["metadata"]["labels"]) == ({"other": "x"}, {"a": "b"})


async def test_a_merge_patch_replaces_lists(cluster: Cluster, namespace: str) -> None:
    await cluster.create(REVISION, revision(namespace, "one"))
    for each in (["example.com/one"], ["example.com/two"]):
        current_revision = await cluster.patch(REVISION, namespace, "one", patch={"metadata": {"finalizers": each}})
        assert current_revision["metadata"]["finalizers"] == each
    await cluster.patch(REVISION, namespace, "one", patch={"metadata": {"finalizers": None}})


async def test_patch_without_a_change_retains_the_resource_version(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    again = await cluster.patch(CONFIG_MAP, namespace, "one", patch={"data": {"key": "value"}})
    assert version(again) == version(new_config_map)


async def test_status_patch_without_a_change_retains_the_resource_version(cluster: Cluster, namespace: str) -> None:
    await cluster.create(REVISION, revision(namespace, "one"))
    patch = {"status": {"actualReplicas": 3}}
    results = [await cluster.patch(REVISION, namespace, "one", patch=patch, subresource="status") for _ in range(2)]
    assert version(results[0]) == version(results[1])


async def test_merge_patch_with_a_stale_version_conflicts(cluster: Cluster, namespace: str) -> None:
    stale = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    await cluster.patch(CONFIG_MAP, namespace, "one", patch={"data": {"key": "newer"}})
    patch = {"metadata": {"resourceVersion": version(stale)}, "data": {"key": "older"}}
    with pytest.raises(Conflict):
        await cluster.patch(CONFIG_MAP, namespace, "one", patch=patch)


async def test_merge_patch_with_the_latest_version_is_accepted(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    patch = {"metadata": {"resourceVersion": version(new_config_map)}, "data": {"key": "newer"}}
    assert (await cluster.patch(CONFIG_MAP, namespace, "one", patch=patch))["data"] == {"key": "newer"}


async def test_patch_of_a_missing_object_is_not_found(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(NotFound):
        await cluster.patch(CONFIG_MAP, namespace, "nothing", patch={"data": {}})


async def test_patch_that_violates_the_schema_is_invalid(cluster: Cluster, namespace: str) -> None:
    await cluster.create(REVISION, revision(namespace, "one"))
    with pytest.raises(Invalid):
        await cluster.patch(REVISION, namespace, "one", patch={"spec": {"containerConcurrency": "many"}})


async def test_dry_run_patch_changes_nothing(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    would_be = await cluster.patch(CONFIG_MAP, namespace, "one", patch={"data": {"key": "x"}}, dry_run=True)
    assert would_be["data"] == {"key": "x"}
    assert await cluster.get(CONFIG_MAP, namespace, "one") == new_config_map


async def test_status_patch_changes_only_the_status(cluster: Cluster, namespace: str) -> None:
    await cluster.create(REVISION, revision(namespace, "one", servingState="Active"))
    patch = {"spec": {"servingState": "Reserve"}, "status": {"actualReplicas": 3}}
    current_revision = await cluster.patch(REVISION, namespace, "one", patch=patch, subresource="status")
    assert (current_revision["spec"]["servingState"], current_revision["status"]["actualReplicas"]) == ("Active", 3)
    assert current_revision["metadata"]["generation"] == 1


async def test_object_patch_does_not_change_the_status(cluster: Cluster, namespace: str) -> None:
    await cluster.create(REVISION, revision(namespace, "one"))
    await cluster.patch(REVISION, namespace, "one", patch={"status": {"actualReplicas": 3}}, subresource="status")
    current_revision = await cluster.patch(
        REVISION, namespace, "one", patch={"spec": {"servingState": "Reserve"}, "status": None}
    )
    assert (current_revision["spec"]["servingState"], current_revision["status"]["actualReplicas"]) == ("Reserve", 3)


async def test_a_scale_patch_sets_the_replicas(cluster: Cluster, namespace: str) -> None:
    await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    scale = await cluster.patch(DEPLOYMENT, namespace, "one", patch={"spec": {"replicas": 5}}, subresource="scale")
    assert (scale["kind"], scale["spec"]["replicas"]) == ("Scale", 5)
    assert (await cluster.get(DEPLOYMENT, namespace, "one"))["spec"]["replicas"] == 5


async def test_negative_scale_patch_is_invalid(cluster: Cluster, namespace: str) -> None:
    await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    with pytest.raises(Invalid):
        await cluster.patch(DEPLOYMENT, namespace, "one", patch={"spec": {"replicas": -1}}, subresource="scale")


async def test_scale_patch_with_a_stale_version_conflicts(cluster: Cluster, namespace: str) -> None:
    stale = await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    await cluster.patch(DEPLOYMENT, namespace, "one", patch={"metadata": {"labels": {"a": "b"}}})
    patch = {"metadata": {"resourceVersion": version(stale)}, "spec": {"replicas": 5}}
    with pytest.raises(Conflict):
        await cluster.patch(DEPLOYMENT, namespace, "one", patch=patch, subresource="scale")


async def test_second_patch_from_the_same_version_conflicts(cluster: Cluster, namespace: str) -> None:
    new_revision = await cluster.create(REVISION, revision(namespace, "one", servingState="Reserve"))
    patch: dict[str, Any] = {"metadata": {"resourceVersion": version(new_revision)}, "spec": {"servingState": "Active"}}
    await cluster.patch(REVISION, namespace, "one", patch=patch)
    patch["spec"]["servingState"] = "Retired"
    with pytest.raises(Conflict):
        await cluster.patch(REVISION, namespace, "one", patch=patch)


async def patched_by_operations(cluster: Cluster, namespace: str, *operations: dict[str, Any]) -> dict[str, Any]:
    await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    current_config_map = await cluster.patch(CONFIG_MAP, namespace, "one", patch=operations, patch_type=PatchType.JSON)
    data: dict[str, Any] = current_config_map["data"]
    return data


async def test_json_patch_applies_its_operations_in_order(cluster: Cluster, namespace: str) -> None:
    operations = (
        {"op": "test", "path": "/data/key", "value": "value"},
        {"op": "add", "path": "/data/a~1b", "value": "x"},
        {"op": "move", "from": "/data/key", "path": "/data/moved"},
        {"op": "copy", "from": "/data/moved", "path": "/data/copied"},
        {"op": "replace", "path": "/data/moved", "value": "y"},
        {"op": "remove", "path": "/data/a~1b"},
    )
    assert await patched_by_operations(cluster, namespace, *operations) == {"moved": "y", "copied": "value"}


async def test_json_patch_with_a_failed_test_changes_nothing(cluster: Cluster, namespace: str) -> None:
    add = {"op": "add", "path": "/data/other", "value": "x"}
    with pytest.raises(Invalid):
        await patched_by_operations(cluster, namespace, add, {"op": "test", "path": "/data/key", "value": "no"})
    assert (await cluster.get(CONFIG_MAP, namespace, "one"))["data"] == {"key": "value"}


async def test_json_patch_remove_of_a_missing_path_is_invalid(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid):
        await patched_by_operations(cluster, namespace, {"op": "remove", "path": "/data/nothing"})


async def test_a_strategic_patch_merges_containers_by_name(cluster: Cluster, namespace: str) -> None:
    await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    containers = [{"name": "two", "image": "dev.local/two"}, {"name": "one", "image": "dev.local/newer"}]
    patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    current_deployment = await cluster.patch(DEPLOYMENT, namespace, "one", patch=patch, patch_type=PatchType.STRATEGIC)
    images = {each["name"]: each["image"] for each in current_deployment["spec"]["template"]["spec"]["containers"]}
    assert images == {"one": "dev.local/newer", "two": "dev.local/two"}


async def test_a_strategic_patch_merges_conditions_by_type(cluster: Cluster, namespace: str) -> None:
    await cluster.create(POD, pod(namespace, "one"))
    for kind, status in (("Ready", "False"), ("Initialized", "True"), ("Ready", "True")):
        patch = {"status": {"conditions": [{"type": kind, "status": status}]}}
        await cluster.patch(POD, namespace, "one", patch=patch, patch_type=PatchType.STRATEGIC, subresource="status")
    current_pod = await cluster.get(POD, namespace, "one")
    result = {each["type"]: each["status"] for each in current_pod["status"]["conditions"]}
    assert result == {"Ready": "True", "Initialized": "True"}


async def test_strategic_patch_deletes_and_reorders_containers(cluster: Cluster, namespace: str) -> None:
    await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    add = [{"name": name, "image": f"dev.local/{name}"} for name in ("two", "three")]
    await cluster.patch(DEPLOYMENT, namespace, "one", patch=_of_containers(add), patch_type=PatchType.STRATEGIC)
    patch = _of_containers([{"name": "one", "$patch": "delete"}])
    patch["spec"]["template"]["spec"]["$setElementOrder/containers"] = [{"name": "three"}, {"name": "two"}]
    current_deployment = await cluster.patch(DEPLOYMENT, namespace, "one", patch=patch, patch_type=PatchType.STRATEGIC)
    assert [each["name"] for each in current_deployment["spec"]["template"]["spec"]["containers"]] == ["three", "two"]


async def test_strategic_patch_deletes_from_a_primitive_list(cluster: Cluster, namespace: str) -> None:
    body = config_map(namespace, "one")
    body["metadata"]["finalizers"] = ["example.com/one", "example.com/two"]
    await cluster.create(CONFIG_MAP, body)
    patch: dict[str, Any] = {
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["example.com/one"],
            "finalizers": ["example.com/three"],
        }
    }
    current_config_map = await cluster.patch(CONFIG_MAP, namespace, "one", patch=patch, patch_type=PatchType.STRATEGIC)
    await cluster.patch(CONFIG_MAP, namespace, "one", patch={"metadata": {"finalizers": None}})
    assert current_config_map["metadata"]["finalizers"] == ["example.com/three", "example.com/two"]


async def test_strategic_patch_moves_named_containers_first(cluster: Cluster, namespace: str) -> None:
    await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    add = [{"name": name, "image": f"dev.local/{name}"} for name in ("two", "three")]
    await cluster.patch(DEPLOYMENT, namespace, "one", patch=_of_containers(add), patch_type=PatchType.STRATEGIC)
    patch = _of_containers([{"name": "four", "image": "dev.local/four"}, {"name": "two", "image": "dev.local/two"}])
    current_deployment = await cluster.patch(DEPLOYMENT, namespace, "one", patch=patch, patch_type=PatchType.STRATEGIC)
    names = [each["name"] for each in current_deployment["spec"]["template"]["spec"]["containers"]]
    assert names == ["four", "two", "three", "one"]


async def test_strategic_patch_retains_only_named_keys(cluster: Cluster, namespace: str) -> None:
    await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    await cluster.patch(DEPLOYMENT, namespace, "one", patch={"spec": {"strategy": {"rollingUpdate": {"maxSurge": 1}}}})
    current_deployment = await cluster.patch(DEPLOYMENT, namespace, "one", patch=patch, patch_type=PatchType.STRATEGIC)
    assert current_deployment["spec"]["strategy"] == {"type": "Recreate"}


async def test_strategic_patch_of_a_custom_resource_is_unsupported(cluster: Cluster, namespace: str) -> None:
    await cluster.create(REVISION, revision(namespace, "one"))
    with pytest.raises(Unsupported):
        await cluster.patch(REVISION, namespace, "one", patch={"metadata": {}}, patch_type=PatchType.STRATEGIC)


def _of_containers(containers: list[dict[str, Any]]) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": containers}}}}
