"""HTTP/2 apps that misbehave: GOAWAY, refused and reset streams, closed connections, wrong lengths."""

import asyncio
import contextlib

import pytest

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http1.upstream import INTERIM_MAX
from serving.net.proxy.http2.flow import WINDOW_BYTES, WINDOW_BYTES_MAX
from serving.net.proxy.http2.upstream import Http2Pool, UpstreamSession
from tests.integration.proxy.h2frames import END_HEADERS, Code, Http2, Http2App, Kind, fields, frame, request, settings
from tests.integration.proxy.peers import Link, Proxy, Script, get, proxied

POST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW = 3, 4


def proxied_http2(script: Script, limits: HttpSettings | None = None) -> contextlib.AbstractAsyncContextManager[Proxy]:
    """A proxy in front of an app that uses HTTP/2."""
    return proxied(script, limits, pool=Http2Pool)


async def responses(script: Script, *requests: bytes, limits: HttpSettings | None = None) -> list[bytes]:
    """Status and body of the response to each of these requests, sent concurrently on separate connections."""
    async with proxied_http2(script, limits) as proxy:
        return await asyncio.gather(*[response_to(proxy, request) for request in requests])


async def response_to(proxy: Proxy, request: bytes) -> bytes:
    client = await proxy.client()
    client.send(request)
    head = await client.head()
    if b"Content-Length" in head:
        length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        return head[9:13] + await client.body(length)
    return head[9:13] + (await client.chunks())[0]


async def test_streams_up_to_goaway_complete_and_later_streams_are_retried() -> None:
    connections = 0

    async def leaving(link: Link) -> None:
        nonlocal connections
        connections += 1
        app = await Http2App.on(link)
        first = await app.request()
        if connections > 1:
            app.respond(first, b"again")
            await app.request()
        second = await app.request()
        app.goaway(first)
        app.respond(first, b"first")
        assert second > first
        await link.rest()

    results = await responses(leaving, POST, POST)
    assert sorted(results) == [b"200 again", b"200 first"]
    assert connections == 2


async def test_refused_post_stream_is_retried_with_its_body() -> None:
    bodies = []

    async def refusing(link: Link) -> None:
        app = await Http2App.on(link)
        app.reset(await app.request(), Code.REFUSED_STREAM)
        stream_id = await app.request()
        bodies.append((await app.frame(Kind.DATA)).payload)
        app.respond(stream_id)
        await link.rest()

    assert await responses(refusing, POST) == [b"200 fine"]
    assert bodies == [b"body"]


async def test_window_enlarged_by_app_settings_is_used() -> None:
    async def narrow(link: Link) -> None:
        app = await Http2App.on(link, (INITIAL_WINDOW, 1))
        app.respond(await app.request())
        number = await app.request()
        assert (await app.frame(Kind.DATA)).payload == b"b"
        link.send(settings((INITIAL_WINDOW, 100)))
        assert (await app.frame(Kind.DATA)).payload == b"ody"
        app.respond(number)
        await link.rest()

    async with proxied_http2(narrow) as proxy:
        assert await response_to(proxy, get()) == b"200 fine"
        assert await response_to(proxy, POST) == b"200 fine"


