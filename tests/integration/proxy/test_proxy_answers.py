"""Responses through the proxy: what the client receives, and whether the upstream connection is reused."""

import asyncio
import re
import time
from email.utils import parsedate_to_datetime

import pytest

from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.forwarding.policy import Timeouts
from tests.eventually import until
from tests.integration.proxy.peers import Link, Script, get, ok, proxied

# With a Date, a response is forwarded unchanged.
OK_3 = b"HTTP/1.1 200 OK\r\nDate: d\r\nContent-Length: 3\r\n\r\n"


def responding(*responses: bytes) -> Script:
    """An upstream that responds to the requests of a connection in order, and then waits for its end."""

    async def script(link: Link) -> None:
        for response in responses:
            await link.head()
            link.send(response)
        await link.rest()

    return script


def closing(response: bytes) -> Script:
    """An upstream that responds once and closes."""

    async def script(link: Link) -> None:
        await link.head()
        link.send(response)

    return script


async def test_hop_by_hop_headers_of_response_are_removed() -> None:
    response = (
        b"HTTP/1.1 200 Fine\r\nDate: d\r\nConnection: x-mine, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nContent-Length: 0\r\n"
        b"Set-Cookie: a=b\r\nSet-Cookie: c=d\r\nUpgrade: h2c\r\n\r\n"
    )
    async with proxied(responding(response)) as proxy:
        client = await proxy.client()
        client.send(get())
        assert (await client.head()) == (
            b"HTTP/1.1 200 Fine\r\nDate: d\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\nContent-Length: 0\r\n\r\n"
        )


@pytest.mark.parametrize("head", [b"Content-Length: 3\r\nX-Date: d", b"Transfer-Encoding: chunked\r\nUpdate: d"])
async def test_date_is_added_to_response_without_date(head: bytes) -> None:
    body = b"abc" if b"Length" in head else b"3\r\nabc\r\n0\r\n\r\n"
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"
    async with proxied(responding(hints + b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (head, body))) as proxy:
        client = await proxy.client()
        begun_s = int(time.time())
        client.send(get())
        assert await client.head() == hints
        assert begun_s <= date_of(await client.head()) <= time.time()


@pytest.mark.parametrize("request_", [get(), b"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n"], ids=["502", "400"])
async def test_proxy_generated_response_has_date(request_: bytes) -> None:
    async with proxied() as proxy:
        proxy.handler.address = ("127.0.0.1", 1)
        client = await proxy.client()
        begun_s = int(time.time())
        client.send(request_)
        assert begun_s <= date_of(await client.head()) <= time.time()


def date_of(head: bytes) -> float:
    """The Date of a head, which has exactly one, in seconds since the epoch."""
    (date,) = re.findall(rb"^Date: (.*)\r$", head, re.MULTILINE)
    return parsedate_to_datetime(date.decode()).timestamp()


async def test_chunked_response_stays_chunked_with_its_trailers() -> None:
    response = (
        b"HTTP/1.1 200 OK\r\nDate: d\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        b"3;x=y\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"
    )
    async with proxied(responding(response, OK_3 + b"def")) as proxy:
        client = await proxy.client()
        client.send(get())
        head = b"HTTP/1.1 200 OK\r\nDate: d\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
        assert await client.head() == head
        assert await client.chunks() == (b"abc", b"X-Sum: 1\r\n")
        client.send(get())
        assert (await client.message())[1] == b"def"
        assert len(proxy.backend.links) == 1


async def test_chunked_response_to_http_1_0_client_is_dechunked_and_closed() -> None:
    response = b"HTTP/1.1 200 OK\r\nDate: d\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    async with proxied(responding(response)) as proxy:
        client = await proxy.client()
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert await client.rest() == b"HTTP/1.1 200 OK\r\nDate: d\r\nConnection: close\r\n\r\nabc"


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200\r\n\r\n"])
async def test_close_delimited_body_is_sent_chunked(head: bytes) -> None:
    async with proxied(closing(head + b"all of it")) as proxy:
        client = await proxy.client()
        for _ in range(2):
            client.send(get())
            assert b"Transfer-Encoding: chunked\r\n" in await client.head()
            assert await client.chunks() == (b"all of it", b"")


