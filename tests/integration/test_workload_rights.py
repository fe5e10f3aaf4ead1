"""The controller creates and deletes the RoleBinding for scaling in labelled namespaces with ScaledWorkloads."""

import asyncio
import contextlib

import pytest

from serving.controller.io.controller import Controller
from serving.controller.workloads.rights import RIGHTS
from serving.core.model.errors import NotFound
from serving.core.model.knative import SCALED_WORKLOADS_LABEL
from serving.core.model.objects import Object, condition_of
from serving.home.store import state
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import KINDS, NAMESPACE, ROLE_BINDING, SCALED_WORKLOAD

SPEC = {"target": {"name": "shop"}, "service": {"name": "shop"}}


async def binding(cluster: MemoryCluster) -> Object | None:
    with contextlib.suppress(NotFound):
        return await cluster.get(ROLE_BINDING, "shops", RIGHTS)
    return None


async def is_bound(cluster: MemoryCluster, *, wanted: bool) -> None:
    async with asyncio.timeout(30):
        while (await binding(cluster) is not None) is not wanted:  # noqa: ASYNC110 - a store is polled
            await asyncio.sleep(0.01)


async def reason(cluster: MemoryCluster) -> str:
    workload = await cluster.get(SCALED_WORKLOAD, "shops", "shop")
    return str(condition_of(workload, "TargetResolved").get("reason"))


async def test_scaling_role_binding_follows_namespace_label_and_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    # The local API has no Roles, so define the kind here.
    monkeypatch.setattr(state, "KINDS", (*KINDS, ROLE_BINDING))
    cluster, stop = MemoryCluster(), asyncio.Event()
    await cluster.create(NAMESPACE, {"metadata": {"name": "shops"}})
    await cluster.create(SCALED_WORKLOAD, {"metadata": {"name": "shop", "namespace": "shops"}, "spec": SPEC})
    async with asyncio.TaskGroup() as group:
        group.create_task(Controller(cluster).run(stop))

        async def has_reason(text: str) -> None:
            async with asyncio.timeout(30):
                while await reason(cluster) != text:  # noqa: ASYNC110 - a store is polled
                    await asyncio.sleep(0.01)

        await has_reason("NamespaceNotLabelled")
        assert await binding(cluster) is None
        labels: Object = {"metadata": {"labels": {SCALED_WORKLOADS_LABEL: "enabled"}}}
        await cluster.patch(NAMESPACE, "", "shops", patch=labels)
        await is_bound(cluster, wanted=True)
        await has_reason("TargetNotFound")
        # A deleted RoleBinding is created again.
        await cluster.delete(ROLE_BINDING, "shops", RIGHTS)
        await is_bound(cluster, wanted=True)
        labels["metadata"]["labels"][SCALED_WORKLOADS_LABEL] = None
        await cluster.patch(NAMESPACE, "", "shops", patch=labels)
        await is_bound(cluster, wanted=False)
        await has_reason("NamespaceNotLabelled")
        stop.set()
