"""TLS in front of the proxy: failed handshakes, half closes, truncated responses."""

import asyncio
import logging
import ssl
import struct
from socket import SO_LINGER, SOL_SOCKET

import pytest

from serving.core.settings.http import HttpSettings
from tests.eventually import until
from tests.integration.proxy.peers import Link, get
from tests.integration.proxy.test_proxy_streams import SWITCHED, UPGRADE, switching
from tests.integration.tls_stage import RawTls, client_context, handshake, tls_proxied

CLOSE = get(b"/", b"Connection: close\r\n")


def reset(link: Link) -> None:
    """Reset the connection, so that the peer reads an error instead of the end."""
    raw = link.writer.get_extra_info("socket")
    raw.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    link.writer.transport.abort()


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        (("h2", "http/1.1"), "h2"),
        (("http/1.1", "h2"), "h2"),
        (("http/1.1",), "http/1.1"),
        (("acme-tls/1",), None),
        ((), None),
    ],
)
async def test_alpn_prefers_http2(offered: tuple[str, ...], agreed: str | None) -> None:
    async with tls_proxied() as (proxy, _):
        client = await RawTls.to(proxy.address, context=client_context(*offered))
        assert client.ssl.selected_alpn_protocol() == agreed
        if agreed == "h2":
            # The server sends SETTINGS before the client has sent anything.
            assert (await client.read())[3] == 4
        else:
            client.send(CLOSE)
            assert b"\r\nX-Forwarded-Proto: https\r\n" in await client.rest()
        await client.closed()


async def test_handshake_and_request_sent_in_single_bytes_are_read() -> None:
    async with tls_proxied() as (proxy, _):
        client = RawTls(await Link.to(proxy.address), client_context(), "h")
        hello = client.hello()
        for place in range(len(hello)):
            client.link.send(hello[place : place + 1])
            if place < 10:
                await asyncio.sleep(0.001)
        await client.shake()
        record = client.encrypted(CLOSE)
        for place in range(len(record)):
            client.link.send(record[place : place + 1])
            await client.link.writer.drain()
        assert (await client.rest()).startswith(b"HTTP/1.1 200 OK\r\n")
        await client.closed()


async def test_body_in_many_small_tls_records_is_joined() -> None:
    async def script(link: Link) -> None:
        await link.head()
        body = await link.body(3000)
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await link.rest()

    body = bytes(number % 251 for number in range(3000))
    async with tls_proxied(script) as (proxy, _):
        client = await RawTls.to(proxy.address)
        head = b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3000\r\n\r\n"
        client.link.send(
            client.encrypted(head) + b"".join(client.encrypted(body[n : n + 7]) for n in range(0, 3000, 7))
        )
        assert (await client.until(body[-20:])).endswith(body)
        await client.closed()


