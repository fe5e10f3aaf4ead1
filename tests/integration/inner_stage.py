"""An activator, a queue-proxy with its app, and an autoscaler's stats server, which speak inner TLS over real sockets.

Relays stand between them, as a network does, and record every byte.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec

from serving.autoscaler.decision_events import DecisionBook, Followers, PolicyBook
from serving.autoscaler.io.pod_credentials import CredentialIssuer
from serving.autoscaler.io.stats_server import SharedStats, StatsServer
from serving.core.model.identities import AUTOSCALER
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.innertls import ENABLED, InnerTlsSettings
from serving.core.settings.queueproxy import QueueProxySettings
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import wall_s
from serving.net.aio.mutualtls import MutualTls
from serving.net.wire.authority import Authority
from serving.net.wire.issuing import DaemonTls
from serving.net.wire.tokens import pod_secret, pod_token
from serving.queueproxy import main
from serving.queueproxy.podspec import Address, PodSpec
from tests.eventually import until
from tests.integration.activator_stage import KEY, Stage, staged
from tests.integration.proxy.peers import Script, backed, free_socket, ok
from tests.integration.proxy.pods import order_stop, server_of
from tests.integration.proxy.scripted_app import scripted_app
from tests.integration.query_token import GATE

REVISION = "hello-00001"
SETTINGS = InnerTlsSettings(mode=ENABLED)
Serve = Callable[[PodSpec, asyncio.Event], Coroutine[Any, Any, None]]


class Relay:
    """Passes connections on to an address, and records what it passed in both directions."""

    def __init__(self) -> None:
        self.target: Address = ("", 0)
        self.recorded: list[bytes] = []
        self.address: Address = ("", 0)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def text(self) -> bytes:
        """All that was passed."""
        return b"".join(self.recorded)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Relay"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = server.sockets[0].getsockname()
        async with server:
            yield self
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs = await asyncio.open_connection(*self.target)
        for source, sink in ((reader, theirs[1]), (theirs[0], writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65_536):
                    self.recorded.append(data)
                    sink.write(data)
        finally:
            sink.close()


class Inner:
    """See the module. ``to_pod`` is between the activator and the pod, ``to_autoscaler`` before the autoscaler."""

    def __init__(self) -> None:
        self.to_pod, self.to_autoscaler = Relay(), Relay()
        self.stage: Stage
        self.stats: StatsServer
        self.secured: DaemonTls
        self.requests: Address
        self.admin: Address
        self.stats_address: Address
        self.sources: set[StatSource] = set()
        """Who has reported."""

    def contexts(
        self, identity: str, *, key: bytes = KEY, at_s: float | None = None, life_s: float = 60.0
    ) -> MutualTls:
        """Contexts of a peer with a certificate of its own."""
        issued_certificate = Authority(key).issue(identity, now_s=wall_s() if at_s is None else at_s, life_s=life_s)
        # It trusts the authority of the stage, whoever signed its own certificate.
        tls = MutualTls(Authority(KEY).certificate)
        tls.replace(issued_certificate.certificate, issued_certificate.key, not_after_s=issued_certificate.not_after_s)
        return tls


def spec_of(descriptors: dict[str, int], app: Address, url: str, settings: InnerTlsSettings, pod: str) -> PodSpec:
    return PodSpec(
        namespace="default",
        revision=REVISION,
        pod=pod,
        app=app,
        listen_fds=descriptors,
        stats_url=url,
        stats_token=pod_token(KEY, namespace="default", revision=REVISION, pod=pod),
        secret=pod_secret(KEY, namespace="default", pod=pod),
        authority=Authority(KEY).certificate,
        settings=QueueProxySettings(drain_lag_s=0.0, drain_grace_s=2.0, report_period_s=0.1, inner_tls=settings),
    )


async def serve_in_process(spec: PodSpec, stop: asyncio.Event) -> None:
    """Run the queue-proxy in the process of an app, which forwards to the stage's."""
    listener = socket.socket(fileno=spec.listen_fds["requests"])
    app, own = scripted_app(spec.app), listener.getsockname()
    spec = msgspec.structs.replace(spec, app=own, listen_fds={"admin": spec.listen_fds["admin"]})
    ordering = asyncio.create_task(order_stop(stop))
    await server_of(app, spec).serve(sockets=[listener])
    await ordering
    listener.close()


