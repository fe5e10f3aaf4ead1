"""Announcements of ready pods to autoscalers and activators, over real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import connect

from serving.activator.main import Activator
from serving.activator.routing.sites import Listener
from serving.autoscaler.main import AutoscalerDaemon
from serving.core.settings.activator import ActivatorSettings
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.queueproxy import QueueProxySettings
from serving.net.cluster.kinds import DEPLOYMENT, POD, REVISION, SCALED_WORKLOAD
from serving.net.wire.frames import AnnouncedPod, decode_announced_pod
from serving.net.wire.tokens import activator_token, revision_secret, revision_token
from serving.queueproxy import main as queueproxy
from serving.queueproxy.podspec import PodSpec, Probe
from tests.eventually import until
from tests.integration.activator_stage import PodServer, send_request
from tests.integration.activator_stage import Store as ServiceStore
from tests.integration.autoscaler_stage import KEY, NAME, Store
from tests.integration.daemons import started
from tests.integration.proxy.peers import free_socket
from tests.integration.test_autoscaler_sharing import paired
from tests.unit.autoscaler.test_loop_workloads import READY, deployment, pod_of_shop, workload

OTHER = "other-00001"
OF = {"namespace": "default", "revision": NAME, "pod": "p"}
TOKEN = revision_token(KEY, namespace="default", revision=NAME)
SETTINGS = AutoscalerSettings(stats_address="127.0.0.1:0", activator_address="127.0.0.1:1")


async def add_pod(store: Store, daemon: AutoscalerDaemon, name: str, *, address: str) -> None:
    """Add a pod that is not ready: the API has its address, and no slice lists it."""
    await store.add_pod(name, ready=False)
    await store.cluster.patch(POD, "default", name, patch={"status": {"podIP": address}}, subresource="status")
    await until(lambda: (daemon.autoscaler.pod("default", name) or {"status": {}})["status"].get("podIP"))


async def announce(
    daemon: AutoscalerDaemon, names: dict[str, str] | None = None, *, token: str = TOKEN, host: str = "127.0.0.1"
) -> tuple[int, str]:
    """Announce a pod from a loopback address; return the status and the body."""
    query = "&".join(f"{name}={value}" for name, value in (OF | (names or {})).items())
    head = f"GET /announce?{query}&port=8012 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n"
    reader, writer = await asyncio.open_connection(*daemon.address, local_addr=(host, 0))
    writer.write(head.encode())
    raw = (await reader.read()).decode()
    writer.close()
    return int(raw.split()[1]), raw.partition("\r\n\r\n")[2].strip()


@contextlib.asynccontextmanager
async def announcements_at(daemon: AutoscalerDaemon, name: str = "a") -> AsyncIterator[list[AnnouncedPod]]:
    """The announcements that a connected activator receives."""
    url = "ws://{}:{}/stats?activator={}".format(*daemon.address, name)
    headers = {"Authorization": f"Bearer {activator_token(KEY, name=name)}"}
    announced_pods: list[AnnouncedPod] = []
    async with connect(url, additional_headers=headers, proxy=None) as connection:

        async def listen() -> None:
            async for frame in connection:
                assert isinstance(frame, bytes)
                announced_pods.append(decode_announced_pod(frame))

        listening = asyncio.create_task(listen())
        yield announced_pods
        # The pong arrives after all earlier frames.
        await (await connection.ping())
        listening.cancel()


@contextlib.asynccontextmanager
async def autoscaler() -> AsyncIterator[tuple[Store, AutoscalerDaemon]]:
    """An autoscaler with a pod of a revision, and one of another revision."""
    store, other = Store(), Store(name=OTHER)
    other.cluster = store.cluster
    await store.fill(scale=1)
    await other.fill(scale=1)
    daemon = AutoscalerDaemon(SETTINGS, store.cluster, key=KEY)
    async with started(daemon):
        await add_pod(store, daemon, "p", address="127.0.0.1")
        await add_pod(other, daemon, "stranger", address="127.0.0.3")
        yield store, daemon
    await store.cluster.close()


async def test_ready_pod_is_announced_once_with_its_connection_address() -> None:
    async with autoscaler() as (_, daemon):
        async with announcements_at(daemon) as frames, announcements_at(daemon, "b") as others:
            assert await announce(daemon) == (200, "announced")
            assert await announce(daemon) == (200, "announced")
        assert (
            frames == others == [AnnouncedPod(namespace="default", revision=NAME, pod="p", address="127.0.0.1:8012")]
        ), "at most once per second"


@pytest.mark.parametrize(
    ("names", "host", "status", "why"),
    [
        ({"revision": OTHER, "pod": "stranger"}, "127.0.0.3", 401, "a token for just this name"),
        ({"namespace": "shop"}, "127.0.0.1", 401, "a token for just this name"),
        ({"pod": "stranger"}, "127.0.0.3", 403, f"a pod of revision {NAME}: it is one of {OTHER}"),
        ({}, "127.0.0.3", 403, "a connection from 127.0.0.1, the pod's address"),
        ({"pod": "invented"}, "127.0.0.1", 503, "has not been seen"),
        ({"address": "10.0.0.1:8012"}, "127.0.0.1", 401, "a token for just this name"),
        ({"pod": "a/b"}, "127.0.0.1", 401, "a token for just this name"),
    ],
)
async def test_pod_can_announce_only_itself(names: dict[str, str], host: str, status: int, why: str) -> None:
    async with autoscaler() as (_, daemon):
        async with announcements_at(daemon) as frames:
            result, text = await announce(daemon, names, host=host)
        assert (result, why in text, frames) == (status, True, []), text


async def test_only_pods_can_announce() -> None:
    async with autoscaler() as (_, daemon), announcements_at(daemon) as frames:
        assert (await announce(daemon, token="made up"))[0] == 401  # noqa: S106 - no secret
        reader, writer = await asyncio.open_connection(*daemon.address)
        token = activator_token(KEY, name="z")
        writer.write(f"GET /announce?activator=z&port=1 HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        assert b" 401 " in await reader.readline()
        writer.close()
        assert frames == []


async def test_workload_pod_is_announced_when_it_becomes_ready() -> None:
    cluster = Store().cluster
    await cluster.create(DEPLOYMENT, deployment(1))
    await cluster.create(SCALED_WORKLOAD, workload())
    shop = ("default", "shop")
    await cluster.patch(SCALED_WORKLOAD, *shop, patch={"status": {"targetPort": 8080}}, subresource="status")
    daemon = AutoscalerDaemon(SETTINGS, cluster, key=KEY)
    async with started(daemon), announcements_at(daemon) as frames:
        await until(lambda: (entry := daemon.autoscaler.entry(shop)) is not None and entry.scaler is not None)
        await cluster.create(POD, pod_of_shop("p"))
        await cluster.patch(POD, "default", "p", patch={"status": {"podIP": "10.1.0.7"}}, subresource="status")
        await cluster.patch(POD, "default", "p", patch=READY, subresource="status")
        await until(lambda: bool(frames))
        assert frames == [
            AnnouncedPod(namespace="default", revision="shop", pod="p", address="10.1.0.7:8080", scheme="http")
        ]
    await cluster.close()


async def test_announcement_is_relayed_to_activators_of_other_autoscaler_once() -> None:
    async with paired(SETTINGS) as pair:
        await pair.store.add_pod("p", ready=False)
        await pair.store.cluster.patch(
            POD, "default", "p", patch={"status": {"podIP": "127.0.0.1"}}, subresource="status"
        )
        daemon = pair.other
        await until(lambda: (daemon.autoscaler.pod("default", "p") or {"status": {}})["status"].get("podIP"))
        async with announcements_at(pair.owner) as there, announcements_at(daemon) as here:
            assert (await announce(daemon))[0] == 200
            await until(lambda: there)
        assert [frame.pod for frame in there] == [frame.pod for frame in here] == ["p"]


async def test_request_reaches_announced_pod_before_any_slice_lists_it() -> None:
    async with autoscaler() as (store, daemon), activator(store, daemon) as public:
        async with queue_proxy(store, daemon, secret=await secret_of(store)) as app:
            response = await send_request(public, "/first")
        assert (response.status, response.body) == (200, "app")
        assert [head.split()[1] for head in app.heads] == ["/first"]


async def test_pod_reports_stats_after_first_response() -> None:
    # A connection for stats before would delay that response.
    async with (
        autoscaler() as (store, daemon),
        activator(store, daemon) as public,
        queue_proxy(store, daemon, secret=await secret_of(store), report_period_s=60.0),
    ):
        assert (await send_request(public, "/first")).status == 200
        assert daemon.server.numbers["stats_connections_open"] == 1, "that of the activator"


async def test_announced_pod_without_revision_secret_receives_no_request() -> None:
    async with autoscaler() as (store, daemon), activator(store, daemon, queue_wait_max_s=2.0) as public:
        async with queue_proxy(store, daemon, secret="0" * 64) as app:
            response = await send_request(public, "/first")
        # Probes reach the app of a pod without the secret; the request does not.
        assert (response.status, [head for head in app.heads if " /first " in head]) == (503, [])
        assert daemon.server.numbers["stats_announced_pods_total"] == 1


async def secret_of(store: Store) -> str:
    revision = await store.cluster.get(REVISION, "default", NAME)
    return revision_secret(KEY, namespace="default", uid=revision["metadata"]["uid"])


@contextlib.asynccontextmanager
async def activator(
    store: Store, daemon: AutoscalerDaemon, *, queue_wait_max_s: float = 60.0
) -> AsyncIterator[tuple[str, int]]:
    """An activator on the store; yields its public address."""
    settings = ActivatorSettings(
        stats_url="ws://{}:{}/stats".format(*daemon.address),
        public_address="127.0.0.1:0",
        inner_address="127.0.0.1:0",
        secrets_of="revision",
        queue_wait_max_s=queue_wait_max_s,
        drain_grace_s=0.2,
        drain_lag_s=0.0,
    )
    new_activator = Activator(settings, store.cluster, key=KEY)
    async with started(new_activator):
        await ServiceStore(store.cluster).route({"revisionName": NAME, "percent": 100})
        await until(lambda: new_activator.ingress.routes.find(Listener.PUBLIC, "hello.default.localhost"))
        await until(lambda: new_activator.client.link.is_connected)
        yield new_activator.addresses[Listener.PUBLIC]


@contextlib.asynccontextmanager
async def queue_proxy(
    store: Store, daemon: AutoscalerDaemon, *, secret: str, report_period_s: float = 1.0
) -> AsyncIterator[PodServer]:
    """The queue-proxy of pod p in front of an app; yields the app."""
    del store
    app = PodServer("app")
    await app.start()
    sockets = {"requests": free_socket(), "admin": free_socket()}
    address = sockets["requests"].getsockname()
    spec = PodSpec(
        namespace="default",
        revision=NAME,
        pod="p",
        app=("127.0.0.1", app.port),
        listen=address,
        admin=sockets["admin"].getsockname(),
        readiness=Probe(),
        secret=secret,
        stats_url="ws://{}:{}/stats".format(*daemon.address),
        stats_token=TOKEN,
        settings=QueueProxySettings(drain_lag_s=0.0, drain_grace_s=2.0, report_period_s=report_period_s),
    )
    for sock in sockets.values():
        sock.close()
    stop = asyncio.Event()
    running = asyncio.create_task(queueproxy.serve(spec, stop))
    try:
        yield app
    finally:
        stop.set()
        await running
        await app.stop()
