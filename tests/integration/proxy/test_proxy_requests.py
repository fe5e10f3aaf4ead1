"""Requests through the proxy, as the upstream receives them."""

import asyncio
import resource

import pytest

from serving.core.settings.http import HttpSettings
from tests.eventually import until
from tests.integration.proxy.peers import Link, get, ok, proxied

POST = b"POST / HTTP/1.1\r\nHost: h\r\n"
REFUSED = {
    "both framings": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "a length in hexadecimal": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "an empty length": POST + b"Content-Length:\r\n\r\nabc",
    "a length of 19 digits": POST + b"Content-Length: 1000000000000000000\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: h\n\n",
    "one bare LF": b"GET / HTTP/1.1\r\nA: b\nHost: h\r\n\r\n",
    "bare CR": b"GET / HTTP/1.1\r\nHost: h\r\nA: b\rC: d\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\nHost: h\r\nA: b\x00c\r\n\r\n",
    "another control character": b"GET / HTTP/1.1\r\nHost: h\r\nA: b\x0bc\r\n\r\n",
    "NUL in the target": b"GET /\x00 HTTP/1.1\r\nHost: h\r\n\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n",
    "space before the colon of Transfer-Encoding": POST + b"Transfer-Encoding : chunked\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n",
    "a folded first header": b"GET / HTTP/1.1\r\n Host: h\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost: h\r\nA\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\nHost: h\r\n: a\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n",
    "two Hosts on HTTP/1.0": b"GET / HTTP/1.0\r\nHost: h\r\nHost: i\r\n\r\n",
    "no Host": b"GET / HTTP/1.1\r\nA: b\r\n\r\n",
    "no header at all": b"GET / HTTP/1.1\r\n\r\n",
    "an empty Host": b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
    "a Host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a Host with a user": b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "a Host with spaces": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "another authority": b"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
    "an authority with a user": b"GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n",
    "a target that is no path": b"GET index.html HTTP/1.1\r\nHost: h\r\n\r\n",
    "a star": b"GET * HTTP/1.1\r\nHost: h\r\n\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
    "a tab": b"GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n",
    "a space at the end": b"GET / HTTP/1.1 \r\nHost: h\r\n\r\n",
    "no version": b"GET /\r\nHost: h\r\n\r\n",
    "a version in small letters": b"GET / http/1.1\r\nHost: h\r\n\r\n",
    "a method that is no token": b"G(T / HTTP/1.1\r\nHost: h\r\n\r\n",
    "chunked on HTTP/1.0": b"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked, chunked": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n",
    "a chunk size that is no number": POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "an empty chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n\r\n",
    "a negative chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    "a chunk size with 0x": POST + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n",
    "a chunk size with an underscore": POST + b"Transfer-Encoding: chunked\r\n\r\n1_0\r\n",
    "a chunk size of 16 digits": POST + b"Transfer-Encoding: chunked\r\n\r\n1000000000000000\r\n",
    "a space after a chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n",
    "a bare LF after a chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "a bare CR in an extension": POST + b"Transfer-Encoding: chunked\r\n\r\n5;a\rb\r\nhello\r\n",
    "a chunk longer than its size": POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n",
    "an oversize extension": POST + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"x" * 300,
    "a malformed trailer": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nA b\r\n\r\n",
    "an upgrade with a body": POST + b"Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\na",
    "an upgrade with chunks": POST
    + b"Connection: upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two protocols": b"GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket, h2c\r\n\r\n",
}
OTHER_REFUSALS = {
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: h\r\n\r\n", b"505"),
    "CONNECT": (b"CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n", b"405"),
    "another expectation": (b"GET / HTTP/1.1\r\nHost: h\r\nExpect: 200-ok\r\n\r\n", b"417"),
    "a head larger than the limit": (get(headers=b"A: " + b"x" * 2000 + b"\r\n"), b"431"),
    "a head that does not end": (b"GET / HTTP/1.1\r\nA: " + b"x" * 2000, b"431"),
    "more headers than the limit": (get(headers=b"A: b\r\n" * 20), b"431"),
    "a body larger than the limit": (POST + b"Content-Length: 3001\r\n\r\n", b"413"),
}


def lines(head: bytes) -> list[bytes]:
    return head.lower().split(b"\r\n")


async def test_http2_upgrade_offer_is_ignored_and_not_forwarded() -> None:
    async with proxied() as proxy:
        client = await proxy.client()
        offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
        client.send(POST + offer + b"Content-Length: 1\r\n\r\na")
        response, seen = await client.message()
        assert response.startswith(b"HTTP/1.1 200")
        assert not [line for line in lines(seen) if line.startswith((b"upgrade", b"connection", b"http2-settings"))]


