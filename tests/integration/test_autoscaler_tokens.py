"""Pods authenticate at the autoscaler with Kubernetes tokens, and an API server reviews these, over real sockets."""

import asyncio
import contextlib
import http
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from serving.autoscaler.io.connection import StatsConnection
from serving.autoscaler.main import AutoscalerDaemon
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.home.apiserver.reviews import KnownToken, TokenReviews
from serving.net.aio.clock import wall_s
from serving.net.aio.supervise import TaskOwner
from serving.net.cluster.kinds import POD
from serving.net.cluster.kube import KubeCluster
from serving.net.wire.frames import PodStat, encode_frame
from serving.net.wire.tokens import pod_token
from tests.integration.api_server import served
from tests.integration.autoscaler_stage import KEY, NAME, Store
from tests.integration.daemons import started

AUDIENCE = "serving-stats"
BUSY = encode_frame(PodStat(at_s=0.0, concurrency=15.0))


class Stage:
    """An autoscaler on an API server that a test can stop."""

    def __init__(self, store: Store, daemon: AutoscalerDaemon, tokens: dict[str, KnownToken]) -> None:
        self.store, self.daemon, self.tokens = store, daemon, tokens
        self.api = contextlib.AsyncExitStack()

    async def add_pod(self, name: str) -> str:
        """Add a pod; return a token for it."""
        await self.store.add_pod(name)
        pod = await self.store.cluster.get(POD, "default", name)
        async with asyncio.timeout(60):
            while self.daemon.autoscaler.pod("default", name) is None:  # noqa: ASYNC110 - as a pod would, it tries
                await asyncio.sleep(0.01)
        token = f"token-of-{name}"
        uid = pod["metadata"]["uid"]
        self.tokens[token] = KnownToken(namespace="default", pod=name, pod_uid=uid, audiences=(AUDIENCE,))
        return token

    def connecting(self, pod: str, token: str, *, revision: str = NAME) -> connect:
        address = "{}:{}".format(*self.daemon.address)
        url = f"ws://{address}/stats?namespace=default&revision={revision}&pod={pod}"
        return connect(url, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None)

    async def refused(self, pod: str, token: str, *, revision: str = NAME) -> int:
        with pytest.raises(InvalidStatus) as caught:
            await self.connecting(pod, token, revision=revision)
        return caught.value.response.status_code

    @property
    def reviews(self) -> int:
        return self.daemon.server.numbers["token_reviews_total"]

    async def until_received(self, connection: ClientConnection) -> None:
        """Wait until a frame of a connection has been handled."""
        before = self.daemon.server.numbers["stats_frames_total"]
        await connection.send(BUSY)
        async with asyncio.timeout(60):
            while self.daemon.server.numbers["stats_frames_total"] == before:  # noqa: ASYNC110 - a count is polled
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    store, tokens = Store(), dict[str, KnownToken]()
    await store.fill(scale=1)
    settings = AutoscalerSettings(
        stats_address="127.0.0.1:0", activator_address="127.0.0.1:1", stats_audience=AUDIENCE, decision_period_s=0.5
    )
    async with contextlib.AsyncExitStack() as api:
        serving = served(store.cluster, folder, token_reviews=TokenReviews(tokens.get))
        server = await api.enter_async_context(serving)
        async with KubeCluster(server.kubeconfig) as cluster:
            daemon = AutoscalerDaemon(settings, cluster, key=KEY)
            stage = Stage(store, daemon, tokens)
            stage.api = api
            async with started(daemon):
                yield stage
    await store.cluster.close()


