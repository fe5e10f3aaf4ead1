"""The Role of the node group daemon grants exactly the calls that it makes."""

import asyncio
from pathlib import Path

import pytest

from serving.home.store.memory import MemoryCluster
from serving.net.cluster.fenced import FencedCluster
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import MACHINE, MACHINE_DEPLOYMENT, MACHINE_POOL, MACHINE_SET, NODE_GROUP, POD
from serving.net.cluster.kube import KubeCluster
from serving.net.cluster.leases.holder import Leader
from serving.net.cluster.leases.lease import LeaseClient, LeaseName
from serving.net.cluster.leases.rules import LeaseTimes
from serving.nodes.nodegroup.cloud import CloudMachine
from serving.nodes.nodegroup.groups import groups_of_text
from serving.nodes.nodegroup.io.clouds.clusterapi import ClusterApiCloud
from tests.cluster_e2e.test_rights import granted
from tests.eventually import until
from tests.integration.api_server import served
from tests.integration.nodegroup_stage import NodeGroupStage, staged_groups
from tests.unit.nodes.nodegroup.test_groups import ESCALATOR_FILE

# The lease is read only if another holder is possible.
RARE = {"get leases.coordination.k8s.io"}


async def everything(stage: NodeGroupStage) -> None:
    """Cause each call that a pass can make."""
    stage.reading = groups_of_text(ESCALATOR_FILE, where="file")
    for name in ("a", "b", "c"):
        await stage.node(name)
    await stage.pod("x", on="a", cpu="100m")
    # An invalid group causes the same Event each time, also from another process.
    await stage.cluster.create(NODE_GROUP, {"metadata": {"name": "wrong"}, "spec": {}})
    # A group with anticipation.
    await stage.group("anticipating", labelValue="other", anticipation=True)
    await stage.run()
    followed = stage.passes._anticipation
    await until(lambda: followed._revisions.synced.is_set() and followed._deployments.synced.is_set())
    await stage.restart()
    # Drains one node and deletes another.
    await stage.run(after_s=601)
    await stage.cluster.delete(POD, "default", "x", grace_s=0)
    await stage.cluster.patch(NODE_GROUP, "", "shared", patch={"spec": {"maxNodes": 99}})
    await stage.run(after_s=1)
    stage.reading = groups_of_text("", where="file")
    await stage.run(after_s=1)


async def test_nodegroup_role_matches_calls_of_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "calls"
    async with staged_groups(group=False) as stage, served(stage.cluster, tmp_path) as api:
        monkeypatch.setenv("SERVING_KUBE_RECORD", str(record))
        async with KubeCluster(api.kubeconfig) as kube:
            lease = LeaseClient(kube, LeaseName(namespace=system_namespace(), name="nodegroup"))
            times = LeaseTimes(duration_s=60, renew_deadline_s=40, retry_period_s=0.05)
            leader = Leader(lease, "me", times=times)

            async def work() -> None:
                stage.check, stage.through = leader.check, FencedCluster(kube, leader.check)
                await stage.restart()
                await everything(stage)
                calls = record.read_text
                async with asyncio.timeout(60):
                    while "update leases" not in calls():  # noqa: ASYNC110 - a file is polled
                        await asyncio.sleep(0.01)
                await stage.stop()

            await leader.run(work, asyncio.Event())
    calls = set(record.read_text().splitlines())
    allowed = granted("nodegroup")
    settings = {"list configmaps", "watch configmaps"}
    assert (calls - allowed, allowed - calls - settings - RARE) == (set(), set())


async def test_cluster_api_component_role_matches_calls_of_the_cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "calls"
    cluster = MemoryCluster()
    bounds = {f"cluster.x-k8s.io/cluster-api-autoscaler-node-group-{name}-size": "9" for name in ("min", "max")}
    for kind, label in (
        (MACHINE_DEPLOYMENT, "cluster.x-k8s.io/deployment-name"),
        (MACHINE_SET, "cluster.x-k8s.io/set-name"),
        (MACHINE_POOL, "cluster.x-k8s.io/pool-name"),
    ):
        low = {**bounds, "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "0"}
        metadata = {"namespace": "default", "name": "w", "annotations": low}
        await cluster.create(kind, {"metadata": metadata, "spec": {"replicas": 1}})
        name = f"m-{kind.plural}"
        await cluster.create(MACHINE, {"metadata": {"namespace": "default", "name": name, "labels": {label: "w"}}})
        status = {"nodeRef": {"name": name}}
        await cluster.patch(MACHINE, "default", name, patch={"status": status}, subresource="status")
    async with served(cluster, tmp_path) as api:
        monkeypatch.setenv("SERVING_KUBE_RECORD", str(record))
        async with KubeCluster(api.kubeconfig) as kube:
            cloud = ClusterApiCloud(kube)
            for kind in (MACHINE_DEPLOYMENT, MACHINE_SET, MACHINE_POOL):
                group = f"{kind.name}/default/w"
                await cloud.describe(group)
                await cloud.increase(group, 1)
                deletion = await cloud.delete(group, [CloudMachine(node_name=f"m-{kind.plural}")])
                assert deletion.deleted == (f"m-{kind.plural}",)
    await cluster.close()
    assert set(record.read_text().splitlines()) == granted("nodegroup-cluster-api")