async def test_hop_by_hop_headers_are_removed_and_forwarded_headers_are_added() -> None:
    async with proxied() as proxy:
        client = await proxy.client()
        client.send(
            get(
                b"/a?b=c",
                b"Connection: keep-alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nTE: gzip\r\nProxy-Connection: x\r\n"
                b"Proxy-Authorization: x\r\nUpgrade: foo\r\nX-Forwarded-For: 1.2.3.4\r\nX-Yours:  2\t\r\n",
            )
        )
        _, seen = await client.message()
        assert lines(seen) == [
            b"get /a?b=c http/1.1",
            b"host: h",
            b"x-yours: 2",
            b"x-forwarded-for: 1.2.3.4, 127.0.0.1",
            b"x-forwarded-host: h",
            b"x-forwarded-proto: http",
            b"forwarded: for=1.2.3.4;host=h;proto=http, for=127.0.0.1",
            b"",
            b"",
        ]


async def test_forwarded_headers_of_client_are_replaced_in_replace_mode() -> None:
    async with proxied(settings=HttpSettings(forwarded_for="replace")) as proxy:
        client = await proxy.client()
        client.send(get(headers=b"X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\n"))
        _, seen = await client.message()
        assert b"1.2.3.4" not in seen
        assert b"x-forwarded-for: 127.0.0.1" in lines(seen)


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with proxied() as proxy:
        client = await proxy.client()
        client.send(b"".join(get(b"/%d" % number) for number in range(50)))
        for number in range(50):
            _, seen = await client.message()
            assert seen.startswith(b"GET /%d HTTP" % number)
        assert len(proxy.backend.links) == 1


async def echo_bodies(link: Link) -> None:
    """Responds with the received body: by length, or in chunks."""
    while True:
        head = await link.head()
        if b"transfer-encoding: chunked" in head.lower():
            payload, trailers = await link.chunks()
            payload += trailers
        else:
            length = [line for line in lines(head) if line.startswith(b"content-length")]
            payload = await link.body(int(length[0].split(b":")[1])) if length else b"nothing"
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(payload), payload))


async def test_content_length_of_empty_body_is_forwarded() -> None:
    async with proxied() as proxy:
        client = await proxy.client()
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
        assert b"Content-Length: 0\r\n" in (await client.message())[1]


@pytest.mark.parametrize("cut", range(1, 60, 4))
async def test_chunked_body_split_at_any_byte_is_forwarded(cut: int) -> None:
    wire = b"5\r\nhello\r\n1;a=b\r\n!\r\nA\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n"
    async with proxied(echo_bodies) as proxy:
        client = await proxy.client()
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + wire[:cut])
        await asyncio.sleep(0.01)
        client.send(wire[cut:] + get())
        assert (await client.message())[1] == b"hello!0123456789X-Sum: 1\r\n"
        assert (await client.message())[1] == b"nothing"


async def test_body_of_10_mib_is_forwarded() -> None:
    payload = bytes(range(256)) * 4 * 10240
    async with proxied(echo_bodies) as proxy:
        client = await proxy.client()
        client.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(payload), payload))
        assert (await client.message())[1] == payload


async def test_expect_continue_and_100_are_forwarded() -> None:
    async def script(link: Link) -> None:
        assert b"Expect: 100-continue\r\n" in await link.head()
        link.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await link.body(2) == b"ab"
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await link.rest()

    async with proxied(script) as proxy:
        client = await proxy.client()
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"ab")
        assert (await client.head()).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_connection_is_closed_if_app_rejects_expected_body() -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        await link.rest()

    async with proxied(script) as proxy:
        client = await proxy.client()
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        head = await client.head()
        assert head.startswith(b"HTTP/1.1 403 Forbidden\r\n")
        assert b"Connection: close\r\n" in head
        assert await client.ended()


@pytest.mark.parametrize("host", [b"Host: h\r\n", b""])
async def test_http_1_0_keep_alive_connection_is_closed_after_response(host: bytes) -> None:
    async with proxied() as proxy:
        client = await proxy.client()
        client.send(b"GET / HTTP/1.0\r\n%bConnection: keep-alive\r\n\r\n" % host)
        head, seen = await client.message()
        assert b"Connection: close\r\n" in head
        assert seen.startswith(b"GET / HTTP/1.1\r\nHost: ")
        assert await client.ended()