async def test_kubernetes_token_of_pod_is_accepted_and_reviewed_once(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        token = await stage.add_pod("p")
        for _ in range(3):
            async with stage.connecting("p", token) as connection:
                await stage.until_received(connection)
        assert stage.reviews == 1


async def test_reports_with_kubernetes_token_change_the_scale(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        token = await stage.add_pod("p")
        async with stage.connecting("p", token) as connection, asyncio.timeout(60):
            scaled = asyncio.create_task(stage.store.scaled(3))
            while not scaled.done():
                await connection.send(BUSY)
                await asyncio.wait([scaled], timeout=0.5)
            await scaled


async def test_kubernetes_token_is_valid_for_its_pod_only(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        token, _ = await stage.add_pod("p"), await stage.add_pod("q")
        assert await stage.refused("q", token) == 401
        assert await stage.refused("p", token, revision="other-00001") == 401
        async with stage.connecting("p", token) as connection:
            await stage.until_received(connection)
        assert stage.reviews == 1, "a reviewed token is not reviewed again"


async def test_foreign_expired_or_invented_token_is_rejected(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        known = stage.tokens[await stage.add_pod("p")]
        stage.tokens["elsewhere"] = KnownToken(
            namespace="default", pod="p", pod_uid=known.pod_uid, audiences=("https://kubernetes.default.svc",)
        )
        stage.tokens["expired"] = KnownToken(
            namespace="default", pod="p", pod_uid=known.pod_uid, audiences=(AUDIENCE,), until_s=wall_s() - 1
        )
        for token in ("elsewhere", "expired", "made up"):
            assert await stage.refused("p", token) == 401
            assert await stage.refused("p", token) == 401
        assert stage.reviews == 3, "a rejection is cached for some seconds"


async def test_token_of_deleted_pod_is_rejected_for_new_pod_of_same_name(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        token = await stage.add_pod("p")
        await stage.store.remove_pod("p")
        await stage.store.add_pod("p")
        assert await stage.refused("p", token) == 401


async def test_derived_token_is_accepted_without_review(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        token = pod_token(KEY, namespace="default", revision=NAME, pod="local")
        async with stage.connecting("local", token) as connection:
            await stage.until_received(connection)
        assert stage.reviews == 0


async def test_connected_and_reviewed_pods_are_accepted_while_api_is_unavailable(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        first, second, third = [await stage.add_pod(name) for name in ("a", "b", "c")]
        async with stage.connecting("a", first) as open_connection:
            async with stage.connecting("b", second) as connection:
                await stage.until_received(connection)
            await stage.api.aclose()
            assert await stage.refused("c", third) == 503
            await stage.until_received(open_connection)
            async with stage.connecting("b", second) as connection:
                await stage.until_received(connection)


async def test_frames_sent_before_handshake_response_are_processed(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        token = await stage.add_pod("p")
        reader, writer = await asyncio.open_connection(*stage.daemon.address)
        head = [
            f"GET /stats?namespace=default&revision={NAME}&pod=p HTTP/1.1",
            "Host: a",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Version: 13",
            f"Authorization: Bearer {token}",
        ]
        # A mask of zeros leaves the bytes of a client's frame unchanged.
        frame = b"\x82" + bytes([0x80 | len(BUSY)]) + bytes(4) + BUSY
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + frame[:5])
        writer.write(frame[5:])
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        async with asyncio.timeout(60):
            while stage.daemon.server.numbers["stats_frames_total"] == 0:  # noqa: ASYNC110 - a count is polled
                await asyncio.sleep(0.005)
        writer.close()


async def test_client_that_floods_before_authentication_is_disconnected(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        token = await stage.add_pod("p")
        reader, writer = await asyncio.open_connection(*stage.daemon.address)
        head = f"GET /stats?namespace=default&revision={NAME}&pod=p HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        writer.write(head.encode() + bytes(20_000))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_tokens_are_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with staged(tmp_path) as stage:
        await stage.add_pod("p")
        assert await stage.refused("p", "a-secret-that-nobody-reads") == 401
        autoscalers = [record for record in caplog.records if record.name == "autoscaler"]
        (refusal,) = [record for record in autoscalers if record.getMessage() == "stats.refused"]
        assert vars(refusal)["reason"].startswith("it needs token is unknown")
        assert "a-secret-that-nobody-reads" not in " ".join(str(vars(record)) for record in autoscalers)


class OneFails:
    """Responds to each head after an authentication check, which raises an unexpected error for the path ``/bad``."""

    def __init__(self) -> None:
        self.tasks = TaskOwner()

    def opened(self, connection: StatsConnection) -> None: ...

    def lost(self, connection: StatsConnection) -> None: ...

    def respond(self, protocol: ServerProtocol, request: Request, connection: StatsConnection) -> Response | None:
        async def proof() -> bool:
            await asyncio.sleep(0)
            if request.path == "/bad":
                raise ValueError("not expected")
            return True

        connection.judge(
            proof(), lambda is_proved: protocol.reject(http.HTTPStatus.FORBIDDEN, f"proved: {is_proved}\n")
        )
        return None


async def test_failed_authentication_check_is_logged_and_closes_only_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: StatsConnection(OneFails()), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def response_to(path: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async with server, asyncio.timeout(60):
        bad, good = await asyncio.gather(response_to("/bad"), response_to("/good"))
    assert bad == b""
    assert good.startswith(b"HTTP/1.1 403 ")
    assert "connection.failed" in caplog.messages
    assert "not expected" in caplog.text
