"""From requests to nodes and back: a real kubelet joins because pods are pending, and leaves when they are gone.

Once with Cluster API, whose machines ``machines.py`` plays, and the daemon in the cluster; once with an external
provider.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from serving.core.model.knative import REMOVAL_TAINT
from serving.core.model.objects import Object
from tests.node_e2e.machines import GROUP, POOL, ClusterApi, Provider, is_ready, node_of
from tests.node_e2e.stage import SPACE, SYSTEM, NodeStage, installed, is_named, service
from tests.tidy.sources import ROOT

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not is_named() or not os.environ.get("SERVING_TEST_NODE_SECOND"),
        reason="needs a cluster whose second node may come and go: SERVING_TEST_NODE_SECOND names none",
    ),
]
COMPONENTS = ["--component", "nodegroup", "--component", "nodegroup-cluster-api"]
NODE_GROUP = {
    "labelKey": "pool",
    "labelValue": POOL,
    "cloudProviderGroupName": GROUP,
    "minNodes": 0,
    "maxNodes": 1,
    "taintLowerCapacityThresholdPercent": 5,
    "taintUpperCapacityThresholdPercent": 10,
    "scaleUpThresholdPercent": 90,
    "slowNodeRemovalRate": 1,
    "fastNodeRemovalRate": 1,
    "softDeleteGracePeriod": "5s",
    "hardDeleteGracePeriod": "10s",
    "scaleUpCoolDownPeriod": "60s",
    "drainGracePeriod": "15m",
}
PER_S = 20.0
# So long a budget holds a node that has to go.
HELD_S = 20.0


class Chain:
    """The system, the machines of its node group, and the times of what was seen."""

    def __init__(self, stage: NodeStage, target: Callable[[], int]) -> None:
        self.stage = stage
        self.target = target
        self._begun_s = time.monotonic()

    async def until(self, check: Callable[[], Any], what: str) -> Any:  # noqa: ANN401 - what was looked for
        """Wait for something, and print when it was seen."""
        result = await self.stage.until(check, f"not seen: {what}")
        print(f"  {time.strftime('%T')} {time.monotonic() - self._begun_s:5.1f} s  {what}")  # noqa: T201 - a figure
        return result

    def begin(self, what: str) -> None:
        """Count times from now on."""
        self._begun_s = time.monotonic()
        print(f"\n{what}")  # noqa: T201 - a figure

    async def until_node(self) -> None:
        await self.until(self.target, "the cloud is asked for a machine")
        await self.until(lambda: is_ready(node_of(self.stage)), "a second kubelet has joined, and its node is ready")

    async def until_no_node(self) -> None:
        await self.until(lambda: is_tainted(self.stage) or node_of(self.stage) is None, "the node is tainted")
        await self.until(lambda: not self.target(), "the machine is given back")
        await self.until(lambda: node_of(self.stage) is None, "the node is deleted")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NodeStage]:
    """The installed system with a node group of no node, where pods of revisions start at zero."""
    folder = tmp_path_factory.mktemp("groups")
    node_stage = NodeStage(folder)
    await asyncio.to_thread(node_stage.change_second, "down")
    ClusterApi(node_stage).prepare()
    async with installed(folder, *COMPONENTS) as node_stage:
        apply_settings(node_stage, "config-nodegroup", {"scan-interval": "2s"})
        apply_settings(node_stage, "config-autoscaler", {"allow-zero-initial-scale": "true"})
        node_stage.apply(
            {"apiVersion": "serving.dev/v1alpha1", "kind": "NodeGroup", "metadata": {"name": POOL}, "spec": NODE_GROUP}
        )
        await node_stage.until(lambda: node_stage.get("nodegroup", POOL).get("status"), "no pass over the group")
        yield node_stage
    node_stage.kubectl("delete", "namespace", GROUP.partition("/")[0], "--timeout=60s")
    node_stage.kubectl("delete", "crd", "machinedeployments.cluster.x-k8s.io", "machines.cluster.x-k8s.io")


@contextlib.asynccontextmanager
async def running(work: Any) -> AsyncIterator[None]:  # noqa: ANN401 - a coroutine
    """Run a coroutine beside the block; its failure is that of the block's end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest_asyncio.fixture(loop_scope="module")
async def machines(stage: NodeStage) -> AsyncIterator[ClusterApi]:
    cluster_api = ClusterApi(stage)
    async with running(cluster_api.run()):
        yield cluster_api


def apply_settings(stage: NodeStage, name: str, data: dict[str, str]) -> None:
    metadata = {"name": name, "namespace": SYSTEM}
    stage.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def is_tainted(stage: NodeStage) -> bool:
    node = node_of(stage)
    return node is not None and any(taint["key"] == REMOVAL_TAINT for taint in node["spec"].get("taints") or ())


def in_pool(stage: NodeStage, name: str) -> Object:
    """A service at zero whose one pod takes a third of a node of the group."""
    resource = service(name, stage.image, initial_scale="0", max_scale="1")
    spec = resource["spec"]["template"]["spec"]
    spec["nodeSelector"] = {"pool": POOL}
    spec["containers"][0]["resources"]["requests"]["cpu"] = "600m"
    return resource


