"""Event streams that the activator starts before a pod is ready, over real sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from serving.core.model.knative import START_EVENTS_ANNOTATION
from serving.net.proxy.forwarding import earlyevents
from tests.eventually import until
from tests.integration.activator_stage import HOST, Stage, send_request, staged

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
TOKENS = b'data: {"n": 1}\n\ndata: [DONE]\n\n'
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nContent-Length: %d\r\n\r\n%b" % (
    len(TOKENS),
    TOKENS,
)
COMMENT = b": starting\n\n"


def response_of(status: bytes, kind: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (status, kind, len(body), body)


@contextlib.asynccontextmanager
async def chat(stage: Stage, *, http2: bool = False) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[bytes]]]:
    """A streamed chat: the response after its head was received, and its body."""
    host, port = stage.public
    async with (
        httpx.AsyncClient(http1=not http2, http2=http2, timeout=60) as client,
        client.stream(
            "POST",
            f"http://{host}:{port}/v1/chat/completions",
            content=CHAT,
            headers={"Host": HOST, "Content-Type": "application/json"},
        ) as response,
    ):
        yield response, response.aiter_raw()


async def rest_of(body: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in body])


@contextlib.asynccontextmanager
async def service_at_zero(value: str = "true") -> AsyncIterator[Stage]:
    """A service at zero with start events."""
    async with staged() as stage:
        await stage.revision("hello-00001", slots=0)
        await stage.route({"revisionName": "hello-00001", "percent": 100}, annotations={START_EVENTS_ANNOTATION: value})
        yield stage


@pytest.mark.parametrize("http2", [False, True])
async def test_event_stream_starts_immediately_and_continues_with_apps_events(
    http2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlyevents, "EVENTS_PERIOD_S", 0.02)
    async with service_at_zero() as stage, chat(stage, http2=http2) as (response, body):
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-serving-revision"] == "hello-00001"
        seen = b""
        while seen.count(COMMENT) < 3:
            seen += await anext(body)
        pod = await stage.pod("pod")
        pod.gate.clear()
        pod.response = STREAM
        # The activator sends comments until the app responds.
        await until(lambda: pod.running_count)
        seen += await anext(body)
        pod.gate.set()
        seen += await rest_of(body)
        assert seen.endswith(TOKENS)
        assert seen == COMMENT * seen.count(COMMENT) + TOKENS
        # A request to a warm pod is forwarded directly.
        async with chat(stage, http2=http2) as (warm, rest):
            assert await rest_of(rest) == TOKENS
            assert warm.headers["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize(
    ("response", "error"),
    [
        (
            response_of(b"400 Bad Request", b"application/json", b'{\n "error": {\n  "message": "too long"}}'),
            {"message": "too long"},
        ),
        (
            response_of(b"500 Internal Server Error", b"text/plain", b"out of memory\n"),
            {"message": "out of memory", "type": "serving_error", "code": 500},
        ),
        (
            response_of(b"200 OK", b"application/json", b"{}"),
            {"message": "the response is no event stream: {}", "type": "serving_error", "code": 200},
        ),
        (
            response_of(b"503 x", b"text/html", b"\xff" * 9000),
            {"message": "\ufffd" * 4096, "type": "serving_error", "code": 503},
        ),
        (response_of(b"404 x", b"text/plain", b""), {"message": "", "type": "serving_error", "code": 404}),
    ],
    ids=["OpenAI", "text", "no stream", "long", "empty"],
)
async def test_response_without_event_stream_becomes_an_error_event(
    response: bytes, error: object, http2: bool
) -> None:
    async with service_at_zero() as stage, chat(stage, http2=http2) as (_, body):
        pod = await stage.pod("pod")
        pod.response = response
        name, _, data = (await rest_of(body)).removeprefix(COMMENT).partition(b"\n")
        assert name == b"event: error"
        assert data.count(b"\n") == 2
        assert json.loads(data.removeprefix(b"data: ")) == {"error": error}


@pytest.mark.parametrize("http2", [False, True])
async def test_failed_start_becomes_an_error_event(http2: bool) -> None:
    async with service_at_zero() as stage, chat(stage, http2=http2) as (_, body):
        await stage.status("hello-00001", status="False", reason="ExitCode1", message="the model is missing")
        rest = await rest_of(body)
        assert b"event: error\n" in rest
        assert b"revision hello-00001 cannot serve" in rest
        assert b"the model is missing" not in rest
        assert b'"code":503' in rest
        await until(lambda: stage.level == 0)


async def test_client_disconnect_ends_comments_and_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlyevents, "EVENTS_PERIOD_S", 0.01)
    async with service_at_zero() as stage:
        async with chat(stage):
            assert stage.level == 1
        await until(lambda: stage.level == 0)
        pod = await stage.pod_seen("pod")
        assert (await send_request(stage.public)).body == "pod"
        assert len(pod.heads) == 1


@pytest.mark.parametrize(
    ("value", "headers", "body"),
    [
        ("false", ["Accept: text/event-stream"], CHAT.decode()),
        ("true", ["Accept: application/json"], CHAT.decode().replace("true", "false")),
        ("true", [], json.dumps({"messages": [{"content": CHAT.decode()}]})),
    ],
    ids=["off", "a whole answer", "a stream in a text"],
)
async def test_requests_for_other_responses_wait_for_their_pod(value: str, headers: list[str], body: str) -> None:
    async with service_at_zero(value) as stage:
        request = asyncio.create_task(send_request(stage.public, method="POST", headers=headers, body=body))
        await until(lambda: stage.level == 1)
        await stage.pod_seen("pod")
        assert (await request).body == "pod"
