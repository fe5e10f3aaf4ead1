"""An upstream dies before it responds: the requests for another upstream, and those returned to an activator."""

import asyncio

import pytest

from serving.net.proxy.forwarding.exchange import UNDELIVERED
from serving.net.proxy.forwarding.phase import ExchangePhase
from tests.eventually import until
from tests.integration.proxy.peers import MARK, Link, backed, get, ok, proxied
from tests.integration.proxy.pods import BELIEVED, forwarding


async def dies(link: Link) -> None:
    """Read a request, and close without a response."""
    await link.head()
    link.writer.transport.abort()


async def test_request_is_rerouted_when_its_upstream_dies() -> None:
    async with proxied(dies) as proxy, backed(ok) as other:
        proxy.handler.elsewhere = other.address
        client = await proxy.client()
        client.send(get(b"/a", MARK))
        head, body = await client.message()
    assert (head[:12], body[:6]) == (b"HTTP/1.1 200", b"GET /a")
    assert len(proxy.handler.losses) == 1


@pytest.mark.parametrize("rest", [b"", b"def"], ids=["whole", "to be continued"])
async def test_rerouted_request_includes_its_body(rest: bytes) -> None:
    async def echo(link: Link) -> None:
        _, body = await link.message()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async with proxied(dies) as proxy, backed(echo) as other:
        proxy.handler.elsewhere = other.address
        client = await proxy.client()
        client.send(b"PUT / HTTP/1.1\r\nHost: h\r\n%bContent-Length: %d\r\n\r\nabc" % (MARK, 3 + len(rest)))
        await until(lambda: other.links)
        client.send(rest)
        _, body = await client.message()
    assert body == b"abc" + rest


async def test_unread_rest_of_body_is_read_for_next_upstream() -> None:
    ending = asyncio.Event()

    async def full(link: Link) -> None:
        await link.head()
        await ending.wait()
        link.writer.transport.abort()

    async def counting(link: Link) -> None:
        _, body = await link.message()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%d" % (len(b"%d" % len(body)), len(body)))

    async with proxied(full) as proxy, backed(counting) as other, asyncio.timeout(60):
        proxy.handler.elsewhere = other.address
        client = await proxy.client()
        client.send(b"PUT / HTTP/1.1\r\nHost: h\r\n%bContent-Length: 6\r\n\r\nabc" % MARK)
        await until(lambda: proxy.backend.links)
        [exchange] = proxy.handler.begun
        await until(lambda: exchange.phase is ExchangePhase.SENT)
        attempt = exchange._attempt
        assert attempt is not None
        attempt.upstream_full(full=True)
        ending.set()
        await until(lambda: other.links)
        client.send(b"def")
        assert (await client.message())[1] == b"6"


@pytest.mark.parametrize(
    ("method", "header", "status"),
    [(b"GET", b"", b"502"), (b"POST", b"", b"502"), (b"POST", MARK, b"200")],
)
async def test_only_marked_request_is_rerouted_when_its_upstream_dies(
    method: bytes, header: bytes, status: bytes
) -> None:
    async with proxied(dies) as proxy, backed(ok) as other:
        proxy.handler.elsewhere = other.address
        client = await proxy.client()
        client.send(b"%b / HTTP/1.1\r\nHost: h\r\n%bContent-Length: 0\r\n\r\n" % (method, header))
        assert (await client.message())[0].split()[1] == status
        assert len(other.links) == (status == b"200")


async def test_request_with_partial_response_is_not_rerouted() -> None:
    async def begins(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 ")
        await link.writer.drain()

    async with proxied(begins) as proxy, backed(ok) as other:
        proxy.handler.elsewhere = other.address
        client = await proxy.client()
        client.send(get(headers=MARK))
        assert (await client.message())[0].startswith(b"HTTP/1.1 502 ")
        assert not other.links


@pytest.mark.parametrize("header", [b"", BELIEVED])
async def test_unmarked_request_receives_502_when_app_dies(header: bytes) -> None:
    async with forwarding(dies) as queue_proxy:
        client = await queue_proxy.client()
        client.send(get(headers=header))
        assert (await client.message())[0].startswith(b"HTTP/1.1 502 ")


async def test_activator_receives_undelivered_mark_if_app_is_unreachable() -> None:
    async with forwarding(ok) as queue_proxy:
        queue_proxy.app.server.close()
        client = await queue_proxy.client()
        client.send(get(headers=BELIEVED + b"K-Proxy-Request: activator\r\n"))
        head, _ = await client.message()
    assert head.startswith(b"HTTP/1.1 503 ")
    assert UNDELIVERED in head


@pytest.mark.parametrize("mark", [b"", MARK], ids=["unmarked", "marked"])
async def test_only_request_in_flight_is_not_returned_to_activator_when_app_dies(mark: bytes) -> None:
    async with forwarding(dies) as queue_proxy:
        client = await queue_proxy.client()
        client.send(get(headers=BELIEVED + b"K-Proxy-Request: activator\r\n" + mark))
        assert (await client.message())[0].startswith(b"HTTP/1.1 502 ")


async def test_concurrent_marked_requests_are_returned_to_activator_when_app_dies() -> None:
    heads: list[bytes] = []

    async def die_together(link: Link) -> None:
        heads.append(await link.head())
        await until(lambda: len(heads) == 3)
        link.writer.transport.abort()

    async with forwarding(die_together) as queue_proxy:
        clients = [await queue_proxy.client() for _ in range(3)]
        for client, mark in zip(clients, (b"", MARK, MARK), strict=True):
            client.send(get(headers=BELIEVED + b"K-Proxy-Request: activator\r\n" + mark))
        assert (await clients[0].message())[0].startswith(b"HTTP/1.1 502 ")
        assert [await client.ended() for client in clients[1:]] == [True, True]
