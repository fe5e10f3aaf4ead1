"""An autoscaler daemon: stats over real websockets in, the scale of a Deployment out."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from serving.autoscaler.main import AutoscalerDaemon
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.net.cluster.kinds import POD, REVISION
from serving.net.metrics.names import AUTOSCALER_METRICS
from serving.net.wire.frames import ActivatorStats, PodStat, RevisionStat, encode_frame
from serving.net.wire.tokens import activator_token, pod_token, revision_token
from tests.eventually import until
from tests.integration.autoscaler_stage import KEY, NAME, REGISTRY, WAITING, Store
from tests.integration.daemons import started
from tests.integration.query_token import HEADERS, TOKEN

POD_QUERY = f"namespace=default&revision={NAME}&pod="


class Stage:
    """An autoscaler daemon with a store in this process."""

    def __init__(self, store: Store, daemon: AutoscalerDaemon) -> None:
        self.store, self.daemon = store, daemon
        self.address = "{}:{}".format(*daemon.address)

    def connecting(self, query: str, token: str) -> connect:
        headers = {"Authorization": f"Bearer {token}"}
        return connect(f"ws://{self.address}/stats?{query}", additional_headers=headers, proxy=None)

    def as_activator(self) -> connect:
        return self.connecting("activator=a", activator_token(KEY, name="a"))

    def as_pod(self, name: str) -> connect:
        return self.connecting(POD_QUERY + name, pod_token(KEY, namespace="default", revision=NAME, pod=name))

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        url = f"http://{self.address}{path}"
        async with aiohttp.ClientSession() as session, session.get(url, headers=HEADERS | headers) as reply:
            return reply.status, await reply.text()

    async def refused(self, query: str, token: str) -> int:
        with pytest.raises(InvalidStatus) as caught:
            await self.connecting(query, token)
        return caught.value.response.status_code

    async def synced(self) -> None:
        async with asyncio.timeout(60):
            while (await self.get("/healthz"))[0] != 200:  # noqa: ASYNC110 - asked as a supervisor would
                await asyncio.sleep(0.01)


async def respond_to_probes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond to the probe of a handover, as an activator does."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert "K-Network-Probe: activator" in head
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nactivator")
    await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def staged(
    *,
    scale: int = 0,
    serving_state: str = "Reserve",
    settings: AutoscalerSettings | None = None,
    period_s: float = 0.1,
    log: Callable[[bytes], None] | None = None,
) -> AsyncIterator[Stage]:
    store = Store()
    await store.fill(scale=scale, serving_state=serving_state)
    ingress = await asyncio.start_server(respond_to_probes, "127.0.0.1", 0)
    host, port = ingress.sockets[0].getsockname()
    autoscaler_settings = settings or AutoscalerSettings(
        # This policy scales for all queued requests immediately; Knative's starts with 1 pod and then waits for its
        # windows.
        policy=WAITING,
        decision_period_s=period_s,
        stats_address="127.0.0.1:0",
        activator_address=f"{host}:{port}",
    )
    daemon = AutoscalerDaemon(autoscaler_settings, store.cluster, key=KEY, log=log, registry=REGISTRY)
    async with ingress, started(daemon):
        stage = Stage(store, daemon)
        await stage.synced()
        yield stage
    await store.cluster.close()


def load(concurrency: float, *, revision: str = NAME) -> bytes:
    stat = RevisionStat(namespace="default", revision=revision, concurrency=concurrency, request_count=concurrency)
    return encode_frame(ActivatorStats(stats=[stat]))


async def test_poke_scales_from_zero_to_pods_for_all_queued_requests() -> None:
    async with staged() as stage, stage.as_activator() as connection:
        await connection.send(load(100.0))
        async with asyncio.timeout(60):
            await stage.store.scaled(15)


async def test_proxied_concurrency_is_subtracted_from_pod_stat() -> None:
    async with staged() as stage, stage.as_pod("p") as connection:
        await connection.send(encode_frame(PodStat(at_s=0.0, concurrency=15.0, proxied_concurrency=8.0)))
        async with asyncio.timeout(60):
            await stage.store.scaled(1)


async def test_idle_revision_is_set_to_reserve_and_scaled_to_zero() -> None:
    settings = {"stable_window_s": 6.0, "decision_period_s": 0.2, "stats_address": "127.0.0.1:0"}
    ingress = await asyncio.start_server(respond_to_probes, "127.0.0.1", 0)
    host, port = ingress.sockets[0].getsockname()
    autoscaler_settings = AutoscalerSettings(**settings, activator_address=f"{host}:{port}")  # type: ignore[arg-type]
    async with (
        ingress,
        staged(scale=1, serving_state="Active", settings=autoscaler_settings) as stage,
        stage.as_pod("p") as pod,
    ):
        await stage.store.add_pod("p")

        async def report() -> None:
            while True:
                await pod.send(encode_frame(PodStat(at_s=0.0, concurrency=0.0)))
                await asyncio.sleep(0.5)

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            reports = group.create_task(report())
            await stage.store.scaled(0)
            assert await stage.store.serving_state() == "Reserve"
            reports.cancel()


async def test_decision_log_explains_the_scale() -> None:
    # The period is so long that only the load causes a decision.
    async with staged(period_s=60.0) as stage, stage.as_activator() as connection:
        await connection.send(load(100.0))
        async with asyncio.timeout(60):
            await stage.store.scaled(15)
        status, text = await stage.get(f"/decisions?namespace=default&revision={NAME}")
        assert status == 200
        reported = next(record for record in json.loads(text) if record["told"]["outcome"]["apply_count"] == 15)
        assert reported["sentence"] == "0 → 15: panic; 100.0 in flight and no pod to serve them, target 7 each"
        woke = reported["told"]["outcome"]
        assert woke["inputs"]["cause"] == "load"
        assert woke["inputs"]["inside"]["present"]["concurrency"] == 100.0
        assert woke["decided"]["detail"]["desired_stable_count"] == 15
        assert await stage.get("/decisions?revision=nobody") == (200, "[]")


@pytest.mark.parametrize("path", ["/metrics", "/decisions", "/decisions?follow", "/policies"])
async def test_query_requires_token(path: str) -> None:
    async with staged() as stage, aiohttp.ClientSession(f"http://{stage.address}") as session:
        for headers in ({}, {"Authorization": "Bearer " + "g" * 43}, {"Authorization": f"Basic {TOKEN}"}):
            async with session.get(path, headers=headers) as reply:
                assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, 'Bearer realm="queries"')
                assert "the query token is needed" in await reply.text()
        async with session.get(path, headers=HEADERS) as reply:
            assert reply.status == 200


@pytest.mark.parametrize("path", ["/metrics", "/decisions", "/decisions?follow"])
async def test_foreign_host_header_is_rejected_except_for_health(path: str) -> None:
    settings = AutoscalerSettings(stats_address="127.0.0.1:0", host_names="scale.example")
    async with staged(settings=settings) as stage:
        status, text = await stage.get(path, Host=f"evil.example:{stage.address.rpartition(':')[2]}")
        assert (status, text) == (421, "not a known host name: see host-names\n")
        if "follow" not in path:
            for host in ("scale.example", "autoscaler.knative-serving.svc:6081", "localhost"):
                assert (await stage.get(path, Host=host))[0] == 200
        # Health checks may use any host name, because the response contains no data.
        assert (await stage.get("/healthz", Host="evil.example"))[0] == 200


async def test_every_metric_on_page_is_documented() -> None:
    async with staged() as stage:
        _, page = await stage.get("/metrics")
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE autoscaler_")}
    assert "autoscaler_decisions_total" in names
    assert names <= {metric.name for metric in AUTOSCALER_METRICS}, "rows of serving/net/metrics/names.py are missing"


async def test_pods_are_counted_by_phase_on_metrics_page() -> None:
    async with staged(scale=4, serving_state="Active") as stage:
        for name, phase in (("a", "Pending"), ("b", "Running"), ("c", "Running"), ("d", "Running")):
            await stage.store.add_pod(name, ready=name == "d")
            patch = {"status": {"phase": phase}}
            await stage.store.cluster.patch(POD, "default", name, patch=patch, subresource="status")
        await stage.store.cluster.delete(POD, "default", "c", grace_s=30)
        wanted = {"not_ready_count": 1.0, "pending_count": 1.0, "terminating_count": 1.0, "count": 1.0}
        result: dict[str, float] = {}
        async with asyncio.timeout(60):
            while result != wanted:
                page = (await stage.get("/metrics"))[1]
                rows = [line.split() for line in page.splitlines() if line.startswith("kn_revision_pods_")]
                values = {row[0].split("{")[0].removeprefix("kn_revision_pods_"): float(row[1]) for row in rows}
                result = {name: values.get(name, -1.0) for name in wanted}


async def test_event_budget_of_revision_is_removed_with_it() -> None:
    async with staged() as stage, stage.as_activator() as connection:
        await connection.send(load(100.0))
        async with asyncio.timeout(60):
            await stage.store.scaled(15)
            purses = stage.daemon._events._budget._purses
            assert len(purses) == 1
            await stage.store.cluster.delete(REVISION, "default", NAME)
            await until(lambda: not purses)


async def test_pod_token_is_valid_for_one_pod_only() -> None:
    async with staged() as stage:
        token = pod_token(KEY, namespace="default", revision=NAME, pod="p")
        assert await stage.refused(POD_QUERY + "q", token) == 401
        assert await stage.refused("activator=p", token) == 401
        assert await stage.refused("activator=", "") == 401
        assert await stage.refused(POD_QUERY + "p&pod=q", token) == 401
        assert await stage.refused("namespace=default&revision=a/b&pod=p", token) == 401
        assert await stage.refused("pod=p", token) == 401
        assert stage.daemon.server.counts.unauthorized_connections == 6


async def test_revision_token_is_valid_for_pods_of_its_revision_only() -> None:
    async with staged() as stage:
        token = revision_token(KEY, namespace="default", revision=NAME)
        async with stage.connecting(POD_QUERY + "p", token):
            pass
        assert await stage.refused("namespace=default&revision=other-00001&pod=p", token) == 401
        assert await stage.refused(f"namespace=other&revision={NAME}&pod=p", token) == 401
        assert await stage.refused("activator=p", token) == 401


async def test_malformed_frame_is_counted_and_connection_continues() -> None:
    async with staged() as stage, stage.as_activator() as connection:
        for garbage in (b"\xc1garbage", "text", load(5.0)[:-3], load(-1.0), load(float("inf")), load(float("nan"))):
            await connection.send(garbage)
        await connection.send(load(5.0))
        async with asyncio.timeout(60):
            await stage.store.scaled(1)
        assert stage.daemon.server.counts.malformed_frames == 6


async def test_oversize_pod_frame_is_counted_as_malformed() -> None:
    async with staged() as stage, stage.as_pod("p") as connection:
        await connection.send(encode_frame(PodStat(at_s=0.0, concurrency=1.0)) + b"\0" * 2000)
        await connection.send(encode_frame(PodStat(at_s=0.0, concurrency=1.0)))
        async with asyncio.timeout(60):
            await stage.store.scaled(1)
        assert stage.daemon.server.counts.malformed_frames == 1


async def test_pod_that_reports_too_often_is_rate_limited() -> None:
    async with staged() as stage, stage.as_pod("p") as connection:
        for _ in range(50):
            await connection.send(encode_frame(PodStat(at_s=0.0, concurrency=1.0)))
        async with asyncio.timeout(60):
            await stage.store.scaled(1)
            while stage.daemon.server.counts.frames < 50:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        assert stage.daemon.server.counts.flooding_frames >= 30


async def test_stat_older_than_its_predecessor_is_counted_as_late() -> None:
    async with staged() as stage, stage.as_pod("p") as connection:
        for at_s in (1000.0, 990.0):
            await connection.send(encode_frame(PodStat(at_s=at_s, concurrency=0.0)))
        async with asyncio.timeout(60):
            while not stage.daemon.server.counts.late_frames:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)


async def test_new_connection_of_pod_replaces_the_old_one() -> None:
    async with staged() as stage, stage.as_pod("p") as first, stage.as_pod("p") as second:
        with pytest.raises(ConnectionClosed):
            await first.recv()
        await second.send(encode_frame(PodStat(at_s=0.0, concurrency=1.0)))
        async with asyncio.timeout(60):
            await stage.store.scaled(1)
        assert "autoscaler_stats_connections_open 1.0\n" in (await stage.get("/metrics"))[1]


async def test_connections_are_limited() -> None:
    settings = AutoscalerSettings(stats_address="127.0.0.1:0", stats_connections_max=1)
    async with staged(settings=settings) as stage, stage.as_pod("p"):
        token = pod_token(KEY, namespace="default", revision=NAME, pod="q")
        assert await stage.refused(POD_QUERY + "q", token) == 503
        assert stage.daemon.server.counts.refused_connections == 1


async def test_stat_of_unknown_revision_is_counted() -> None:
    async with staged() as stage, stage.as_activator() as connection:
        await connection.send(load(5.0, revision="gone"))
        await connection.send(load(5.0))
        async with asyncio.timeout(60):
            await stage.store.scaled(1)
        assert "autoscaler_unknown_stats_total 1.0\n" in (await stage.get("/metrics"))[1]


async def test_metrics_and_health_are_served_and_other_paths_return_404() -> None:
    async with staged() as stage, stage.as_activator() as connection:
        await connection.send(load(5.0))
        async with asyncio.timeout(60):
            await stage.store.scaled(1)
        assert await stage.get("/healthz") == (200, "ok\n")
        numbers = (await stage.get("/metrics"))[1]
        assert "autoscaler_stats_frames_total 1.0\n" in numbers
        assert "autoscaler_scale_writes_total 1.0\n" in numbers
        assert (await stage.get("/nothing"))[0] == 404


async def test_autoscaler_serves_on_inherited_listener() -> None:
    store, stop = Store(), asyncio.Event()
    await store.fill(scale=0)
    daemon = AutoscalerDaemon(AutoscalerSettings(), store.cluster, key=KEY, registry=REGISTRY)
    listener = socket.create_server(("127.0.0.1", 0))
    async with asyncio.TaskGroup() as group:
        group.create_task(daemon.run(stop, listener=listener))
        await daemon.is_serving.wait()
        assert daemon.address == listener.getsockname()
        stop.set()