async def assert_whole_chain(chain: Chain, name: str) -> None:
    """Requests bring pods, pods a node; without requests all goes."""
    stage = chain.stage
    stage.apply(in_pool(stage, name))
    await stage.ready(name)
    chain.begin(f"{name}: {PER_S:g} requests a second for a service at zero, whose pods fit on no node")
    async with stage.loaded(name, per_s=PER_S) as load:
        await chain.until(lambda: stage.pods(name), "a pod is pending")
        await chain.until_node()
        await chain.until(lambda: load.count, "the first response")
        goal = load.count + 10 * PER_S
        await stage.until(lambda: load.count >= goal, "too few responses")
    print(f"  {load}")  # noqa: T201 - a figure
    assert load.failures == []
    chain.begin("the load has ended")
    await chain.until(lambda: not stage.pods(name), "no pod")
    await chain.until_no_node()


async def test_requests_bring_a_node_by_cluster_api(stage: NodeStage, machines: ClusterApi) -> None:
    await assert_whole_chain(Chain(stage, machines.target), "chained")
    await stage.until(lambda: machines.ended, "the machine stays")
    assert machines.ended == [(f"{POOL}-1", True)], "the daemon marks the machine that goes"


def refusals(stage: NodeStage) -> list[Object]:
    """Events about evictions that a budget refused."""
    events = stage.get("events", namespace="default")["items"]
    return [event for event in events if event["reason"] == "EffectFailed" and "disruption budget" in event["message"]]


def budget(available: int) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guarded", "namespace": SPACE},
        "spec": {
            "minAvailable": available,
            "selector": {"matchLabels": {"serving.knative.dev/service": "guarded"}},
        },
    }


def on_second(stage: NodeStage) -> int:
    return sum(pod["spec"].get("nodeName") == stage.second for pod in stage.pods("guarded"))


def kill_processes(pod: str) -> None:
    """Kill what runs in a pod, without a signal before."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"HOSTNAME={pod}".encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


async def kill_leader(stage: NodeStage) -> None:
    """Kill the process that holds the lease, and wait until another one does."""

    def holder() -> str:
        return str(stage.get("lease", "nodegroup", namespace=SYSTEM)["spec"].get("holderIdentity") or "")

    before = await stage.until(holder, "there is no leader")
    kill_processes(pod=before.partition("_")[0])
    await stage.until(lambda: holder() not in ("", before), "there is no new leader")


async def test_a_budget_holds_and_a_killed_leaders_drain_continues(stage: NodeStage, machines: ClusterApi) -> None:
    chain = Chain(stage, machines.target)
    stage.apply(in_pool(stage, "waking"))
    await stage.ready("waking")
    chain.begin("a budget of two pods on a node that has to go")
    async with stage.loaded("waking", per_s=PER_S):
        await chain.until_node()
        (first,) = (
            node["metadata"]["name"] for node in stage.get("nodes")["items"] if node["metadata"]["name"] != stage.second
        )
        stage.kubectl("cordon", first)
        stage.apply(service("guarded", stage.image, min_scale="2", max_scale="2"))
        await stage.ready("guarded")
        await stage.until(lambda: stage.ready_count("guarded") == 2, "two pods")
        stage.kubectl("uncordon", first)
    assert on_second(stage) == 2
    stage.apply(budget(2))
    async with stage.loaded("guarded", per_s=PER_S) as load:
        await chain.until(lambda: is_tainted(stage), "the node is tainted")
        await chain.until(lambda: refusals(stage), "the budget has refused an eviction")
        await kill_leader(stage)
        await chain.until(lambda: True, "the leader was killed in the drain, and another one leads")
        count = sum(refusal.get("count") or 1 for refusal in refusals(stage))
        await chain.until(
            lambda: sum(refusal.get("count") or 1 for refusal in refusals(stage)) > count,
            "it goes on, and is refused too",
        )
        result = load.count + HELD_S * PER_S
        await stage.until(lambda: load.count >= result, "too few responses")
        assert (on_second(stage), machines.target(), is_tainted(stage)) == (2, 1, True), "the budget holds the node"
        stage.apply(budget(1))
        await chain.until(lambda: on_second(stage) < 2, "one may go now: the first pod leaves")
        await kill_leader(stage)
        await chain.until_no_node()
        await stage.until(lambda: stage.ready_count("guarded") == 2, "two pods")
    print(f"  {load}")  # noqa: T201 - a figure
    assert load.failures == []
    await stage.until(lambda: machines.ended, "the machine stays")
    assert [is_marked for _, is_marked in machines.ended] == [True], "it goes once, and is marked"


@contextlib.asynccontextmanager
async def daemon(stage: NodeStage, address: str, folder: Path) -> AsyncIterator[None]:
    """The daemon as a process: the image has no gRPC. It leads, because those in the cluster are gone."""
    stage.kubectl("-n", SYSTEM, "scale", "deployment/nodegroup", "--replicas=0")
    environment = {
        **os.environ,
        "KUBECONFIG": stage.kubeconfig,
        "SERVING_ELECTION_ENABLED": "true",
        "SERVING_NODEGROUP_CLOUD_PROVIDER": "external-grpc",
        "SERVING_NODEGROUP_GRPC_ADDRESS": address,
        "SERVING_NODEGROUP_METRICS_ADDRESS": "127.0.0.1:0",
    }
    with (folder / "nodegroup.log").open("wb") as log:
        module = [sys.executable, "-m", "serving.nodes.nodegroup.main"]
        process = await asyncio.create_subprocess_exec(*module, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


async def test_requests_bring_a_node_by_an_external_provider(stage: NodeStage, tmp_path: Path) -> None:
    provider = Provider(stage)
    async with provider.served() as address, daemon(stage, address, tmp_path):
        await assert_whole_chain(Chain(stage, provider.target), "provided")
    assert provider.calls == ["+1", f"-{stage.second}"]