async def test_304_and_head_responses_retain_content_length_without_body() -> None:
    async with proxied(
        responding(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", OK_3, OK_3 + b"abc")
    ) as proxy:
        client = await proxy.client()
        client.send(get() + b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n" + get())
        assert b"Content-Length: 5\r\n" in await client.head()
        assert await client.head() == OK_3
        assert (await client.message())[1] == b"abc"


async def test_proxy_generated_response_to_head_has_no_body() -> None:
    async with proxied() as proxy:
        proxy.handler.address = ("127.0.0.1", 1)
        client = await proxy.client()
        client.send(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n" + get())
        assert (await client.head()).startswith(b"HTTP/1.1 502 ")
        assert (await client.message())[0].startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        OK_3 + b"abcHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged",
    ],
    ids=["close", "http/1.0", "bytes that nobody asked for"],
)
async def test_non_reusable_upstream_connection_is_not_reused(response: bytes) -> None:
    async with proxied(responding(response)) as proxy:
        client = await proxy.client()
        for _ in range(2):
            client.send(get())
            assert (await client.message())[1] == b"abc"
        assert len(proxy.backend.links) == 2


async def test_bytes_on_idle_upstream_connection_close_it() -> None:
    pushed = asyncio.Event()

    async def script(link: Link) -> None:
        await link.head()
        link.send(OK_3 + b"abc")
        await pushed.wait()
        link.send(OK_3 + b"bad")
        await link.rest()

    async with proxied(script) as proxy:
        client = await proxy.client()
        client.send(get())
        await client.message()
        pushed.set()
        await until(lambda: not proxy.server.pool.open_count)
        client.send(get())
        assert (await client.message())[1] == b"abc"


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nxyz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 2000,
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 25 + b"\r\n",
    ],
)
async def test_invalid_upstream_response_returns_502(response: bytes) -> None:
    async with proxied(closing(response), HttpSettings(head_bytes_max=1024, header_count_max=24)) as proxy:
        client = await proxy.client()
        client.send(get())
        head = await client.head()
        if b" 103 " in head:
            head = await client.head()
        assert head.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")


async def test_unreachable_upstream_returns_502_and_client_connection_stays_open() -> None:
    async with proxied() as proxy:
        address, proxy.handler.address = proxy.handler.address, ("127.0.0.1", 1)
        client = await proxy.client()
        client.send(get())
        assert (await client.message())[0].startswith(b"HTTP/1.1 502 ")
        proxy.handler.address = address
        client.send(get())
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_undelivered_request_is_forwarded_to_another_address() -> None:
    async def script(link: Link) -> None:
        head, body = await link.message()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head + body), head + body))

    async with proxied(script) as proxy:
        address, proxy.handler.address = proxy.handler.address, ("127.0.0.1", 1)
        errors: list[OSError] = []

        def elsewhere(exchange: Exchange, error: OSError) -> None:
            errors.append(error)
            exchange.forward(address)

        proxy.handler.unreachable = elsewhere  # type: ignore[method-assign]
        client = await proxy.client()
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nonce")
        head, body = await client.message()
        assert head.startswith(b"HTTP/1.1 200 ")
        assert body.startswith(b"POST / HTTP/1.1\r\n")
        assert body.endswith(b"\r\n\r\nonce")
        assert len(errors) == 1


@pytest.mark.parametrize(
    "response",
    [
        OK_3 + b"ab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
async def test_truncated_upstream_body_is_not_completed_for_client(response: bytes) -> None:
    async with proxied(closing(response)) as proxy:
        client = await proxy.client()
        client.send(get())
        try:
            rest = await client.rest()
        except ConnectionResetError:
            rest = b""
        assert not rest.endswith(b"0\r\n\r\n")
        assert not rest.endswith(b"abc") or b"Transfer-Encoding" in rest
        assert [exchange.outcome for exchange in proxy.handler.finished] == ["cut"]


async def test_truncated_response_resets_http_1_0_client() -> None:
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    async with proxied(closing(response)) as proxy:
        client = await proxy.client()
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await client.rest()


async def respond_once(link: Link) -> None:
    """Respond to a request, and read the second one if it comes."""
    await link.message()
    link.send(OK_3 + b"abc")
    await link.message()


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"POST"])
async def test_request_on_stale_connection_is_retried_on_fresh_connection(method: bytes) -> None:
    message = b"%b / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi" % method
    async with proxied(respond_once) as proxy:
        client = await proxy.client()
        client.send(message)
        assert (await client.message())[1] == b"abc"
        (upstream,) = proxy.server.pool._open
        # The proxy sends the next request before it reads that the app has closed the connection.
        upstream._transport.pause_reading()
        await proxy.backend.links[0].closed()
        client.send(message)
        await until(lambda: len(proxy.handler.begun) == 2)
        upstream._transport.resume_reading()
        assert (await client.message())[1] == b"abc"
        assert len(proxy.backend.links) == 2


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_request_read_by_app_is_not_retried(method: bytes) -> None:
    async with proxied(respond_once) as proxy:
        client = await proxy.client()
        for status in (b"200", b"502"):
            client.send(b"%b / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n" % method)
            assert (await client.message())[0].startswith(b"HTTP/1.1 %b " % status)
        assert len(proxy.backend.links) == 1


async def test_request_is_not_retried_after_fresh_connection_closes() -> None:
    async with proxied(closing(b"")) as proxy:
        client = await proxy.client()
        client.send(get())
        assert (await client.message())[0].startswith(b"HTTP/1.1 502 ")
        assert len(proxy.backend.links) == 1


