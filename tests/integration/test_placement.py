"""The scheduler extender over HTTP, called as by kube-scheduler, with a store of nodes and pods."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from serving.core.settings.placement import DEFAULT_PROVIDER, LOW_RISK_PROVIDER, PlacementSettings
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import NODE, NODE_METRICS, POD
from serving.nodes.extender.main import PlacementDaemon
from tests.integration.daemons import started
from tests.unit.nodes.placement.builders import node, pod


class Querying:
    """A client of the extender."""

    def __init__(self, cluster: MemoryCluster, url: str, session: aiohttp.ClientSession) -> None:
        self.cluster, self.url, self.session = cluster, url, session

    async def post(self, path: str, body: bytes) -> tuple[int, str]:
        async with self.session.post(self.url + path, data=body) as response:
            return response.status, await response.text()

    async def query(self, verb: str, *names: str, **requests: str) -> Any:  # noqa: ANN401 - JSON
        status, text = await self.post(verb, json.dumps({"Pod": pod("p", **requests), "NodeNames": names}).encode())
        assert status == 200, text
        return json.loads(text)

    async def until(self, wanted: object, verb: str, *names: str, **requests: str) -> None:
        """Repeat a call until the response is `wanted`."""
        async with asyncio.timeout(60):
            while await self.query(verb, *names, **requests) != wanted:  # noqa: ASYNC110 - asked as a scheduler would
                await asyncio.sleep(0.01)


async def put(cluster: MemoryCluster, name: str, **amounts: str) -> None:
    body = node(name, **amounts)
    await cluster.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": body["metadata"]})
    await cluster.patch(NODE, "", name, patch={"status": body["status"]}, subresource="status")


@contextlib.asynccontextmanager
async def staged(provider: str = DEFAULT_PROVIDER) -> AsyncIterator[Querying]:
    settings = PlacementSettings(provider=provider, listen_address="127.0.0.1:0", load_period_s=0.05)
    cluster = MemoryCluster()
    daemon = PlacementDaemon(settings, cluster)
    async with started(daemon), aiohttp.ClientSession() as session:
        client = Querying(cluster, "http://{}:{}".format(*daemon.address), session)
        async with asyncio.timeout(60):
            while (await session.get(f"{client.url}/healthz")).status != 200:  # noqa: ASYNC110 - as a prober would
                await asyncio.sleep(0.01)
        yield client
    await cluster.close()


async def test_nodes_are_filtered_and_scored_as_pods_change() -> None:
    async with staged() as client:
        await put(client.cluster, "a")
        await put(client.cluster, "b", cpu="1")
        refused = {"b": "requests 2000m of cpu, 1000m are free"}
        wanted = {"FailedNodes": refused, "Error": "", "NodeNames": ["a"]}
        await client.until(wanted, "/filter", "a", "b", cpu="2")
        before = (await client.query("/prioritize", "a", cpu="100m"))[0]["Score"]
        large_pod = pod("q", on="a", cpu="3", memory="6Gi")
        await client.cluster.create(POD, {"apiVersion": "v1", "kind": "Pod", **large_pod})
        refused["a"] = "requests 2000m of cpu, 1000m are free"
        await client.until({"FailedNodes": refused, "Error": "", "NodeNames": []}, "/filter", "a", "b", cpu="2")
        assert (await client.query("/prioritize", "a", cpu="100m"))[0]["Score"] < before
        assert (await client.query("/explain", "a"))[0]["node"] == "a"
        await client.cluster.delete(POD, "default", "q", grace_s=0)
        await client.until([{"Host": "a", "Score": before}], "/prioritize", "a", cpu="100m")
        await client.cluster.delete(NODE, "", "b")
        await client.until({"FailedNodes": {}, "Error": "", "NodeNames": ["b"]}, "/filter", "b", cpu="2")


async def test_low_risk_provider_scores_busy_node_lower() -> None:
    async with staged(LOW_RISK_PROVIDER) as client:
        for name, cpu in (("busy", "3900m"), ("idle", "100m")):
            await put(client.cluster, name)
            body = {
                "apiVersion": "metrics.k8s.io/v1beta1",
                "kind": "NodeMetrics",
                "metadata": {"name": name},
                "timestamp": "then",
                "usage": {"cpu": cpu, "memory": "1Gi"},
            }
            await client.cluster.create(NODE_METRICS, body)
            # Half of each node is requested; the pod of the busy node uses more.
            large_pod = pod(f"on-{name}", on=name, cpu="2", memory="4Gi")
            await client.cluster.create(POD, {"apiVersion": "v1", "kind": "Pod", **large_pod})
        wanted = [{"Host": "busy", "Score": 5}, {"Host": "idle", "Score": 10}]
        await client.until(wanted, "/prioritize", "busy", "idle", cpu="100m")


async def test_invalid_extender_call_returns_400_with_expected_format() -> None:
    async with staged() as client:
        status, text = await client.post("/prioritize", b"nonsense")
        assert (status, "ExtenderArgs" in text) == (400, True)


async def test_extender_returns_503_before_it_has_listed_nodes_and_pods() -> None:
    class Silent(MemoryCluster):
        """A store that does not respond."""

        async def list_selection(self, *_: object, **__: object) -> Any:  # noqa: ANN401
            await asyncio.Event().wait()

    daemon, stop = PlacementDaemon(PlacementSettings(), Silent()), asyncio.Event()
    async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as session:
        group.create_task(daemon.run(stop, listener=socket.create_server(("127.0.0.1", 0))))
        await daemon.is_serving.wait()
        client = Querying(Silent(), "http://{}:{}".format(*daemon.address), session)
        assert (await client.post("/filter", b"{}"))[0] == 503
        async with session.get(f"{client.url}/healthz") as response:
            assert response.status == 503
        stop.set()
