"""What apps print, paths of the machine and internal addresses reach no client, whatever fails; the operator finds them by the request's id."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import msgspec
import pytest

from serving.core.model.knative import PLACEHOLDER_PAGE_ANNOTATION, START_EVENTS_ANNOTATION, TCP_ANNOTATION
from serving.core.traffic.requesthistory import RequestRecord, RequestReport
from serving.net.cluster.kinds import ROUTE
from serving.net.proxy.http1.rendering import render_proxy_status
from tests.eventually import until
from tests.integration.activator_stage import Stage, send_request, staged
from tests.integration.proxy.h2frames import Http2, Http2App, Kind, frame
from tests.integration.proxy.peers import Link, get
from tests.integration.proxy.pods import BELIEVED, forwarding
from tests.integration.proxy.test_tcp import reserved_port
from tests.integration.test_activator_grpc import call, pod_of

MARKER = "could not connect to postgres://admin:PASSWORD@10.1.2.3/prod"
MESSAGE = f'Container failed with: Traceback: File "/srv/app/main.py", line 1\n{MARKER}'
PRIVATE = re.compile(rb"PASSWORD|10\.1\.2\.3|/srv/app|Traceback|127\.0\.0\.1|0/1 nodes")
# One for each way in which a pod fails, as the controller names them.
REASONS = ("ExitCode1", "ExitCode137", "ContainerMissing", "CrashLoopBackOff", "ProgressDeadlineExceeded", "Evicted")
REVISION, WHOLE = "hello-00001", {"revisionName": "hello-00001", "percent": 100}
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: hello.default.localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PLAIN = b"GET / HTTP/1.1\r\nHost: hello.default.localhost\r\nConnection: close\r\n\r\n"
PAGE, EVENTS = (PLAIN[:-2] + b"Accept: %b\r\n\r\n" % kind for kind in (b"text/html", b"text/event-stream"))


async def whole(address: tuple[str, int], wire: bytes) -> bytes:
    """All bytes that a client gets for a request, until the connection ends."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(wire)
        with contextlib.suppress(ConnectionError):
            return await reader.read()
        return b""
    finally:
        writer.close()


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a port, once something listens there."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.01)


async def fail(stage: Stage, reason: str) -> None:
    """Make the revision fail, and wait until the activator has seen it."""
    await stage.status(REVISION, status="False", reason=reason, message=MESSAGE)
    directory = stage.activator.ingress.router.directory
    await until(lambda: (facts := directory.revision(("default", REVISION))) is not None and facts.failure)


async def recorded(stage: Stage, request_id: str) -> RequestRecord:
    """The record of a failed request."""

    def found() -> RequestRecord | None:
        text = stage.activator.ingress.recorder.reports({"namespace": "default", "name": REVISION})
        reports = msgspec.json.decode(text, type=list[RequestReport])
        return next((record for report in reports for record in report.failed if record.request_id == request_id), None)

    await until(found)
    record = found()
    assert record is not None
    return record


@contextlib.asynccontextmanager
async def failing(reason: str, **annotations: str) -> AsyncIterator[Stage]:
    """A service without a pod whose revision fails."""
    async with staged() as stage:
        await stage.revision(REVISION)
        await stage.route(WHOLE, annotations={name.replace("__", "/"): text for name, text in annotations.items()})
        await fail(stage, reason)
        yield stage


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("wire", [PLAIN, UPGRADE, PAGE, EVENTS], ids=["plain", "websocket", "page", "events"])
async def test_no_client_gets_what_a_pod_printed_before_it_failed(reason: str, wire: bytes) -> None:
    async with failing(reason) as stage:
        response = await whole(stage.public, wire)
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in response
    assert b"revision hello-00001 cannot serve\n" in response
    assert PRIVATE.search(response) is None, response


async def test_the_operator_finds_the_reason_by_the_id_that_the_client_got() -> None:
    async with failing("ExitCode1") as stage:
        first = await send_request(stage.public)
        record = await recorded(stage, first.headers["x-request-id"])
        second = await send_request(stage.public, headers=["X-Request-Id: their-own.1"])
        third = await send_request(stage.public, headers=["X-Request-Id: not an id"])
    assert "Traceback" in record.why
    assert second.headers["x-request-id"] == "their-own.1"
    assert re.fullmatch("[0-9a-f]{32}", third.headers["x-request-id"])


async def test_requests_that_wait_when_a_start_fails_get_none_of_it() -> None:
    annotations = {PLACEHOLDER_PAGE_ANNOTATION: "true", START_EVENTS_ANNOTATION: "true"}
    async with staged() as stage:
        await stage.revision(REVISION, slots=0)
        await stage.route(WHOLE, annotations=annotations)
        tasks = [asyncio.create_task(whole(stage.public, wire)) for wire in (PLAIN, UPGRADE, PAGE, EVENTS)]
        await until(lambda: stage.level == 4)
        await fail(stage, "ExitCode1")
        responses = [await task for task in tasks]
    assert b"cannot serve" in responses[0]
    assert b"event: error" in responses[3]
    assert [match_ for response in responses if (match_ := PRIVATE.search(response))] == []


