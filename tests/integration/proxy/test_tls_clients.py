"""Real clients of each kind over TLS, and bodies above the buffer limits."""

import asyncio
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # it has no types
import grpc.aio  # type: ignore[import-untyped]
import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from serving.core.settings.http import HttpSettings
from tests.integration.proxy.peers import Link, get, settled
from tests.integration.proxy.test_http2 import SERVICE, Chain
from tests.integration.proxy.test_proxy_streams import HELD_MAX
from tests.integration.tls_stage import AUTHORITY, client_context, tls_proxied

FLOOD = 48 * 1024 * 1024


async def tls_link(address: tuple[str, int]) -> Link:
    return Link(*await asyncio.open_connection(*address, ssl=client_context("http/1.1"), server_hostname="h"))


@pytest.mark.parametrize("is_http2", [True, False])
async def test_httpx_speaks_either_version(is_http2: bool) -> None:
    async with tls_proxied() as (proxy, _):
        host, port = proxy.address
        extensions = {"sni_hostname": "h"}
        async with httpx.AsyncClient(http2=is_http2, verify=client_context(), trust_env=False) as client:
            url = f"https://{host}:{port}/x"
            responses = await asyncio.gather(
                *[client.get(url, headers={"Host": "h"}, extensions=extensions) for _ in range(20)]
            )
        assert {response.status_code for response in responses} == {200}
        assert {response.http_version for response in responses} == {"HTTP/2" if is_http2 else "HTTP/1.1"}
        assert all("X-Forwarded-Proto: https" in response.text for response in responses)


@pytest.mark.parametrize("version", ["2", "1.1"])
async def test_curl_is_answered(version: str, tmp_path: Path) -> None:
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with tls_proxied() as (proxy, _):
        host, port = proxy.address
        curl = await asyncio.create_subprocess_exec(
            *("curl", "-sS", "--max-time", "60", f"--http{version}", "--cacert", str(tmp_path / "ca.pem")),
            *("--resolve", f"h:{port}:{host}", "-w", "HTTP/%{http_version}", f"https://h:{port}/x"),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await curl.communicate()
    assert output.startswith(b"GET /x HTTP/1.1\r\n")
    assert output.endswith(f"HTTP/{version}".encode())


async def test_a_websocket_passes() -> None:
    async def echo(socket: ServerConnection) -> None:
        async for message in socket:
            await socket.send(message)

    async with tls_proxied() as (proxy, _), serve(echo, "127.0.0.1", 0) as upstream:
        proxy.handler.address = next(iter(upstream.sockets)).getsockname()
        host, port = proxy.address
        where = connect(f"wss://{host}:{port}/chat", ssl=client_context(), server_hostname="h", proxy=None)
        async with where as socket:
            for message in ("hello", b"\x00" * 200_000):
                await socket.send(message)
                assert await socket.recv() == message


async def test_grpc_calls_pass() -> None:
    async with Chain() as chain, tls_proxied() as (proxy, _):
        proxy.handler.address = chain.address
        host, port = proxy.address
        credentials = grpc.ssl_channel_credentials(AUTHORITY.cert_pem.bytes())
        options = (("grpc.ssl_target_name_override", "h"),)
        async with grpc.aio.secure_channel(f"{host}:{port}", credentials, options) as channel:
            assert await channel.unary_unary(f"/{SERVICE}/Unary")(b"hello", timeout=60) == b"hello"


async def test_a_client_that_does_not_read_stops_the_upstream_and_then_gets_all() -> None:
    written = 0

    async def script(link: Link) -> None:
        nonlocal written
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % FLOOD)
        piece = bytes(65536)
        while written < FLOOD:
            link.send(piece)
            await link.writer.drain()
            written += len(piece)
        await link.rest()

    async with tls_proxied(script) as (proxy, _):
        client = await tls_link(proxy.address)
        client.send(get())
        await client.head()
        client.pause()
        await settled(lambda: written)
        assert written < HELD_MAX
        client.resume()
        got = 0
        while got < FLOOD:
            got += len(await client.body(min(1 << 20, FLOOD - got)))
        await client.closed()


async def test_an_upstream_that_does_not_read_stops_the_client() -> None:
    go = asyncio.Event()

    async def script(link: Link) -> None:
        await link.head()
        link.pause()
        await go.wait()
        link.resume()
        got = 0
        while got < FLOOD:
            got += len(await link.reader.read(1 << 20))
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
        await link.rest()

    async with tls_proxied(script) as (proxy, _):
        client = await tls_link(proxy.address)
        client.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % FLOOD)
        sent = 0

        async def send() -> None:
            nonlocal sent
            while sent < FLOOD:
                client.send(bytes(65536))
                await client.writer.drain()
                sent += 65536

        sending = asyncio.create_task(send())
        await settled(lambda: sent)
        assert sent < HELD_MAX
        go.set()
        await sending
        assert (await client.message())[1] == b"abc"
        await client.closed()


async def test_a_waiting_request_reads_no_more_of_its_body_than_set() -> None:
    async with tls_proxied(settings=HttpSettings(body_held_bytes_max=65_536)) as (proxy, _):
        handler = proxy.handler
        handler.begin = handler.begun.append  # type: ignore[method-assign, assignment]
        client = await tls_link(proxy.address)
        client.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % FLOOD)
        client.send(bytes(8 * 1024 * 1024))
        await settled(lambda: handler.begun[0].weight_bytes if handler.begun else 0)
        assert 65_536 <= handler.begun[0].weight_bytes < 512 * 1024
        handler.begun[0].respond(503)
        assert (await client.message())[0].startswith(b"HTTP/1.1 503 ")
        await client.closed()
