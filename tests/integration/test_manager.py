"""The controller-manager on a memory store: its writes, and that it makes no unnecessary ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from serving.controller.io.plan_writer import UnreadWrites
from serving.core.model.errors import Forbidden
from serving.core.model.knative import REVISION_LABEL
from serving.core.model.objects import Object, condition_of, is_true, nested
from serving.home.controllers.manager import Manager
from serving.home.controllers.namespaceobjects import NamespaceObjects
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import (
    DEPLOYMENT,
    ENDPOINT_SLICE,
    EVENT,
    NAMESPACE,
    POD,
    RESOURCE_QUOTA,
    SERVICE,
    SERVICE_ACCOUNT,
)
from serving.net.cluster.port import Create, EventType, Patch, Write

LABELS = {"app": "web"}
_TURNS = 500
READY = {"podIP": "127.64.0.1", "conditions": [{"type": "Ready", "status": "True"}]}


class CountingCluster(MemoryCluster):
    """A store that records all patches, even those without a change, and can reject new pods."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.refusal = ""
        self.statuses = UnreadWrites()
        self.manager = Manager(self, statuses=self.statuses)

    async def write(self, write: Write) -> Object:
        if isinstance(write, Create) and write.kind == POD and self.refusal:
            raise Forbidden(self.refusal)
        if isinstance(write, Patch):
            self.writes.append(write.kind.resource)
        return await super().write(write)


