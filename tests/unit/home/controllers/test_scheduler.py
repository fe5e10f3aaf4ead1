"""Assignment of pods to nodes, at creation or later when a node has capacity."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from serving.core.model.objects import Object, condition_of, nested
from serving.home.controllers.scheduler import (
    NodePlacing,
    PlacedCreation,
    PodScheduler,
    excess_message,
    refusal,
    unschedulable_message,
)
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import EVENT, NODE, POD
from serving.net.cluster.port import Cluster, EventType, Patch, Write
from serving.net.cluster.reflector import CacheChange
from tests.eventually import until
from tests.virtual_time import pass_s, run_virtually

# Longer than the lag of a watch.
LAG_S = 10.0
OWNER = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "d"}]

CORDONED = "node(s) were unschedulable"
ELSEWHERE = "node(s) didn't match Pod's node affinity/selector"
TAINTED = "node(s) had untolerated taint {a: b}"
TAINT = {"key": "a", "value": "b", "effect": "NoSchedule"}


def pod(name: str, cpu: str = "400m", **spec: object) -> Object:
    metadata = {"namespace": "default", "name": name, "ownerReferences": OWNER}
    containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}}


async def put_node(cluster: MemoryCluster, name: str, *, cpu: str = "1", pods: str = "110") -> None:
    await cluster.create(NODE, {"metadata": {"name": name}, "spec": {}})
    allocatable = {"cpu": cpu, "memory": "1Gi", "pods": pods}
    await cluster.patch(NODE, "", name, patch={"status": {"allocatable": allocatable}}, subresource="status")


class Stage:
    def __init__(self, cluster: MemoryCluster, scheduler: PodScheduler) -> None:
        self.cluster, self.scheduler = cluster, scheduler

    async def create(self, fields: Object) -> Object:
        """Create a pod as the manager does."""
        placed = self.scheduler.place(fields)
        new_pod = await self.cluster.create(POD, placed.pod)
        self.scheduler.created(placed, new_pod)
        return new_pod

    async def node_of(self, name: str) -> str:
        return nested(await self.cluster.get(POD, "default", name), "spec", "nodeName") or ""

    async def scheduled(self, name: str) -> Object:
        return condition_of(await self.cluster.get(POD, "default", name), "PodScheduled")


@contextlib.asynccontextmanager
async def staged(placing: NodePlacing | None, *nodes: str, cpu: str = "1", pods: str = "110") -> AsyncIterator[Stage]:
    cluster = MemoryCluster()
    for name in nodes:
        await put_node(cluster, name, cpu=cpu, pods=pods)
    scheduler = PodScheduler(cluster, placing)
    running = asyncio.create_task(scheduler.run())
    await until(lambda: len(scheduler._nodes.cache) == len(nodes) and scheduler._pods.synced.is_set())
    try:
        yield Stage(cluster, scheduler)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await cluster.close()


async def until_scheduled(stage: Stage, name: str) -> str:
    return await until(lambda: stage.node_of(name))


async def until_refused(stage: Stage, name: str, message: str) -> None:
    async def is_refused() -> bool:
        return (await stage.scheduled(name)).get("message") == message

    await until(is_refused)


async def until_reported(cluster: Cluster) -> Object:
    """The first event."""

    async def events() -> list[Object]:
        items: list[Object] = (await cluster.list(EVENT)).items
        return items

    return (await until(events))[0]


async def test_spread_policy_balances_pods_and_queues_excess_pods() -> None:
    async with staged(NodePlacing("spread"), "a", "b") as stage:
        results = [await stage.create(pod(f"p{number}")) for number in range(5)]
        nodes = [nested(resource, "spec", "nodeName") for resource in results]
        assert sorted(nodes[:4]) == ["a", "a", "b", "b"]
        assert nodes[4] is None
        await until_refused(stage, "p4", "0/2 nodes are available: 2 Insufficient cpu.")
        scheduled = await stage.scheduled("p4")
        assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
        event = await until_reported(stage.cluster)
        assert (event["reason"], event["involvedObject"]["name"]) == ("FailedScheduling", "p4")
        await put_node(stage.cluster, "c")
        assert await until_scheduled(stage, "p4") == "c"


async def test_deleted_pod_frees_capacity_for_a_pending_pod() -> None:
    async with staged(NodePlacing("pack"), "a") as stage:
        for name in ("p0", "p1", "p2"):
            await stage.create(pod(name))
        await until_refused(stage, "p2", "0/1 nodes are available: 1 Insufficient cpu.")
        await stage.cluster.delete(POD, "default", "p0", grace_s=0)
        assert await until_scheduled(stage, "p2") == "a"


async def test_pack_policy_fills_a_node_before_the_next() -> None:
    async with staged(NodePlacing("pack"), "a", "b") as stage:
        results = [await stage.create(pod(f"p{number}")) for number in range(4)]
        first, second, third, fourth = (nested(resource, "spec", "nodeName") for resource in results)
        assert first == second != third == fourth


def place(stage: Stage, name: str) -> tuple[PlacedCreation, str | None]:
    """A pod of which a node has capacity for one, and its node."""
    placed = stage.scheduler.place(pod(name, cpu="600m"))
    return placed, nested(placed.pod, "spec", "nodeName")


def test_capacity_of_failed_pod_creation_is_reserved_for_watch_lag() -> None:
    async def scenario() -> None:
        async with staged(NodePlacing("spread"), "a") as stage:
            placed_creation, node = place(stage, "p0")
            assert (node, place(stage, "p1")[1]) == ("a", None)
            stage.scheduler.created(placed_creation, None)
            assert place(stage, "p1")[1] is None
            await pass_s(LAG_S)
            assert place(stage, "p1")[1] == "a"

    run_virtually(scenario())


def test_capacity_of_a_pod_created_despite_an_error_remains_reserved() -> None:
    async def scenario() -> None:
        async with staged(NodePlacing("spread"), "a") as stage:
            placed_creation, _ = place(stage, "p0")
            await stage.cluster.create(POD, placed_creation.pod)
            stage.scheduler.created(placed_creation, None)
            await pass_s(LAG_S)
            assert place(stage, "p1")[1] is None

    run_virtually(scenario())


async def test_capacity_of_a_pod_being_bound_is_reserved() -> None:
    async with staged(NodePlacing("spread")) as stage:
        await stage.cluster.create(POD, pod("p0", cpu="600m"))
        await until(lambda: len(stage.scheduler._waiting) == 1)
        seen: list[str | None] = []

        async def written(write: Write) -> Object:
            if isinstance(write, Patch) and "nodeName" in str(write.patch):
                seen.append(place(stage, "p1")[1])
            return await MemoryCluster.write(stage.cluster, write)

        stage.cluster.write = written  # type: ignore[method-assign]
        await put_node(stage.cluster, "a")
        assert await until_scheduled(stage, "p0") == "a"
        assert seen == [None]


async def test_stale_event_of_a_bound_pod_does_not_free_capacity() -> None:
    cluster, placing = MemoryCluster(), NodePlacing("spread")
    scheduler = PodScheduler(cluster, placing)
    await put_node(cluster, "a")
    placing.set_node(await cluster.get(NODE, "", "a"))
    unbound = await cluster.create(POD, pod("p0", cpu="600m"))
    await scheduler._bind(unbound, "a")
    key = ("default", "p0")
    late = CacheChange(type=EventType.MODIFIED, key=key, old=unbound, new=unbound)
    bound = await cluster.get(POD, *key)
    for change in (late, CacheChange(type=EventType.MODIFIED, key=key, old=unbound, new=bound)):
        scheduler._pod_changed(change)
        assert placing.choose(pod("p1", cpu="600m"), now_s=0.0)[0] == ""
    scheduler._pod_changed(CacheChange(type=EventType.DELETED, key=key, old=bound, new=bound))
    assert placing.choose(pod("p1", cpu="600m"), now_s=0.0)[0] == "a"
    await cluster.close()


async def test_pod_is_not_placed_before_pods_are_synced() -> None:
    cluster = MemoryCluster()
    scheduler = PodScheduler(cluster, NodePlacing("spread"))
    await put_node(cluster, "a")
    running = asyncio.create_task(scheduler._nodes.run())
    await until(scheduler._nodes.synced.is_set)
    assert "nodeName" not in scheduler.place(pod("p0")).pod["spec"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await cluster.close()


async def test_pods_per_node_are_limited_to_allocatable() -> None:
    async with staged(NodePlacing("spread"), "a", pods="1") as stage:
        await stage.create(pod("p0"))
        await stage.create(pod("p1"))
        await until_refused(stage, "p1", "0/1 nodes are available: 1 Too many pods.")


async def test_single_node_accepts_any_pod_unless_cordoned() -> None:
    async with staged(None, "local") as stage:
        assert nested(await stage.create(pod("p0", cpu="100")), "spec", "nodeName") == "local"
        await stage.cluster.patch(NODE, "", "local", patch={"spec": {"unschedulable": True}})
        await until(lambda: stage.scheduler._nodes.cache["", "local"]["spec"].get("unschedulable") is True)
        assert nested(await stage.create(pod("p1")), "spec", "nodeName") is None
        await until_refused(stage, "p1", "0/1 nodes are available: 1 node(s) were unschedulable.")
        await stage.cluster.patch(NODE, "", "local", patch={"spec": {"unschedulable": None}})
        assert await until_scheduled(stage, "p1") == "local"


async def test_pod_without_owner_is_bound() -> None:
    async with staged(None, "local") as stage:
        bare = pod("bare")
        del bare["metadata"]["ownerReferences"]
        await stage.cluster.create(POD, bare)
        assert await until_scheduled(stage, "bare") == "local"


def test_pods_are_placed_on_local_before_its_node_exists() -> None:
    scheduler = PodScheduler(MemoryCluster())
    assert nested(scheduler.place(pod("p0")).pod, "spec", "nodeName") == "local"


@pytest.mark.parametrize("policy", ["spread", "pack", "low-risk"])
async def test_every_placement_policy_places_pods_on_nodes_with_capacity(policy: str) -> None:
    async with staged(NodePlacing(policy), "a", "b") as stage:
        results = [await stage.create(pod(f"p{number}", cpu="600m")) for number in range(3)]
        first, second, third = (nested(resource, "spec", "nodeName") for resource in results)
        assert ({first, second}, third) == ({"a", "b"}, None)


async def test_pod_with_excessive_requests_is_placed_with_warning_event() -> None:
    async with staged(None, "local") as stage:
        await stage.create(pod("small"))
        resource = await stage.create(pod("large", "50"))
        assert nested(resource, "spec", "nodeName") == "local"
        async with stage.cluster.watch(EVENT, resource_version="0") as events:
            event = (await anext(events)).object
        assert (event["reason"], event["involvedObject"]["name"]) == ("RequestsExceedNode", "large")
        assert event["message"].startswith("the pod requests 50 cpu of 1 on local; it starts anyway")


class DeletesWhileWritten(MemoryCluster):
    """A store that deletes a pod directly after its status has been written."""

    seen: Callable[[], bool]

    async def write(self, write: Write) -> Object:
        written = await super().write(write)
        if write.kind is POD and isinstance(write, Patch):
            await self.delete(POD, write.namespace, write.name, grace_s=0)
            await until(self.seen)
        return written


async def test_pod_deleted_during_status_write_is_not_queued() -> None:
    cluster = DeletesWhileWritten()
    scheduler = PodScheduler(cluster)
    cluster.seen = lambda: not scheduler._pods.cache
    await cluster.create(NODE, {"metadata": {"name": "local"}, "spec": {"unschedulable": True}})
    running = asyncio.create_task(scheduler.run())
    await cluster.create(POD, pod("p"))
    await until_reported(cluster)
    assert not scheduler._waiting
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await cluster.close()


def node(*taints: dict[str, str], **spec: object) -> dict[str, Any]:
    return {"metadata": {"name": "n", "labels": {"zone": "a", "size": "4"}}, "spec": {"taints": list(taints), **spec}}


def pod_of_scheduling(**spec: object) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": spec}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": wanted}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("candidate", "wanted", "why"),
    [
        (node(), pod_of_scheduling(), ""),
        (node(unschedulable=True), pod_of_scheduling(), CORDONED),
        (node(unschedulable=True), pod_of_scheduling(tolerations=[{"operator": "Exists"}]), ""),
        (node(), pod_of_scheduling(nodeSelector={"zone": "a"}), ""),
        (node(), pod_of_scheduling(nodeSelector={"zone": "b"}), ELSEWHERE),
        (node(), pod_of_scheduling(**required(expression("zone", "In", "a", "b"))), ""),
        (node(), pod_of_scheduling(**required(expression("zone", "NotIn", "a"))), ELSEWHERE),
        (node(), pod_of_scheduling(**required(expression("size", "Gt", "3"))), ""),
        (node(), pod_of_scheduling(**required(expression("zone", "In", "b"), expression("size", "Exists"))), ""),
        (node(), pod_of_scheduling(**required()), ELSEWHERE),
        (node(), pod_of_scheduling(**required({})), ELSEWHERE),
        (
            node(),
            pod_of_scheduling(
                **required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})
            ),
            "",
        ),
        (node(), pod_of_scheduling(affinity={"nodeAffinity": {}}), ""),
        (node(TAINT), pod_of_scheduling(), TAINTED),
        (node({**TAINT, "effect": "PreferNoSchedule"}), pod_of_scheduling(), ""),
        (node(TAINT), pod_of_scheduling(tolerations=[{"key": "a", "value": "b"}]), ""),
        (node(TAINT), pod_of_scheduling(tolerations=[{"key": "a", "value": "c"}]), TAINTED),
        (node(TAINT), pod_of_scheduling(tolerations=[{"key": "c", "operator": "Exists"}]), TAINTED),
        (node(TAINT), pod_of_scheduling(tolerations=[{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]), ""),
        (
            node(TAINT),
            pod_of_scheduling(tolerations=[{"key": "a", "operator": "Exists", "effect": "NoExecute"}]),
            TAINTED,
        ),
        (node(TAINT), pod_of_scheduling(tolerations=[{"operator": "Equal"}]), TAINTED),
    ],
)
def test_refusal_names_unmet_scheduling_constraint(candidate: dict[str, Any], wanted: dict[str, Any], why: str) -> None:
    assert refusal(candidate, wanted) == why


def test_unschedulable_message_counts_nodes_per_reason() -> None:
    reasons = ["Insufficient cpu", CORDONED, "Insufficient cpu"]
    assert unschedulable_message(reasons) == (
        "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) were unschedulable."
    )
    assert unschedulable_message([]) == "0/0 nodes are available: there is no node."


def test_excess_message_names_requests_above_allocatable() -> None:
    machine = {**node(), "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}}}

    def asking(**amounts: str) -> dict[str, Any]:
        return pod_of_scheduling(containers=[{"resources": {"requests": amounts}}])

    assert excess_message(machine, asking(cpu="2", memory="1Gi")) == ""
    assert excess_message(machine, asking(cpu="much")) == ""
    assert excess_message(machine, asking(cpu="3", memory="5Gi")).startswith(
        "the pod requests 3 cpu of 2 and 5Gi memory of 4Gi on n"
    )
