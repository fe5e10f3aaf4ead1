"""Requests through the activator to pods that are processes of this machine, over the API as a cluster has it.

A server takes no loopback address into a slice: pods are told to be in 10.64.0.0/16, and the activator reaches them in
127.64.0.0/16.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from serving.cluster.kinds import DEPLOYMENT, ENDPOINT_SLICE, REVISION
from serving.cluster.port import Object
from serving.local.host import Host
from serving.local.kubelet import Kubelet
from serving.local.pod import Node
from tests.cluster_e2e.stage import ACTIVATOR_ADDRESSES, KEY, SPACE, Stage, service, staged
from tests.cluster_e2e.status_kubelet import StatusKubelet
from tests.integration.local_stage import HELLO, template_process

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

QUEUE_PORT = 8012
COMMAND = {"serving.dev/command": f"{sys.executable} {HELLO}"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("traffic")
    override = {"SERVING_ACTIVATOR_POD_ADDRESS_OVERRIDE": "10.=127."}
    async with staged(folder, runs_nothing=False, settings=override) as one:
        with template_process(folder / "state") as template:
            async with asyncio.TaskGroup() as group:
                tasks = await kubelet(one, template.state.template, folder, group)
                yield one
                await one.clear()
                for task in tasks:
                    task.cancel()


async def kubelet(
    stage: Stage, template: Path, folder: Path, group: asyncio.TaskGroup
) -> tuple[asyncio.Task[None], ...]:
    """The one of ``serving up``, on the cluster of the stage."""
    host = Host(template)
    node = Node(
        cluster=stage.cluster,
        host=host,
        pods=folder / "state" / "pods",
        logs=folder / "state" / "logs" / "pods",
        stats_url=f"ws://127.0.0.1:{stage.port('stats')}/stats",
        key=KEY,
        name=stage.server.node,
        told_network="10.",
    )
    kubelet = Kubelet(node)
    # On a server with a scheduler a node has to be there, and to have room.
    beating = group.create_task(StatusKubelet(stage.cluster, stage.server.node).beat())
    connecting = group.create_task(host.run())
    await kubelet.take_over()
    return beating, connecting, group.create_task(kubelet.run())


async def ask(stage: Stage, host: str, path: str = "/") -> tuple[int, str]:
    """A request until the activator has heard of the host, which is a moment after it is ready: status and body."""
    async with asyncio.timeout(60):
        while (found := await _asked(stage.port("public"), f"{host}.{SPACE}.localhost", path))[0] == 404:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.05)
    return found


async def _asked(port: int, host: str, path: str = "/", *, address: str = "127.0.0.1") -> tuple[int, str]:
    """One request on a connection of its own: status and body."""
    reader, writer = await asyncio.open_connection(address, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(60):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(head.split(b" ")[1]), body.decode()


async def test_a_request_reaches_a_pod_and_one_for_a_revision_at_zero_wakes_it(stage: Stage) -> None:
    await stage.apply(service("hello", annotations=COMMAND))
    await stage.ready("hello")
    assert (await ask(stage, "hello"))[0] == 200
    await stage.until(REVISION, "hello-00001", lambda one: one["spec"].get("servingState") == "Reserve")
    await stage.scaled("hello-00001", 0)
    status, _ = await ask(stage, "hello")
    assert status == 200
    await stage.until(DEPLOYMENT, "hello-00001-deployment", lambda one: one["spec"]["replicas"] >= 1)


async def test_requests_are_split_between_revisions(stage: Stage) -> None:
    always = {**COMMAND, "autoscaling.knative.dev/min-scale": "1"}
    await stage.apply(service("both", annotations=always))
    await stage.ready("both")
    traffic = [{"revisionName": "both-00001", "percent": 50, "tag": "old"}, {"latestRevision": True, "percent": 50}]
    changed = await stage.apply(service("both", version="2", annotations=always, traffic=traffic))
    await stage.ready("both", generation=changed["metadata"]["generation"])
    bodies = [(await ask(stage, "both"))[1] for _ in range(40)]
    # All 40 by the same one: once in 550 billion times.
    assert {body.split(" from ")[1].split(",")[0] for body in bodies} == {"both-00001", "both-00002"}
    assert "from both-00001," in (await ask(stage, "old-both"))[1]


async def test_many_requests_at_once_are_all_answered_while_pods_are_added(stage: Stage) -> None:
    await stage.apply(service("many", annotations=COMMAND))
    await stage.ready("many")
    answers = await asyncio.gather(*[ask(stage, "many") for _ in range(40)])
    assert {status for status, _ in answers} == {200}


@pytest.mark.parametrize(("name", "names_pods"), [("direct", False), ("direct-00001", True)])
async def test_whoever_stands_in_a_public_slice_answers(stage: Stage, name: str, *, names_pods: bool) -> None:
    at_once = {"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/target-burst-capacity": "0"}
    await stage.apply(service("direct", annotations={**COMMAND, **at_once}))
    await stage.ready("direct")
    port = QUEUE_PORT if names_pods else stage.port("inner")

    def is_flipped(one: Object) -> bool:
        return bool(one["ports"][0]["port"] == port)

    found = await stage.until(ENDPOINT_SLICE, f"{name}-public", is_flipped)
    named = [address for one in found["endpoints"] for address in one["addresses"]]
    if names_pods:
        # Pods of this machine are told to be in 10.64.0.0/16, and are in 127.64.0.0/16.
        (address,) = [f"127.{each.partition('.')[2]}" for each in named]
    else:
        assert set(named) == set(ACTIVATOR_ADDRESSES)
        address = "127.0.0.1"
    # The activator has heard of it.
    await ask(stage, "direct")
    status, body = await _asked(port, f"{name}.{SPACE}", address=address)
    assert status == 200
    assert "from direct-00001," in body
