"""The extender over HTTP, called like kube-scheduler does, over a store with nodes and pods."""

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
        """Call until the response is this one: watches take a moment."""
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
        asking = Querying(cluster, "http://{}:{}".format(*daemon.address), session)
        async with asyncio.timeout(60):
            while (await session.get(f"{asking.url}/healthz")).status != 200:  # noqa: ASYNC110 - as a prober would
                await asyncio.sleep(0.01)
        yield asking
    await cluster.close()


async def test_nodes_are_filtered_and_scored_as_pods_come_and_go() -> None:
    async with staged() as asking:
        await put(asking.cluster, "a")
        await put(asking.cluster, "b", cpu="1")
        refused = {"b": "requests 2000m of cpu, 1000m are free"}
        wanted = {"FailedNodes": refused, "Error": "", "NodeNames": ["a"]}
        await asking.until(wanted, "/filter", "a", "b", cpu="2")
        before = (await asking.query("/prioritize", "a", cpu="100m"))[0]["Score"]
        taking = pod("q", on="a", cpu="3", memory="6Gi")
        await asking.cluster.create(POD, {"apiVersion": "v1", "kind": "Pod", **taking})
        refused["a"] = "requests 2000m of cpu, 1000m are free"
        await asking.until({"FailedNodes": refused, "Error": "", "NodeNames": []}, "/filter", "a", "b", cpu="2")
        assert (await asking.query("/prioritize", "a", cpu="100m"))[0]["Score"] < before
        assert (await asking.query("/explain", "a"))[0]["node"] == "a"
        await asking.cluster.delete(POD, "default", "q", grace_s=0)
        await asking.until([{"Host": "a", "Score": before}], "/prioritize", "a", cpu="100m")
        await asking.cluster.delete(NODE, "", "b")
        await asking.until({"FailedNodes": {}, "Error": "", "NodeNames": ["b"]}, "/filter", "b", cpu="2")


async def test_a_node_that_is_busy_is_avoided_where_risk_counts() -> None:
    async with staged(LOW_RISK_PROVIDER) as asking:
        for name, cpu in (("busy", "3900m"), ("idle", "100m")):
            await put(asking.cluster, name)
            body = {
                "apiVersion": "metrics.k8s.io/v1beta1",
                "kind": "NodeMetrics",
                "metadata": {"name": name},
                "timestamp": "then",
                "usage": {"cpu": cpu, "memory": "1Gi"},
            }
            await asking.cluster.create(NODE_METRICS, body)
            # Half of each node is requested, by pods of which one node's use more.
            taking = pod(f"on-{name}", on=name, cpu="2", memory="4Gi")
            await asking.cluster.create(POD, {"apiVersion": "v1", "kind": "Pod", **taking})
        wanted = [{"Host": "busy", "Score": 5}, {"Host": "idle", "Score": 10}]
        await asking.until(wanted, "/prioritize", "busy", "idle", cpu="100m")


async def test_an_unreadable_call_gets_what_was_expected() -> None:
    async with staged() as asking:
        status, text = await asking.post("/prioritize", b"nonsense")
        assert (status, "ExtenderArgs" in text) == (400, True)


async def test_before_all_is_known_it_says_so() -> None:
    class Silent(MemoryCluster):
        """A store that does not respond."""

        async def list_selection(self, *_: object, **__: object) -> Any:  # noqa: ANN401
            await asyncio.Event().wait()

    daemon, stop = PlacementDaemon(PlacementSettings(), Silent()), asyncio.Event()
    async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as session:
        group.create_task(daemon.run(stop, listener=socket.create_server(("127.0.0.1", 0))))
        await daemon.is_serving.wait()
        asking = Querying(Silent(), "http://{}:{}".format(*daemon.address), session)
        assert (await asking.post("/filter", b"{}"))[0] == 503
        async with session.get(f"{asking.url}/healthz") as response:
            assert response.status == 503
        stop.set()