async def test_idle_upstream_connection_is_closed_after_timeout() -> None:
    async with proxied(settings=HttpSettings(upstream_idle_max_s=0.2, client_idle_max_s=0.3)) as proxy:
        client = await proxy.client()
        client.send(get())
        await client.message()
        assert proxy.server.pool.idle_count == 1
        await until(lambda: not proxy.server.pool.open_count)


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_bytes_sent_before_request_timeout_are_delivered(is_chunked: bool) -> None:
    head = b"Transfer-Encoding: chunked\r\n\r\n186a0\r\n" if is_chunked else b"Content-Length: 100001\r\n\r\n"
    async with proxied(responding(b"HTTP/1.1 200 OK\r\n" + head + b"x" * 100_000 + b"\r\n" * is_chunked)) as proxy:
        proxy.handler.timeouts = Timeouts(total_s=1.0)
        client = await proxy.client()
        client.pause()
        client.send(get())
        await until(lambda: proxy.handler.finished)
        assert [exchange.outcome for exchange in proxy.handler.finished] == ["cut"]
        client.resume()
        await client.head()
        # The proxy closes without a reset, which would discard unread bytes. The end is missing, so the cut is
        # visible.
        rest = await client.rest()
        assert rest == (b"186a0\r\n" * is_chunked + b"x" * 100_000 + b"\r\n" * is_chunked)


async def test_close_delimited_response_is_reset_after_timeout() -> None:
    async with proxied(responding(b"HTTP/1.1 200 OK\r\n\r\nabc")) as proxy:
        proxy.handler.timeouts = Timeouts(total_s=0.5)
        client = await proxy.client()
        client.send(b"GET / HTTP/1.0\r\nHost: h\r\n\r\n")
        await client.head()
        with pytest.raises(ConnectionResetError):
            await client.rest()


async def test_idle_timeout_restarts_with_each_response_byte() -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        # The response takes longer in total than the idle timeout.
        for _ in range(10):
            await asyncio.sleep(0.2)
            link.send(b"x")
        await link.rest()

    async with proxied(script) as proxy:
        proxy.handler.timeouts = Timeouts(idle_s=1.5, response_start_s=1.0)
        client = await proxy.client()
        client.send(get())
        assert (await client.message())[1] == b"x" * 10


async def test_drain_closes_each_connection_after_its_next_response() -> None:
    async with proxied() as proxy:
        client, other = await proxy.client(), await proxy.client()
        client.send(get())
        assert b"Connection" not in (await client.message())[0]
        proxy.server.drain()
        client.send(get())
        assert b"Connection: close\r\n" in (await client.message())[0]
        assert await client.ended()
        other.send(get())
        assert (await other.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_shutdown_waits_for_requests_in_flight_and_closes_the_rest_after_grace() -> None:
    go = asyncio.Event()

    async def script(link: Link) -> None:
        head = await link.head()
        if b"/never" in head:
            await link.rest()
        await go.wait()
        link.send(OK_3 + b"abc")
        await link.rest()

    async with proxied(script) as proxy:
        idle, runs, never = [await proxy.client() for _ in range(3)]
        runs.send(get())
        never.send(get(b"/never"))
        await until(lambda: len(proxy.handler.begun) == 2)
        finishing = asyncio.create_task(proxy.server.finish(grace_s=0.5))
        assert await idle.ended()
        with pytest.raises(ConnectionRefusedError):
            await proxy.client()
        go.set()
        assert (await runs.message())[1] == b"abc"
        assert await finishing == 1
        assert await never.ended()


async def test_shutdown_waits_for_first_request_of_accepted_connection() -> None:
    async with proxied(ok) as proxy:
        client = await proxy.client()
        await until(lambda: proxy.server.connection_count == 1)
        finishing = asyncio.create_task(proxy.server.finish(grace_s=10))
        await until(lambda: proxy.server.finishing)
        client.send(get())
        assert (await client.message())[1].startswith(b"GET / ")
        assert await client.ended()
        assert await finishing == 0


async def test_concurrent_clients_receive_their_own_responses() -> None:
    async def send_requests(number: int) -> None:
        client = await proxy.client()
        for turn in range(20):
            client.send(get(b"/%d/%d" % (number, turn)))
            assert (await client.message())[1].startswith(b"GET /%d/%d " % (number, turn))

    async with proxied(ok) as proxy:
        await asyncio.gather(*[send_requests(number) for number in range(30)])
        assert len(proxy.backend.links) <= 30


async def test_half_closed_client_receives_its_responses() -> None:
    async with proxied() as proxy:
        client = await proxy.client()
        client.send(get(b"/one") + get(b"/two"))
        client.writer.write_eof()
        assert b"GET /one " in (await client.message())[1]
        assert b"GET /two " in (await client.message())[1]
        assert await client.rest() == b""
        assert [exchange.outcome for exchange in proxy.handler.finished] == ["answered", "answered"]


async def test_client_half_closed_within_a_request_is_disconnected() -> None:
    async with proxied() as proxy:
        client = await proxy.client()
        client.send(get(b"/one") + b"GET /two HTTP/1.1\r\nHost")
        client.writer.write_eof()
        assert b"GET /one " in (await client.message())[1]
        assert await client.rest() == b""


async def test_half_closed_client_is_disconnected_after_seconds_without_response() -> None:
    async def script(link: Link) -> None:
        await link.head()
        assert await link.ended()

    async with proxied(script) as proxy:
        client = await proxy.client()
        client.send(get())
        client.writer.write_eof()
        assert await client.rest() == b""
        assert [exchange.outcome for exchange in proxy.handler.finished] == ["client_gone"]