@pytest.fixture(autouse=True)
def _no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable delayed writes, so that delayed changes are written only with the next change."""
    for lag in ("_UNREADY_LAG_S", "_STATUS_LAG_S"):
        monkeypatch.setattr(f"serving.home.controllers.manager.{lag}", 3600.0)


@asynccontextmanager
async def managed(**metadata: object) -> AsyncIterator[CountingCluster]:
    cluster = CountingCluster()
    running = asyncio.create_task(cluster.manager.run())
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "app"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template}
    await cluster.create(SERVICE, {"metadata": {"name": "web"}, "spec": {"selector": LABELS, "ports": [{"port": 80}]}})
    await cluster.create(DEPLOYMENT, {"metadata": {"name": "web", **metadata}, "spec": spec})
    yield cluster
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def settled_writes(cluster: CountingCluster) -> list[str]:
    """The writes so far, once no more follow; all work runs in this event loop, without timers."""
    while True:
        count = len(cluster.writes)
        # Wait for iterations of the event loop instead of time, so that a busy machine makes no difference.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if count == len(cluster.writes):
            writes, cluster.writes = cluster.writes, []
            return writes


async def first_pod_name(cluster: CountingCluster) -> str:
    async with cluster.watch(POD, resource_version="0") as events:
        return str((await anext(events)).object["metadata"]["name"])


async def test_endpoint_slice_is_written_when_pod_has_an_address() -> None:
    async with managed() as cluster:
        name = await first_pod_name(cluster)
        await settled_writes(cluster)
        await cluster.patch(POD, "default", name, patch={"status": {"phase": "Pending"}}, subresource="status")
        assert await settled_writes(cluster) == ["pods"]
        await cluster.patch(POD, "default", name, patch={"status": READY}, subresource="status")
        assert sorted(await settled_writes(cluster)) == ["deployments.apps", "endpointslices.discovery.k8s.io", "pods"]
        (endpoint_slice,) = (await cluster.list(ENDPOINT_SLICE)).items
        assert [endpoint["addresses"] for endpoint in endpoint_slice["endpoints"]] == [["127.64.0.1"]]


async def test_deployment_status_of_starting_pods_is_written_with_next_change_or_after_lag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with managed() as cluster:
        name = await first_pod_name(cluster)
        assert await settled_writes(cluster) == ["endpointslices.discovery.k8s.io"]
        await cluster.patch(POD, "default", name, patch={"status": READY}, subresource="status")
        await settled_writes(cluster)
        assert (await cluster.get(DEPLOYMENT, "default", "web"))["status"]["readyReplicas"] == 1
    monkeypatch.setattr("serving.home.controllers.manager._STATUS_LAG_S", 0.01)
    async with managed() as cluster:
        async with cluster.watch(DEPLOYMENT, resource_version="0") as events:
            statuses = [(await anext(events)).object.get("status", {}) for _ in range(2)]
        assert statuses[1]["unavailableReplicas"] == 1


async def test_deleted_pod_is_removed_from_endpoint_slices() -> None:
    async with managed() as cluster:
        name = await first_pod_name(cluster)
        await cluster.patch(POD, "default", name, patch={"status": READY}, subresource="status")
        await settled_writes(cluster)
        await cluster.patch(DEPLOYMENT, "default", "web", patch={"spec": {"replicas": 0}}, subresource="scale")
        await cluster.delete(POD, "default", name, grace_s=0)
        await settled_writes(cluster)
        (endpoint_slice,) = (await cluster.list(ENDPOINT_SLICE)).items
        assert endpoint_slice["endpoints"] == []
        assert (await cluster.get(DEPLOYMENT, "default", "web"))["status"]["replicas"] == 0


async def test_deletion_of_revision_pod_is_one_endpoint_slice_write() -> None:
    async with managed() as cluster:
        name = await first_pod_name(cluster)
        await cluster.patch(POD, "default", name, patch={"metadata": {"labels": {REVISION_LABEL: "web-00001"}}})
        await cluster.patch(POD, "default", name, patch={"status": READY}, subresource="status")
        await settled_writes(cluster)
        await cluster.delete(POD, "default", name, grace_s=30)
        assert ENDPOINT_SLICE.resource in await settled_writes(cluster)
        (endpoint_slice,) = (await cluster.list(ENDPOINT_SLICE)).items
        assert endpoint_slice["endpoints"] == []
        await cluster.delete(POD, "default", name, grace_s=0)
        assert ENDPOINT_SLICE.resource not in await settled_writes(cluster)


async def test_scale_to_zero_is_one_status_write() -> None:
    async with managed() as cluster:
        name = await first_pod_name(cluster)
        await cluster.patch(POD, "default", name, patch={"status": READY}, subresource="status")
        await settled_writes(cluster)
        await cluster.patch(DEPLOYMENT, "default", "web", patch={"spec": {"replicas": 0}}, subresource="scale")
        scale_and_status = ["deployments.apps", "deployments.apps"]
        assert [
            resource for resource in await settled_writes(cluster) if resource == DEPLOYMENT.resource
        ] == scale_and_status
        assert (await cluster.get(DEPLOYMENT, "default", "web"))["status"]["replicas"] == 0


async def test_status_of_revision_deployment_is_written_on_demand_or_on_failure() -> None:
    owner = {"apiVersion": "serving.knative.dev/v1", "kind": "Revision", "name": "web-00001", "uid": "u"}
    async with managed(labels={REVISION_LABEL: "web-00001"}, ownerReferences=[owner]) as cluster:
        name = await first_pod_name(cluster)
        await settled_writes(cluster)
        await cluster.patch(POD, "default", name, patch={"status": READY}, subresource="status")
        assert DEPLOYMENT.resource not in await settled_writes(cluster)
        await cluster.statuses.refresh()
        assert (await cluster.get(DEPLOYMENT, "default", "web"))["status"]["readyReplicas"] == 1
        await cluster.statuses.refresh()
        with cluster.statuses.watched():
            await settled_writes(cluster)
            await cluster.patch(POD, "default", name, patch={"status": {"conditions": []}}, subresource="status")
            assert DEPLOYMENT.resource in await settled_writes(cluster)
        cluster.refusal = "exceeded quota"
        await cluster.patch(DEPLOYMENT, "default", "web", patch={"spec": {"replicas": 2}}, subresource="scale")
        await settled_writes(cluster)
        assert is_true(await cluster.get(DEPLOYMENT, "default", "web"), "ReplicaFailure")
        await cluster.delete(POD, "default", name, grace_s=0)
        await cluster.delete(DEPLOYMENT, "default", "web")
        await settled_writes(cluster)
        await cluster.statuses.refresh()
        assert await settled_writes(cluster) == []


async def test_deployment_with_changed_status_only_causes_no_writes() -> None:
    async with managed() as cluster:
        await first_pod_name(cluster)
        await settled_writes(cluster)
        await cluster.patch(DEPLOYMENT, "default", "web", patch={"status": {"collisionCount": 1}}, subresource="status")
        assert await settled_writes(cluster) == ["deployments.apps"]
        await cluster.patch(DEPLOYMENT, "default", "web", patch={"spec": {"replicas": 2}})
        assert "deployments.apps" in await settled_writes(cluster)
        assert len((await cluster.list(POD)).items) == 2


async def test_irrelevant_pod_status_change_causes_no_writes() -> None:
    async with managed() as cluster:
        name = await first_pod_name(cluster)
        await cluster.patch(POD, "default", name, patch={"status": READY}, subresource="status")
        await settled_writes(cluster)
        await cluster.patch(POD, "default", name, patch={"status": {"message": "restarted"}}, subresource="status")
        assert await settled_writes(cluster) == ["pods"]


async def test_addresses_of_unready_pods_are_written_with_next_ready_pod() -> None:
    async with managed() as cluster:
        await cluster.patch(DEPLOYMENT, "default", "web", patch={"spec": {"replicas": 3}}, subresource="scale")
        await settled_writes(cluster)
        first, *others = [pod["metadata"]["name"] for pod in (await cluster.list(POD)).items]
        for number, name in enumerate(others, 2):
            starting = {"podIP": f"127.64.0.{number}", "conditions": []}
            await cluster.patch(POD, "default", name, patch={"status": starting}, subresource="status")
        assert await settled_writes(cluster) == ["pods"] * len(others)
        await cluster.patch(POD, "default", first, patch={"status": READY}, subresource="status")
        assert (await settled_writes(cluster)).count("endpointslices.discovery.k8s.io") == 1
        (endpoint_slice,) = (await cluster.list(ENDPOINT_SLICE)).items
        assert [endpoint["conditions"]["ready"] for endpoint in endpoint_slice["endpoints"]].count(False) == len(others)


async def test_address_of_unready_pod_is_written_after_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.home.controllers.manager._UNREADY_LAG_S", 0.01)
    async with managed() as cluster:
        name = await first_pod_name(cluster)
        await settled_writes(cluster)
        await cluster.patch(POD, "default", name, patch={"status": {"podIP": "127.64.0.1"}}, subresource="status")
        async with cluster.watch(ENDPOINT_SLICE, resource_version="0") as events, asyncio.timeout(60):
            async for event in events:
                if event.object["endpoints"]:
                    break


async def test_rejected_pod_is_reported_in_status_and_event_until_it_is_created() -> None:
    async with managed() as cluster:
        await first_pod_name(cluster)
        await settled_writes(cluster)
        cluster.refusal = 'pods "web-" is forbidden: exceeded quota: q'
        await cluster.patch(DEPLOYMENT, "default", "web", patch={"spec": {"replicas": 2}}, subresource="scale")
        await settled_writes(cluster)
        condition = condition_of(await cluster.get(DEPLOYMENT, "default", "web"), "ReplicaFailure")
        assert (condition["status"], condition["reason"], condition["message"]) == (
            "True",
            "FailedCreate",
            cluster.refusal,
        )
        (event,) = (await cluster.list(EVENT)).items
        assert (event["reason"], event["message"]) == ("FailedCreate", f"Error creating: {cluster.refusal}")
        cluster.refusal = ""
        await cluster.patch(DEPLOYMENT, "default", "web", patch={"spec": {"minReadySeconds": 1}})
        await settled_writes(cluster)
        pods = (await cluster.list(POD)).items
        assert len(pods) == 2
        await cluster.patch(POD, "default", pods[0]["metadata"]["name"], patch={"status": READY}, subresource="status")
        await settled_writes(cluster)
        assert not condition_of(await cluster.get(DEPLOYMENT, "default", "web"), "ReplicaFailure")


async def test_namespace_has_default_service_account_and_quota_status() -> None:
    cluster = MemoryCluster()
    running = asyncio.create_task(NamespaceObjects(cluster).run())
    try:
        await cluster.create(NAMESPACE, {"metadata": {"name": "new"}})
        async with cluster.watch(SERVICE_ACCOUNT, "new", resource_version="0") as accounts:
            assert (await anext(accounts)).object["metadata"]["name"] == "default"
            await cluster.delete(SERVICE_ACCOUNT, "new", "default")
            assert [(await anext(accounts)).type for _ in range(2)] == [EventType.DELETED, EventType.ADDED]
        hard = {"hard": {"pods": "2", "count/configmaps": "5"}}
        await cluster.create(RESOURCE_QUOTA, {"metadata": {"name": "q", "namespace": "new"}, "spec": hard})
        await cluster.create(POD, {"metadata": {"name": "p", "namespace": "new"}, "spec": {"containers": []}})
        async with cluster.watch(RESOURCE_QUOTA, "new", resource_version="0") as quotas:
            async for change in quotas:
                if nested(change.object, "status", "used", "pods") == "1":
                    assert change.object["status"]["used"] == {"pods": "1", "count/configmaps": "0"}
                    break
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_deleted_objects_are_removed_from_caches() -> None:
    async with managed() as cluster:
        pod = await first_pod_name(cluster)
        await settled_writes(cluster)
        known = (cluster.manager._pods_of, cluster.manager._pods_with, cluster.manager._services_with)
        assert [len(cache) for cache in known] == [1, 2, 1]
        await cluster.delete(SERVICE, "default", "web")
        await cluster.delete(DEPLOYMENT, "default", "web")
        await cluster.delete(POD, "default", pod, grace_s=0)
        await settled_writes(cluster)
        assert not any((*known, cluster.manager._made))