async def test_the_page_while_a_pod_starts_has_none_of_it() -> None:
    async with staged() as stage:
        await stage.revision(REVISION, slots=0)
        await stage.route(WHOLE, annotations={PLACEHOLDER_PAGE_ANNOTATION: "true"})
        await stage.status(REVISION, status="Unknown", reason="Deploying", message=MESSAGE)
        response = await whole(stage.public, PAGE)
    assert b"hello is starting" in response
    assert PRIVATE.search(response) is None


async def test_a_status_of_grpc_has_none_of_it() -> None:
    async with failing("ExitCode1") as stage:
        client = Http2(await Link.to(stage.public))
        client.send(call(1))
        head, body = await client.response(1)
        await client.link.closed()
    assert (head[":status"], head["grpc-status"]) == ("200", "14")
    assert head["grpc-message"] == "revision hello-00001 cannot serve"
    assert PRIVATE.search(repr(head).encode() + body) is None


async def test_a_connection_of_tcp_ends_without_a_byte() -> None:
    with reserved_port() as port:
        async with failing("ExitCode1", **{TCP_ANNOTATION.replace("/", "__"): str(port)}) as stage:
            reader, writer = await connected(port)
            writer.write(PLAIN)
            response = b""
            with contextlib.suppress(ConnectionError):
                response = await reader.read()
            writer.close()
            counts = stage.activator.ingress.counts
    assert response == b""
    assert counts["refused-failed"]


async def test_a_wait_for_a_node_that_is_too_long_does_not_name_nodes() -> None:
    async with staged(queue_wait_max_s=0.05) as stage:
        await stage.service()
        await stage.status(REVISION, status="False", reason="Unschedulable", message="0/1 nodes are available")
        router = stage.activator.ingress.router
        await until(lambda: (facts := router.directory.revision(("default", REVISION))) is not None and facts.delay)
        response = await send_request(stage.public)
        record = await recorded(stage, response.headers["x-request-id"])
    assert (response.status, response.body) == (503, "no pod was free within 0.05 s\n")
    assert "0/1 nodes are available" in record.why


async def test_a_route_that_is_not_ready_does_not_say_why() -> None:
    async with staged() as stage:
        await stage.route()
        status = {"conditions": [{"type": "Ready", "status": "False", "message": MESSAGE}]}
        await stage.cluster.patch(ROUTE, "default", "hello", patch={"status": status}, subresource="status")
        response = await send_request(stage.public)
    assert (response.status, response.body) == (503, "service default/hello is not ready\n")


async def test_a_pod_that_cannot_be_reached_is_not_named() -> None:
    async with staged(pod_tries_max=2) as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        port = pod.port
        await pod.stop()
        response = await send_request(stage.public)
        record = await recorded(stage, response.headers["x-request-id"])
    assert (response.status, response.body) == (502, "revision hello-00001: no connection to a pod in 2 tries")
    assert f"127.0.0.1', {port}" in record.why


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n%b\r\n\r\n",
        b"%b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: %b\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: %b\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: %b" + b"x" * 200_000,
    ],
)
async def test_a_response_that_cannot_be_read_is_not_quoted(answer: bytes) -> None:
    async with staged() as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        pod.response = answer.replace(b"%b", MARKER.encode())
        response = await whole(stage.public, PLAIN)
    assert response.startswith(b"HTTP/1.1 502 ")
    assert b"X-Request-Id: " in response
    assert PRIVATE.search(response) is None, response


async def test_the_last_words_of_an_http2_app_are_not_quoted() -> None:
    async def goes(app: Http2App) -> None:
        new_frame = await app.frame(Kind.DATA)
        last = new_frame.stream_id.to_bytes(4, "big")
        app.link.send(frame(Kind.GOAWAY, last + (2).to_bytes(4, "big") + MARKER.encode(), stream_id=0))
        app.link.send(frame(Kind.RST, (2).to_bytes(4, "big"), stream_id=new_frame.stream_id))
        app.link.close()

    async with staged() as stage:
        await stage.service(slots=10)
        await pod_of(stage, "p", goes)
        client = Http2(await Link.to(stage.public))
        client.send(call(1))
        head, body = await client.response(1)
        await client.link.closed()
    assert head["grpc-status"] != "0"
    assert PRIVATE.search(repr(head).encode() + body) is None


async def test_an_app_that_takes_no_connection_is_not_named_by_its_queue_proxy() -> None:
    async def never(link: Link) -> None:
        await link.head()

    async with forwarding(never) as running:
        await running.ready()
        running.app.server.close()
        for headers in (b"", BELIEVED + b"K-Proxy-Request: activator\r\n"):
            client = await running.client()
            client.send(get(headers=headers))
            head, body = await client.message()
            assert head.split(b" ")[1] in (b"502", b"503")
            assert body == b"the app accepts no connection: connection refused"
            assert PRIVATE.search(head + body) is None


async def test_an_error_of_a_queue_proxy_has_an_id_too() -> None:
    async with staged() as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        pod.response = b"HTTP/1.1 502 No\r\n%bContent-Length: 0\r\n\r\n" % render_proxy_status(b"queue-proxy", b"busy")
        response = await send_request(stage.public)
        record = await recorded(stage, response.headers["x-request-id"])
        pod.response = b"HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n"
        theirs = await send_request(stage.public)
    assert "busy" in record.why
    assert "x-request-id" not in theirs.headers
