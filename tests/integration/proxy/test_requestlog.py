"""The request log: Knative's line for each request."""

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


def log_of(written: list[bytes], template: str, **more: Any) -> RequestLog:  # noqa: ANN401 - fields
    logging = RequestLogSettings(enable_request_log=True, request_log_template=template, **more)
    spec = PodSpec(
        namespace="default",
        revision="hello-00001",
        pod="hello-1",
        app=("127.0.0.1", 1),
        service="hello",
        address="10.0.0.2",
        settings=QueueProxySettings(logging=logging),
    )
    return RequestLog(spec, write=written.append)


async def asked(log: RequestLog, *requests: bytes, script: Callable[[Link], Awaitable[None]] = ok) -> None:
    async with backed(script) as backend:
        server = HttpServer(HttpSettings(), request_log=log)
        handler = Forwarder(backend.address)
        address = await server.listen(("127.0.0.1", 0), handler, listener="requests")
        client = await Link.to(address)
        for number, one in enumerate(requests, 1):
            client.send(one)
            await until(lambda count=number: len(handler.finished) == count)  # type: ignore[misc]
        await client.closed()
        await server.finish(grace_s=1)
        await log.close()


async def chunked(link: Link) -> None:
    while True:
        await link.head()
        link.send(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        link.send(b"6\r\n world\r\n0\r\n\r\n")


async def test_each_request_is_a_line_of_the_template() -> None:
    written: list[bytes] = []
    template = "{{.Request.Method}} {{.Request.RequestURI}} {{.Request.Proto}} {{.Response.Code}} {{.Response.Size}} {{.TraceID}} {{.Revision.Service}}@{{.Revision.PodIP}}"
    traced = b"traceparent: 00-%b-b7ad6b7169203331-01\r\n" % TRACE.encode()
    await asked(log_of(written, template), get(b"/a"), get(b"/b?c", traced), script=chunked)
    assert b"".join(written).decode().splitlines() == [
        "GET /a HTTP/1.1 201 11  hello@10.0.0.2",
        f"GET /b?c HTTP/1.1 201 11 {TRACE} hello@10.0.0.2",
    ]


async def test_the_default_template_is_json_and_has_no_secret_of_ours() -> None:
    written: list[bytes] = []
    await asked(log_of(written, "{{.Request.Header}}"), get(b"/", b"K-Pod-Secret: hush\r\nX-One: 1\r\n"))
    assert b"hush" not in b"".join(written)
    assert b"X-One:[1]" in b"".join(written)
    written.clear()
    await asked(log_of(written, RequestLogSettings().request_log_template), get(b"/", b"User-Agent: me\r\n"))
    assert b'"status": 200, "responseSize": "' in b"".join(written)
    assert b'"userAgent": "me"' in b"".join(written)


@pytest.mark.parametrize(("has_probes", "count"), [(False, 1), (True, 2)])
async def test_probes_have_a_line_only_where_they_are_wanted(has_probes: bool, count: int) -> None:
    written: list[bytes] = []
    log = log_of(written, "{{.Request.RequestURI}}", enable_probe_request_log=has_probes)
    await asked(log, get(b"/probe", b"User-Agent: kube-probe/1.29\r\n"), get(b"/app"))
    assert len(b"".join(written).splitlines()) == count


async def test_a_request_without_what_the_template_indexes_is_counted_and_breaks_nothing() -> None:
    written: list[bytes] = []
    log = log_of(written, '{{index (index .Request.Header "X-One") 0}}')
    await asked(log, get(b"/"), get(b"/", b"X-One: there\r\n"))
    assert b"".join(written) == b"there\n"
    assert log.dropped_count == 1
