"""The queue-proxy as ASGI middleware in the app's process: websockets, the lifespan, and requests to the app."""

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from serving.asgi import QueueProxyMiddleware
from serving.queueproxy.io.asgi.call import App, Message, Receive, Scope, Send
from serving.queueproxy.podspec import PodSpec, Probe
from tests.integration.proxy.peers import Link, get
from tests.integration.proxy.pods import BELIEVED, PODS, Pod, PodMaker, served


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """An app without a lifespan that echoes each websocket message."""
    assert scope["type"] == "websocket"
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


def url_of(running: Pod) -> str:
    return "ws://{}:{}/".format(*running.requests)


async def test_websocket_occupies_a_slot_and_waits_for_a_free_slot() -> None:
    async with served(echo, container_concurrency=1) as running, connect(url_of(running)) as first:
        await first.send("a")
        assert await first.recv() == "a"
        opening = asyncio.create_task(connect(url_of(running)).__aenter__())
        await running.inside(2)
        assert not opening.done()
        await first.close()
        second = await opening
        await second.send("b")
        assert await second.recv() == "b"
        await second.close()
        await running.inside(0)


async def test_websocket_is_rejected_with_503_if_queue_is_full() -> None:
    async with served(echo, container_concurrency=1, queue_depth_per_slot=0) as running, connect(url_of(running)):
        with pytest.raises(InvalidStatus) as refused:
            await connect(url_of(running)).__aenter__()
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["Retry-After"] == "1"


@pytest.mark.parametrize("time", ["request_timeout_s", "idle_timeout_s"])
async def test_websocket_is_closed_after_timeout(time: str) -> None:
    knobs: dict[str, Any] = {time: 1.0}
    async with served(echo, **knobs) as running, connect(url_of(running)) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1011, "request timeout")
        await running.inside(0)


async def test_drain_closes_websocket_with_code_1012() -> None:
    async with (
        served(echo, drain_grace_s=60.0, drain_tunnel_wait_s=0.3) as running,
        connect(url_of(running)) as socket,
    ):
        await socket.send("a")
        assert await socket.recv() == "a"
        running.stop.set()
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        # 1012 is "service restart", which uvicorn also sends.
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        async with asyncio.timeout(60):
            await running.done


async def test_work_after_response_occupies_no_slot_and_delays_drain() -> None:
    answered, go, done = asyncio.Event(), asyncio.Event(), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        if scope["path"] == "/first":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})
            answered.set()
            await go.wait()
            done.append("work")
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})

    async with served(app, container_concurrency=1, drain_grace_s=60.0) as running:
        first, second = [await running.client() for _ in range(2)]
        first.send(get(b"/first"))
        await answered.wait()
        second.send(get(b"/second"))
        assert b" 200 " in await second.head()
        running.stop.set()
        await asyncio.sleep(0.1)
        assert not running.done.done()
        go.set()
        async with asyncio.timeout(60):
            await running.done
        assert done == ["work"]


async def test_timed_out_call_occupies_its_slot_until_it_returns() -> None:
    """The app ignores its cancellation, as a thread does: the client gets 504, and the next request waits."""
    go, begun = asyncio.Event(), list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        begun.append(scope["path"])
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with served(app, container_concurrency=1, request_timeout_s=1.0) as running:
        first, second = [await running.client() for _ in range(2)]
        first.send(get(b"/1"))
        assert (await first.rest()).startswith(b"HTTP/1.1 504 ")
        second.send(get(b"/2"))
        await running.inside(2)
        assert begun == ["/1"]
        go.set()
        assert b" 200 " in await second.head()
        _, numbers = await running.get_admin(get(b"/metrics", BELIEVED))
        assert b'queueproxy_requests_total{kn_revision_name="hello-00001",status_class="5xx"} 1' in numbers


async def test_app_failure_and_invalid_status_are_counted_as_5xx() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        if scope["path"] == "/fails":
            raise ZeroDivisionError
        if scope["path"] == "/status":
            await send({"type": "http.response.start", "status": 1000, "headers": []})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with served(app) as running:
        client = await running.client()
        client.send(get())
        assert b" 200 " in await client.head()
        await client.body(5)
        other = await running.client()
        other.send(get(b"/fails"))
        assert b" 500 " in await other.head()
        odd = await running.client()
        odd.send(get(b"/status"))
        assert await odd.ended()
        await running.inside(0)
        _, numbers = await running.get_admin(get(b"/metrics", BELIEVED))
        assert b'status_class="5xx"} 2' in numbers
        assert b'status_class="2xx"} 1' in numbers