SERVERS: dict[str, Serve] = {"beside": main.serve, "in process": serve_in_process}
"""What runs the queue-proxy of a pod, by its place."""


@contextlib.asynccontextmanager
async def stats_served(inner: Inner, settings: InnerTlsSettings) -> AsyncIterator[None]:
    """An autoscaler's stats server, with a certificate that it renews."""
    inner.secured = DaemonTls(KEY, AUTOSCALER, settings)
    seen = {"metadata": {"labels": {"serving.knative.dev/service": "hello"}}, "spec": {}}
    inner.stats = StatsServer(
        key=KEY,
        record=lambda _key, _stat, source: inner.sources.add(source),
        decisions=DecisionBook(
            Followers(),
            keys=list,
            decisions=lambda *_: (),
            policies=PolicyBook(keys=list, scaler=lambda _: None),
        ),
        page=lambda _: ("", "text/plain"),
        is_well=lambda: True,
        connections_max=100,
        sharing=SharedStats(issuer=CredentialIssuer(KEY, pod=lambda *_: seen, secured=inner.secured), queries=GATE),
    )
    renewing = asyncio.create_task(inner.secured.renew())
    async with inner.stats.serve(("127.0.0.1", 0)) as inner.stats_address:
        yield
    renewing.cancel()


@contextlib.asynccontextmanager
async def secured(
    settings: InnerTlsSettings = SETTINGS,
    *,
    pod_settings: InnerTlsSettings | None = None,
    pod: str = "hello-1",
    serve: Serve = main.serve,
    script: Script = ok,
    **arguments: Any,  # noqa: ANN401 - settings of an activator
) -> AsyncIterator[Inner]:
    """All of them, ready.

    ``pod_settings`` are those of the queue-proxy, where they differ; ``serve`` runs it before the app's script.
    """
    inner, cluster = Inner(), arguments.pop("cluster", None) or MemoryCluster()
    async with contextlib.AsyncExitStack() as stack:
        for relay in (inner.to_pod, inner.to_autoscaler):
            await stack.enter_async_context(relay.running())
        await stack.enter_async_context(stats_served(inner, settings))
        inner.to_autoscaler.target = inner.stats_address
        url = "ws://{}:{}/stats".format(*inner.to_autoscaler.address)
        app = await stack.enter_async_context(backed(script))
        sockets = [free_socket(), free_socket()]
        for sock in sockets:
            sock.listen()
        inner.requests, inner.admin = (each_sock.getsockname() for each_sock in sockets)
        inner.to_pod.target = inner.requests
        descriptors = {name: each_sock.detach() for name, each_sock in zip(("requests", "admin"), sockets, strict=True)}
        spec = spec_of(descriptors, app.address, url, pod_settings or settings, pod)
        if spec.settings.inner_tls.mode == "Disabled":
            spec = msgspec.structs.replace(spec, stats_url=None)
        stop = asyncio.Event()
        serving = asyncio.create_task(serve(spec, stop))
        stack.push_async_callback(_stopped, serving, stop)
        stage = staged(cluster=cluster, stats_url=url, inner_tls=settings, **arguments)
        inner.stage = await stack.enter_async_context(stage)
        await inner.stage.service(slots=0)
        await listed(inner)
        yield inner


async def listed(inner: Inner, name: str = "hello-1") -> None:
    """The pod is listed at the relay's address, and the activator has seen it."""
    await inner.stage.pod(name, server=_Listed(inner.to_pod))  # type: ignore[arg-type]
    await until(lambda: inner.stage.activator.ingress.router.directory.pods_of(("default", REVISION)))


class _Listed:
    def __init__(self, relay: Relay) -> None:
        self.port = relay.address[1]


async def _stopped(serving: "asyncio.Task[None]", stop: asyncio.Event) -> None:
    stop.set()
    async with asyncio.timeout(60):
        await serving
