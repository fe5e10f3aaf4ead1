"""Create, get and replace: fields that a server adds, retains and rejects."""

import re

import msgspec
import pytest

from serving.core.model.errors import AlreadyExists, Conflict, Invalid, NotFound
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, NAMESPACE, POD, REVISION
from serving.net.cluster.port import Cluster, Create, Patch, Write
from tests.conformance.cluster.objects import config_map, deployment, eventually, is_gone, pod, revision, version


async def test_a_new_object_gets_uid_version_and_time(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    metadata = new_config_map["metadata"]
    assert metadata["uid"]
    assert metadata["resourceVersion"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])


async def test_new_object_has_api_version_and_kind(cluster: Cluster, namespace: str) -> None:
    new_deployment = await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    assert (new_deployment["apiVersion"], new_deployment["kind"]) == ("apps/v1", "Deployment")


async def test_a_new_object_has_generation_1(cluster: Cluster, namespace: str) -> None:
    new_revision = await cluster.create(REVISION, revision(namespace, "one"))
    assert new_revision["metadata"]["generation"] == 1


async def test_created_object_is_readable(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    assert await cluster.get(CONFIG_MAP, namespace, "one") == new_config_map


async def test_second_object_of_the_same_name_already_exists(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    with pytest.raises(AlreadyExists):
        await cluster.create(CONFIG_MAP, config_map(namespace, "one"))


async def test_kinds_and_namespaces_may_share_a_name(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    await cluster.create(NAMESPACE, {"metadata": {"name": f"{namespace}-b"}})
    new_config_map = await cluster.create(CONFIG_MAP, config_map(f"{namespace}-b", "one"))
    await cluster.delete(NAMESPACE, "", f"{namespace}-b")
    assert new_config_map["metadata"]["namespace"] == f"{namespace}-b"


async def test_missing_object_is_not_found(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(NotFound):
        await cluster.get(CONFIG_MAP, namespace, "nothing")


async def test_create_in_a_missing_namespace_is_not_found(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(NotFound):
        await cluster.create(CONFIG_MAP, config_map(f"{namespace}-nowhere", "one"))


@pytest.mark.parametrize("name", ["default", "kube-system"])
async def test_system_namespace_exists(cluster: Cluster, name: str) -> None:
    assert (await cluster.get(NAMESPACE, "", name))["metadata"]["name"] == name


async def test_generated_name_has_its_prefix_and_is_unique(cluster: Cluster, namespace: str) -> None:
    body = {"metadata": {"namespace": namespace, "generateName": "one-"}}
    names = [(await cluster.create(CONFIG_MAP, body))["metadata"]["name"] for _ in range(2)]
    assert names[0] != names[1]
    assert all(re.fullmatch(r"one-[a-z0-9]{5}", name) for name in names)


@pytest.mark.parametrize("name", ["", "UPPER", "under_score", "-dash", "a" * 254])
async def test_invalid_name_is_rejected(cluster: Cluster, namespace: str, name: str) -> None:
    with pytest.raises(Invalid):
        await cluster.create(CONFIG_MAP, config_map(namespace, name))


async def test_invalid_label_is_rejected(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid):
        await cluster.create(CONFIG_MAP, config_map(namespace, "one", label="not a value!"))


async def test_object_that_violates_the_schema_is_rejected(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid):
        await cluster.create(REVISION, revision(namespace, "one", containerConcurrency="many"))


async def test_created_object_is_copied_from_its_argument(cluster: Cluster, namespace: str) -> None:
    body = config_map(namespace, "one")
    await cluster.create(CONFIG_MAP, body)
    body["data"]["key"] = "changed"
    assert (await cluster.get(CONFIG_MAP, namespace, "one"))["data"] == {"key": "value"}


async def test_returned_object_is_a_copy(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    (await cluster.get(CONFIG_MAP, namespace, "one"))["data"]["key"] = "changed"
    (await cluster.list(CONFIG_MAP, namespace)).items[0]["data"]["key"] = "changed"
    assert (await cluster.get(CONFIG_MAP, namespace, "one"))["data"] == {"key": "value"}


async def test_a_creation_ignores_the_status(cluster: Cluster, namespace: str) -> None:
    body = {**deployment(namespace, "one"), "status": {"replicas": 7}}
    new_deployment = await cluster.create(DEPLOYMENT, body)
    assert new_deployment.get("status", {}).get("replicas", 0) == 0


async def test_new_pod_is_pending(cluster: Cluster, namespace: str) -> None:
    assert (await cluster.create(POD, pod(namespace, "one")))["status"]["phase"] == "Pending"


async def test_dry_run_create_stores_nothing(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "one"), dry_run=True)
    assert new_config_map["data"] == {"key": "value"}
    assert await is_gone(cluster, CONFIG_MAP, namespace, "one")


async def test_replace_removes_fields_not_specified(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "one", a="b"))
    await cluster.replace(CONFIG_MAP, {"metadata": {"namespace": namespace, "name": "one"}, "data": {"other": "x"}})
    current_config_map = await cluster.get(CONFIG_MAP, namespace, "one")
    assert current_config_map["data"] == {"other": "x"}
    assert not current_config_map["metadata"].get("labels")


async def test_replace_retains_uid_and_creation_time(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    again = await cluster.replace(CONFIG_MAP, config_map(namespace, "one", a="b"))
    assert again["metadata"]["uid"] == new_config_map["metadata"]["uid"]
    assert again["metadata"]["creationTimestamp"] == new_config_map["metadata"]["creationTimestamp"]


async def test_replace_with_a_stale_version_conflicts(cluster: Cluster, namespace: str) -> None:
    stale = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    await cluster.patch(CONFIG_MAP, namespace, "one", patch={"data": {"key": "newer"}})
    with pytest.raises(Conflict):
        await cluster.replace(CONFIG_MAP, {**stale, "data": {"key": "older"}})
    assert (await cluster.get(CONFIG_MAP, namespace, "one"))["data"] == {"key": "newer"}


async def test_replace_with_another_uid_conflicts(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    body = config_map(namespace, "one")
    body["metadata"]["uid"] = "11111111-2222-4333-8444-555555555555"
    with pytest.raises(Conflict):
        await cluster.replace(CONFIG_MAP, body)


async def test_replace_of_a_missing_object_is_not_found(cluster: Cluster, namespace: str) -> None:
    # Without a resourceVersion: with one, a real server returns Conflict.
    with pytest.raises(NotFound):
        await cluster.replace(DEPLOYMENT, deployment(namespace, "nothing"))


async def test_dry_run_replace_changes_nothing(cluster: Cluster, namespace: str) -> None:
    new_config_map = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    would_be = await cluster.replace(CONFIG_MAP, config_map(namespace, "one", a="b"), dry_run=True)
    assert would_be["metadata"]["labels"] == {"a": "b"}
    assert await cluster.get(CONFIG_MAP, namespace, "one") == new_config_map


async def test_generation_increases_with_the_spec(cluster: Cluster, namespace: str) -> None:
    new_deployment = await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    again = await cluster.replace(DEPLOYMENT, deployment(namespace, "one", replicas=2))
    assert (new_deployment["metadata"]["generation"], again["metadata"]["generation"]) == (1, 2)


async def test_generation_does_not_increase_with_labels(cluster: Cluster, namespace: str) -> None:
    new_revision = await cluster.create(REVISION, revision(namespace, "one"))
    again = await cluster.patch(REVISION, namespace, "one", patch={"metadata": {"labels": {"a": "b"}}})
    assert again["metadata"]["generation"] == new_revision["metadata"]["generation"]
    assert version(again) != version(new_revision)


async def test_object_replace_does_not_change_the_status(cluster: Cluster, namespace: str) -> None:
    new_revision = await cluster.create(REVISION, revision(namespace, "one"))
    await cluster.replace(REVISION, {**new_revision, "status": {"actualReplicas": 7}})
    assert (await cluster.get(REVISION, namespace, "one")).get("status", {}).get("actualReplicas", 0) == 0


async def test_status_replace_changes_only_the_status(cluster: Cluster, namespace: str) -> None:
    new_revision = await cluster.create(REVISION, revision(namespace, "one", servingState="Active"))
    body = {
        **new_revision,
        "spec": {**new_revision["spec"], "servingState": "Reserve"},
        "status": {"actualReplicas": 3},
    }
    again = await cluster.replace(REVISION, body, subresource="status")
    assert (again["spec"]["servingState"], again["status"]["actualReplicas"]) == ("Active", 3)
    assert again["metadata"]["generation"] == new_revision["metadata"]["generation"]


async def test_status_replace_with_a_stale_version_conflicts(cluster: Cluster, namespace: str) -> None:
    stale = await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    await cluster.patch(DEPLOYMENT, namespace, "one", patch={"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict):
        await cluster.replace(DEPLOYMENT, {**stale, "status": {"replicas": 3}}, subresource="status")


async def test_scale_subresource_is_an_autoscaling_v1_scale(cluster: Cluster, namespace: str) -> None:
    await cluster.create(DEPLOYMENT, deployment(namespace, "one", replicas=3))
    scale = await cluster.get(DEPLOYMENT, namespace, "one", subresource="scale")
    assert (scale["apiVersion"], scale["kind"], scale["spec"]) == ("autoscaling/v1", "Scale", {"replicas": 3})
    assert scale["status"].get("selector") == "app=one"


async def test_scale_replace_sets_the_replicas(cluster: Cluster, namespace: str) -> None:
    await cluster.create(DEPLOYMENT, deployment(namespace, "one"))

    async def is_replaced() -> bool:
        scale = await cluster.get(DEPLOYMENT, namespace, "one", subresource="scale")
        try:
            again = await cluster.replace(DEPLOYMENT, {**scale, "spec": {"replicas": 4}}, subresource="scale")
        except Conflict:
            # The controller has written in between.
            return False
        return bool(again["spec"]["replicas"] == 4)

    await eventually(is_replaced)
    current_deployment = await cluster.get(DEPLOYMENT, namespace, "one")
    assert (current_deployment["spec"]["replicas"], current_deployment["metadata"]["generation"]) == (4, 2)


async def test_scale_replace_with_a_stale_version_conflicts(cluster: Cluster, namespace: str) -> None:
    await cluster.create(DEPLOYMENT, deployment(namespace, "one"))
    stale = await cluster.get(DEPLOYMENT, namespace, "one", subresource="scale")
    await cluster.patch(DEPLOYMENT, namespace, "one", patch={"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict):
        await cluster.replace(DEPLOYMENT, {**stale, "spec": {"replicas": 4}}, subresource="scale")


async def test_kind_without_a_scale_subresource_is_not_found(cluster: Cluster, namespace: str) -> None:
    await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    with pytest.raises(NotFound):
        await cluster.get(CONFIG_MAP, namespace, "one", subresource="scale")


async def test_write_together_stops_at_the_first_failure(cluster: Cluster, namespace: str) -> None:
    first = await cluster.create(CONFIG_MAP, config_map(namespace, "one"))
    changed = Patch(kind=CONFIG_MAP, namespace=namespace, name="one", patch={"data": {"key": "new"}})
    missing = msgspec.structs.replace(changed, name="no")
    writes: list[Write] = [changed, Create(kind=CONFIG_MAP, body=config_map(namespace, "two")), missing, changed]
    results = await cluster.write_together(writes)
    if results is None:
        # Kubernetes has no such request.
        assert (await cluster.get(CONFIG_MAP, namespace, "one"))["data"] == first["data"]
        return
    assert [(result["metadata"]["name"], result["data"]["key"]) for result in results] == [
        ("one", "new"),
        ("two", "value"),
    ]
    assert results[0] == await cluster.get(CONFIG_MAP, namespace, "one")
    stale = {"metadata": {"resourceVersion": version(first)}, "data": {"key": "old"}}
    with pytest.raises(Conflict):
        await cluster.write_together([msgspec.structs.replace(changed, patch=stale), changed])
    assert (await cluster.get(CONFIG_MAP, namespace, "one")) == results[0]
