"""A node is drained, killed with all its pods, and cut off, under load. Requests that may be repeated do not fail.

Each daemon has a pod on both nodes, and the leaders are on the node that is lost.
"""

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from serving.core.model.objects import condition_of
from tests.node_e2e.stage import SYSTEM, Load, NodeStage, installed, is_named, service

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not is_named() or not os.environ.get("SERVING_TEST_NODE_SECOND"),
        reason="needs a cluster with a node that may be lost: SERVING_TEST_NODE_SECOND names none",
    ),
]
# On a quiet machine. Two pods have to be enough for all, and take 10 requests each at a time.
PER_S = 100.0
IN_FLIGHT_MAX = 20
PATH = "/?ms=10"
RESPONSES_MIN = 20
LEASES = {"controller": "controller", "autoscaler": "autoscaler-bucket-00-of-01"}
# So long a node is away that is cut off: longer than the control plane waits until it calls it not ready (40 s).
AWAY_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NodeStage]:
    """The installed system. The second node is gone at the end."""
    folder = tmp_path_factory.mktemp("nodes")
    try:
        async with installed(folder) as node_stage:
            yield node_stage
            # The namespace ends when the kubelet of each pod has ended the pod.
            await bring_up(node_stage)
    finally:
        await asyncio.to_thread(NodeStage(folder).change_second, "down")


@pytest_asyncio.fixture(loop_scope="module")
async def stage(system: NodeStage) -> NodeStage:
    """Two ready nodes with a pod of each daemon, and the leaders on the second."""
    await bring_up(system)
    system.kubectl("uncordon", system.second)
    for daemon in ("activator", *LEASES):
        system.kubectl("-n", SYSTEM, "rollout", "restart", f"deployment/{daemon}")
        system.kubectl("-n", SYSTEM, "rollout", "status", f"deployment/{daemon}", "--timeout=5m")
        assert len(set(nodes_of(system, daemon).values())) == 2
    for daemon in LEASES:
        is_led = functools.partial(leads_on_second, system, daemon)
        await system.until(is_led, f"no {daemon} leads on the second node")
    return system


async def bring_up(stage: NodeStage) -> None:
    """Start and connect the second node, unless it runs."""
    for verb in ("up", "join"):
        await asyncio.to_thread(stage.change_second, verb)
    await stage.until(lambda: is_node_ready(stage), "the second node is not ready")


def is_node_ready(stage: NodeStage) -> bool:
    nodes = [node for node in stage.get("nodes")["items"] if node["metadata"]["name"] == stage.second]
    return any(condition_of(resource, "Ready").get("status") == "True" for resource in nodes)


def nodes_of(stage: NodeStage, daemon: str) -> dict[str, str]:
    """The node of each pod of a daemon that is not ending."""
    items = stage.get("pods", "-l", f"app.kubernetes.io/name={daemon}", namespace=SYSTEM)["items"]
    return {
        resource["metadata"]["name"]: resource["spec"].get("nodeName", "")
        for resource in items
        if not resource["metadata"].get("deletionTimestamp") and resource["status"]["phase"] == "Running"
    }


def leads_on_second(stage: NodeStage, daemon: str) -> bool:
    """Whether the leader is on the second node. One on another node is deleted."""
    lease = stage.get("lease", LEASES[daemon], namespace=SYSTEM)
    nodes, holder = nodes_of(stage, daemon), (lease["spec"].get("holderIdentity") or "").partition("_")[0]
    if nodes.get(holder) == stage.second:
        return True
    if holder in nodes and len(nodes) == 2:
        stage.kubectl("-n", SYSTEM, "delete", "pod", holder, "--wait=false")
    return False


async def deployed(stage: NodeStage, name: str) -> None:
    """A service with pods on both nodes."""
    # No more: what starts meanwhile makes them slow, and slow pods ask for more.
    stage.apply(service(name, stage.image, min_scale="4", max_scale="4"))
    await stage.ready(name)
    await stage.until(lambda: stage.ready_count(name) == 4, "four pods")
    assert len({pod["spec"]["nodeName"] for pod in stage.pods(name)}) == 2


async def assert_scales(stage: NodeStage, name: str) -> None:
    """A new service becomes ready and goes to zero: the daemons that are left work."""
    stage.apply(service(name, stage.image))
    await stage.ready(name)
    await stage.at_zero(name)


async def assert_scales_alone(stage: NodeStage, name: str) -> None:
    """The same once the control plane has noticed the loss: before, it gives new pods to the lost node."""
    await stage.until(lambda: not is_node_ready(stage), "the second node is still ready")
    await assert_scales(stage, name)


def assert_unharmed(load: Load, what: str) -> None:
    print(f"{what}: {load}")  # noqa: T201 - a figure
    assert load.failures == []
    assert load.count >= RESPONSES_MIN


def loaded(stage: NodeStage, name: str) -> contextlib.AbstractAsyncContextManager[Load]:
    """The requests of a test."""
    return stage.loaded(name, per_s=PER_S, in_flight_max=IN_FLIGHT_MAX, path=PATH, repeats=True)


async def seen_more(stage: NodeStage, load: Load, seconds: float) -> None:
    """Wait for some seconds, and for responses to requests of this time."""
    goal = load.count + IN_FLIGHT_MAX + RESPONSES_MIN
    await asyncio.sleep(seconds)
    await stage.until(lambda: load.count >= goal, "too few responses")


async def test_a_node_is_drained(stage: NodeStage) -> None:
    await deployed(stage, "drained")
    async with loaded(stage, "drained") as load:
        await seen_more(stage, load, 2)
        options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=10m"]
        await asyncio.to_thread(stage.kubectl, "drain", stage.second, *options)
        await stage.until(lambda: stage.ready_count("drained") == 4, "four pods")
        await seen_more(stage, load, 5)
    assert_unharmed(load, "drained")
    await assert_scales(stage, "after-drain")


async def test_a_node_is_killed_with_all_its_pods(stage: NodeStage) -> None:
    await deployed(stage, "killed")
    async with loaded(stage, "killed") as load:
        await seen_more(stage, load, 2)
        await asyncio.to_thread(stage.change_second, "kill")
        await asyncio.gather(seen_more(stage, load, AWAY_S), assert_scales_alone(stage, "after-kill"))
        await asyncio.to_thread(stage.change_second, "up")
        await stage.until(lambda: is_node_ready(stage), "the second node is not ready")
        await seen_more(stage, load, 5)
    assert_unharmed(load, "killed")


async def test_a_node_is_cut_off(stage: NodeStage) -> None:
    await deployed(stage, "cut")
    async with loaded(stage, "cut") as load:
        await seen_more(stage, load, 2)
        await asyncio.to_thread(stage.change_second, "cut")
        await asyncio.gather(seen_more(stage, load, AWAY_S), assert_scales_alone(stage, "after-cut"))
        await asyncio.to_thread(stage.change_second, "join")
        await stage.until(lambda: is_node_ready(stage), "the second node is not ready")
        await seen_more(stage, load, 5)
    assert_unharmed(load, "cut off")