async def test_unread_stream_buffers_bounded_bytes_and_blocks_no_other_stream() -> None:
    window_is_used, app_continues = asyncio.Event(), asyncio.Event()
    received_bytes = 0

    async def deaf(link: Link) -> None:
        nonlocal received_bytes
        app = await Http2App.on(link)
        number = await app.request()
        while received_bytes < WINDOW_BYTES:
            received_bytes += len((await app.frame(Kind.DATA)).payload)
        window_is_used.set()
        app.respond(await app.request(), b"other")
        await app_continues.wait()
        link.send(frame(Kind.WINDOW_UPDATE, (2**20).to_bytes(4), stream_id=number))
        link.send(frame(Kind.WINDOW_UPDATE, (2**20).to_bytes(4)))
        await link.rest()

    async with proxied_http2(deaf) as proxy:
        client = Http2(await proxy.client())
        client.send(request(1, flags=END_HEADERS))
        credit_bytes, sent_bytes, has_grown = WINDOW_BYTES, 0, True
        while has_grown or not window_is_used.is_set():
            for size in [16_384] * (credit_bytes // 16_384) + [credit_bytes % 16_384]:
                client.send(frame(Kind.DATA, bytes(size), stream_id=1) if size else b"")
            sent_bytes, credit_bytes, has_grown = sent_bytes + credit_bytes, 0, False
            # The proxy sends its window updates for these bytes before it acknowledges the ping.
            client.send(frame(Kind.PING, bytes(8)))
            while (new_frame := await client.frame()) is not None and new_frame.kind != Kind.PING:
                if new_frame.kind == Kind.WINDOW_UPDATE and new_frame.stream_id == 1:
                    credit_bytes, has_grown = credit_bytes + int.from_bytes(new_frame.payload), True
        assert received_bytes == WINDOW_BYTES
        assert 2 * WINDOW_BYTES <= sent_bytes <= WINDOW_BYTES + WINDOW_BYTES_MAX
        client.send(request(3))
        assert (await client.response(3))[1] == b"other"
        app_continues.set()
        await client.until(Kind.WINDOW_UPDATE, 1)


async def test_stream_refused_twice_returns_502() -> None:
    async def refusing(link: Link) -> None:
        app = await Http2App.on(link)
        while True:
            app.reset(await app.request(), Code.REFUSED_STREAM)

    assert (await responses(refusing, POST))[0].startswith(b"502 ")


async def test_stream_reset_with_internal_error_is_not_retried() -> None:
    async def refusing(link: Link) -> None:
        app = await Http2App.on(link)
        app.reset(await app.request(), Code.INTERNAL_ERROR)
        app.respond(await app.request())
        await link.rest()

    assert (await responses(refusing, POST))[0].startswith(b"502 ")


@pytest.mark.parametrize(("code", "passed"), [(Code.CANCEL, Code.CANCEL), (Code.NO_ERROR, Code.INTERNAL_ERROR)])
async def test_response_reset_by_app_is_reset_with_cancel_or_internal_error(code: int, passed: int) -> None:
    begun = asyncio.Event()

    async def cancelling(link: Link) -> None:
        app = await Http2App.on(link)
        number = await app.request()
        link.send(frame(Kind.HEADERS, fields((":status", "200")), flags=END_HEADERS, stream_id=number))
        await begun.wait()
        app.reset(number, code)
        await link.rest()

    async with proxied_http2(cancelling) as proxy:
        client = Http2(await proxy.client())
        client.send(request(1))
        await client.until(Kind.HEADERS, 1)
        begun.set()
        assert int.from_bytes((await client.until(Kind.RST, 1)).payload) == passed


async def test_request_read_by_http2_app_is_not_retried() -> None:
    async def closing(link: Link) -> None:
        app = await Http2App.on(link)
        app.respond(await app.request())
        await app.request()

    async with proxied_http2(closing) as proxy:
        assert await response_to(proxy, get()) == b"200 fine"
        assert (await response_to(proxy, get())).startswith(b"502 ")
        assert len(proxy.backend.links) == 1


async def test_concurrent_requests_share_one_http2_connection() -> None:
    async def responding(link: Link) -> None:
        app = await Http2App.on(link)
        numbers = [await app.request() for _ in range(20)]
        for number in numbers:
            app.respond(number)
        await link.rest()

    assert set(await responses(responding, *[get()] * 20)) == {b"200 fine"}


async def test_concurrent_requests_succeed_with_one_stream_per_connection() -> None:
    async def single(link: Link) -> None:
        app = await Http2App.on(link, (MAX_CONCURRENT_STREAMS, 1))
        while True:
            app.respond(await app.request())

    async with proxied_http2(single) as proxy:
        assert await response_to(proxy, get()) == b"200 fine"
        assert set(await asyncio.gather(*[response_to(proxy, get()) for _ in range(5)])) == {b"200 fine"}


async def test_app_that_allows_no_streams_returns_502_without_endless_reconnects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def none(link: Link) -> None:
        await Http2App.on(link, (MAX_CONCURRENT_STREAMS, 0))
        await link.rest()

    connection_made = UpstreamSession.connection_made

    def settled(session: UpstreamSession, transport: asyncio.BaseTransport) -> None:
        """Apply the app's settings as soon as the connection is made."""
        connection_made(session, transport)
        session.engine.peer_streams_max = 0

    monkeypatch.setattr(UpstreamSession, "connection_made", settled)
    async with proxied_http2(none) as proxy, asyncio.timeout(60):
        assert (await response_to(proxy, get())).startswith(b"502 ")
        assert len(proxy.backend.links) <= 2


async def test_wrong_content_length_truncates_only_its_response() -> None:
    event = asyncio.Event()

    async def miscounting(link: Link) -> None:
        app = await Http2App.on(link)
        first = await app.request()
        event.set()
        second = await app.request()
        app.respond(first, b"four", ("content-length", "5"))
        app.respond(second)
        await link.rest()

    async with proxied_http2(miscounting) as proxy:
        client = await proxy.client()
        client.send(get())
        await event.wait()
        other = asyncio.create_task(response_to(proxy, get()))
        # One byte of the body is missing.
        assert (await client.rest()).endswith(b"Content-Length: 5\r\n\r\nfour")
        assert await other == b"200 fine"


async def test_malformed_http2_response_returns_502_and_connection_is_reused() -> None:
    async def malformed(link: Link) -> None:
        app = await Http2App.on(link)
        bad = fields((":status", "200"), ("connection", "close"))
        link.send(frame(Kind.HEADERS, bad, flags=5, stream_id=await app.request()))
        app.respond(await app.request())
        await link.rest()

    async with proxied_http2(malformed) as proxy:
        assert (await response_to(proxy, get())).startswith(b"502 ")
        assert await response_to(proxy, get()) == b"200 fine"
        assert len(proxy.backend.links) == 1


async def test_too_many_interim_responses_return_502() -> None:
    async def endless(link: Link) -> None:
        app = await Http2App.on(link)
        stream_id = await app.request()
        early = frame(Kind.HEADERS, fields((":status", "103")), flags=END_HEADERS, stream_id=stream_id)
        link.send(early * INTERIM_MAX)
        await link.rest()

    async with proxied_http2(endless) as proxy, asyncio.timeout(60):
        client = await proxy.client()
        client.send(get())
        while (head := await client.head()).startswith(b"HTTP/1.1 103 "):
            pass
        assert head.startswith(b"HTTP/1.1 502 ")


async def test_idle_http2_upstream_connection_is_closed() -> None:
    ended = asyncio.Event()

    async def responding(link: Link) -> None:
        app = await Http2App.on(link)
        app.respond(await app.request())
        await link.rest()
        ended.set()

    async with proxied_http2(responding, HttpSettings(upstream_idle_max_s=0.1, client_idle_max_s=0.2)) as proxy:
        assert await response_to(proxy, get()) == b"200 fine"
        async with asyncio.timeout(60):
            await ended.wait()
        assert proxy.server.pool.open_count == 0


async def test_app_that_closes_immediately_returns_502_without_endless_reconnects() -> None:
    async def closing(link: Link) -> None:
        link.close()

    async with proxied_http2(closing) as proxy:
        assert (await response_to(proxy, get())).startswith(b"502 ")
        assert len(proxy.backend.links) <= 2


async def test_http1_app_behind_h2c_port_returns_502_that_names_http2() -> None:
    async def http1(link: Link) -> None:
        await link.body(1)
        link.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await link.rest()

    [response] = await responses(http1, POST)
    assert response.startswith(b"502 ")
    assert response.endswith(b"the app does not speak HTTP/2, which gRPC calls and a port named h2c need")