async def test_malformed_host_is_rejected_with_400() -> None:
    async with served(echo) as running:
        client = await running.client()
        client.send(b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n")
        assert (await client.head()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("make", PODS.values(), ids=PODS)
async def test_forwarded_headers_of_untrusted_client_are_replaced_in_replace_mode(make: PodMaker) -> None:
    heads: list[bytes] = []

    async def script(link: Link) -> None:
        while True:
            heads.append(await link.head())
            link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    claims = b"X-Forwarded-For: 10.0.0.1\r\nX_Forwarded_For: 10.0.0.2\r\n"
    async with make(script, http={"forwarded_for": "replace"}) as running:
        client = await running.client()
        for headers in (claims, claims + BELIEVED + b"K-Proxy-Request: activator\r\n"):
            client.send(get(headers=headers))
            await client.message()
    stranger, activator = (head.lower().split(b"\r\n") for head in heads)
    assert b"x-forwarded-for: 127.0.0.1" in stranger
    assert b"x-forwarded-for: 10.0.0.1, 127.0.0.1" in activator
    assert not any(line.startswith(b"x_") for line in (*stranger, *activator))


async def test_readiness_probe_of_app_is_not_counted_as_request() -> None:
    requests: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        requests.append(dict(scope["headers"])[b"user-agent"].decode())
        assert not any(name.startswith(b"k-") for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with served(app, Probe(path="/health", period_s=0)) as running:
        await running.ready()
        assert requests == ["kube-probe/serving"]
        _, numbers = await running.get_admin(get(b"/metrics", BELIEVED))
        assert b'status_class="2xx"} 0' in numbers
        # A probe header without the pod's secret does not make a request a probe.
        client = await running.client()
        client.send(get(headers=BELIEVED.replace(b": ", b": x") + b"User-Agent: me\r\nK-Network-Probe: app\r\n"))
        await client.head()
        _, numbers = await running.get_admin(get(b"/metrics", BELIEVED))
        assert b'status_class="2xx"} 1' in numbers


class Lifespan:
    """The server's side of an ASGI lifespan."""

    def __init__(self, middleware: App) -> None:
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self.task = asyncio.create_task(self._run(middleware))

    async def _run(self, middleware: App) -> None:
        await middleware({"type": "lifespan", "state": {}}, self._events.get, self.sent.put)

    async def send_request(self, kind: str) -> Message:
        await self._events.put({"type": f"lifespan.{kind}"})
        async with asyncio.timeout(60):
            return await self.sent.get()


def spec_at(**arguments: object) -> PodSpec:
    fields = {"namespace": "n", "revision": "r", "pod": "p", "app": ("127.0.0.1", 1), "admin": ("127.0.0.1", 0)}
    return PodSpec(**fields | arguments)  # type: ignore[arg-type]


async def test_app_lifespan_runs_within_queue_proxy_lifespan() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["key"] = 1
        for kind in ("startup", "shutdown"):
            seen.append((await receive())["type"])
            await send({"type": f"lifespan.{kind}.complete"})

    lifespan = Lifespan(QueueProxyMiddleware(app, spec=spec_at()))
    assert (await lifespan.send_request("startup"))["type"] == "lifespan.startup.complete"
    assert (await lifespan.send_request("shutdown"))["type"] == "lifespan.shutdown.complete"
    await lifespan.task
    assert seen == ["lifespan.startup", "lifespan.shutdown"]


async def test_failed_app_startup_fails_lifespan_startup() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    lifespan = Lifespan(QueueProxyMiddleware(app, spec=spec_at()))
    assert await lifespan.send_request("startup") == {"type": "lifespan.startup.failed", "message": "no database"}
    await lifespan.task


async def test_second_process_of_pod_fails_startup_with_reason() -> None:
    occupied = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with occupied:
        spec = spec_at(admin=occupied.sockets[0].getsockname())
        lifespan = Lifespan(QueueProxyMiddleware(echo, spec=spec))
        reply = await lifespan.send_request("startup")
    assert reply["type"] == "lifespan.startup.failed"
    assert "one process" in reply["message"]
    await lifespan.task


async def test_middleware_outside_a_pod_forwards_requests_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVING_POD_NAME", raising=False)
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del receive, send
        seen.append(scope)

    scope = {"type": "http", "headers": [(b"k-pod-secret", b"x")]}
    sent: asyncio.Queue[Message] = asyncio.Queue()
    await QueueProxyMiddleware(app)(scope, sent.get, sent.put)
    assert seen == [scope]


async def test_request_before_lifespan_raises_error_that_names_lifespan() -> None:
    sent: asyncio.Queue[Message] = asyncio.Queue()
    with pytest.raises(RuntimeError, match="lifespan"):
        await QueueProxyMiddleware(echo, spec=spec_at())({"type": "http"}, sent.get, sent.put)