async def test_plain_http_receives_hint_and_other_bytes_no_response(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_proxied() as (proxy, certificates):
        caplog.clear()
        caplog.set_level(logging.DEBUG)
        responses = []
        for first in (
            get(),
            b"\x00\x01\x02",
            b"\x80\x2e\x01\x03\x01",
            b"\x16\x03\x01\x00\x05GET /",
            b"PRI * HTTP/2.0\r\n\r\n",
        ):
            client = await proxy.client()
            client.send(first)
            responses.append(await client.rest())
        assert [response[:12] for response in responses[:3]] == [b"HTTP/1.1 400", b"", b""]
        assert b"HTTPS only" in responses[0]
        # A TLS alert, unencrypted.
        assert responses[3][:1] == b"\x15"
        assert responses[4].startswith(b"HTTP/1.1 400")
        assert certificates.failures.total() == 5
        assert certificates.failures["no TLS"] == 4
        assert proxy.handler.begun == []
    assert (capfd.readouterr().err, caplog.records) == ("", [])


@pytest.mark.parametrize("is_begun", [False, True])
async def test_slow_handshake_is_closed_after_timeout(is_begun: bool) -> None:
    async with tls_proxied(handshake_max_s=0.2) as (proxy, certificates):
        link = await proxy.client()
        if is_begun:
            link.send(RawTls(link, client_context(), "h").hello()[:40])
        assert await link.ended()
        assert certificates.failures == {"too slow": 1}
        assert proxy.server.connection_count == 0


@pytest.mark.parametrize("is_reset", [False, True])
async def test_client_disconnect_during_handshake_closes_connection(is_reset: bool) -> None:
    async with tls_proxied() as (proxy, certificates):
        link = await proxy.client()
        link.send(RawTls(link, client_context(), "h").hello()[:40])
        await until(lambda: proxy.server.connection_count == 1)
        if is_reset:
            reset(link)
        link.close()
        await until(lambda: proxy.server.connection_count == 0)
        assert certificates.failures == {"client left": 1}


async def test_handshakes_count_towards_connection_limit() -> None:
    async with tls_proxied(settings=HttpSettings(connections_per_address_max=1)) as (proxy, certificates):
        first = await proxy.client()
        await until(lambda: proxy.server.connection_count == 1)
        second = await proxy.client()
        assert await second.ended()
        assert certificates.failures == {"too many connections": 1}
        await first.closed()
        await until(lambda: proxy.server.connection_count == 0)
        client = await RawTls.to(proxy.address)
        # A connection counts once, although its owner changes after the handshake.
        client.send(CLOSE)
        assert (await client.rest()).startswith(b"HTTP/1.1 200 ")
        await client.closed()


async def test_old_tls_versions_and_unknown_names_are_rejected_with_alert(capfd: pytest.CaptureFixture[str]) -> None:
    old = client_context()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with tls_proxied() as (proxy, _):
        with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
            await handshake(proxy.address, "h", old)
        for name in ("unknown", None):
            with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
                await handshake(proxy.address, name)
        assert await handshake(proxy.address, "H") == ["h"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_session_is_resumed(version: ssl.TLSVersion) -> None:
    context = client_context()
    context.minimum_version = context.maximum_version = version
    async with tls_proxied() as (proxy, _):
        first = await RawTls.to(proxy.address, context=context)
        first.send(CLOSE)
        await first.rest()
        second = RawTls(await Link.to(proxy.address), context, "h")
        second.ssl.session = first.ssl.session
        await second.shake()
        second.send(CLOSE)
        assert (await second.rest()).startswith(b"HTTP/1.1 200 ")
        assert second.ssl.session_reused
        await first.closed()
        await second.closed()


async def test_each_direction_of_tls_tunnel_closes_independently() -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(SWITCHED + b"bye")
        link.writer.write_eof()
        assert await link.rest() == b"good bye"

    async with tls_proxied(script) as (proxy, _):
        client = await RawTls.to(proxy.address)
        client.send(UPGRADE)
        assert await client.rest() == SWITCHED + b"bye"
        client.send(b"good bye")
        client.send_close_notify()
        async with asyncio.timeout(60):
            await asyncio.gather(*proxy.backend.tasks)
        await client.closed()

    async with tls_proxied(switching) as (proxy, _):
        client = await RawTls.to(proxy.address)
        client.send(UPGRADE)
        await client.until(b"first")
        client.send(b"last words")
        client.send_close_notify()
        assert await client.rest() == b"last words"
        await client.closed()


@pytest.mark.parametrize("ending", ["whole", "cut"])
async def test_only_complete_response_ends_with_close_notify(ending: str) -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await asyncio.sleep(0.05)
        if ending == "whole":
            link.send(b"0\r\n\r\n")

    async with tls_proxied(script) as (proxy, _):
        client = await RawTls.to(proxy.address)
        client.send(CLOSE)
        if ending == "whole":
            assert (await client.rest()).endswith(b"abc\r\n0\r\n\r\n")
        else:
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                await client.rest()
        await client.closed()


async def test_client_reset_during_response_ends_its_request() -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        await link.rest()

    async with tls_proxied(script) as (proxy, _):
        client = await RawTls.to(proxy.address)
        client.send(get())
        await client.until(b"abc")
        reset(client.link)
        await until(lambda: proxy.handler.finished)
        assert [exchange.outcome for exchange in proxy.handler.finished] == ["client_gone"]
        await until(lambda: proxy.server.connection_count == 0)
        await client.closed()


async def test_plaintext_after_handshake_closes_connection() -> None:
    async with tls_proxied() as (proxy, _):
        client = await RawTls.to(proxy.address)
        client.link.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await client.rest()
        await until(lambda: proxy.server.connection_count == 0)
        assert proxy.handler.begun == []
        await client.closed()


async def test_early_413_is_delivered_while_client_still_sends() -> None:
    async def script(link: Link) -> None:
        await link.rest()

    async with tls_proxied(script, HttpSettings(body_bytes_max=1000)) as (proxy, _):
        client = await RawTls.to(proxy.address)
        client.send(b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _number in range(20):
            client.send(b"200\r\n" + bytes(512) + b"\r\n")
            await asyncio.sleep(0.002)
        assert (await client.rest()).startswith(b"HTTP/1.1 413 ")
        await client.closed()


async def test_shutdown_waits_for_requests_but_not_for_handshakes() -> None:
    response = asyncio.Event()

    async def script(link: Link) -> None:
        await link.head()
        await response.wait()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
        await link.rest()

    async with tls_proxied(script) as (proxy, _):
        client, idle = await RawTls.to(proxy.address), await RawTls.to(proxy.address)
        silent = await proxy.client()
        client.send(get())
        await until(lambda: proxy.handler.begun and proxy.server.connection_count == 3)
        proxy.server.drain()
        assert proxy.server.connection_count == 3
        finishing = asyncio.create_task(proxy.server.finish(grace_s=5))
        assert await silent.ended()
        assert await idle.rest() == b""
        response.set()
        assert (await client.rest()).endswith(b"\r\nConnection: close\r\n\r\nabc")
        await client.closed()
        await idle.closed()
        assert await finishing == 0
