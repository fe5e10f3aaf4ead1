"""Readiness probes over HTTP/2 of an app that supports only HTTP/2."""

from serving.queueproxy.io.readiness import attempt
from serving.queueproxy.podspec import Probe
from tests.integration.proxy.h2frames import END_HEADERS, Code, Http2App, Kind, fields, frame
from tests.integration.proxy.peers import Link, backed, ok

PROBE = Probe(path="/ready", headers=(("X-Asked", "yes"), ("Host", "me")), timeout_s=1.0)


async def probed(status: str) -> tuple[bool, list[tuple[str, str]]]:
    requests: list[tuple[str, str]] = []

    async def app(link: Link) -> None:
        peer = await Http2App.on(link)
        new_frame = await peer.frame(Kind.HEADERS)
        requests.extend((str(name), str(value)) for name, value in peer.decoder.decode(new_frame.payload))
        link.send(frame(Kind.HEADERS, fields((":status", status)), flags=END_HEADERS, stream_id=new_frame.stream_id))
        await link.rest()

    async with backed(app) as backend:
        return await attempt(PROBE, backend.address, is_http2=True), requests


async def test_http2_probe_result_follows_response_status() -> None:
    is_ready, requests = await probed("204")
    assert is_ready
    assert requests[:4] == [(":method", "GET"), (":scheme", "http"), (":path", "/ready"), (":authority", "me")]
    assert set(requests[4:]) == {("user-agent", "kube-probe/serving"), ("x-asked", "yes")}
    assert not (await probed("503"))[0]
    assert not (await probed("what"))[0]


async def test_app_that_fails_http2_probe_is_not_ready() -> None:
    async def refusing(link: Link) -> None:
        app = await Http2App.on(link)
        app.reset(await app.request(), Code.REFUSED_STREAM)
        await link.rest()

    async def leaving(link: Link) -> None:
        app = await Http2App.on(link)
        app.goaway(await app.request())
        await link.rest()

    async def closing(link: Link) -> None:
        await Http2App.on(link)

    async def other(link: Link) -> None:
        link.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await link.rest()

    for script in (refusing, leaving, closing, other, ok):
        async with backed(script) as backend:
            assert not await attempt(PROBE, backend.address, is_http2=True)


async def test_http2_probe_without_path_needs_only_a_connection() -> None:
    async with backed(ok) as backend:
        assert await attempt(Probe(), backend.address, is_http2=True)