async def test_absolute_target_with_authority_of_host_is_accepted() -> None:
    async with proxied() as proxy:
        client = await proxy.client()
        client.send(b"GET http://H:80/x?y HTTP/1.1\r\nHost: h:80\r\n\r\n")
        assert (await client.message())[1].startswith(b"GET /x?y HTTP/1.1\r\nHost: h:80\r\n")


async def test_empty_line_before_request_is_ignored() -> None:
    async with proxied() as proxy:
        client = await proxy.client()
        client.send(b"\r\n" + get())
        assert (await client.head()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("wire", REFUSED.values(), ids=REFUSED.keys())
async def test_ambiguous_request_is_rejected_and_not_forwarded(wire: bytes) -> None:
    async with proxied() as proxy:
        client = await proxy.client()
        client.send(wire + get(b"/smuggled"))
        head, _ = await client.message()
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"Connection: close\r\n" in head
        assert await client.ended()
        assert proxy.backend.links == []


@pytest.mark.parametrize(("wire", "status"), OTHER_REFUSALS.values(), ids=OTHER_REFUSALS.keys())
async def test_unsupported_or_oversize_request_receives_its_own_status(wire: bytes, status: bytes) -> None:
    settings = HttpSettings(head_bytes_max=1024, header_count_max=20, body_bytes_max=3000)
    async with proxied(settings=settings) as proxy:
        client = await proxy.client()
        client.send(wire)
        assert (await client.message())[0].startswith(b"HTTP/1.1 %b " % status)
        assert await client.ended()
        assert proxy.backend.links == []


async def test_chunked_body_over_limit_is_rejected_and_cut_off_upstream() -> None:
    async def script(link: Link) -> None:
        await link.head()
        with pytest.raises(asyncio.IncompleteReadError):
            await link.chunks()

    async with proxied(script, HttpSettings(body_bytes_max=100)) as proxy:
        client = await proxy.client()
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n32\r\n%b\r\n" % (b"x" * 50))
        await asyncio.sleep(0.05)
        client.send(b"33\r\n%b\r\n0\r\n\r\n" % (b"x" * 51))
        assert (await client.message())[0].startswith(b"HTTP/1.1 413 ")
        assert await client.ended()
        await asyncio.gather(*proxy.backend.tasks)


async def test_slow_pipelined_head_receives_408() -> None:
    async with proxied(settings=HttpSettings(head_wait_max_s=0.1)) as proxy:
        client = await proxy.client()
        client.send(get() + b"GET / HT")
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")
        assert (await client.message())[0].startswith(b"HTTP/1.1 408 ")


async def test_connection_above_limit_receives_503() -> None:
    async with proxied(settings=HttpSettings(connections_max=1)) as proxy:
        first = await proxy.client()
        first.send(get())
        await first.message()
        second = await proxy.client()
        head, _ = await second.message()
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in head


async def test_idle_connections_are_closed_when_descriptors_run_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As the kernel would report it after ``ulimit -n 100``: for 18 connections of clients.
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    async with proxied() as proxy:
        clients = [await proxy.client() for _ in range(60)]
        busy = await proxy.client()
        for client in (*clients[-10:], busy):
            client.send(get())
            assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")
        # The oldest connections were closed, and the log has the reason once.
        assert [await client.ended() for client in clients[:40]] == [True] * 40
    (line,) = [record for record in caplog.records if record.message == "connections.shed"]
    assert "for 18 connections: an idle connection was closed" in line.__dict__["reason"]


async def test_client_receives_503_when_all_descriptors_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (0, 0))
    waiting = asyncio.Event()

    async def script(link: Link) -> None:
        await waiting.wait()
        await ok(link)

    async with proxied(script) as proxy:
        clients = [await proxy.client() for _ in range(16)]
        for client in clients:
            client.send(get())
        await until(lambda: len(proxy.handler.begun) == 16)
        refused = await proxy.client()
        assert (await refused.message())[0].startswith(b"HTTP/1.1 503 ")
        waiting.set()
        for client in clients:
            assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_truncated_request_is_not_completed_for_upstream() -> None:
    cut = asyncio.Event()

    async def script(link: Link) -> None:
        await link.head()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await link.body(5)
        cut.set()

    async with proxied(script) as proxy:
        client = await proxy.client()
        client.send(POST + b"Content-Length: 5\r\n\r\nhel")
        await asyncio.sleep(0.05)
        client.close()
        async with asyncio.timeout(60):
            await cut.wait()
        assert [exchange.outcome for exchange in proxy.handler.finished] == ["client_gone"]
