"""The request log, which writes Knative's line for each request."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from serving.core.settings.http import HttpSettings
from serving.core.settings.queueproxy import QueueProxySettings, RequestLogSettings
from serving.net.proxy.server.listener import HttpServer
from serving.queueproxy.io.requestlog import RequestLog
from serving.queueproxy.podspec import PodSpec
from tests.eventually import until
from tests.integration.proxy.peers import Forwarder, Link, backed, get, ok

TRACE = "0af7651916cd43dd8448eb211c80319c"


def log_of(written: list[bytes], **more: Any) -> RequestLog:  # noqa: ANN401 - fields
    logging = RequestLogSettings(enable_request_log=True, **more)
    spec = PodSpec(
        namespace="default",
        revision="hello-00001",
        pod="hello-1",
        app=("127.0.0.1", 1),
        address="10.0.0.2",
        settings=QueueProxySettings(logging=logging),
    )
    return RequestLog(spec, write=written.append)


async def send_requests(log: RequestLog, *requests: bytes, script: Callable[[Link], Awaitable[None]] = ok) -> None:
    async with backed(script) as backend:
        server = HttpServer(HttpSettings(), request_log=log)
        handler = Forwarder(backend.address)
        address = await server.listen(("127.0.0.1", 0), handler, listener="requests")
        client = await Link.to(address)
        for number, request in enumerate(requests, 1):
            client.send(request)
            await until(lambda count=number: len(handler.finished) == count)  # type: ignore[misc]
        await client.closed()
        await server.finish(grace_s=1)
        await log.close()


async def chunked(link: Link) -> None:
    while True:
        await link.head()
        link.send(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        link.send(b"6\r\n world\r\n0\r\n\r\n")


async def test_request_log_writes_one_line_per_request_with_knative_fields() -> None:
    written: list[bytes] = []
    headers = b"traceparent: 00-%b-b7ad6b7169203331-01\r\nUser-Agent: me\r\nReferer: there\r\n" % TRACE.encode()
    await send_requests(log_of(written), get(b"/a"), get(b'/b?c="', headers), script=chunked)
    first, second = map(json.loads, b"".join(written).splitlines())
    assert list(first) == ["httpRequest", "traceId"]
    assert (first["httpRequest"]["requestUrl"], first["traceId"]) == ("/a", "")
    assert second["httpRequest"].pop("latency").endswith("s")
    assert second["traceId"] == TRACE
    assert second["httpRequest"] == {
        "requestMethod": "GET",
        "requestUrl": '/b?c="',
        "requestSize": "0",
        "status": 201,
        "responseSize": "11",
        "userAgent": "me",
        "remoteIp": second["httpRequest"]["remoteIp"],
        "serverIp": "10.0.0.2",
        "referer": "there",
        "protocol": "HTTP/1.1",
    }


async def test_request_log_line_follows_custom_template() -> None:
    written: list[bytes] = []
    template = (
        '{{.Request.Method}} {{.Request.Host}} {{.Request.Header.Get "X-One"}} {{.Response.Size}} {{.Revision.PodName}}'
    )
    log = log_of(written, request_log_template=template)
    await send_requests(log, get(b"/a", b"X-One: 1\r\n"), script=chunked)
    assert b"".join(written) == b"GET h 1 11 hello-1\n"


@pytest.mark.parametrize(("has_probes", "count"), [(False, 1), (True, 2)])
async def test_probes_are_logged_only_if_enabled(has_probes: bool, count: int) -> None:
    written: list[bytes] = []
    log = log_of(written, enable_probe_request_log=has_probes)
    await send_requests(log, get(b"/probe", b"User-Agent: kube-probe/1.29\r\n"), get(b"/app"))
    assert len(b"".join(written).splitlines()) == count
