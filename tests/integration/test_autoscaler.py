"""Frames in over a real websocket, a Deployment's scale out."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from serving.autoscaler.loop import AutoscalerLoop
from serving.autoscaler.server import StatsServer
from serving.cluster.kinds import DEPLOYMENT, REVISION
from serving.cluster.memory import MemoryCluster
from serving.cluster.port import Object, WatchEvent
from serving.settings.autoscaler import AutoscalerSettings
from serving.wire.frames import ActivatorStats, PodStat, RevisionStat, encode_activator_stats, encode_pod_stat
from serving.wire.tokens import activator_token, pod_token

KEY = b"k" * 32
NAME = "hello-00001"


class Running:
    """An autoscaler over a store in this process, with one revision at zero."""

    def __init__(self, cluster: MemoryCluster, server: StatsServer, port: int) -> None:
        self.cluster, self.server, self.port = cluster, server, port

    def connecting(self, query: str, token: str) -> connect:
        headers = {"Authorization": f"Bearer {token}"}
        return connect(f"ws://127.0.0.1:{self.port}/stats?{query}", additional_headers=headers, proxy=None)

    def as_activator(self) -> connect:
        return self.connecting("activator=a", activator_token(KEY, name="a"))

    async def get(self, path: str) -> tuple[int, str]:
        def fetch() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        return await asyncio.to_thread(fetch)

    async def replicas(self, wanted: int) -> None:
        """Wait until the Deployment asks for so many pods."""
        async with asyncio.timeout(10), self._watch() as events:
            if (await self.deployment())["spec"]["replicas"] == wanted:
                return
            async for event in events:
                if event.object["spec"]["replicas"] == wanted:
                    return

    def _watch(self) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        return self.cluster.watch(DEPLOYMENT, "default", resource_version="0")

    async def deployment(self) -> Object:
        return await self.cluster.get(DEPLOYMENT, "default", f"{NAME}-deployment")


async def always() -> bool:
    return True


@asynccontextmanager
async def autoscaler() -> AsyncIterator[Running]:
    cluster = MemoryCluster()
    metadata = {"namespace": "default", "labels": {"serving.knative.dev/revision": NAME}}
    await cluster.create(
        REVISION,
        {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Revision",
            "metadata": {**metadata, "name": NAME},
            "spec": {"containerConcurrency": 10, "containers": [{"image": "x"}], "servingState": "Active"},
        },
    )
    await cluster.create(
        DEPLOYMENT,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {**metadata, "name": f"{NAME}-deployment"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}},
            },
        },
    )
    stop = asyncio.Event()
    loop = AutoscalerLoop(cluster, AutoscalerSettings(decision_period_s=0.1), prove=always)
    server = StatsServer(key=KEY, take=loop.take, explain=loop.explain)
    async with server.serve(("127.0.0.1", 0)) as listening, asyncio.TaskGroup() as group:
        group.create_task(loop.run(stop))
        (socket,) = listening.sockets
        try:
            yield Running(cluster, server, socket.getsockname()[1])
        finally:
            stop.set()
    await cluster.close()


def frame(concurrency: float) -> bytes:
    stat = RevisionStat(namespace="default", revision=NAME, concurrency=concurrency, request_count=concurrency)
    return encode_activator_stats(ActivatorStats(stats=[stat]))


async def test_a_poke_scales_from_zero_to_as_many_pods_as_wait() -> None:
    async with autoscaler() as running, running.as_activator() as connection:
        await connection.send(frame(100.0))
        await running.replicas(15)


async def test_why_is_told() -> None:
    async with autoscaler() as running, running.as_activator() as connection:
        await connection.send(frame(100.0))
        await running.replicas(15)
        status, text = await running.get(f"/decisions?namespace=default&revision={NAME}")
        assert status == 200
        assert any(one["apply"] == 15 and one["decision"]["desired_stable_count"] == 15 for one in json.loads(text))


async def test_a_pods_stat_counts_without_its_proxied_part() -> None:
    async with autoscaler() as running:
        token = pod_token(KEY, namespace="default", revision=NAME, pod="p")
        async with running.connecting(f"namespace=default&revision={NAME}&pod=p", token) as connection:
            await connection.send(encode_pod_stat(PodStat(at_s=0.0, concurrency=15.0, proxied_concurrency=8.0)))
            await running.replicas(1)


async def refused(connecting: connect) -> int:
    with pytest.raises(InvalidStatus) as caught:
        await connecting
    return caught.value.response.status_code


async def test_a_token_is_good_for_one_name_only() -> None:
    async with autoscaler() as running:
        token = pod_token(KEY, namespace="default", revision=NAME, pod="p")
        assert await refused(running.connecting(f"namespace=default&revision={NAME}&pod=q", token)) == 401
        assert await refused(running.connecting("activator=a", token)) == 401
        assert await refused(running.connecting("activator=", "")) == 401
        assert await refused(running.connecting("pod=a/b&namespace=x&revision=y", token)) == 401
        assert running.server.counts.refused == 4


async def test_garbage_is_counted_and_the_connection_goes_on() -> None:
    async with autoscaler() as running, running.as_activator() as connection:
        await garble(connection)
        await connection.send(frame(5.0))
        await running.replicas(1)
        assert running.server.counts.malformed == 3


async def garble(connection: ClientConnection) -> None:
    await connection.send(b"\xc1garbage")
    await connection.send("text")
    await connection.send(frame(5.0)[:-3])


async def test_a_revision_that_nobody_knows_is_nobodys_error() -> None:
    async with autoscaler() as running, running.as_activator() as connection:
        unknown = RevisionStat(namespace="default", revision="gone", concurrency=5.0)
        await connection.send(encode_activator_stats(ActivatorStats(stats=[unknown])))
        await connection.send(frame(5.0))
        await running.replicas(1)


async def test_health_and_counts_are_told_and_other_paths_are_not_there() -> None:
    async with autoscaler() as running, running.as_activator() as connection:
        await connection.send(frame(5.0))
        await running.replicas(1)
        assert await running.get("/healthz") == (200, "ok\n")
        assert "serving_autoscaler_stat_frames_total 1\n" in (await running.get("/metrics"))[1]
        assert (await running.get("/nothing"))[0] == 404
