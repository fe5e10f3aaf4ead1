"""Output of apps, paths and internal addresses are not sent to clients on failures; the operator finds them by request ID."""

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
# The controller's reasons for failed pods.
REASONS = ("ExitCode1", "ExitCode137", "ContainerMissing", "CrashLoopBackOff", "ProgressDeadlineExceeded", "Evicted")
REVISION, WHOLE = "hello-00001", {"revisionName": "hello-00001", "percent": 100}
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: hello.default.localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PLAIN = b"GET / HTTP/1.1\r\nHost: hello.default.localhost\r\nConnection: close\r\n\r\n"
PAGE, EVENTS = (PLAIN[:-2] + b"Accept: %b\r\n\r\n" % kind for kind in (b"text/html", b"text/event-stream"))


async def response_bytes(address: tuple[str, int], wire: bytes) -> bytes:
    """All bytes that a client receives for a request, until the connection is closed."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(wire)
        with contextlib.suppress(ConnectionError):
            return await reader.read()
        return b""
    finally:
        writer.close()


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port as soon as it listens."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.01)


async def fail(stage: Stage, reason: str) -> None:
    """Set the revision to failed, and wait until the activator has the failure."""
    await stage.status(REVISION, status="False", reason=reason, message=MESSAGE)
    directory = stage.activator.ingress.router.directory
    await until(lambda: (facts := directory.revision(("default", REVISION))) is not None and facts.failure)


async def record_of(stage: Stage, request_id: str) -> RequestRecord:
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
    """A service without pods, whose revision has failed."""
    async with staged() as stage:
        await stage.revision(REVISION)
        await stage.route(WHOLE, annotations={name.replace("__", "/"): text for name, text in annotations.items()})
        await fail(stage, reason)
        yield stage


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("wire", [PLAIN, UPGRADE, PAGE, EVENTS], ids=["plain", "websocket", "page", "events"])
async def test_failure_message_of_pod_is_not_sent_to_clients(reason: str, wire: bytes) -> None:
    async with failing(reason) as stage:
        response = await response_bytes(stage.public, wire)
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in response
    assert b"revision hello-00001 cannot serve\n" in response
    assert PRIVATE.search(response) is None, response


async def test_request_record_with_reason_is_found_by_request_id() -> None:
    async with failing("ExitCode1") as stage:
        first = await send_request(stage.public)
        record = await record_of(stage, first.headers["x-request-id"])
        second = await send_request(stage.public, headers=["X-Request-Id: their-own.1"])
        third = await send_request(stage.public, headers=["X-Request-Id: not an id"])
    assert "Traceback" in record.why
    assert second.headers["x-request-id"] == "their-own.1"
    assert re.fullmatch("[0-9a-f]{32}", third.headers["x-request-id"])


async def test_failed_start_sends_no_private_text_to_queued_requests() -> None:
    annotations = {PLACEHOLDER_PAGE_ANNOTATION: "true", START_EVENTS_ANNOTATION: "true"}
    async with staged() as stage:
        await stage.revision(REVISION, slots=0)
        await stage.route(WHOLE, annotations=annotations)
        tasks = [asyncio.create_task(response_bytes(stage.public, wire)) for wire in (PLAIN, UPGRADE, PAGE, EVENTS)]
        await until(lambda: stage.level == 4)
        await fail(stage, "ExitCode1")
        responses = [await task for task in tasks]
    assert b"cannot serve" in responses[0]
    assert b"event: error" in responses[3]
    assert [match_ for response in responses if (match_ := PRIVATE.search(response))] == []


async def test_placeholder_page_contains_no_private_text() -> None:
    async with staged() as stage:
        await stage.revision(REVISION, slots=0)
        await stage.route(WHOLE, annotations={PLACEHOLDER_PAGE_ANNOTATION: "true"})
        await stage.status(REVISION, status="Unknown", reason="Deploying", message=MESSAGE)
        response = await response_bytes(stage.public, PAGE)
    assert b"hello is starting" in response
    assert PRIVATE.search(response) is None


async def test_grpc_status_contains_no_private_text() -> None:
    async with failing("ExitCode1") as stage:
        client = Http2(await Link.to(stage.public))
        client.send(call(1))
        head, body = await client.response(1)
        await client.link.closed()
    assert (head[":status"], head["grpc-status"]) == ("200", "14")
    assert head["grpc-message"] == "revision hello-00001 cannot serve"
    assert PRIVATE.search(repr(head).encode() + body) is None


async def test_tcp_connection_to_failed_revision_is_closed_without_bytes() -> None:
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


async def test_node_names_are_not_sent_after_a_long_wait_for_a_node() -> None:
    async with staged(queue_wait_max_s=0.05) as stage:
        await stage.service()
        await stage.status(REVISION, status="False", reason="Unschedulable", message="0/1 nodes are available")
        router = stage.activator.ingress.router
        await until(lambda: (facts := router.directory.revision(("default", REVISION))) is not None and facts.delay)
        response = await send_request(stage.public)
        record = await record_of(stage, response.headers["x-request-id"])
    assert (response.status, response.body) == (503, "no pod was free within 0.05 s\n")
    assert "0/1 nodes are available" in record.why


async def test_reason_of_unready_route_is_not_sent() -> None:
    async with staged() as stage:
        await stage.route()
        status = {"conditions": [{"type": "Ready", "status": "False", "message": MESSAGE}]}
        await stage.cluster.patch(ROUTE, "default", "hello", patch={"status": status}, subresource="status")
        response = await send_request(stage.public)
    assert (response.status, response.body) == (503, "service default/hello is not ready\n")


async def test_address_of_unreachable_pod_is_not_sent() -> None:
    async with staged(pod_tries_max=2) as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        port = pod.port
        await pod.stop()
        response = await send_request(stage.public)
        record = await record_of(stage, response.headers["x-request-id"])
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
async def test_invalid_app_response_is_not_quoted(answer: bytes) -> None:
    async with staged() as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        pod.response = answer.replace(b"%b", MARKER.encode())
        response = await response_bytes(stage.public, PLAIN)
    assert response.startswith(b"HTTP/1.1 502 ")
    assert b"X-Request-Id: " in response
    assert PRIVATE.search(response) is None, response


async def test_goaway_text_of_http2_app_is_not_quoted() -> None:
    async def fail_with_goaway(app: Http2App) -> None:
        new_frame = await app.frame(Kind.DATA)
        last = new_frame.stream_id.to_bytes(4, "big")
        app.link.send(frame(Kind.GOAWAY, last + (2).to_bytes(4, "big") + MARKER.encode(), stream_id=0))
        app.link.send(frame(Kind.RST, (2).to_bytes(4, "big"), stream_id=new_frame.stream_id))
        app.link.close()

    async with staged() as stage:
        await stage.service(slots=10)
        await pod_of(stage, "p", fail_with_goaway)
        client = Http2(await Link.to(stage.public))
        client.send(call(1))
        head, body = await client.response(1)
        await client.link.closed()
    assert head["grpc-status"] != "0"
    assert PRIVATE.search(repr(head).encode() + body) is None


async def test_queue_proxy_does_not_send_address_of_unreachable_app() -> None:
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


async def test_queue_proxy_error_has_a_request_id_and_app_error_has_none() -> None:
    async with staged() as stage:
        await stage.service()
        pod = await stage.pod_seen("p")
        pod.response = b"HTTP/1.1 502 No\r\n%bContent-Length: 0\r\n\r\n" % render_proxy_status(b"queue-proxy", b"busy")
        response = await send_request(stage.public)
        record = await record_of(stage, response.headers["x-request-id"])
        pod.response = b"HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n"
        app_response = await send_request(stage.public)
    assert "busy" in record.why
    assert "x-request-id" not in app_response.headers
